"""Test that an odd field of a model server costs only the figures that follow from it.

The tables are in `support.engine_fields`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from memwatch.core.engines.kinds import KIND_BY_NAME
from memwatch.core.model import Absent
from support.answer_corruption import corrupt
from support.engine_fields import DEPENDENT, LONG, TEXTS, asked, corrupted, findings, read
from support.field_law import is_known, read_undetected


def marked(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.long if name in LONG else ())


@pytest.mark.parametrize("name", [marked(name) for name in TEXTS])
def test_corrupted_field_changes_only_what_depends_on_it(name: str) -> None:
    """Every field of every text: zero, doubled, wrapped, huge, negative, missing, repeated, null, no number.

    What a figure follows without a mark is known.
    """
    known = read_undetected()
    assert len(corrupted(name)) > 10
    assert [one for one in findings(name) if one.complaint or not is_known(one, known)] == []


@pytest.mark.parametrize("name", [marked(name) for name in TEXTS])
def test_field_that_is_not_known_makes_no_figure_zero(name: str) -> None:
    """Nor a server asleep, nor a count smaller by what is missing to it without a word."""
    sound = read(name, asked(TEXTS[name][1]))
    for path, field, how, found in corrupted(name):
        if how not in ("missing", "null", "no number"):
            continue
        for one in ("weights_bytes", "kv_cache_bytes", "context_tokens", "requests_running", "sleeping"):
            was, now = sound[one], found[one]
            assert was == now or isinstance(now, Absent) or now not in (0, True), f"{path} {field} {how}: {one}"


def test_every_text_of_the_tests_is_covered() -> None:
    """A new engine has a text, and a text has its table."""
    assert {case[0] for case in TEXTS.values()} == set(KIND_BY_NAME) == set(DEPENDENT)
    for kind, answers, _, _ in TEXTS.values():
        assert asked(answers).keys() <= DEPENDENT[kind].keys()
        known = {one.path for one in KIND_BY_NAME[kind].requests if one.asked != "never"}
        assert known == DEPENDENT[kind].keys()


def test_dependencies_are_real() -> None:
    """Each field of the tables changes a figure in one of the texts: a table that allows all would find nothing."""
    missing = {
        (kind, path, field)
        for kind, paths in DEPENDENT.items()
        for path, fields in paths.items()
        for field in fields
    }
    for name in TEXTS.keys() - LONG:
        sound = read(name, asked(TEXTS[name][1]))
        for path, field, _, found in corrupted(name):
            if found != sound:
                missing.discard((TEXTS[name][0], path, field))
    assert missing <= {("llama.cpp", "/props", "role"), ("llama.cpp", "/metrics", "llamacpp:kv_cache_usage_ratio")}


def test_corruptions_reach_nested_fields() -> None:
    body = json.dumps({"data": [{"id": "x", "meta": {"size": 5}}]}).encode()
    found = {(field, how) for field, how, _ in corrupt(body)}
    assert {
        ("data.meta.size", "wrapped"),
        ("data", "repeated"),
        ("data.id", "null"),
        ("data.meta", "missing"),
    } <= found
