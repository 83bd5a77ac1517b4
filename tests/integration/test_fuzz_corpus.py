"""Seeds and findings of the fuzzers, checked again without a fuzzer."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from fuzz.oracle import are_in_input, are_valid
from fuzz.run import Outcome, keep, outcome_of
from fuzz.table import Row, rows_in, written
from fuzz.targets import FOLDER, NAMES, target
from support.paths import ROOT

CORPUS = sorted(path for path in (FOLDER / "corpus").rglob("*") if path.is_file())
FUZZED = ROOT / "docs/quality/fuzz.md"
MAX_CORPUS_BYTES = 120 << 10
# Of processor time, which other programs do not take. The slowest takes 0.3 s.
MAX_SECONDS = 20.0
LOG = """#2\tINITED cov: 40 ft: 41 corp: 1/1b exec/s: 0 rss: 50Mb
#900\tNEW    cov: 57 ft: 80 corp: 9/99b lim: 4 exec/s: 450 rss: 51Mb L: 4/4 MS: 1 CopyPart-
stat::number_of_executed_units: 1234
"""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after this processor time. Waits have the limit of any test (`support.deadline`)."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_corpus_input_keeps_every_promise(path: Path) -> None:
    """The input, its first half, and with one bit flipped: a valid result or the parser's own error, in time."""
    one, data = target(path.parent.name), path.read_bytes()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 0x80]) + data[middle + 1 :] if data else b"\x80"

    with within(MAX_SECONDS):
        for content in (data, data[:middle], changed):
            one.check(content)


def test_input_that_takes_too_long_is_found() -> None:
    with pytest.raises(TimeoutError), within(0.05):
        any(one < 0 for one in itertools.count())


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_seeds_and_accepts_empty_input(name: str) -> None:
    """A target without seeds finds only shallow errors."""
    one = target(name)

    one.check(b"")

    assert list(one.seeds.iterdir())
    assert max(path.stat().st_size for path in one.seeds.iterdir()) <= 2 * one.max_bytes


def test_corpus_is_small_and_belongs_to_targets() -> None:
    """The corpus is part of the repository."""
    assert sum(path.stat().st_size for path in CORPUS) <= MAX_CORPUS_BYTES
    assert {path.parent.name for path in CORPUS} == set(NAMES)


@pytest.mark.parametrize("invalid", [float("nan"), float("inf"), -1, [{"a": (3, -0.5)}]])
def test_invalid_value_is_found_at_any_depth(invalid: object) -> None:
    with pytest.raises(AssertionError):
        are_valid({"good": 1, "bad": invalid})


def test_value_missing_from_the_input_is_found() -> None:
    """Sums, prefixes of longer numbers, and wrong units."""
    are_in_input([12, 12 << 10, 7], b"a 12 kB, b 007")

    for made_up in (1, 19, 12_000):
        with pytest.raises(AssertionError):
            are_in_input(made_up, b"a 12 kB, b 007")


def test_table_keeps_the_newest_full_run(tmp_path: Path) -> None:
    """A short run replaces a full one only if it found something. The page can be parsed again."""
    page = tmp_path / "fuzz.md"
    outcome = outcome_of("psi", 600, LOG)
    keep(outcome, page)
    keep(Outcome("psi", 5, 7, 7, ()), page)
    keep(outcome_of("kmsg", 5, LOG + "artifact_prefix='a/'; Test unit written to a/crash-1\n"), page)

    kmsg, psi = rows_in(page.read_text())

    assert (outcome.executions, outcome.coverage) == (1234, 57)
    assert (psi.seconds, psi.executions, psi.edges, psi.finds) == (600, 1234, 57, 0)
    assert (kmsg.name, kmsg.finds) == ("kmsg", 1)
    assert written([kmsg, psi]) == page.read_text()
    assert rows_in(written([psi, Row("psi", 1, 1, 1, 1, "2026-01-01")]))[0].finds == 1
    assert rows_in(written([Row("psi", 640, 9, 9, 0, "2026-01-01"), psi])) == [psi]


def test_run_keeps_the_text_below_the_table(tmp_path: Path) -> None:
    """It has measurements that no fuzzer makes. A page without a table is refused."""
    page, before = tmp_path / "fuzz.md", FUZZED.read_text()
    page.write_text(before)
    keep(Outcome("psi", 5, 7, 7, ()), page)

    assert "## Corrupted and random machines" in before
    assert page.read_text() == before
    with pytest.raises(ValueError, match="has no table"):
        written([], "# Fuzzing\n\nNotes.\n")


def test_unknown_target_is_named_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "fuzz.run", "--seconds", "1", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent, check=False)

    assert done.returncode == 2
    assert "no such target: nonsense; use some of alertstate, amdsmi," in done.stderr
