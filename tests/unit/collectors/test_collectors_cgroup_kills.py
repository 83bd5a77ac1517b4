"""OOM kills at limits of cgroups, from counters: which are explained, and which are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwatch.core.collectors.cgroup_kills import Collector
from memwatch.core.linux.cgroup_kills import HIT_SECONDS, MAX_DEPTH, MAX_GROUPS, MAX_NAMED, CgroupKill, CgroupKills
from memwatch.core.linux.files import SourceUnavailable
from support.kill_host import KillHost

LAYOUTS = ("v2", "local", "old", "v1")


class Scans:
    """Scans of a machine, ten seconds apart."""

    def __init__(self, host: KillHost) -> None:
        self.now, self.found, self.state = 0.0, 0, CgroupKills()
        self.collector = Collector(host.roots, lambda: self.now)
        self.scan()

    def scan(self, seconds: float = HIT_SECONDS + 1) -> list[CgroupKill]:
        """Return the new kills."""
        self.now += seconds
        state = self.state = self.read()
        new = [kill for kill in state.kills if kill.number > self.found]
        assert state.number - self.found == sum(kill.count for kill in new)
        self.found = state.number
        return new

    def read(self) -> CgroupKills:
        state = self.collector.collect().cgroup_kills
        assert state is not None
        return state

    def close(self) -> None:
        self.collector.close()


def places(kills: list[CgroupKill]) -> list[tuple[str, int, bool]]:
    return [(kill.cgroup, kill.count, kill.is_inside) for kill in kills]


@pytest.fixture(params=LAYOUTS)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> KillHost:
    found = KillHost(tmp_path, request.param)
    found.add("system.slice/a.service", "docker/one", "docker/two", "own")
    return found


@pytest.fixture
def scans(host: KillHost) -> Iterator[Scans]:
    with closing(Scans(host)) as found:
        yield found


def test_kill_at_the_limit_of_a_group_is_that_groups(host: KillHost, scans: Scans) -> None:
    host.limit("docker/one", 32 << 20)
    host.kill("docker/one", limit="docker/one")

    (kill,) = scans.scan()

    assert kill == CgroupKill(1, 1, "/docker/one", 32 << 20)
    assert kill.text == (
        "one reached its limit of 32.0 MiB; the kernel killed a process in it; System RAM was not involved"
    )
    assert scans.state.counted == 1
    assert scans.scan() == []


def test_kill_of_the_machine_is_no_groups(host: KillHost, scans: Scans) -> None:
    """`oom_kill` of the victim's group rises as at its limit; `oom` and `memory.failcnt` do not."""
    host.kill("docker/one")

    assert scans.scan() == []
    assert scans.state == CgroupKills(1, own="/own")


@pytest.mark.parametrize(
    ("group", "limit", "times"), [("docker/two", "docker", 1), ("docker/one", "docker/one", 7)]
)
def test_limit_is_named_with_all_its_kills(
    host: KillHost, scans: Scans, group: str, limit: str, times: int
) -> None:
    """With `memory.oom.group` the kernel counts one `oom`, and each process of the group."""
    host.kill(group, limit=limit, times=times)

    assert places(scans.scan()) == [(f"/{limit}", times, False)]


def test_kills_of_the_machine_beside_those_at_a_limit_are_not_explained(host: KillHost, scans: Scans) -> None:
    host.kill("docker/one", limit="docker/one")
    host.kill("system.slice/a.service", times=2)

    assert places(scans.scan()) == [("/docker/one", 1, False)]


def test_limit_that_was_reached_long_before_explains_no_kill(host: KillHost, scans: Scans) -> None:
    host.hit("docker/one")
    soon = scans.scan()
    host.kill("docker/one")

    assert [soon, scans.scan()] == [[], []]


def test_limit_is_counted_seconds_before_its_kill(host: KillHost, scans: Scans) -> None:
    """The kernel logs a table of all tasks between the two."""
    host.hit("docker/one")
    early = scans.scan()
    host.kill("docker/one")

    assert [early, places(scans.scan(HIT_SECONDS))] == [[], [("/docker/one", 1, False)]]


def test_kill_in_the_own_group_is_marked(host: KillHost, scans: Scans) -> None:
    host.kill("own", limit="own")

    assert [kill.is_own for kill in scans.scan()] == [True]


def test_group_that_is_new_counts_from_0(host: KillHost, scans: Scans) -> None:
    host.add("docker/new/inner")
    host.kill("docker/new/inner", limit="docker/new")

    assert places(scans.scan()) == [("/docker/new", 1, False)]


def test_group_of_a_service_that_restarted_counts_from_0(host: KillHost, scans: Scans) -> None:
    """The same name and the same counts, but another group."""
    host.kill("system.slice/a.service", limit="system.slice/a.service")
    first = places(scans.scan())
    host.remove("system.slice/a.service")
    host.add("system.slice/a.service")
    host.kill("system.slice/a.service", limit="system.slice/a.service")

    assert [first, places(scans.scan())] == [[("/system.slice/a.service", 1, False)]] * 2


@pytest.mark.parametrize("layout", ["v2"])
def test_kill_in_a_group_that_is_gone_is_found_in_the_group_around_it(layout: str, tmp_path: Path) -> None:
    host = KillHost(tmp_path, layout)
    host.add("docker/one", "docker/two")
    host.kill("docker/one", limit="docker/one", times=3)
    with closing(Scans(host)) as scans:
        host.kill("docker/one", limit="docker/one")
        host.remove("docker/one")
        host.kill("docker/two", limit="docker/two")
        found = scans.scan()

    assert sorted(places(found)) == [("/docker", 1, True), ("/docker/two", 1, False)]
    assert next(kill for kill in found if kill.is_inside).text == (
        "A cgroup in docker reached its limit; the kernel killed a process in it; System RAM was not involved"
    )


def test_group_that_is_gone_explains_nothing_without_nested_counts(tmp_path: Path) -> None:
    host = KillHost(tmp_path, "v1")
    host.add("docker/one")
    with closing(Scans(host)) as scans:
        host.kill("docker/one", limit="docker/one")
        host.remove("docker/one")

        assert scans.scan() == []


def test_failed_charge_while_the_machine_reclaims_explains_nothing_in_version_1(tmp_path: Path) -> None:
    """Page cache fails charges as well, and the machine kills only after direct reclaim."""
    host = KillHost(tmp_path, "v1")
    host.add("job")
    with closing(Scans(host)) as scans:
        host.kill("job", limit="job")
        host.reclaim()
        during = scans.scan()
        host.kill("job", limit="job")

        assert [during, places(scans.scan())] == [[], [("/job", 1, False)]]


def test_counter_that_falls_explains_nothing(host: KillHost, scans: Scans) -> None:
    """One of another kernel after a checkpoint was restored, or one that wrapped."""
    host.kill("docker/one", limit="docker/one", times=5)
    scans.scan()
    for counts in (host._own, host._total):
        counts["docker/one"].clear()
        counts["docker"].clear()
    host.hit("docker/one", 0)

    assert scans.scan() == []
    host.kill("docker/one", limit="docker/one")
    assert places(scans.scan()) == [("/docker/one", 1, False)]


@pytest.mark.parametrize("text", ["", "oom 1", "oom x\noom_kill y\n", "oom_kill 99999999999999999999999\noom 1\n"])
def test_unreadable_counters_explain_nothing(text: str, host: KillHost, scans: Scans) -> None:
    host.kill("docker/one", limit="docker/one")
    for name in ("memory.events", "memory.events.local", "memory.oom_control"):
        for group in ("docker/one", "docker"):
            (host.groups / group / name).write_text(text)

    assert scans.scan() == []


def test_calm_scan_reads_only_the_outermost_groups(tmp_path: Path) -> None:
    """Their counts include those of all groups inside. A kernel never writes what this test writes."""
    host = KillHost(tmp_path)
    host.add("pods/a/app", "pods/b/app", "pods/c/app")
    with closing(Scans(host)) as scans:
        for name in "abc":
            for file in ("memory.events", "memory.events.local"):
                (host.groups / f"pods/{name}/{file}").write_text("oom 1\noom_kill 1\n")

        assert scans.scan() == []


def test_two_thousand_groups_are_read_and_the_rest_is_said(tmp_path: Path) -> None:
    """The counters of the group around them still show that one of them reached its limit."""
    host = KillHost(tmp_path)
    groups = [f"pods/{number}" for number in range(MAX_GROUPS + 100)]
    host.add(*groups)
    with closing(Scans(host)) as scans:
        host.kill_in_each(groups)
        found, is_whole = scans.scan(), scans.state.is_whole
        is_calm_whole = scans.scan() == [] and scans.state.is_whole

    assert sum(kill.count for kill in found) == len(groups)
    assert found[0] == CgroupKill(101, 101, "/pods", is_inside=True)
    assert [is_whole, is_calm_whole] == [False, True]


def test_groups_of_a_user_hide_no_group_of_a_service(host: KillHost, scans: Scans) -> None:
    """Forty with two kills each, and one kill of the service, in one scan."""
    groups = [f"user.slice/user-1001.slice/run-{number}.scope" for number in range(40)]
    host.add(*groups)
    scans.scan()
    for group in groups:
        for _ in range(2):
            host.kill(group, limit=group)
    host.kill("system.slice/a.service", limit="system.slice/a.service")

    found = scans.scan()
    assert ("/system.slice/a.service", 1, False) in places(found)
    assert len(found) == MAX_NAMED + 1
    assert sum(kill.count for kill in found) == 81


def test_sixteen_groups_are_named_and_the_rest_is_added_up(host: KillHost, scans: Scans) -> None:
    names = [f"job{number}" for number in range(40)]
    host.add(*names)
    for name in names:
        host.kill(name, limit=name)

    found = scans.scan()

    assert len(found) == MAX_NAMED + 1
    assert sum(kill.count for kill in found) == 40
    assert found[-1].text == (
        "Other cgroups reached their limits; the kernel killed 24 processes in them; System RAM was not involved"
    )


def test_deep_groups_are_left_out(tmp_path: Path) -> None:
    """The group around them counts what they do."""
    host = KillHost(tmp_path)
    deep = "/".join("g" * (MAX_DEPTH + 8))
    host.add(deep)
    with closing(Scans(host)) as scans:
        host.kill(deep, limit=deep)
        (kill,) = scans.scan()

    assert (kill.count, kill.is_inside, kill.cgroup) == (1, True, "/" + "/".join("g" * MAX_DEPTH))


def test_hostile_name_is_escaped(host: KillHost, scans: Scans) -> None:
    host.add("a\x1b[2J\nb\u202e")
    host.kill("a\x1b[2J\nb\u202e", limit="a\x1b[2J\nb\u202e")

    assert [kill.cgroup for kill in scans.scan()] == ["/a\\u001b[2J\\u000ab\\u202e"]


def test_kernel_without_the_counter_is_unavailable(tmp_path: Path) -> None:
    host = KillHost(tmp_path)
    (host.roots.procfs / "vmstat").write_text("nr_free_pages 1\n")

    with pytest.raises(SourceUnavailable, match="no line oom_kill before Linux 4"):
        Collector(host.roots)


OF_LIMITS = ("jobs/a", "jobs/b", "jobs/b/inner", "pods/c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("limit"), st.sampled_from(OF_LIMITS)),
        st.tuples(st.just("machine"), st.sampled_from(("calm/d", "calm"))),
        st.tuples(st.just("remove"), st.sampled_from(OF_LIMITS)),
        st.tuples(st.just("scan"), st.just("")),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(st.sampled_from(LAYOUTS), STEPS)
def test_every_kill_at_a_limit_and_no_other_is_explained(layout: str, steps: list[tuple[str, str]]) -> None:
    """In any order, also in groups that end and return. Without nested counts those that end are not explained."""
    with TemporaryDirectory() as folder:
        host = KillHost(Path(folder), layout)
        host.add(*OF_LIMITS, "calm/d")
        with closing(Scans(host)) as scans:
            at_limits, was_removed = 0, False
            for step, path in steps:
                if step == "limit":
                    host.add(path)
                    host.kill(path, limit=path)
                    at_limits += 1
                elif step == "machine":
                    host.kill(path)
                elif step == "remove" and (host.groups / path).is_dir():
                    host.remove(path)
                    was_removed = True
                elif step == "scan":
                    scans.scan()
            scans.scan()

        assert scans.found <= at_limits
        if layout == "v2" or not was_removed:
            assert scans.found == at_limits


def test_groups_that_vanish_while_they_are_read_are_no_failure(host: KillHost, scans: Scans) -> None:
    """They are listed, and their files cannot be read any more."""
    host.kill("docker/one", limit="docker/one")
    for path in ("docker/one", "docker/two"):
        for file in (host.groups / path).iterdir():
            file.unlink()

    assert sum(kill.count for kill in scans.scan()) == (1 if host.layout == "v2" else 0)
    assert scans.scan() == []
