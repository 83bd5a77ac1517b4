"""Test that a list with an upper length says what it leaves out."""

from __future__ import annotations

from memwatch.core.listing import first_of, some_of


def test_names_beyond_the_limit_are_counted() -> None:
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert some_of(["a"], 2, others=3) == "a and 3 more"
    assert some_of([], 2) == ""


def test_lines_beyond_the_limit_are_counted_in_the_last_one() -> None:
    assert first_of(["a", "b"], 2, "reasons") == ("a", "b")
    assert first_of(["a", "b", "c", "d"], 2, "reasons") == ("a", "3 more reasons")
