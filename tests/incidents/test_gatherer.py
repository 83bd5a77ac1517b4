"""Limits of the gatherer: incidents at once, kept events, times of writing, and the growth of the last hour."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.budget import KINDS, Budget, Budgets
from memwatch.core.events import MARK, Event
from memwatch.core.kernel_log import ProcessEnd, ServiceKill
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.cgroup_kills import CgroupKill
from memwatch.core.model import Process, Quality, Share, ShareKind
from memwatch.core.pressure.oom_kills import NewKills
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.incidents.records import Incident, Suspect
from memwatch_monitor.incidents.gatherer import GRACE_SECONDS, QUIET_SECONDS, Gatherer
from memwatch_monitor.incidents.store import IncidentLog
from memwatch_monitor.incidents.triggers import Observation
from support.fakes import GIB
from support.sample_snapshots import calm_workstation

UNIX = 1_700_000_000.0
LEAK = Suspect("leaky", 7, None, None, 20 * GIB, UNIX - 3000, 25 * GIB)


def machine(at: float, critical: Iterable[str] = (), processes: tuple[Process, ...] = ()) -> Snapshot:
    """Return a machine with these targets at the critical level. Its interval is so long that no pause is a gap."""
    pressure = tuple(Pressure(one, Level.CRITICAL, Level.CRITICAL, 0.99) for one in critical)
    base = replace(calm_workstation(), interval_seconds=3600.0, unix=UNIX + at, monotonic=at)
    return replace(base, pressure=pressure, processes=processes)


def tick(gatherer: Gatherer, at: float, *critical: str, kills: Iterable[ServiceKill] = ()) -> list[Incident]:
    return gatherer.add(Observation(at, machine(at, critical), service_kills=tuple(kills)))


def kill_in(unit: str) -> ServiceKill:
    """Return a kill at the limit of a unit."""
    return ServiceKill(1, UNIX, "runtime_oom", f"{unit} was killed", place=f"/system.slice/{unit}")


@pytest.mark.parametrize("targets", [3, 9])
def test_each_target_of_the_machine_has_an_incident(targets: int) -> None:
    gatherer = Gatherer()
    critical = [f"gpu{number}" for number in range(targets)]

    assert [one.target for one in tick(gatherer, 0.0, *critical)] == critical
    assert tick(gatherer, 1.0, *critical) == []
    tick(gatherer, 4000.0)
    assert (gatherer.budget.held, len(gatherer.open)) == (0, 0)


@pytest.mark.parametrize(("kills", "count"), [(23, 23), (24, 24), (25, 24)])
def test_control_groups_with_a_kill_have_an_incident_each(kills: int, count: int) -> None:
    gatherer = Gatherer()

    found = tick(gatherer, 0.0, kills=(kill_in(f"app{number}.service") for number in range(kills)))

    assert len(found) == len(gatherer.open) == count
    assert gatherer.budget.refused == kills - count


def group_kill(place: str, limit: int) -> CgroupKill:
    return CgroupKill(1, 1, place, limit)


def kill_at_limits(gatherer: Gatherer, at: float, *kills: CgroupKill) -> list[Incident]:
    return gatherer.add(Observation(at, machine(at), NewKills(of_cgroups=kills)))


USER = "/user.slice/user-1001.slice/user@1001.service/run-{}.scope"
SERVICE = "/system.slice/db.service"


def test_kills_in_small_cgroups_of_a_user_hide_no_other_and_are_counted() -> None:
    """An account has half of the places. A larger kill of it replaces its smallest."""
    gatherer = Gatherer()
    kill_at_limits(gatherer, 0.0, *(group_kill(USER.format(number), 32 << 20) for number in range(15)))
    kill_at_limits(gatherer, 1.0, group_kill(USER.format(0), 32 << 20), group_kill(SERVICE, GIB))
    kill_at_limits(gatherer, 2.0, group_kill(USER.format("large"), 2 * GIB))
    labels = [one.label for one in gatherer.open.values()]
    assert len(labels) == 13
    assert {"db.service", "run-large.scope"} < set(labels)

    kill_at_limits(gatherer, 61.0)
    assert gatherer.take_quiet_kills() == ["3 further kills in user-1001.slice"]
    assert gatherer.budget.recent() == {"uid 1001": 4}


def test_displaced_incident_ends_with_a_reason() -> None:
    gatherer = Gatherer()
    kill_at_limits(gatherer, 0.0, *(group_kill(USER.format(number), GIB + number) for number in range(12)))
    found = kill_at_limits(gatherer, 1.0, group_kill(USER.format("large"), 2 * GIB))

    ended = [one for one in found if one.ended is not None]
    assert [one.label for one in ended] == ["run-0.scope"]
    assert "a larger incident, or one of another account, took its place" in ended[0].evidence
    assert len(gatherer.open) == gatherer.budget.held == 12


POD = "/kubepods.slice/kubepods-pod0f2a9f0e_1c2d_4a5b_8c7d_112233445566.slice/cri-containerd-{}.scope"


def test_pod_that_is_killed_again_and_again_is_one_incident_with_a_count() -> None:
    """Each start has another container. After an hour without a kill, the next one is another incident."""
    gatherer = Gatherer()
    found: list[Incident] = []
    for number in range(4):
        found += kill_at_limits(gatherer, 400.0 * number, group_kill(POD.format(f"{number}" * 64), 32 << 20))
        found += kill_at_limits(gatherer, 400.0 * number + 70)

    assert len({one.id for one in found}) == 1
    assert (found[0].times, found[0].first_began) == (1, None)
    assert (found[-1].times, found[-1].first_began) == (4, UNIX)
    assert found[-1].sentence.endswith("; it happened 4 times in 20 min.")
    (later,) = kill_at_limits(gatherer, 6000.0, group_kill(POD.format("f" * 64), 32 << 20))
    assert (later.times, later.id != found[0].id) == (1, True)


@given(
    st.lists(
        st.tuples(st.sampled_from([1001, 1002, 100_005]), st.integers(0, 40), st.integers(1, 64)), max_size=120
    ),
    st.integers(0, 120),
)
def test_flood_of_kills_never_loses_the_kill_of_a_service(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, int, int]], at: int
) -> None:
    """Users kill in many cgroups of their own, also with subordinate ids. The record of the service stays."""
    rootfs = tmp_path_factory.mktemp("root")
    (rootfs / "etc").mkdir()
    (rootfs / "etc/subuid").write_text("1001:100000:65536\n")
    account_of = Accounts(rootfs).of_cgroup
    budgets = Budgets()
    gatherer = Gatherer(budget=budgets["incidents"], account_of=account_of)
    log = IncidentLog(budgets["incidents_kept"], account_of)
    real = ""
    for number in range(max(at, len(history)) + 1):
        kills = []
        if number < len(history):
            uid, group, size = history[number]
            kills.append(group_kill(f"/user.slice/user-{uid}.slice/run-{group}.scope", size * GIB))
        if number == at:
            kills.append(group_kill(SERVICE, GIB))
        for one in kill_at_limits(gatherer, 20.0 * number, *kills):
            log.put(one)
            real = one.id if one.target == SERVICE else real
    for one in kill_at_limits(gatherer, 1e6):
        log.put(one)

    kept = log.find(real)
    assert kept is not None
    assert (kept.target, kept.ended is not None) == (SERVICE, True)
    assert budgets["incidents"].held == 0


def test_kill_of_the_machine_begins_an_incident_beside_those_of_cgroups() -> None:
    """Any user can cause kills in cgroups."""
    gatherer = Gatherer()
    tick(gatherer, 0.0, kills=(kill_in(f"app{number}.service") for number in range(30)))

    found = tick(
        gatherer, 1.0, kills=[ServiceKill(31, UNIX, "earlyoom", "sending SIGKILL", pid=31, name="python3")]
    )

    assert [one.target for one in found] == ["ram"]


@pytest.mark.parametrize("rises", [(1, 2, 2), (5,), (1, 1, 1, 1, 1), (20, 3)])
def test_incident_counts_the_processes_that_counters_of_a_cgroup_report(rises: Sequence[int]) -> None:
    """Twelve kills in eight seconds were "a process in it and 7 more", those of a container "a process in it"."""
    gatherer, killed, place = Gatherer(), 0, f"/system.slice/docker-{'1f6b' * 16}.scope"
    for second, count in enumerate(rises):
        killed += count
        kills = NewKills(of_cgroups=(CgroupKill(killed, count, place, 32 << 20),))
        found = gatherer.add(Observation(float(second), machine(float(second)), kills))

    who = "a process in it" if rises[0] == 1 else f"{rises[0]} processes in it"
    more = f" and {killed - rises[0]} more" if killed > rises[0] else ""
    assert [one.sentence for one in found] == [
        "docker-1f6b1f6b1f6b.scope reached its limit of 32.0 MiB; the kernel killed "
        f"{who}{more}; System RAM was not involved."
    ]


def test_kill_begins_an_incident_beside_four_targets() -> None:
    gatherer = Gatherer()
    targets = [f"gpu{number}" for number in range(4)]
    tick(gatherer, 0.0, *targets)

    found = tick(gatherer, 1.0, *targets, kills=[kill_in("app.service")])

    assert [one.kind for one in found] == ["kill"]


def test_cgroup_without_an_incident_gets_one_when_another_is_over() -> None:
    gatherer = Gatherer()
    kills = [group_kill(USER.format(number), GIB) for number in range(13)]
    assert len(kill_at_limits(gatherer, 0.0, *kills)) == 12
    assert [one.ended is None for one in kill_at_limits(gatherer, 60.0)] == [False] * 12

    assert [one.label for one in kill_at_limits(gatherer, 61.0, kills[12])] == ["run-12.scope"]


def test_incident_in_its_quiet_time_is_over_with_what_came_back() -> None:
    """For a minute after its end it was "still going on", and a kill had brought nothing back."""
    gatherer = Gatherer()
    tick(gatherer, 0.0, "ram")
    (lasting,) = tick(gatherer, 10.0, "ram")
    assert tick(gatherer, 10.0 + GRACE_SECONDS - 0.25) == []
    (quiet,) = tick(gatherer, 10.0 + GRACE_SECONDS)
    again = tick(gatherer, 16.0, "ram")
    once_more = tick(gatherer, 20.0)
    (over,) = tick(gatherer, 16.0 + QUIET_SECONDS)

    assert (lasting.lasts, lasting.quiet_until, lasting.came_back_bytes) == (True, None, None)
    assert (quiet.lasts, quiet.quiet_until, quiet.ended) == (False, UNIX + 10.0 + QUIET_SECONDS, None)
    assert quiet.came_back_bytes == 0
    assert [one.lasts for one in (*again, *once_more)] == [True, False]
    assert (over.quiet_until, over.ended) == (None, UNIX + 16.0)


def add_events(gatherer: Gatherer, events: Sequence[Event]) -> None:
    gatherer.add(Observation(0.0, machine(0.0), events=tuple(events)))


@pytest.mark.parametrize(("count", "kept"), [(99, 99), (100, 100), (101, 100), (300, 100)])
def test_incident_has_the_last_hundred_events_before_it(count: int, kept: int) -> None:
    gatherer = Gatherer()
    add_events(gatherer, [Event(number, UNIX, "level", "a change") for number in range(1, count + 1)])

    tick(gatherer, 1.0, "ram")

    assert [one.seq for one in gatherer.open["ram"].events] == list(range(count - kept + 1, count + 1))


@pytest.mark.parametrize(("count", "kept"), [(49, 49), (50, 50), (51, 50), (300, 50)])
def test_incident_has_the_last_fifty_marks_before_it_beside_other_events(count: int, kept: int) -> None:
    """Marks of a busy program displace no other event."""
    gatherer = Gatherer()
    marks = [Event(number, UNIX, MARK, f"step {number}") for number in range(2, count + 2)]
    add_events(gatherer, [Event(1, UNIX, "level", "a change"), *marks])

    tick(gatherer, 1.0, "ram")

    assert [one.seq for one in gatherer.open["ram"].events] == [1, *range(count - kept + 2, count + 2)]


def test_lasting_incident_is_written_after_10_s_then_20_s_then_every_40_s() -> None:
    """A time that has just passed counts, so that the record on disk is never older than that."""
    gatherer = Gatherer()
    times = [0.0, 9.75, 10.0, 29.75, 30.0, 30.25, 69.75, 70.0, 109.75, 110.0, 150.0]

    assert [at for at in times if tick(gatherer, at, "ram")] == [0.0, 10.0, 30.0, 70.0, 110.0, 150.0]


@pytest.mark.parametrize(("seconds", "is_over"), [(59.75, False), (60.0, True)])
def test_incident_is_over_a_minute_after_the_last_critical_tick(seconds: float, is_over: bool) -> None:
    gatherer = Gatherer()
    tick(gatherer, 0.0, "ram")
    tick(gatherer, 5.0, "ram")

    tick(gatherer, 5.0 + seconds)

    assert (not gatherer.open) is is_over


@pytest.mark.parametrize(("seconds", "is_over"), [(1799.75, False), (1800.0, True)])
def test_critical_incident_is_over_after_half_an_hour(seconds: float, is_over: bool) -> None:
    gatherer = Gatherer()
    tick(gatherer, 0.0, "ram")

    tick(gatherer, seconds, "ram")

    assert (not gatherer.open) is is_over
    tick(gatherer, seconds + 0.125, "ram")
    assert (not gatherer.open) is is_over


@pytest.mark.parametrize(("target", "pids"), [("ram", {7}), ("gpu0.vram", set())])
def test_only_an_incident_of_system_ram_has_the_growth_of_the_last_hour(target: str, pids: set[int]) -> None:
    """The growth is that in System RAM: of a GPU it explains nothing."""
    gatherer = Gatherer(lambda _: [LEAK])

    tick(gatherer, 0.0, target)

    assert gatherer.open[target].long.keys() == pids


@pytest.mark.parametrize(("target", "cause"), [("ram", "leaky"), ("gpu0.vram", None)])
def test_growth_until_the_daemon_stops_counts_for_system_ram(target: str, cause: str | None) -> None:
    """A process that grew since the last record is found, too."""
    grown = list[Suspect]()
    gatherer = Gatherer(lambda _: grown)
    tick(gatherer, 0.0, target)
    grown.append(LEAK)

    (found,) = gatherer.close_all(Observation(1.0, machine(1.0, [target])), "stopped")

    assert (found.cause.who if found.cause else None) == cause


def test_record_that_a_stop_ends_early_says_if_the_level_was_still_critical() -> None:
    """Its page said "before the incident was over" beside a level that had fallen."""
    for levels, words in (
        ([["ram"], ["ram"]], "memwatchd was stopped before the incident was over"),
        ([["ram"], []], "memwatchd was stopped 1.0 s after the incident was over"),
    ):
        gatherer = Gatherer()
        for at, critical in enumerate(levels):
            gatherer.add(Observation(float(at), machine(float(at), critical)))

        (found,) = gatherer.close_all(None, "memwatchd was stopped")

        assert words in found.evidence


KILLED = tuple(Process(pid, UNIX - 100, f"p{pid}", GIB, GIB, "rss") for pid in range(100, 160))


def end_all(gatherer: Gatherer, count: int) -> None:
    """List processes, and end some of them by SIGKILL a second later."""
    gatherer.add(Observation(0.0, machine(0.0, processes=KILLED)))
    ends = tuple(ProcessEnd(one.pid, UNIX + 1.0, signal.SIGKILL) for one in KILLED[:count])
    gatherer.add(Observation(1.0, machine(1.0), ends=ends))


@pytest.mark.parametrize(("seconds", "count"), [(3.75, 0), (4.0, 1)])
def test_kill_waits_four_seconds_for_the_line_that_explains_it(seconds: float, count: int) -> None:
    gatherer = Gatherer()
    end_all(gatherer, 1)

    tick(gatherer, 1.0 + seconds)

    assert len(gatherer.take_quiet_kills()) == count


def end_of(pid: int, user: str, size: int = GIB) -> Process:
    return Process(pid, UNIX - 100, f"p{pid}", size, size, "rss", user)


def test_ends_of_many_processes_of_a_user_hide_no_end_of_another() -> None:
    """A user kills 60 processes while one of another user dies: that one is reported, and the rest is counted."""
    budget = Budget(KINDS["last_words"])
    gatherer = Gatherer(last_words=budget)
    of_user = tuple(end_of(pid, str(100_000 + pid), 2 * GIB) for pid in range(200, 260))
    listed = (*of_user, end_of(7, "1002"))
    gatherer.add(Observation(0.0, machine(0.0, processes=listed)))
    ends = tuple(ProcessEnd(one.pid, UNIX + 1.0, signal.SIGKILL) for one in (listed[-1], *of_user))
    gatherer.add(Observation(1.0, machine(1.0), ends=ends))
    tick(gatherer, 5.0)

    assert any("(PID 7)" in one for one in gatherer.take_quiet_kills())
    gatherer.close_all(None, "stopped")
    assert budget.held == 0


def test_kills_in_many_jobs_of_a_user_have_one_share() -> None:
    """Jobs of Slurm on cgroup v2 name no user: that of their processes counts."""
    gatherer = Gatherer()
    job = "/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0"
    processes = tuple(
        replace(end_of(number, "1001"), job=str(number), unit="slurmstepd.scope") for number in range(1, 101)
    )
    gatherer.add(Observation(0.0, machine(0.0, processes=processes)))
    kills = NewKills(of_cgroups=tuple(group_kill(job.format(number), GIB) for number in range(1, 101)))
    gatherer.add(Observation(1.0, machine(1.0, processes=processes), kills))
    kill_at_limits(gatherer, 2.0, group_kill(SERVICE, 32 << 20))

    labels = [one.label for one in gatherer.open.values()]
    assert (len(labels), "db.service" in labels) == (13, True)
    assert set(gatherer.budget.recent()) == {"uid 1001"}


def test_level_without_a_place_is_counted_once_and_not_at_each_tick() -> None:
    gatherer = Gatherer()
    limits = [f"gpu_limit{number}" for number in range(13)]
    shares = tuple(Share(one, ShareKind.GPU_LIMIT, one, "ram", 0, "test", Quality.MEASURED, GIB) for one in limits)
    for second in range(20):
        snapshot = replace(machine(float(second), limits), shares=shares)
        gatherer.add(Observation(float(second), snapshot))
    assert (len(gatherer.open), gatherer.budget.refused) == (12, 1)


@pytest.mark.parametrize(("killed", "told"), [(49, 49), (50, 50), (51, 50)])
def test_fifty_kills_wait_at_once(killed: int, told: int) -> None:
    """Half of 100, of one account. Of more, as at the end of a large job, the first ones are reported."""
    gatherer = Gatherer()
    end_all(gatherer, killed)

    tick(gatherer, 5.0)

    found = gatherer.take_quiet_kills()
    assert len(found) == told
    assert f"(PID {99 + told})" in found[-1]


@pytest.mark.parametrize(("more", "is_noted"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize("level", [Level.MEDIUM, Level.HIGH])
def test_kill_of_a_process_from_256_mib_on_is_noted(more: int, is_noted: bool, level: Level) -> None:
    """While memory is short it is an incident, else an event."""
    gatherer = Gatherer()
    size = (256 << 20) + more
    victim = Process(100, UNIX - 100, "p100", size, size, "rss")
    pressure = (Pressure("ram", level, level, 0.9),)
    listed = replace(machine(0.0, processes=(victim,)), pressure=pressure)
    gatherer.add(Observation(0.0, listed))
    gatherer.add(Observation(1.0, machine(1.0), ends=(ProcessEnd(100, UNIX + 1.0, signal.SIGKILL),)))

    incidents, events = tick(gatherer, 5.0), gatherer.take_quiet_kills()

    is_incident = is_noted and level is Level.HIGH
    assert [one.kind for one in incidents] == ["kill"] * is_incident
    assert len(events) == int(is_noted and not is_incident)


@pytest.mark.parametrize(("ago", "size"), [(4.75, 3 * GIB), (5.0, 3 * GIB), (5.25, GIB)])
def test_victim_has_its_largest_size_of_the_last_five_seconds(ago: float, size: int) -> None:
    """A process that ends gives its memory back page by page, while it is still listed."""
    gatherer = Gatherer()
    for at, held in ((10.0 - ago, 3 * GIB), (10.0, GIB)):
        one = Process(100, UNIX - 100, "p100", held, held, "rss")
        gatherer.add(Observation(at, machine(at, ["ram"], processes=(one,))))
    kill = ServiceKill(1, UNIX + 11.0, "earlyoom", "killed p100", pid=100, name="p100")

    (found,) = tick(gatherer, 11.0, "ram", kills=[kill])

    assert [one.held_bytes for one in found.victims] == [size]
