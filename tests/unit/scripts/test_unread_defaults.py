"""No parser or collector takes a figure that was not read for 0: each default has a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.unread_defaults import find_defaults, is_default, read_table


def test_every_default_of_a_reader_has_a_reason() -> None:
    table = read_table()

    found = find_defaults()

    assert len(found) > 30
    assert {place: count for place, count in found.items() if place not in table} == {}, (
        "return Absent or None in place of 0; if the default stands for no unread figure, add its reason to "
        "tests/unread_defaults.toml"
    )
    assert dict(found) == {place: count for place, (count, _) in table.items()}
    assert all(why for _, why in table.values())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("kib.get('MemFree', 0)", True),
        ("names.get(key, '')", True),
        ("names.get(key, [])", True),
        ("names.get(key, ())", True),
        ("names.get(key, {})", True),
        ("names.get(key, b'')", True),
        ("map(kib.get, keys, zeros)", True),
        ("map(kib.get, keys)", False),
        ("map(add, keys, zeros)", False),
        ("size or 0", True),
        ("size or other", False),
        ("names.get(key)", False),
        ("names.get(key, None)", False),
        ("names.get(key, False)", False),
        ("kib.get(key, 1)", False),
    ],
)
def test_default_of_an_expression_is_recognized(source: str, expected: bool) -> None:
    assert is_default(ast.parse(source, mode="eval").body) is expected


@pytest.mark.parametrize(
    ("kind", "value", "count"),
    [
        ("OSError", "0", 1),
        ("(OSError, ValueError)", "[]", 1),
        ("KeyError", "''", 1),
        ("OSError", "None", 0),
        ("OSError", "Absent.NOT_AVAILABLE", 0),
        ("ImportError", "[]", 0),
    ],
)
def test_value_after_an_error_is_recognized(kind: str, value: str, count: int, tmp_path: Path) -> None:
    file = tmp_path / "daemon/memwatch/core/linux/new.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"def read():\n    try:\n        return open('x')\n    except {kind}:\n        return {value}\n"
    )

    assert sum(find_defaults(tmp_path).values()) == count
