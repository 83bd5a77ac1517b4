"""Page of one process: its past, gaps, its end, and a reused process id."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Process
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.core.snapshot import Snapshot
from memwatch_web.pages.processes import ProcessView, build_process_view
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.server_charts import draw_sizes, round_up
from support.html_reader import Reader
from support.sample_snapshots import critical_gb10, hostile_names

GIB = 1 << 30
RULES = LeakRules(3600.0, 64 << 20)
# Unix time minus boot time of the samples.
SHIFT = critical_gb10().unix - 5000.0


def process(pid: int = 41, start_time: float = 1.0) -> Process:
    return Process(pid, start_time, "train.py", 5 * GIB, 5 * GIB, "rss")


def grown(sizes: dict[float, int], one: Process) -> GrowthTracker:
    """Return a tracker that saw these sizes (GiB) at these boot times."""
    growth = GrowthTracker()
    for boottime, size in sizes.items():
        growth.add(boottime, [replace(one, footprint_bytes=size * GIB)], RULES)
    return growth


def view(snapshot: Snapshot, growth: GrowthTracker, pid: int = 41) -> ProcessView | None:
    return build_process_view(snapshot, growth, pid, SHIFT, (667, 0))


def with_process(one: Process) -> Snapshot:
    return replace(critical_gb10(), processes=(one,))


def test_past_has_each_minute_of_the_hour_and_then_each_ten_seconds() -> None:
    growth = grown({4000.0 + 10 * step: step for step in range(100)}, process())

    past = growth.find(41)

    assert past is not None
    assert [at for at, _ in past.sizes] == [4000.0 + 60 * step for step in range(7)] + [
        4390.0 + 10 * step for step in range(61)
    ]


def test_listed_process_ends_with_the_present_figure() -> None:
    found = view(with_process(process()), grown({4980.0: 3, 4990.0: 4}, process()))

    assert found is not None
    assert not found.ended
    assert found.chart is not None
    assert (found.chart.least_bytes, found.chart.most_bytes) == (3 * GIB, 5 * GIB)
    assert found.chart.end_unix == critical_gb10().unix
    assert found.oom_score == (667, 0)


def test_ended_process_keeps_its_last_figures() -> None:
    found = view(with_process(process(7)), grown({4900.0: 3, 4910.0: 4}, process()))

    assert found is not None
    assert found.ended
    assert found.last_unix == 4910.0 + SHIFT
    assert found.oom_score is Absent.NOT_AVAILABLE


def test_unknown_process_has_no_view() -> None:
    assert view(with_process(process(7)), GrowthTracker()) is None


def test_reused_id_is_the_later_process() -> None:
    growth = grown({4800.0: 60}, process(start_time=1.0))
    growth.add(4900.0, [replace(process(start_time=4850.0), footprint_bytes=2 * GIB)], RULES)

    past = growth.find(41)

    assert past is not None
    assert past.sizes == ((4900.0, 2 * GIB),)


def test_pause_is_a_gap() -> None:
    chart = draw_sizes([(0.0, 10), (60.0, 20), (600.0, 20), (660.0, 10)], 0.0)

    assert chart is not None
    assert chart.lines == ("0.0,137.5 90.9,75.0", "909.1,75.0 1000.0,137.5")
    assert len(chart.areas) == 2


def test_single_reading_has_no_chart() -> None:
    assert draw_sizes([(0.0, 10)], 0.0) is None


def test_upper_edge_is_a_round_size() -> None:
    assert [round_up(size) for size in (0, 1, 3, 1000, 1025, 5 * GIB, 69 * GIB, 128 * GIB)] == [
        1,
        1,
        4,
        1024,
        2048,
        8 * GIB,
        128 * GIB,
        128 * GIB,
    ]


def test_page_escapes_hostile_names_and_names_allocators() -> None:
    snapshot = hostile_names()
    pages = Pages()
    for one in snapshot.processes:
        found = pages.view_process(snapshot, one.pid, SHIFT, Absent.NOT_AVAILABLE)
        assert found is not None
        page = pages.process(snapshot, found).decode()

        assert "<script>alert" not in page
        assert 'href="../static/app.css"' in page
        assert f'hx-sse:connect="../live?page=process&amp;pid={one.pid}"' in page


def test_page_answers_who_where_and_what_stopping_frees() -> None:
    """Its place has the pool that contains it. The kernel's name stays where the title is a script."""
    snapshot, pages = critical_gb10(), Pages()
    pid = next(one.pid for one in snapshot.processes if one.device_bytes)
    found = pages.view_process(snapshot, pid, SHIFT, (667, 0))
    assert found is not None

    named = replace(found.process, script="serve.py", rank=3)
    page = Reader(pages.process(snapshot, replace(found, process=named)))

    assert "in CUDA Pool ⊂ System RAM" in page.text
    assert "rank 3" in page.text
    assert "Stopping it frees up to" in page.text
    assert "Name in the kernel" in page.text
    ended = Reader(pages.process(snapshot, replace(found, ended=True)))
    assert "Stopping it frees — " in ended.text


@pytest.mark.parametrize(("pid", "name"), [(1, "systemd"), (911, "sshd"), (912, "dbus-daemon")])
def test_page_never_advises_to_stop_what_the_machine_needs(pid: int, name: str) -> None:
    one = replace(process(), pid=pid, name=name)
    found = build_process_view(with_process(one), GrowthTracker(), pid, SHIFT, (0, 0))
    assert found is not None

    text = Reader(Pages().process(with_process(one), found)).text

    assert "Stopping it frees — must not be stopped" in text
    assert "up to" not in text[text.index("Stopping it frees") : text.index("Footprint =")]


def test_figures_that_are_absent_have_their_reason() -> None:
    """A recording lacks the same figures for one reason, also where its processes had none of their swap."""
    one = replace(process(), swap_bytes=Absent.NOT_SUPPORTED)
    recorded = replace(with_process(one), simulated=True)
    pages = Pages()
    listed = pages.view_process(recorded, 41, SHIFT, Absent.NOT_AVAILABLE)
    live = pages.view_process(with_process(one), 41, SHIFT, Absent.NOT_PERMITTED)
    ended = view(with_process(process(7)), grown({4900.0: 3, 4910.0: 4}, process()))
    assert listed is not None
    assert live is not None
    assert ended is not None

    text = Reader(pages.process(recorded, listed)).text
    assert "Swap — not recorded PSS (proportional set) — not recorded OOM score — not recorded" in text
    text = Reader(pages.process(with_process(one), live)).text
    assert "Swap — not supported PSS (proportional set) read now (JSON) OOM score — not permitted" in text
    text = Reader(pages.process(with_process(process(7)), ended)).text
    assert "PSS (proportional set) — ended OOM score — ended" in text
    assert "Stopping it frees — ended" in text


def test_stopping_a_process_frees_its_upper_bound_at_most() -> None:
    """The page said "up to 60.0 – 62.0 GiB"."""
    one = replace(process(), footprint_bytes=Absent.NOT_AVAILABLE, footprint_range=(60 * GIB, 62 * GIB))
    found = view(with_process(one), GrowthTracker())
    assert found is not None

    text = Reader(Pages().process(with_process(one), found)).text

    assert "Holds 60.0 – 62.0 GiB" in text
    assert "Stopping it frees up to 62.0 GiB" in text
