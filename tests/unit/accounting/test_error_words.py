"""Kinds of driver errors in words, with the meanings of NVIDIA's XIDs."""

from __future__ import annotations

import re

import pytest

from memwatch.core.accounting.driver_errors import XIDS, describe_kind

# Every XID that a data centre or consumer GPU of today is documented to report.
DOCUMENTED = [13, 31, 32, 43, 45, 48, 56, 57, 58, 61, 62, 63, 64, 65, 68, 69, 74, 79, 92, 93, 94, 95, 109, 110]
DOCUMENTED += [119, 120, 121, 122, 123, 124, 140, 143, *range(144, 151), 154, *range(156, 159), 171, 172]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("xid_79", "XID 79: GPU has fallen off the bus"),
        ("xid_48", "XID 48: uncorrectable ECC error (double bit)"),
        ("xid_999", "XID 999"),
        ("xid_", "XID "),
        ("page_fault", "a page fault of a GPU program"),
        ("no_memory", "not enough memory for a command or a buffer"),
    ],
)
def test_kind_is_described(kind: str, words: str) -> None:
    assert describe_kind(kind) == words


def test_documented_xid_has_a_meaning() -> None:
    assert [code for code in DOCUMENTED if not XIDS.get(code)] == []


def test_meanings_are_short_and_fit_into_a_sentence() -> None:
    """They follow "XID 79: ", in events, on pages and in alerts."""
    assert all(len(words) <= 75 and not re.search(r"[.;:]$", words) for words in XIDS.values())
