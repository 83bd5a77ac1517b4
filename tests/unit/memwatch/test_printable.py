"""Names and texts from outside are escaped where they are read."""

from __future__ import annotations

import errno
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.printable import decode, describe_error, printable, printable_lines, printable_parts
from support.hostile_names import HOSTILE, find_controls


def test_control_and_bidi_characters_are_escaped() -> None:
    assert printable("ok\u202egnp.exe\x1b[31m") == "ok\\u202egnp.exe\\u001b[31m"
    assert printable("Jörg’s ☕ 進程 🦙") == "Jörg’s ☕ 進程 🦙"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\r", "a\\u000ab\\u0009c\\u000d"),
        ("\x7f\x9b31m", "\\u007f\\u009b31m"),
        ("\u2066\u2069\u2028\u2029", "\\u2066\\u2069\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_character_is_shown_by_its_number(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    """No control, format or surrogate character is left, and an escaped text stays as it is."""
    shown = printable(text)

    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown)
    assert not find_controls(shown.encode())
    assert printable(shown) == shown


@given(st.binary(max_size=50))
def test_any_bytes_become_one_printable_line(data: bytes) -> None:
    assert not find_controls(decode(data).encode(), allowed="")


def test_lines_of_our_own_are_kept() -> None:
    assert printable_lines("one\ntwo\x1b") == "one\ntwo\\u001b"


def test_texts_and_keys_in_json_are_escaped() -> None:
    shown = printable_parts({HOSTILE: [HOSTILE, 1, None, {"a": HOSTILE}]})

    assert not find_controls(repr(shown).encode(), allowed="")
    assert shown == {printable(HOSTILE): [printable(HOSTILE), 1, None, {"a": printable(HOSTILE)}]}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on device"),
        (OSError("Cut short"), "cut short"),
        (ValueError("Not a number"), "not a number"),
        (TimeoutError(), "timeouterror"),
    ],
)
def test_error_is_described_by_the_system_its_text_or_its_type(error: Exception, words: str) -> None:
    assert describe_error(error) == words
