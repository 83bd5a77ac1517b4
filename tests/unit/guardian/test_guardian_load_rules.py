"""Rules of the load guard: whose cgroup it freezes, and why none."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatchd.guardian.load_guard import ENOUGH_RATIO, decide_load, is_enough, own_cgroup
from memwatchd.guardian.own_reading import read_ready
from memwatchd.guardian.records import Candidate, Limits, LoadLimits, Match, State
from support.guardian_states import GIB, GROWING, candidate, falling, short_ram

NOW = 5000.0
LOAD = LoadLimits(enabled=True, units=(Match("unit", "vllm*"),), floor_bytes=4 * GIB)


def state(*candidates: Candidate, ready: int | None = 3 * GIB, age: float = 0.0) -> State:
    pool = short_ram(8 * GIB, None, ready_bytes=ready, evidence=())
    return falling(State(NOW, NOW - age, (pool,), candidates))


class Case(NamedTuple):
    name: str
    state: State
    is_frozen: bool
    says: str
    limits: Limits = Limits()
    load: LoadLimits = LOAD
    falls: bool = True
    spent: float = 0.0


CASES = (
    Case(
        "a fast load below the floor",
        state(candidate(10)),
        True,
        "3.0 GiB are free or reclaimable, and python3 (10)",
    ),
    Case("above the floor", state(candidate(10), ready=4 * GIB), False, "4.0 GiB are free or reclaimable"),
    Case("not known", state(candidate(10), ready=None), False, "not known"),
    Case("an old reading", state(candidate(10), age=1.1), False, "not known"),
    Case("no fast fall", state(candidate(10)), False, "do not fall fast", falls=False),
    Case("no cause", state(candidate(10, growth=None)), False, "the cause is not known"),
    Case("no load into a GPU", state(candidate(10, device_bytes=0)), False, "it holds no memory of a GPU"),
    Case("old figures of GPUs", state(candidate(10, device_age_seconds=5.1)), False, "read 5.1 s ago"),
    Case("not listed", state(candidate(10)), False, "freeze does not list it", load=replace(LOAD, units=())),
    Case("in never", state(candidate(10)), False, "never has user:ada", Limits(never=(Match("user", "ada"),))),
    Case("a login", state(candidate(10, name="sshd-session")), False, "needed to log in"),
    Case("the daemon", state(candidate(10, name="memwatchd")), False, "belongs to memwatchd"),
    Case("pid 1", state(candidate(1)), False, "it is the first process"),
    Case("its unit is not known", state(candidate(10, unit=Absent.NOT_PERMITTED)), False, "its unit is not known"),
    Case(
        "its cgroup is a slice", state(candidate(10, cgroup="/system.slice")), False, "has other processes as well"
    ),
    Case("its cgroup is not known", state(candidate(10, cgroup=Absent.NOT_PERMITTED)), False, "or is not known"),
    Case("frozen for long", state(candidate(10)), False, "it was frozen for 30 s in this load", spent=30.0),
    Case("no memory of GPUs was ever read", state(candidate(10, device_age_seconds=inf)), False, "is not known"),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case_freezes_its_loader_or_nothing_and_says_why(case: Case) -> None:
    decision = decide_load(case.state, case.load, case.limits, case.falls, case.spent)

    assert (decision.loader is not None) == case.is_frozen
    assert case.says in decision.reason


def test_only_the_cause_is_frozen() -> None:
    """The larger one is listed, and does not grow."""
    other = candidate(11, 3 * GIB, GROWING, unit="train.service")

    decision = decide_load(state(candidate(10, 80 * GIB, 0.0), other), LOAD, Limits(), True, 0.0)

    assert decision.loader is None
    assert "python3 (11) is not frozen: freeze does not list it" in decision.reason


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("/system.slice/vllm.service", "system.slice/vllm.service"),
        ("/system.slice/docker-4f5a.scope", "system.slice/docker-4f5a.scope"),
        ("/system.slice", None),
        ("/", None),
        ("/system.slice/../x.service", None),
    ],
)
def test_cgroup_of_a_unit_is_its_own(cgroup: str, path: str | None) -> None:
    assert own_cgroup(candidate(10, cgroup=cgroup)) == path


def test_loader_goes_on_early_once_a_quarter_more_than_the_floor_is_ready() -> None:
    enough = int(4 * GIB * ENOUGH_RATIO)

    assert [is_enough(ready, LOAD) for ready in (None, enough - 1, enough)] == [False, False, True]


def test_ready_memory_is_free_pages_cache_and_reclaimable_slabs() -> None:
    kib = {"MemFree": 8, "MemAvailable": 1, "Active(file)": 4, "Inactive(file)": 2, "SReclaimable": 1, "Shmem": 64}

    assert read_ready(kib) == 15 << 10
    assert read_ready({"MemAvailable": 1}) is None
