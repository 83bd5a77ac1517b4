"""What fuzzers began with and what they found goes through every promise again, in seconds and without a fuzzer."""

from __future__ import annotations

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

CORPUS = sorted(path for path in (FOLDER / "corpus").rglob("*") if path.is_file())
MAX_CORPUS_BYTES = 100 << 10
# The slowest takes 0.3 s; a busy machine may need longer.
MAX_SECONDS = 20.0
LOG = """#2\tINITED cov: 40 ft: 41 corp: 1/1b exec/s: 0 rss: 50Mb
#900\tNEW    cov: 57 ft: 80 corp: 9/99b lim: 4 exec/s: 450 rss: 51Mb L: 4/4 MS: 1 CopyPart-
stat::number_of_executed_units: 1234
"""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A hang is an error here and not the end of all tests."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_promise_is_kept(path: Path) -> None:
    """As it is, cut in half, and with a byte turned: a result that holds, or the parser's own error, and soon."""
    one, data = target(path.parent.name), path.read_bytes()
    middle = len(data) // 2
    turned = data[:middle] + bytes([data[middle] ^ 0x80]) + data[middle + 1 :] if data else b"\x80"

    with within(MAX_SECONDS):
        for given in (data, data[:middle], turned):
            one.check(given)


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_seeds_and_takes_nothing_at_all(name: str) -> None:
    """A target without seeds finds only what is shallow."""
    one = target(name)

    one.check(b"")

    assert list(one.seeds.iterdir())
    assert max(path.stat().st_size for path in one.seeds.iterdir()) <= 2 * one.max_bytes


def test_the_corpus_stays_small() -> None:
    """It is in the repository; and every folder of it belongs to a target."""
    assert sum(path.stat().st_size for path in CORPUS) <= MAX_CORPUS_BYTES
    assert {path.parent.name for path in CORPUS} == set(NAMES)


@pytest.mark.parametrize("lie", [float("nan"), float("inf"), -1, [{"a": (3, -0.5)}]])
def test_no_lie_passes_as_a_figure(lie: object) -> None:
    """However deep it lies in a result."""
    with pytest.raises(AssertionError):
        are_valid({"good": 1, "bad": lie})


def test_a_figure_that_nobody_said_is_told() -> None:
    """Sums, beginnings of longer numbers, and units that do not exist."""
    are_in_input([12, 12 << 10, 7], b"a 12 kB, b 007")

    for made_up in (1, 19, 12_000):
        with pytest.raises(AssertionError):
            are_in_input(made_up, b"a 12 kB, b 007")


def test_a_log_becomes_a_row_and_the_table_keeps_the_newest_full_run(tmp_path: Path) -> None:
    """A short run replaces no full one unless it found something; the page is read back as it was written."""
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


def test_a_target_that_does_not_exist_is_named() -> None:
    """With those that do."""
    command = [sys.executable, "-m", "fuzz.run", "--seconds", "1", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent, check=False)

    assert done.returncode == 2
    assert "no such target: nonsense; use some of alertstate, amdsmi," in done.stderr
