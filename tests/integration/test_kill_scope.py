"""OOM kills in the default installation: without the kernel's log a kill has no name and no scope."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, running_daemon
from support.kill_host import events
from support.memory_cgroup import HOG, MemoryCgroup, memory_cgroup
from support.waiting import MAX_WAIT_SECONDS
from support.webhook_receiver import receiving

EVENT = "OOM killer: killed 1 process, of the machine or at a cgroup's limit: no log and no counter shows which"


def ram_of(daemon: RunningDaemon) -> tuple[str, list[str]]:
    """Return level and signals of System RAM."""
    (ram,) = [one for one in daemon.snapshot()["pressure"] if one["target"] == "ram"]
    return ram["level"], [reason["signal"] for reason in ram["reasons"]]


def kill_events(daemon: RunningDaemon) -> list[str]:
    daemon.wait_for("/api/v1/events", lambda events: "oom_kill" in {event["kind"] for event in events})
    return [event["text"] for event in daemon.get("/api/v1/events").json if event["kind"] == "oom_kill"]


def test_kill_at_the_limit_of_a_container_is_an_event_and_no_alert(tmp_path: Path) -> None:
    """The counter rises while 40 of 63 GB are available, as in google/cadvisor#2417."""
    machine = AlertMachine.of(tmp_path)
    machine.empty()
    with (
        receiving(200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        calm = ram_of(daemon)
        machine.count_oom_kill()

        assert kill_events(daemon) == [EVENT]
        assert ram_of(daemon) == calm
        assert daemon.get("/api/v1/incidents").json == []
        assert "oom_kill" not in daemon.get("/metrics").text.partition("memwatch_pressure_reason{")[2]
    assert site.deliveries == []


def test_kill_on_a_full_machine_is_critical(tmp_path: Path) -> None:
    machine = AlertMachine.of(tmp_path)
    machine.set_available(9_000_000)  # 86 % used: high by its use
    with (
        receiving(200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        assert ram_of(daemon)[0] == "high"
        machine.count_oom_kill()
        (delivery,) = wait_for_deliveries(site, 1)

        assert kill_events(daemon) == ["OOM killer: killed 1 process"]
        assert ram_of(daemon)[0] == "critical"
    assert b"OOM killer: killed a process" in delivery.body


CONTAINER = "docker-" + "1f6b" * 16 + ".scope"
OF_CONTAINER = (
    "docker-1f6b1f6b1f6b.scope reached its limit of 32.0 MiB; the kernel killed a process in it; "
    "System RAM was not involved"
)


def test_kill_at_the_limit_of_a_container_is_named_by_its_counters(tmp_path: Path) -> None:
    """Also on a full machine: what its counters explain needs no guess."""
    machine = AlertMachine.of(tmp_path)
    machine.set_available(9_000_000)  # 86 % used: high by its use
    groups = (
        machine.folder / "sys/fs/cgroup/system.slice",
        machine.folder / f"sys/fs/cgroup/system.slice/{CONTAINER}",
    )
    groups[1].mkdir()
    (groups[1] / "memory.max").write_text(f"{32 << 20}\n")
    none, one = Counter[str](), Counter(oom=1, oom_kill=1)
    write_events(groups[0], none, none)
    write_events(groups[1], none, none)
    with (
        receiving(200) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        daemon.wait_until_ok("cgroup_kills")
        write_events(groups[1], one, one)
        write_events(groups[0], none, one)
        machine.count_oom_kill()

        assert kill_events(daemon) == [OF_CONTAINER]
        assert ram_of(daemon)[0] == "high"
    assert site.deliveries == []


def write_events(folder: Path, own: Counter[str], total: Counter[str]) -> None:
    (folder / "memory.events").write_text(events(total))
    (folder / "memory.events.local").write_text(events(own))


@pytest.mark.host
def test_real_kill_at_a_limit_is_named_without_the_kernel_log(tmp_path: Path) -> None:
    """Twice, since the group keeps its counts."""
    with memory_cgroup(30 << 20) as group:
        if group is None:  # the same with files of a kernel, as above
            test_kill_at_the_limit_of_a_container_is_named_by_its_counters(tmp_path)
            return
        (tmp_path / "root/dev").mkdir(parents=True)
        with running_daemon(tmp_path, f"--rootfs={tmp_path / 'root'}", watches_this_machine=True) as daemon:
            daemon.wait_until_ok("cgroup_kills")
            before = count_reclaims()
            for number in (1, 2):
                assert fill(group) == -9
                daemon.wait_for(
                    "/api/v1/events",
                    lambda found, number=number: count_of(group, found) + count_unknown(found) >= number,
                )
            ram, named = ram_of(daemon), count_of(group, daemon.get("/api/v1/events").json)
    # Version 1 explains no kill while the machine reclaims, as other programs may make it.
    assert named == 2 or count_reclaims() > before
    assert ram[0] != "critical" or "oom_kill" not in ram[1] or count_reclaims() > before


def count_reclaims() -> int:
    lines = [line.split() for line in Path("/proc/vmstat").read_text().splitlines()]
    return sum(int(count) for name, count in lines if name.startswith("allocstall"))


def count_unknown(found: list[dict[str, str]]) -> int:
    return sum(one["kind"] == "oom_kill" and "OOM killer: killed" in one["text"] for one in found)


def fill(group: MemoryCgroup) -> int:
    return group.run(HOG, "200", "256").wait(MAX_WAIT_SECONDS)


def count_of(group: MemoryCgroup, found: list[dict[str, str]]) -> int:
    """Count the events about kills at the limit of a group. Other groups of this machine may have some as well."""
    text = f"{group.folder.name} reached its limit of 30.0 MiB; the kernel killed a process in it"
    return sum(one["kind"] == "oom_kill" and one["text"].startswith(text) for one in found)
