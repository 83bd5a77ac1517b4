"""Test start and stop of the profiler, and its files: CSV for a spreadsheet, and the plot of the HTML page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import pytest

from memwatch.core.model import Absent, Bytes
from memwatch.library.peaks import Sample
from memwatch.library.profiler import MemoryProfiler, as_csv, as_html

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


def test_profiler_keeps_the_newest_100_000_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwatch.library.profiler.counters.observe", lambda: sample(3))
    profiler = MemoryProfiler(3600)
    profiler._samples.extend([("oldest", sample(1)), *[("start", sample(2))] * 99_998])

    profiler.peak("start")
    full = profiler.report().samples
    profiler.peak("start")
    later = profiler.report().samples

    assert (len(full), full[0][0], full[-1]) == (100_000, "oldest", ("start", sample(3)))
    assert (len(later), later[0][0], later[-2:]) == (100_000, "start", (("start", sample(3)),) * 2)


class Sampler:
    """Sampler that only counts. `running`: those that were started and not stopped."""

    running = 0

    def __init__(self, *_: object) -> None: ...

    def start(self) -> None:
        Sampler.running += 1

    def stop(self) -> None:
        Sampler.running -= 1


def test_profiler_stops_its_sampler_once_and_can_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one last sample. A second stop, and one before the start, do nothing."""
    monkeypatch.setattr("memwatch.library.profiler.PeriodicSampler", Sampler)
    monkeypatch.setattr("memwatch.library.profiler.counters.open", lambda _exact: (None, sample(1)))
    monkeypatch.setattr("memwatch.library.profiler.counters.observe", lambda: sample(2))
    monkeypatch.setattr("memwatch.library.profiler.reporter.renew", lambda: None)
    profiler = MemoryProfiler(3600)
    steps = (profiler.stop, profiler.start, profiler.start, profiler.stop, profiler.stop, profiler.start)

    found = []
    for step in steps:
        step()
        found.append((Sampler.running, [one.rss_bytes for _, one in profiler.report().samples]))

    assert found == [(0, []), (1, [1]), (1, [1]), (0, [1, 2]), (0, [1, 2]), (1, [1, 2, 1])]
