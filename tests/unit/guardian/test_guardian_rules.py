"""Test the rules of the guardian: a table of cases, and properties of a thousand generated states."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase
from math import inf
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, PoolKind
from memwatch.core.processes.protected import NAMES, UNITS
from memwatch.core.snapshot import Level
from memwatchd.guardian.records import Candidate, Decision, GroupMemory, Limits, Match, Past, PoolState, State, Step
from memwatchd.guardian.rules import (
    MAX_DEVICE_SECONDS,
    PROTECTED_SLICES,
    URGENT_SECONDS,
    decide,
    weigh_reclaim,
    why_protected,
)
from support.guardian_states import (
    GIB,
    GROWING,
    candidate,
    confirmed,
    falling,
    generate_limits,
    generate_state,
    short_ram,
)

NOW = 5000.0
UNKNOWN = Absent.NOT_PERMITTED


def state(*candidates: Candidate, pool: PoolState | None = None, **given: object) -> State:
    return falling(State(NOW, NOW, (pool or short_ram(),), candidates, **given))  # type: ignore[arg-type]


class Case(NamedTuple):
    """`victim`: its pid, None for nothing. `says`: part of the reason, or of the refusal of a process."""

    name: str
    state: State
    victim: int | None
    says: str
    limits: Limits = Limits()


CASES = (
    Case(
        "one server",
        state(candidate(10)),
        10,
        "python3 (10) holds 40.0 GiB, 20.0 GiB of devices among them and grows by 286.1 MiB a second",
    ),
    Case(
        "the fastest growing, although it is smaller",
        state(candidate(10, 80 * GIB, 0.0), candidate(11, 20 * GIB)),
        11,
        "grows by 286.1 MiB a second",
    ),
    Case(
        "growth that is noise",
        state(candidate(10, 80 * GIB, None), candidate(11, 20 * GIB, 1e5)),
        None,
        "no process has grown more than it allocates and frees",
    ),
    Case(
        "the bytes of devices decide",
        state(candidate(10, 30 * GIB, device_bytes=0), candidate(11, 50 * GIB, device_bytes=49 * GIB)),
        11,
        "python3 (11)",
    ),
    Case(
        "the growth is not seen yet: the largest is innocent",
        replace(state(candidate(10, 80 * GIB, None), candidate(11, 20 * GIB, None)), fall_bytes_per_second=None),
        None,
        "no growth was measured since it began to fall",
    ),
    Case(
        "growth that is no half of the fall: what takes it is not known",
        replace(state(candidate(10, 80 * GIB)), fall_bytes_per_second=2.1 * GROWING),
        None,
        "600.8 MiB a second were lost; python3 (10) grew most, by 286.1 MiB a second, and all processes by",
    ),
    Case(
        "growth that is half of the fall",
        replace(state(candidate(10, 80 * GIB)), fall_bytes_per_second=2 * GROWING),
        10,
        "python3 (10)",
    ),
    Case(
        "others grew more than it fell: they allocate and free",
        replace(
            state(candidate(10), candidate(11, growth=0.8 * GROWING), candidate(12, growth=0.4 * GROWING)),
            fall_bytes_per_second=GROWING,
        ),
        None,
        "and all processes by 629.4 MiB",
    ),
    Case(
        "another may have grown as much",
        state(candidate(10), candidate(11, 80 * GIB, -GROWING, max_growth_bytes_per_second=GROWING)),
        None,
        "python3 (10) has grown, but python3 (11) may have grown as much",
    ),
    Case(
        "four workers grow alike: the largest",
        state(*(candidate(pid, pid * GIB, max_growth_bytes_per_second=1.2 * GROWING) for pid in (10, 11, 12, 13))),
        13,
        "python3 (13)",
    ),
    Case(
        "a full machine that stalls, and nothing grows: the largest is not known to be the cause",
        replace(
            state(candidate(10, growth=None), pool=short_ram(seconds_to_full=None, evidence=("util", "psi_full"))),
            fall_bytes_per_second=None,
        ),
        None,
        "the cause is not known",
    ),
    Case("level high", state(candidate(10), pool=short_ram(level=Level.HIGH)), None, "ram is high"),
    Case(
        "critical by an event alone",
        state(candidate(10), pool=short_ram(30 * GIB, None, evidence=("oom_kill",))),
        None,
        "not by its own use",
    ),
    Case(
        "an event beside little memory, without evidence of the pool",
        state(candidate(10), pool=short_ram(evidence=("oom_kill", "driver"))),
        None,
        "not by its own use",
    ),
    Case(
        "a forecast alone: a model that loads",
        state(candidate(10, growth=GROWING), pool=short_ram(20 * GIB, 6.0, evidence=("ttf",))),
        None,
        "not by its own use",
    ),
    Case(
        "a full machine at rest, as its model is resident",
        state(candidate(10), pool=short_ram(seconds_to_full=None, evidence=("util",))),
        None,
        "neither fills up within 10 s nor stalls tasks",
    ),
    Case(
        "it fills up in ten minutes",
        state(candidate(10), pool=short_ram(seconds_to_full=600.0)),
        None,
        "neither fills up",
    ),
    Case(
        "full and all tasks stall",
        state(candidate(10), pool=short_ram(seconds_to_full=None, evidence=("util", "psi_full"))),
        10,
        "python3 (10)",
    ),
    Case(
        "at the floor",
        state(candidate(10), pool=short_ram(GIB // 8, None, evidence=("util", "floor"))),
        10,
        "python3 (10)",
    ),
    Case(
        "VRAM is full",
        state(candidate(10), pool=short_ram(kind=PoolKind.VRAM)),
        None,
        "the memory of this machine was not read",
    ),
    Case("no process", state(), None, "no process is known"),
    Case(
        "none frees enough: a fork bomb",
        state(*(candidate(pid, GIB, device_bytes=0) for pid in range(100, 130))),
        None,
        "are not enough to leave the level critical",
    ),
    Case(
        "the cause is in another slice than the largest",
        state(candidate(10, 80 * GIB, 0.0), candidate(11, 3 * GIB, slice="user.slice/user-1000.slice")),
        None,
        "and the cause, python3 (11), is in user.slice/user-1000.slice",
        Limits(others="slice"),
    ),
    Case(
        "other slices are allowed",
        state(candidate(10, 80 * GIB, 0.0), candidate(11, 3 * GIB, slice="user.slice/user-1000.slice")),
        10,
        "python3 (10)",
        Limits(others="any"),
    ),
    Case(
        "the slice of the cause is not known: only the cause itself",
        state(candidate(10, 80 * GIB, 0.0), candidate(11, 3 * GIB, slice=UNKNOWN)),
        None,
        "not known whether it is in the slice of the cause",
        Limits(others="slice"),
    ),
    Case(
        "the cause, whose slice is not known",
        state(candidate(10, 80 * GIB, None), candidate(11, 30 * GIB, slice=UNKNOWN)),
        11,
        "python3 (11)",
    ),
    Case(
        "device bytes of 5 s",
        state(candidate(10, device_age_seconds=MAX_DEVICE_SECONDS)),
        10,
        "python3 (10)",
    ),
    Case(
        "device bytes of 5.1 s",
        state(candidate(10, device_age_seconds=5.1), candidate(11, 30 * GIB)),
        None,
        "the device memory of python3 (10) was read 5.1 s ago",
    ),
    Case(
        "device bytes were never read",
        state(candidate(10, device_bytes=0, device_age_seconds=inf)),
        None,
        "the device memory of python3 (10) is not known",
    ),
    Case(
        "never by unit",
        state(candidate(10)),
        None,
        "never has unit:vllm*",
        Limits(never=(Match("unit", "vllm*"),)),
    ),
    Case(
        "never by script",
        state(candidate(10)),
        None,
        "never has command:serve.py",
        Limits(never=(Match("command", "serve.py"),)),
    ),
    Case(
        "never by a user that is not known",
        state(candidate(10, user=UNKNOWN)),
        None,
        "never has user:postgres, and its user is not known",
        Limits(never=(Match("user", "postgres"),)),
    ),
    Case(
        "never by container does not concern a process without one",
        state(candidate(10)),
        10,
        "python3 (10)",
        Limits(never=(Match("container", "*"),)),
    ),
    Case(
        "avoid: the next of the slice, where others are allowed",
        state(candidate(10, 80 * GIB, GROWING, user="postgres"), candidate(11, 20 * GIB, 0.0)),
        11,
        "python3 (11)",
        Limits(avoid=(Match("user", "postgres"),), others="slice"),
    ),
    Case(
        "avoid: an innocent process ends no earlier than the cause",
        state(candidate(10, 80 * GIB, GROWING, user="postgres"), candidate(11, 20 * GIB, 0.0)),
        10,
        "it is not the cause, python3 (10), and neither prefer nor others allows that it ends in its place",
        Limits(avoid=(Match("user", "postgres"),)),
    ),
    Case(
        "the cause is in never: nothing, and it is named",
        state(candidate(10, 80 * GIB, GROWING, user="postgres"), candidate(11, 60 * GIB, 0.0)),
        None,
        "the cause is probably python3 (10): never has user:postgres",
        Limits(never=(Match("user", "postgres"),)),
    ),
    Case(
        "the cause is in never: one of prefer in its slice",
        state(
            candidate(10, 80 * GIB, GROWING, user="postgres"),
            candidate(11, 60 * GIB, 0.0),
            candidate(12, 20 * GIB, 0.0, unit="batch@7.service"),
        ),
        12,
        "python3 (12)",
        Limits(never=(Match("user", "postgres"),), prefer=(Match("unit", "batch@*"),)),
    ),
    Case(
        "the cause is in never: others of its slice are allowed",
        state(candidate(10, 80 * GIB, GROWING, user="postgres"), candidate(11, 60 * GIB, 0.0)),
        11,
        "python3 (11)",
        Limits(never=(Match("user", "postgres"),), others="slice"),
    ),
    Case(
        "the cause is protected: nothing of its slice ends in its place",
        state(candidate(10, 80 * GIB, GROWING, name="dockerd"), candidate(11, 60 * GIB, 0.0)),
        None,
        "the cause is probably dockerd (10): it is needed to log in",
    ),
    Case(
        "prefer in another slice does not end in place of the cause",
        state(
            candidate(10, 80 * GIB, GROWING, user="postgres"),
            candidate(11, 60 * GIB, 0.0, unit="batch@7.service", slice="user.slice"),
        ),
        None,
        "it is in user.slice, and the cause, python3 (10), is in system.slice",
        Limits(never=(Match("user", "postgres"),), prefer=(Match("unit", "batch@*"),)),
    ),
    Case(
        "a worker of the same growth as the cause is a cause as well",
        state(candidate(10, 80 * GIB, user="postgres"), candidate(11, 60 * GIB)),
        11,
        "python3 (11)",
        Limits(never=(Match("user", "postgres"),)),
    ),
    Case(
        "the daemon over TCP, whose pid is not known",
        state(candidate(10, name="memwatchd")),
        None,
        "memwatchd (10): it belongs to memwatchd",
    ),
    Case(
        "the daemon over TCP as a script of Python",
        state(candidate(10, unit="memwatchd.service")),
        None,
        "python3 (10): it belongs to memwatchd",
    ),
    Case(
        "the daemon by the kernel's unit",
        state(candidate(10, unit=None, kernel_unit="memwatchd.service")),
        None,
        "python3 (10): it belongs to memwatchd",
    ),
    Case(
        "avoid is no never",
        state(candidate(10, 80 * GIB, GROWING, user="postgres")),
        10,
        "python3 (10)",
        Limits(avoid=(Match("user", "postgres"),)),
    ),
    Case(
        "prefer",
        state(candidate(10, 80 * GIB, GROWING), candidate(11, 20 * GIB, 0.0, unit="batch@7.service")),
        11,
        "python3 (11)",
        Limits(prefer=(Match("unit", "batch@*"),)),
    ),
    Case(
        "prefer that does not help",
        state(candidate(10, 80 * GIB, GROWING), candidate(11, GIB, 0.0, unit="batch@7.service")),
        10,
        "python3 (10)",
        Limits(prefer=(Match("unit", "batch@*"),)),
    ),
    Case("pid 1", state(candidate(1)), None, "it is the first process"),
    Case("the guardian", state(candidate(10), own_pids=frozenset({10})), None, "it is the guardian or the daemon"),
    Case("not visible", state(candidate(10, visible=False)), None, "not visible"),
    Case("the unit is not known", state(candidate(10, unit=UNKNOWN)), None, "its unit is not known"),
    Case("the daemon's slice", state(candidate(10, slice="memwatchd.slice")), None, "belongs to memwatchd"),
    Case("a kernel thread", state(candidate(10, kernel_thread=True)), None, "no process is known"),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case_has_its_decision_and_its_reason(case: Case) -> None:
    decision = confirmed(case.state, case.limits)

    assert (decision.victim.pid if decision.victim else None) == case.victim
    assert (decision.kind == "act") == (case.victim is not None)
    assert case.says in "; ".join([decision.reason, *(refusal.why for refusal in decision.refused)])


@pytest.mark.parametrize(
    "name", ["sshd", "sshd-session", "systemd-logind", "gdm-session-wor", "dbus-daemon", "agetty"]
)
def test_process_that_is_needed_to_log_in_never_ends(name: str) -> None:
    assert (
        why_protected(candidate(10, name=name), state())
        == "it is needed to log in, for a session, or to run containers"
    )


@pytest.mark.parametrize("unit", ["ssh.service", "systemd-udevd.service", "getty@tty1.service"])
def test_unit_that_is_needed_to_log_in_never_ends(unit: str) -> None:
    assert unit in why_protected(candidate(10, unit=unit), state())


@pytest.mark.parametrize("given", [{"commands": ("serve.py", "sshd")}, {"kernel_unit": "ssh.service"}])
def test_daemon_that_hides_a_login_does_not_end_it(given: dict[str, Any]) -> None:
    """The name and the unit by the kernel count as well: who controls the daemon chooses its words."""
    decision = confirmed(state(candidate(10, **given)))

    assert decision.victim is None
    assert "is needed to log in" in decision.reason


def test_unit_in_never_counts_by_the_kernel_as_well() -> None:
    limits = Limits(never=(Match("unit", "postgres*"),))

    assert confirmed(state(candidate(10, kernel_unit="postgresql.service")), limits).victim is None
    assert confirmed(state(candidate(10, kernel_unit="vllm.service")), limits).victim is not None


def test_second_reading_must_confirm_the_first() -> None:
    seen = state(candidate(10))
    first, past = decide(seen, Limits(), Past())
    second, past = decide(replace(seen, now=NOW + 0.5, read_at=NOW + 0.5), Limits(), past)

    assert (first.kind, second.kind) == ("wait", "act")


def test_same_reading_confirms_nothing() -> None:
    seen = state(candidate(10))
    _, past = decide(seen, Limits(), Past())

    assert decide(replace(seen, now=NOW + 0.5), Limits(), past)[0].kind == "wait"


@pytest.mark.parametrize("gap", [3.1, 10.0, 3600.0])
def test_readings_with_a_gap_between_them_confirm_nothing(gap: float) -> None:
    """The guardian was stopped, or the machine slept."""
    seen = state(candidate(10))
    _, past = decide(seen, Limits(), Past())
    later = NOW + gap

    assert decide(replace(seen, now=later, read_at=later), Limits(), past)[0].kind == "wait"


def test_old_reading_is_no_evidence_and_is_forgotten() -> None:
    seen = state(candidate(10))
    _, past = decide(seen, Limits(), Past())
    decision, past = decide(replace(seen, now=NOW + 1.1, read_at=NOW), Limits(), past)

    assert (decision.kind, decision.reason) == ("wait", "the last reading is 1.1 s old")
    assert past == Past()


def test_end_of_the_shortage_between_two_readings_forgets_the_first() -> None:
    seen = state(candidate(10))
    _, past = decide(seen, Limits(), Past())
    calm = replace(seen, pools=(short_ram(20 * GIB, level=Level.HIGH),))
    _, past = decide(calm, Limits(), past)

    assert decide(seen, Limits(), past)[0].kind == "wait"


def test_second_victim_needs_two_readings_after_the_first_ended() -> None:
    seen = state(candidate(10), candidate(11, 30 * GIB))
    past = Past(NOW, NOW).after_action(NOW + 1.0)
    kinds = []
    for at in (0.9, 1.4, 1.6, 2.0):
        decision, past = decide(replace(seen, now=NOW + at, read_at=NOW + at), Limits(), past)
        kinds.append(decision.kind)

    assert kinds == ["wait", "wait", "wait", "act"]


def test_victim_that_did_not_end_is_not_tried_again() -> None:
    first, second = candidate(10), candidate(11, 30 * GIB)
    past = replace(
        Past(NOW - 1.0, NOW - 1.0).after_action(NOW - 2.0, first.key), first_seen=NOW - 1, last_seen=NOW - 1
    )

    decision, _ = decide(state(first, second), Limits(), past)

    assert decision.victim == second
    assert decision.refused[0].why == "it did not end on SIGKILL"
    reused = replace(first, start_time=first.start_time + 900)
    assert decide(state(reused, second), Limits(), past)[0].victim == reused


@pytest.mark.parametrize(
    ("forecast", "expected"),
    [
        (
            None,
            [("hook", 5.0), ("engine", 5.0), ("reclaim", 2.0), ("sigterm", 5.0), ("sigkill", 5.0)],
        ),
        (
            10.0,
            [("hook", 2.5), ("engine", 2.5), ("reclaim", 2.0), ("sigterm", 2.5), ("sigkill", 2.5)],
        ),
        (2.0, [("hook", 0.5), ("engine", 0.5), ("reclaim", 0.5), ("sigterm", 0.5), ("sigkill", 0.5)]),
        (1.9, [("sigkill", 1.9 / 4)]),
    ],
)
def test_steps_take_at_most_a_quarter_of_the_forecast(
    forecast: float | None, expected: list[tuple[str, float]]
) -> None:
    pool = short_ram(seconds_to_full=forecast, evidence=("util", "psi_full"))
    decision = confirmed(state(candidate(10, engine=True), pool=pool), Limits(has_hook=True))

    assert [(step.name, step.seconds) for step in decision.steps] == expected


def test_steps_that_are_not_possible_or_not_wanted_are_left_out() -> None:
    decision = confirmed(state(candidate(10, cgroup=UNKNOWN)), Limits(sigterm_seconds=0))

    assert [step.name for step in decision.steps] == ["sigkill"]


@pytest.mark.parametrize(
    ("swap_free", "group", "expected"),
    [
        (0, GroupMemory(3 * GIB, 40 * GIB), "no swap is free, and file cache counts as available already"),
        (8 * GIB, "the memory of its cgroup is not readable", "the memory of its cgroup is not readable"),
        (
            3 * GIB,
            GroupMemory(3 * GIB, 40 * GIB),
            "at most 3.0 GiB of its control group can move to swap, 4.0 GiB are",
        ),
        (8 * GIB, GroupMemory(3 * GIB, GIB), "at most 1.0 GiB of its control group can move to swap, 4.0 GiB are"),
        (
            8 * GIB,
            GroupMemory(3 * GIB, 0),
            "at most 0 B of its control group can move to swap, 4.0 GiB are missing",
        ),
        (8 * GIB, GroupMemory(3 * GIB, 5 * GIB), 8 * GIB),
        (40 * GIB, GroupMemory(3 * GIB, 40 * GIB), 11 * GIB),
    ],
)
def test_reclaim_is_left_out_where_it_cannot_leave_the_level(
    swap_free: int, group: GroupMemory | str, expected: int | str
) -> None:
    """4 GiB are missing. File cache is available already, and bytes of devices do not move to swap."""
    pool = short_ram(2 * GIB, swap_free_bytes=swap_free)
    decision = confirmed(state(candidate(10), pool=pool))

    steps = {step.name: step for step in weigh_reclaim(decision, pool, lambda _: group).steps}

    assert list(steps) == ["reclaim", "sigterm", "sigkill"]
    if isinstance(expected, int):
        assert steps["reclaim"] == Step("reclaim", 2.0, expected)
    else:
        assert steps["reclaim"].why_not.startswith(expected)
        assert (steps["reclaim"].seconds, steps["reclaim"].reclaim_bytes) == (0.0, 0)


def test_decision_without_a_step_to_reclaim_reads_no_cgroup() -> None:
    pool = short_ram(seconds_to_full=1.0, swap_free_bytes=GIB)
    decision = confirmed(state(candidate(10), pool=pool))

    assert weigh_reclaim(decision, pool, lambda _: pytest.fail("read")) == decision
    assert weigh_reclaim(Decision("nothing", "x"), pool, lambda _: pytest.fail("read")).steps == ()


def test_victims_of_a_thousand_generated_states_are_allowed_ones() -> None:
    """The conditions are written again here, from the issue's words, not from the rules."""
    acted = 0
    for seed in range(1000):
        chance = random.Random(seed)
        seen, limits = generate_state(chance), generate_limits(chance)
        decision = confirmed(seen, limits)
        if decision.kind != "act":
            assert decision.victim is None
            assert decision.reason
            continue
        acted += 1
        _assert_allowed(decision.victim, seen, limits)
        assert decision.steps[-1].name == "sigkill"
        forecast = seen.pools[0].seconds_to_full
        assert forecast is None or all(step.seconds <= forecast / 4 for step in decision.steps)
        assert forecast is None or forecast >= 2 or len(decision.steps) == 1

    assert acted >= 50


def _assert_allowed(victim: Candidate | None, seen: State, limits: Limits) -> None:
    assert victim is not None
    pool = seen.pools[0]
    assert pool.level is Level.CRITICAL
    assert pool.available_bytes <= pool.critical_bytes < pool.available_bytes + victim.footprint_bytes
    assert {"util", "floor"} & set(pool.evidence)
    soon = pool.seconds_to_full is not None and pool.seconds_to_full <= URGENT_SECONDS
    assert soon or {"floor", "psi_full", "livelock"} & set(pool.evidence)
    assert seen.now - seen.read_at <= 1.0
    assert victim.pid > 1
    assert victim.visible
    assert not victim.kernel_thread
    assert victim.pid not in seen.own_pids
    assert victim.device_age_seconds <= MAX_DEVICE_SECONDS
    assert isinstance(victim.unit, str | None)
    for texts, patterns in (
        ((victim.name, *victim.commands), NAMES),
        ((victim.unit or "",), UNITS),
        ((victim.slice,), PROTECTED_SLICES),
    ):
        assert not [one for one in texts for glob in patterns if isinstance(one, str) and fnmatchcase(one, glob)]
    listed = {"unit": victim.unit, "user": victim.user, "container": victim.container}
    for match in limits.never:
        values = (victim.name, *victim.commands) if match.kind == "command" else (listed[match.kind],)
        assert not any(isinstance(value, Absent) for value in values)
        assert not any(fnmatchcase(str(value), match.pattern) for value in values if value is not None)
    if limits.others != "any":
        processes = [one for one in seen.candidates if not one.kernel_thread]
        fastest = max(one.growth_bytes_per_second or 0 for one in processes)
        assert fastest >= 1 << 20
        processes = [one for one in processes if one.growth_bytes_per_second == fastest]
        cause = max(processes, key=lambda one: (one.footprint_bytes, -one.pid))
        alike = fastest / 2 <= (victim.growth_bytes_per_second or 0)
        is_preferred = any(
            fnmatchcase(str(value), match.pattern)
            for match in limits.prefer
            for value in ((victim.name, *victim.commands) if match.kind == "command" else (listed[match.kind],))
            if isinstance(value, str)
        )
        assert alike or victim.slice == cause.slice
        assert alike or is_preferred or limits.others == "slice"
