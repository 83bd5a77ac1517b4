"""Test start and stop of the profiler, and its files: CSV for a spreadsheet, and the plot of the HTML page."""

from __future__ import annotations

import csv
import io
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from memwatch.core.model import Absent, Bytes
from memwatch.library import peaks, profiler
from memwatch.library.daemon_client import Daemon
from memwatch.library.host import Host
from memwatch.library.peaks import Sample
from memwatch.library.profiler import MemoryProfiler, as_csv, as_html
from memwatch.library.reporter import Reporter
from support.sample_parts import GIB
from support.waiting import wait_until

UNKNOWN = Absent.NOT_AVAILABLE


def sample(resident: Bytes, allocated: Bytes = UNKNOWN) -> Sample:
    return Sample(0.0, UNKNOWN, UNKNOWN, resident, allocated, UNKNOWN, UNKNOWN)


def plot(*samples: Sample) -> str:
    return as_html(0.5, (), [("start", one) for one in samples])


def lines_of(page: str) -> list[list[tuple[float, float]]]:
    """Return the points of each line."""
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in points.split())]
        for points in re.findall(r'<polyline [^>]*points="([^"]*)"', page)
    ]


def frame_of(page: str) -> Sequence[int]:
    """Return the left, upper, right and lower edges of the plot."""
    found = re.search(r'viewBox="(\S+) (\S+) (\S+) (\S+)"', page)
    assert found
    left, upper, width, height = map(int, found.groups())
    return left, upper, left + width, upper + height


def read_csv(stage: str) -> list[list[str]]:
    """Return the rows of a profile with one sample, as a spreadsheet reads them."""
    return list(csv.reader(io.StringIO(as_csv(0.5, (), [(stage, sample(1))]), newline="")))


@pytest.mark.parametrize("first", "=+-@\t")
def test_stage_that_a_spreadsheet_would_run_gets_a_quote(first: str) -> None:
    _, row = read_csv(f"{first}SUM(A1)")

    assert row[0] == f"'{first}SUM(A1)"


@pytest.mark.parametrize(
    ("stage", "expected"), [("\r=SUM(A1)", "'\n=SUM(A1)"), ("decode\r=SUM(A1)", "decode\n=SUM(A1)")]
)
def test_carriage_return_in_a_stage_begins_no_row(stage: str, expected: str) -> None:
    """The row would begin with a formula."""
    _, row = read_csv(stage)

    assert row[0] == expected


@pytest.mark.parametrize("stage", ["decode", "a=b", "'quoted", "two\nlines", ""])
def test_other_stages_are_exported_as_they_are(stage: str) -> None:
    header, row = read_csv(stage)

    assert dict(zip(header, row, strict=True)) == {
        **dict.fromkeys(header, ""),
        "stage": stage,
        "unix": "0.0",
        "rss_bytes": "1",
    }


def test_line_reaches_from_edge_to_edge() -> None:
    """The maximum is at the top, 0 at the bottom, each as far from the edge. The plot is wider than tall."""
    page = plot(sample(0), sample(50), sample(100))
    left, upper, right, lower = frame_of(page)
    ((first, middle, last),) = lines_of(page)

    assert (first[0], middle[0], last[0]) == (left, (left + right) / 2, right)
    assert first[1] > middle[1] > last[1] == 0
    assert last[1] - upper == lower - first[1] > 0
    assert middle[1] == (first[1] + last[1]) / 2
    assert 2 < (right - left) / (lower - upper) < 4


def test_unknown_values_are_left_out_of_their_line() -> None:
    """The points before and after keep their place, and a line of unknown values only is not drawn."""
    page = plot(sample(40, UNKNOWN), sample(UNKNOWN, 20), sample(80, 20))
    _, _, right, _ = frame_of(page)

    resident, allocated = lines_of(page)

    assert [at for at, _ in resident] == [0, right]
    assert [at for at, _ in allocated] == [right / 2, right]
    assert "maximum of the plot: 80 B" in page
    assert all((words in page) is drawn for words, drawn in (("> resident set", True), ("> reserved by", False)))


@pytest.mark.parametrize("samples", [[], [sample(UNKNOWN)]], ids=["no samples", "unknown"])
def test_profile_without_values_is_a_page_without_lines(samples: list[Sample]) -> None:
    page = plot(*samples)

    assert f"{len(samples)} samples" in page
    assert lines_of(page) == []


@pytest.mark.parametrize("resident", [0, 5])
def test_single_sample_is_a_single_point(resident: int) -> None:
    assert [len(points) for points in lines_of(plot(sample(resident)))] == [1]


@pytest.mark.parametrize(
    ("count", "points"), [(1999, 1999), (2000, 2000), (2001, 1001), (4000, 2000), (4001, 1334)]
)
def test_long_profile_has_at_most_2000_points_and_keeps_its_maximum(count: int, points: int) -> None:
    """Each point is the maximum of a few samples, so that none hides a short peak."""
    samples = [sample(10)] * count
    samples[count // 2] = sample(1000)

    ((*found,),) = lines_of(plot(*samples))

    assert len(found) == points
    assert [y for _, y in found].count(0) == 1


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the used memory of a machine of 8 GiB, which all counters then read.

    Its daemon has not answered, so that nothing is reported.
    """
    meminfo, silent = tmp_path / "meminfo", Daemon(f"unix:{tmp_path}/none")
    silent.rest()
    monkeypatch.setattr(peaks, "host", Host(tmp_path))
    monkeypatch.setattr(profiler, "reporter", Reporter(silent))

    def use(used_bytes: int) -> None:
        left = (8 * GIB - used_bytes) >> 10
        meminfo.write_text(f"MemTotal: {8 * GIB >> 10} kB\nMemFree: {left} kB\nMemAvailable: {left} kB\n")

    return use


def used_gib(samples: Iterable[tuple[str, Sample]]) -> list[int]:
    return [used >> 30 for used in (one.pool_used_bytes for _, one in samples) if isinstance(used, int)]


def test_profiler_keeps_the_newest_100_000_samples(use: Callable[[int], None]) -> None:
    profile = MemoryProfiler(3600)
    profile._samples.extend([("oldest", sample(1)), *[("start", sample(2))] * 99_998])

    use(3 * GIB)
    profile.peak("start")
    full = profile.report().samples
    use(4 * GIB)
    profile.peak("start")
    later = profile.report().samples

    assert (len(full), full[0][0], used_gib(full)) == (100_000, "oldest", [3])
    assert (len(later), later[0][0], used_gib(later)) == (100_000, "start", [3, 4])
    assert [stage for stage, _ in later[-2:]] == ["start", "start"]


def test_profiler_stops_its_sampler_once_and_can_resume(use: Callable[[int], None]) -> None:
    """With one last sample. A second stop, and one before the start, do nothing."""
    others = {*threading.enumerate()}

    def has_samplers(count: int) -> bool:
        mine = {*threading.enumerate()} - others
        return sum(thread.name == "memwatch-sampling" for thread in mine) == count

    profile = MemoryProfiler(3600)
    steps = [
        (profile.stop, 0, []),
        (profile.start, 1, [2]),
        (profile.start, 1, [2]),
        (profile.stop, 0, [2, 4]),
        (profile.stop, 0, [2, 4]),
        (profile.start, 1, [2, 4, 6]),
        (profile.stop, 0, [2, 4, 6, 7]),
    ]
    for number, (step, running, samples) in enumerate(steps, 1):
        use(number * GIB)
        step()
        wait_until(partial(has_samplers, running))

        assert used_gib(profile.report().samples) == samples, number
