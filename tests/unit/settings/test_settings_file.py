"""Test that the shipped configuration file has every key with its default, and that lines are found in any file."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from memwatchd.settings.diff import describe_changes, find_effect, flat
from memwatchd.settings.schema import Sections
from memwatchd.settings.toml import line_numbers
from scripts.shipped_configuration import SHIPPED, render
from support.full_settings import full_text, uncommented
from support.settings_sample import settings_from, webhooks_of


def test_shipped_file_changes_no_default(tmp_path: Path) -> None:
    """The installed configuration file has only defaults."""
    settings = settings_from(tmp_path, SHIPPED.read_text())

    assert settings.origins == {}
    assert describe_changes(Sections(), settings) == ()


@pytest.mark.process
def test_shipped_file_has_every_key_with_its_default(tmp_path: Path) -> None:
    """Every setting is in the shipped file with its default value, and no other key is."""
    settings = settings_from(tmp_path, full_text(tmp_path))

    keys = {".".join(path) for path, _ in flat(settings)}
    assert keys == set(settings.origins)
    values = dict(flat(settings))
    assert {path for path, default in flat(Sections()) if values.get(path) != default} == {
        ("web", "url"),
        ("web", "auth", "bearer_token"),
        ("web", "tls", "cert_file"),
        ("web", "tls", "key_file"),
        ("web", "tls", "client_ca_file"),
        ("state", "dir"),
        ("replay", "demo"),
        ("replay", "at"),
        ("replay", "file"),
        ("recording", "file"),
        ("alerts", "instance"),
        ("alerts", "proxy"),
        ("alerts", "listener_user"),
        ("alerts", "webhooks"),
        ("alerts", "alertmanagers"),
        ("alerts", "apprise"),
        ("neighbours",),
        ("otlp", "endpoint"),
        ("otlp", "ca_file"),
        ("otlp", "user"),
        ("collectors", "containers", "socket"),
        ("engines",),
    }
    assert webhooks_of(settings)[0].timeout == timedelta(seconds=15)
    assert settings.pressure.percents_for("ram") == settings.pressure.percents_for("")


def test_shipped_file_is_that_of_the_declarations() -> None:
    """Sections, defaults and comments are those of the settings; `make reference` writes them."""
    assert SHIPPED.read_text() == render()


def test_shipped_file_marks_the_keys_that_need_a_restart() -> None:
    """The comment above a key or its section has "Restart." where a reload does not apply the key."""
    section: tuple[str, ...] = ()
    remarks: dict[tuple[str, ...], str] = {}
    comment = introduction = remark = ""
    for line in uncommented(SHIPPED.read_text()).splitlines():
        if header := re.fullmatch(r"\[+(.*?)\]+", line):
            section = tuple(header[1].split("."))
            remarks.setdefault(section[:1], introduction)
            remarks[section] = remarks.get(section, "") + comment
        elif key := re.match(r"(\w+) = ", line):
            remark, introduction = comment or remark, ""
            path = (*section, key[1])
            around = "".join(remarks.get(path[:end], "") for end in range(1, len(path)))
            assert ("Restart." in around + remark) == needs_start(path), path
        elif not line:
            introduction = comment or introduction
        comment = comment + line if line.startswith("#") else ""


def needs_start(path: tuple[str, ...]) -> bool:
    if path[0] == "neighbours":
        path = ("neighbours", "spark-2", path[1])
    in_list = path[0] == "alerts" and len(path) == 3
    where = (*path[:2], "operators", path[2]) if in_list else path
    effect = find_effect(("engines", "chat", path[1]) if path[0] == "engines" and len(path) == 2 else where)
    return effect.at == "start" or bool(effect.while_set)


def test_every_line_of_the_shipped_file_is_a_comment_a_key_or_a_table() -> None:
    """No key hides behind a # with a space, where the other tests would miss it."""
    for line in SHIPPED.read_text().splitlines():
        assert re.fullmatch(r"|# .*|#|#?\[.*\]|#[a-z_]+ = .+", line), line


def test_lines_are_found_for_every_way_to_write_a_key() -> None:
    """Dotted keys, quoted keys, tables and lists of tables all have their line."""
    text = 'a.b = 1\n[c] # x\n"d e" = 2\n\n[[f.g]]\nh = 3\n[[f.g]]\nh = 4\n[i."j.k"]\nl=[1,\n2]\n'

    lines = line_numbers(text)

    assert lines[("a", "b")] == 1
    assert lines[("c", "d e")] == 3
    assert lines[("f", "g", 0, "h")] == 6
    assert lines[("f", "g", 1, "h")] == 8
    assert lines[("i", "j.k", "l")] == 10


def test_multiline_text_that_looks_like_a_key_is_skipped() -> None:
    """The content of a multi-line string shifts no line and breaks nothing."""
    lines = line_numbers('a = """\nnot a key = 1\n[ = ]\n"""\nb = 2\n')

    assert (lines[("a",)], lines[("b",)]) == (1, 5)
