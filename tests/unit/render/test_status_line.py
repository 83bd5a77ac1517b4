"""The status line: the most urgent figure, the state after an incident, what fits, who grows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.kernel_log import OomKill
from memwatch.core.model import Absent
from memwatch.core.pressure import signals
from memwatch.core.pressure.judge import HeldSignal, LevelState, add_age, describe_hold
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.pressure.signals import Signal
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Level, Pressure, Reason, Snapshot, Swap
from memwatch.reporting.render.summary import build_sentence
from memwatch_monitor.render.status_line import (
    SIGNAL_WORDS,
    build_status_line,
    explain_room,
    find_room,
    rank_growers,
)
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.sample_parts import GIB, vram
from support.sample_snapshots import (
    calm_workstation,
    container_with_limit,
    critical_gb10,
    discrete_gpu,
    mig_server,
    unknown_figures,
)

KILL = OomKill(1, 51210, "train.py", 37 * GIB, "machine").text
MIB = 1 << 20
USED = "66.0% used"
MEDIUM_HELD = "medium clears after 30 s below 57%"


def held_reason(text: str, age: float, signal: str = "oom_kill") -> Reason:
    """Return a reason as `judge` writes it for a signal that is over."""
    held = HeldSignal(Signal(signal, Level.CRITICAL, text), 100.0 - age, 130.0)
    return Reason(signal, add_age(held, 100.0))


def with_verdict(
    base: Level,
    level: Level,
    *reasons: Reason,
    full: float | Absent = Absent.NOT_AVAILABLE,
    clears: float | Absent = Absent.NOT_AVAILABLE,
    to: Level | Absent = Absent.NOT_AVAILABLE,
) -> Snapshot:
    verdict = Pressure(
        "ram", level, base, 0.66, reasons, full, "system_ram", clears_in_seconds=clears, clears_to=to
    )
    return replace(critical_gb10(), pressure=(verdict,))


def test_critical_machine_shows_the_time_left() -> None:
    status = build_status_line(critical_gb10())

    assert (status.level, status.label, status.headline) == ("critical", "System RAM", "Full in ~40 s")
    assert status.details == ("some tasks stalled on memory for 12% of the last 10 s",)
    assert not status.recovering


def test_machine_at_ease_is_ok() -> None:
    status = build_status_line(calm_workstation())

    assert (status.level, status.headline, status.details) == ("low", "OK", ())


def test_level_held_after_an_oom_kill_is_recovering() -> None:
    """The victim is named, and once when the level clears; use alone would be OK."""
    status = build_status_line(
        with_verdict(Level.LOW, Level.CRITICAL, held_reason(KILL, 2), clears=28.4, to=Level.LOW)
    )

    assert (status.headline, status.recovering, status.clears) == ("Recovering", True, "OK in 28 s")
    assert (status.details, status.beside) == (("OK in 28 s", "OOM kill 2 s ago: train.py"), "")


def test_recovery_names_the_level_that_follows_and_what_holds_it() -> None:
    """At 58.4% it was "clears in 51 s", and medium after that."""
    held = Reason("util", f"58.4% used; calm for 9 s; {MEDIUM_HELD}", Level.CRITICAL)
    status = build_status_line(with_verdict(Level.LOW, Level.CRITICAL, held, clears=51.0, to=Level.MEDIUM))

    assert (status.clears, status.beside) == ("medium in 51 s", "OK after 30 s below 57%")
    assert status.details == ("medium in 51 s", "58.4% used", "OK after 30 s below 57%")


def test_snapshot_of_an_early_version_says_that_its_level_clears() -> None:
    status = build_status_line(with_verdict(Level.LOW, Level.CRITICAL, held_reason(KILL, 2), clears=28.4))

    assert status.clears == "critical clears in 28 s"


def test_oom_kill_without_a_name_is_recovering() -> None:
    status = build_status_line(
        with_verdict(Level.LOW, Level.CRITICAL, held_reason("OOM killer: killed a process", 56))
    )

    assert (status.details, status.clears) == (("OOM kill 56 s ago",), "")


@pytest.mark.parametrize(
    ("calm", "end"), [({}, ("high after 30 s below 92%",)), ({Level.CRITICAL: 88.0}, ())], ids=["near", "calm"]
)
def test_level_held_by_hysteresis_is_recovering(calm: dict[Level, float], end: tuple[str, ...]) -> None:
    """The text is that of `hysteresis.describe_hold`."""
    hold = describe_hold(
        LevelState(Level.CRITICAL, calm | {Level.HIGH: 88.0}), Level.MEDIUM, 100.0, "ram", PressureRules()
    )
    status = build_status_line(with_verdict(Level.MEDIUM, Level.CRITICAL, Reason("util", f"66.0% used; {hold}")))

    assert status.recovering
    assert status.details == ("66.0% used", *end)
    assert status.beside == "".join(end)


def test_signal_that_is_still_true_is_not_recovering() -> None:
    """Use is low, but tasks stall now."""
    stall = Reason("psi", "some tasks stalled on memory for 12% of the last 10 s")

    status = build_status_line(with_verdict(Level.LOW, Level.HIGH, stall))

    assert (status.headline, status.details) == ("Stalls at 66.0% used", (stall.text,))


@pytest.mark.parametrize(
    ("base", "reasons", "headline"),
    [
        (Level.LOW, [Reason("floor", "only 200.0 MiB available")], USED),
        (Level.LOW, [Reason("ttf", "full in about 20 min at the current rate")], USED),
        (Level.HIGH, [Reason("psi", "some tasks stalled"), Reason("util", "66.0% used")], USED),
        (
            Level.LOW,
            [Reason("psi", "some tasks stalled"), Reason("util", "66.0% used; calm for 8 s")],
            "66.0% used",
        ),
        (
            Level.LOW,
            [held_reason("stalled", 3, "psi_full"), Reason("swap", "no")],
            f"Full swap at {USED}",
        ),
        (
            Level.LOW,
            [Reason("psi", "some tasks stalled", Level.MEDIUM), Reason("livelock", "no", Level.HIGH)],
            f"Futile reclaim at {USED}",
        ),
    ],
    ids=["floor", "forecast", "use", "held use", "past stalls", "worst signal"],
)
def test_headline_names_the_signal_of_a_level_that_is_not_that_of_its_use(
    base: Level, reasons: list[Reason], headline: str
) -> None:
    assert build_status_line(with_verdict(base, Level.HIGH, *reasons)).headline == headline


def test_every_signal_has_words_for_a_headline_or_is_about_use() -> None:
    """Use, forecasts and the least available memory are about the bytes themselves."""
    folder = Path(signals.__file__).parent
    found = {name for path in folder.glob("*.py") for name in re.findall(r'Signal\("(\w+)"', path.read_text())}

    assert found - {"util", "ttf", "floor"} == set(SIGNAL_WORDS)


def test_past_forecast_is_told_with_its_age() -> None:
    status = build_status_line(
        with_verdict(Level.HIGH, Level.CRITICAL, held_reason("full in about 20 s at the current rate", 2, "ttf"))
    )

    assert status.details == ("forecast 2 s ago: full in about 20 s at the current rate",)


@pytest.mark.parametrize(
    ("base", "use"),
    [(Level.CRITICAL, "98.8% used"), (Level.MEDIUM, "66.0% used; calm for 8 s")],
    ids=["full", "held"],
)
def test_forecast_that_is_over_is_not_repeated_if_use_explains_the_level(base: Level, use: str) -> None:
    """It has not come true: memory is full and stays so, or came back."""
    old = held_reason("full in about 5 s at the current rate", 4, "ttf")
    snapshot = with_verdict(base, Level.CRITICAL, Reason("util", use), old)

    assert "full in" not in build_sentence(snapshot, snapshot.pressure[0])
    assert not [text for text in build_status_line(snapshot).details if "full in" in text]


@pytest.mark.parametrize(
    ("seconds", "headline"), [(0.2, "Full in seconds"), (7.04, "Full in ~7 s"), (9.96, "Full in ~10 s")]
)
def test_held_level_of_memory_that_fills_again_is_not_recovering(seconds: float, headline: str) -> None:
    """The new forecast is the headline, without digits that it does not have; the old one is not repeated."""
    old = held_reason("full in about 2 s at the current rate", 3, "ttf")
    status = build_status_line(with_verdict(Level.HIGH, Level.CRITICAL, old, full=seconds))

    assert (status.recovering, status.details) == (False, ())
    assert status.headline == headline


@pytest.mark.parametrize(
    ("stated", "age", "headline", "beside"),
    [
        ("5 s", 2, "Full in seconds", "forecast 2 s ago"),
        ("20 s", 3, "Full in ~17 s", "forecast 3 s ago"),
        ("5 s", 9, "Full in seconds", "forecast 9 s ago"),
        ("5 s", 10, "98.8% used", "forecast 10 s ago: full in about 5 s"),
        ("2 min 30 s", 2, "98.8% used", "forecast 2 s ago: full in about 2 min 30 s"),
    ],
)
def test_deadline_stays_the_headline_while_a_process_grows(
    stated: str, age: int, headline: str, beside: str
) -> None:
    """Two seconds before a kill the headline was "98.8% used": available memory stood still."""
    reason = held_reason(f"full in about {stated} at the current rate", age, "ttf")
    snapshot = with_verdict(Level.CRITICAL, Level.CRITICAL, Reason("util", "98.8% used"), reason)
    snapshot = replace(snapshot, pressure=(replace(snapshot.pressure[0], ratio=0.988),))
    process = snapshot.processes[0]
    grown = ProcessGrowth(process, 0.0, GIB, 10.0, 2 * GIB, True)

    found = build_status_line(snapshot, grown=[grown])

    assert (found.headline, found.beside) == (headline, beside)
    assert build_status_line(snapshot).headline == "98.8% used", "nothing grows"


def test_time_left_of_a_gpu_is_the_headline_of_many() -> None:
    """The number of targets at the level, which is the headline otherwise, is the first detail."""
    many = mig_server()
    verdicts = [replace(many.pressure[0], level=Level.CRITICAL, base_level=Level.CRITICAL, ratio=0.99)] * 2
    soon = replace(
        many.pressure[1], level=Level.CRITICAL, base_level=Level.CRITICAL, ratio=0.96, seconds_to_full=12.0
    )
    status = build_status_line(replace(many, pressure=(*verdicts, soon, *many.pressure[3:])))

    assert (status.target, status.headline) == (soon.target, "Full in ~12 s")
    assert status.details[0] == "4 of 5 pools and limits critical"


@pytest.mark.parametrize(
    ("reasons", "seconds"),
    [
        ([held_reason(KILL, 11)], 11.0),
        ([held_reason(KILL, 11), Reason("util", "66.0% used; calm for 8 s", Level.CRITICAL)], 8.0),
        (
            [held_reason(KILL, 11), Reason("util", "58.0% used; medium clears after 30 s below 57%", Level.MEDIUM)],
            11.0,
        ),
        ([Reason("util", "94.0% used; critical clears after 30 s below 92%", Level.CRITICAL)], None),
    ],
    ids=["kill", "kill and use", "use of a lower level", "not calm"],
)
def test_recovery_lasts_since_its_last_cause_was_over(reasons: list[Reason], seconds: float | None) -> None:
    """It was "Recovering for 27 s" 11 s after the kill: the time since the level began."""
    snapshot = with_verdict(Level.LOW, Level.CRITICAL, *reasons)
    status = build_status_line(snapshot, [Event(1, snapshot.unix - 27, "level", "high → critical", "ram")])

    assert status.recovering
    assert status.since_unix == (None if seconds is None else snapshot.unix - seconds)


def test_since_is_the_time_of_the_last_level_event_of_the_target() -> None:
    events = [
        Event(3, 900.0, "level", "GPU 0 VRAM: OK → high", "gpu0"),
        Event(2, 800.0, "level", "System RAM: high → critical", "ram"),
        Event(1, 700.0, "level", "System RAM: OK → high", "ram"),
    ]

    assert build_status_line(critical_gb10(), events).since_unix == 800.0
    assert build_status_line(critical_gb10()).since_unix is None


def test_many_gpus_are_counted_and_summed() -> None:
    base = discrete_gpu()
    cards = tuple(vram(f"gpu{n}", f"VRAM {n}", size=80 * GIB, used=(70 + n) * GIB, reserved=0) for n in range(4))
    verdicts = tuple(
        Pressure(
            card.id, Level.HIGH if n < 3 else Level.CRITICAL, Level.HIGH, 0.9, (), Absent.NOT_AVAILABLE, "vram"
        )
        for n, card in enumerate(cards)
    )
    many = replace(base, pools=(base.pools[0], *cards), shares=(), devices=(), pressure=verdicts)

    one, alike = build_status_line(many), build_status_line(replace(many, pressure=verdicts[:3] + verdicts[:1]))

    assert one.headline == "90.0% used"
    assert alike.headline == "4 of 4 GPUs high"
    assert [(use.label, use.used_bytes) for use in one.uses] == [
        ("used on 4 GPUs", 286 * GIB),
        ("used of System RAM", base.pools[0].used_bytes),
    ]


def test_largest_allocation_fits_on_one_mig_instance() -> None:
    """The largest free instance, not the sum of them."""
    room = build_status_line(mig_server()).room

    assert room is not None
    assert (room.label, room.headroom_after_reclaim_bytes) == ("MIG 3g.40gb", 42_412_802_048 - 34_359_738_368)


def test_pool_without_data_is_named() -> None:
    assert "No data for GPU 0 VRAM" in build_status_line(unknown_figures()).details


def test_machine_without_a_verdict_has_no_figure() -> None:
    status = build_status_line(replace(calm_workstation(), pools=(), pressure=()))

    assert (status.level, status.headline, status.uses, status.room) == ("unknown", "No memory data", (), None)


def test_fastest_growing_process_is_named_with_its_rate() -> None:
    slow, fast = calm_workstation().processes[:2]
    grown = [
        ProcessGrowth(slow, 0.0, 0, 30.0, 40 * MIB, True),
        ProcessGrowth(fast, 10.0, 0, 30.0, 6240 * MIB, True),
    ]

    growers = rank_growers(grown, calm_workstation())

    assert (growers[0].process, growers[0].bytes_per_second) == (fast, 312 * MIB)
    assert [one.process for one in growers] == [fast, slow]


@pytest.mark.parametrize(
    ("rates", "count", "total"),
    [((130, 128, 100), 3, 358), ((130, 128), 0, 0), ((130, 128, 10), 0, 0), ((130, 128, 100, 10), 3, 358)],
)
def test_processes_of_a_job_that_grow_alike_are_counted_with_their_sum(
    rates: tuple[int, ...], count: int, total: int
) -> None:
    """Seven ranks grew by 0.9 GiB/s together, and the page named one."""
    base = calm_workstation().processes[0]
    ranks = [replace(base, pid=100 + n, rank=n, user="ada") for n in range(len(rates))]
    other = replace(base, pid=200, user="eve")
    snapshot = replace(calm_workstation(), processes=(*ranks, other))
    grown = [
        *(
            ProcessGrowth(rank, 0.0, 0, 30.0, 30 * rate * MIB, True)
            for rank, rate in zip(ranks, rates, strict=True)
        ),
        ProcessGrowth(other, 0.0, 0, 30.0, 30 * 129 * MIB, True),
    ]

    found = build_status_line(snapshot, grown=grown).grower

    assert found is not None
    assert (found.process, found.bytes_per_second) == (ranks[0], 130 * MIB)
    assert [one.pid for one in found.alike] == [100 + n for n in range(count)]
    assert found.all_bytes_per_second == total * MIB


def test_process_that_returns_memory_is_not_named_as_growing() -> None:
    slow, fast = calm_workstation().processes[:2]
    grown = [
        ProcessGrowth(slow, 0.0, 0, 30.0, 40 * MIB, True),
        ProcessGrowth(fast, 10.0, 0, 30.0, 6240 * MIB, True, falling=True),
    ]

    assert [one.process for one in rank_growers(grown, calm_workstation())] == [slow]


def test_slow_or_brief_growth_is_not_named() -> None:
    """A single reading is no rate."""
    one = calm_workstation().processes[0]

    assert rank_growers([ProcessGrowth(one, 0.0, 0, 30.0, MIB, True)], calm_workstation()) == []
    assert rank_growers([ProcessGrowth(one, 29.0, 0, 30.0, GIB, True)], calm_workstation()) == []
    assert rank_growers([], calm_workstation()) == []


def test_process_that_has_ended_is_not_named_as_growing() -> None:
    """Its growth is still in the window, and another process may have its PID."""
    gone, *others = calm_workstation().processes
    grown = [ProcessGrowth(gone, 0.0, 0, 30.0, 40 * GIB, True)]
    without = replace(calm_workstation(), processes=tuple(others))
    reused = replace(without, processes=(replace(gone, start_time=1.0), *others))

    assert build_status_line(without, grown=grown).grower is None
    assert build_status_line(reused, grown=grown).grower is None


@pytest.mark.parametrize(("ratio", "level"), [(0.854, Level.HIGH), (0.956, Level.CRITICAL)])
def test_forecast_is_not_withdrawn_while_a_process_grows(ratio: float, level: Level) -> None:
    """At 80.6% it was "Full in ~1 min", and at 85.4% "no forecast below 90%", while the process grew."""
    past = held_reason(signals.full_in(60.0), 12, "ttf")
    verdict = Pressure("ram", level, level, ratio, (past,), kind="system_ram")
    snapshot = replace(critical_gb10(), pressure=(verdict,))
    grown = [ProcessGrowth(snapshot.processes[0], 0.0, 0, 30.0, 3 * GIB, whole=True)]

    assert build_status_line(snapshot, (), grown).beside == "forecast 12 s ago: full in about 1 min"
    assert build_status_line(snapshot).beside == "no forecast: no process grows"


def test_level_by_use_alone_counts_down_to_nothing() -> None:
    """66% used stays medium: a kill that is over ends its own signal, and not the level."""
    status = build_status_line(with_verdict(Level.MEDIUM, Level.MEDIUM, held_reason(KILL, 20)))

    assert status.headline == "66.0% used"
    assert not [text for text in status.details if " in " in text]


@pytest.mark.parametrize(
    ("level", "ratio", "swap", "grows", "words"),
    [
        (Level.LOW, 0.3, 0, True, ""),
        (Level.MEDIUM, 0.66, 0, False, "no forecast: no process grows"),
        (Level.HIGH, 0.85, 0, True, "no forecast yet: most growth stops before 90%"),
        (Level.CRITICAL, 0.988, 0, True, "no forecast: no steady fall of available memory"),
        (Level.CRITICAL, 0.988, 7 * GIB, True, "no forecast: no steady fall of available memory; swap 43.8% used"),
    ],
)
def test_level_without_a_time_left_has_the_reason(
    level: Level, ratio: float, swap: int, grows: bool, words: str
) -> None:
    verdict = Pressure("ram", level, level, ratio, kind="system_ram")
    snapshot = replace(critical_gb10(), pressure=(verdict,), swap=Swap(16 * GIB, swap))
    (process, *_) = snapshot.processes
    grown = ProcessGrowth(process, 0.0, 0, 30.0, 9 * GIB, whole=True)

    status = build_status_line(snapshot, (), [grown] if grows else [])

    assert status.beside == words


def test_level_with_a_time_left_needs_no_reason() -> None:
    assert build_status_line(critical_gb10()).beside == ""
    assert build_status_line(with_verdict(Level.LOW, Level.CRITICAL, held_reason(KILL, 2))).beside == ""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("macbook", "Metal working set is limited to 27.0 GiB"),
        ("jetson-orin", ""),
        ("rtx4090", ""),
        ("strix-halo", ""),
        ("h100x8-mig", ""),
    ],
)
def test_limit_that_leaves_less_room_than_its_pool_is_named(name: str, sentence: str) -> None:
    """24.5 GiB fit on a Mac beside a picture with 25.5 GiB available, without a word."""
    snapshot = next(read_frames(path_of(name)))
    room = find_room(snapshot)

    assert room is not None
    assert explain_room(room, snapshot) == sentence


def test_limit_of_a_container_is_named_as_what_leaves_less_room() -> None:
    snapshot = container_with_limit()
    room = find_room(snapshot)

    assert room is not None
    assert explain_room(room, snapshot) == f"{snapshot.shares[0].label} is limited to 4.0 GiB"
