"""List of tests that were disturbed and passed alone."""

import datetime
import re

import pytest

from support.disturbed import (
    Entry,
    MalformedError,
    findings,
    parse,
    read_entries,
    seen_again,
    unexplained,
    warnings,
)
from support.paths import ROOT

TODAY = datetime.date(2026, 11, 27)
TEST = "tests/integration/test_x.py::test_a"
TEXTS = {"tests/integration/test_x.py": "def test_a(): pass\nclass TestB:\n    def test_c(self): pass"}


def entry(test: str = TEST, seen: int = 1, suspicion: str = "test", days: int = 0) -> Entry:
    return Entry(test, TODAY - datetime.timedelta(days), seen, suspicion, 'AssertionError: "no" \\ ü')


def test_printed_entries_can_be_read() -> None:
    entries = [entry(), entry(f"{TEST}[a\x7fb]", 3, "product")]

    assert parse("\n\n".join(map(str, entries))) == entries


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('suspicion = "test"', ""),
        ("seen = 1", 'seen = "1"'),
        ("seen = 1", "seen = 1\nreason = 2"),
        ("[[disturbed]]", "[[disturbd]]"),
        ("date = 2026-11-27", "date = yesterday"),
    ],
)
def test_malformed_entry_is_refused(old: str, new: str) -> None:
    text = str(entry())
    assert old in text

    with pytest.raises(MalformedError):
        parse(text.replace(old, new))


def test_sound_entries_have_no_findings() -> None:
    entries = [entry(), entry("tests/integration/test_x.py::TestB::test_c[1]")]

    assert list(findings(entries, TEXTS)) == []


def test_ninth_entry_is_refused() -> None:
    names = [f"test_{n}" for n in range(9)]
    texts = {"tests/test_y.py": "\n".join(f"def {name}(): pass" for name in names)}
    entries = [entry(f"tests/test_y.py::{name}") for name in names]

    assert list(findings(entries[:8], texts)) == []
    assert [text.partition(":")[0] for text in findings(entries, texts)] == ["9 entries; at most 8"]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry("tests/integration/test_x.py::test_gone")], "no such test"),
        ([entry("tests/integration/test_gone.py::test_a")], "no such test"),
        ([entry(), entry()], "listed twice"),
        ([entry(seen=0)], "seen 0 times"),
        ([entry(suspicion="load")], "suspicion 'load'"),
    ],
)
def test_wrong_entry_is_refused(entries: list[Entry], words: str) -> None:
    (found,) = findings(entries, TEXTS)

    assert words in found


def test_entry_of_more_than_thirty_days_is_a_warning() -> None:
    assert list(warnings([entry(days=30)], TODAY)) == []
    assert "31 days" in next(warnings([entry(days=31)], TODAY))


def test_removed_entry_needs_its_cause_in_the_commit() -> None:
    (found,) = unexplained([entry()], [], "tests: wait for the event\n\nIt was disturbed by load.")

    assert f"`Disturbed: {TEST}: CAUSE`" in found


def test_removed_entry_with_a_cause_is_accepted() -> None:
    message = f"tests: wait for the event\n\nWhy.\n\nDisturbed: {TEST}: 20 passes of make test-stress\n"

    assert list(unexplained([entry()], [], message)) == []
    assert list(unexplained([entry()], [], f"x\n\nDisturbed: {TEST}: ")) != []
    assert list(unexplained([entry()], [entry(seen=2)], "tests: add")) == []


def test_known_entry_is_seen_once_more() -> None:
    again = seen_again(TEST, "AssertionError: other", TODAY, [entry(seen=2, suspicion="product", days=9)])

    assert again == Entry(TEST, TODAY - datetime.timedelta(9), 3, "product", "AssertionError: other")


@pytest.mark.parametrize(
    ("line", "suspicion"),
    [
        ("AssertionError: after 60 s: not so", "test"),
        ("AssertionError: /api/v1/pools did not reach the expected state; last answer:", "test"),
        ("TimeoutError: Timeout 30000ms exceeded", "test"),
        ("assert 1 == 2", "product"),
    ],
)
def test_failed_wait_is_first_blamed_on_the_test(line: str, suspicion: str) -> None:
    assert seen_again(TEST, line, TODAY, []) == Entry(TEST, TODAY, 1, suspicion, line)


def test_example_of_the_file_can_be_read() -> None:
    text = (ROOT / "tests/disturbed.toml").read_text()
    example = re.sub(r"^# ?", "", text[text.index("# [[disturbed]]") :], flags=re.MULTILINE)

    assert len(parse(example)) == len(read_entries(ROOT)) + 1
