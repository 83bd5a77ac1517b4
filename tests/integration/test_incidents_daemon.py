"""Incidents of a running daemon: files of a machine change, and the API explains what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.linux.process_ends import read_status
from simulators.nvml_machine import Simulator
from support.budget import within
from support.client_process import memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.incident_host import CONTAINER, GROUPS, IncidentHost
from support.incident_scenarios import global_kill, group_kill, kib
from support.memory_cgroup import HOG, memory_cgroup
from support.paths import MACHINES
from support.state_copy import incidents_on_disk
from support.waiting import MAX_WAIT_SECONDS, Stopwatch, wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import SECRET

GIB = 1 << 30
HOLD = "import sys, time; kept = bytearray(b'x') * (400 << 20); print('ready', flush=True); time.sleep(600)"


def wait_for_incident(daemon: RunningDaemon, **wanted: Any) -> Any:
    """Wait until the newest incident has these values, and return it with its timeline."""

    def fits(found: Any) -> bool:
        return any(all(one[name] == value for name, value in wanted.items()) for one in found)

    found = daemon.wait_for("/api/v1/incidents", fits)
    newest = next(one for one in found if all(one[name] == value for name, value in wanted.items()))
    return daemon.get(f"/api/v1/incidents/{newest['id']}").json


def killer_kind(found: Any) -> str | None:
    return found["killer"]["kind"] if found["killer"] else None


def test_kernel_kill_names_the_cause_and_survives_a_restart(tmp_path: Path) -> None:
    """The server takes the memory, the kernel kills the desktop: both are named, also after a restart."""
    host, state = IncidentHost(tmp_path / "host"), tmp_path / "state"
    state.mkdir()
    arguments = [*host.arguments, f"--state-dir={state}"]
    with running_daemon(tmp_path, *arguments, config=host.config) as daemon:
        daemon.wait_until_ok("processes")
        host.fill()
        wait_for_incident(daemon, kind="critical")
        host.log_kernel(line for _, line in global_kill(78, "gnome-shell", kib(0.3), 0.0))
        found = wait_for_incident(daemon, kind="kill")
        daemon.terminate()
    with running_daemon(tmp_path, *arguments, config=host.config) as daemon:
        again = daemon.get(f"/api/v1/incidents/{found['id']}").json
        unknown = daemon.get("/api/v1/incidents/no-such-incident")
        report = memwatch("--url", daemon.url, "incidents", found["id"], "--markdown")
        mistyped = [memwatch("--url", daemon.url, "incidents", name) for name in ("no-such-incident", "")]

    assert (found["cause"]["pid"], found["cause"]["container"]) == (77, CONTAINER[:12]), found["sentence"]
    assert killer_kind(found) == "kernel_oom"
    assert (found["victim"]["pid"], found["victim"]["is_cause"]) == (78, False)
    assert {"level", "oom_kill"} <= {entry["kind"] for entry in found["timeline"]}
    assert max(sample["holders"].get("vllm (77)", 0) for sample in found["samples"]) > 6 << 30
    assert (again["cause"], again["killer"]) == (found["cause"], found["killer"])
    assert "memwatchd was stopped before the incident was over" in again["evidence"]
    assert unknown.status == 404
    assert [(one.returncode, one.stderr) for one in mistyped] == [
        (1, f'memwatch: no incident "{name}"; "memwatch incidents" lists those that are kept\n')
        for name in ("no-such-incident", "")
    ]
    assert report.stdout.startswith(f"# ` {found['title']} `\n")
    assert "gnome-shell" in report.stdout


def test_line_of_earlyoom_in_the_journal_names_the_killer(tmp_path: Path) -> None:
    """The kill is in the journal only. A line of another unit with the same words is ignored."""
    host = IncidentHost(tmp_path / "host")
    kill = 'sending SIGTERM to process 77 uid 1000 "vllm": badness 866, VmRSS 6758 MiB'
    with running_daemon(tmp_path, *host.arguments, config=host.config) as daemon:
        daemon.wait_until_ok("processes")
        daemon.wait_until_ok("journal")
        host.fill()
        host.log_service("evil.service", kill.replace("77", "78"))
        host.log_service("earlyoom.service", kill)
        found = wait_for_incident(daemon, kind="kill")

    assert killer_kind(found) == "earlyoom"
    assert [victim["pid"] for victim in found["victims"]] == [77]
    assert found["cause"]["pid"] == 77
    assert found["victim"]["is_cause"] is True


def test_incident_that_a_kill_of_the_daemon_cut_off_is_closed_at_the_next_start(tmp_path: Path) -> None:
    """The daemon is killed while memory is critical: the next run closes the incident as an unclean end."""
    host, state = IncidentHost(tmp_path / "host"), tmp_path / "state"
    state.mkdir()
    arguments = [*host.arguments, f"--state-dir={state}"]
    with running_daemon(tmp_path, *arguments, config=host.config) as daemon:
        daemon.wait_until_ok("processes")
        host.fill()
        found = wait_for_incident(daemon, kind="critical")
        wait_until(lambda: found["id"] in incidents_on_disk(state))
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(MAX_WAIT_SECONDS)
    host.use(2.0, {77: 1.0, 78: 0.3})
    with running_daemon(tmp_path, *arguments, config=host.config) as daemon:
        (closed,) = daemon.get("/api/v1/incidents").json

    assert (closed["id"], closed["kind"]) == (found["id"], "unclean_end")
    assert closed["ended"] is not None
    assert closed["cause"]["pid"] == 77
    assert killer_kind(closed) == "unknown"
    assert closed["came_back_bytes"] is None


def follows(daemon: RunningDaemon, pid: int) -> bool:
    """Return whether the daemon has a pidfd of this process (proc_pid_fdinfo(5))."""
    for file in Path(f"/proc/{daemon.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            if f"\nPid:\t{pid}\n" in file.read_text():
                return True
    return False


@pytest.mark.measure
def test_process_killed_by_hand_leaves_the_list_at_once(tmp_path: Path) -> None:
    """A real process of 400 MiB with 31 GiB of a simulated GPU, beside free memory: an event, and no incident.

    The list of processes is read each 10 s. Kernels before 6.15 do not report by which signal a process ended.
    """
    held = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE)
    assert held.stdout is not None
    assert held.stdout.readline() == b"ready\n"
    file = os.pidfd_open(held.pid)
    state = (MACHINES / "h100-firecracker/nvml.state").read_text()
    busy = (
        f"gpu.0.memory.used = {31 * GIB}\ngpu.0.memory.free = {48 * GIB}\ngpu.0.compute = {held.pid}:{31 * GIB}\n"
    )
    simulator = Simulator.of_state(tmp_path, state + busy)
    folder = MACHINES / "h100-firecracker"
    roots = f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"
    with running_daemon(tmp_path, "--interval", "200ms", *roots, environ=simulator.environ) as daemon:
        wait_until(lambda: follows(daemon, held.pid))
        daemon.wait_for("/api/v1/processes", lambda found: device_bytes(found, held.pid) == {"gpu0": 31 * GIB})
        before = resident_bytes(daemon)
        held.kill()
        held.wait()
        held.stdout.close()
        still = daemon.get("/api/v1/processes").json  # the driver has not freed its memory
        (simulator.folder / "new").write_text(state)
        (simulator.folder / "new").replace(simulator.folder / "state")
        watch = Stopwatch(daemon.pid)
        daemon.wait_for("/api/v1/processes", lambda found: device_bytes(found, held.pid) is None)
        took = watch.seconds
        after = resident_bytes(daemon)
        status = read_status(file)
        os.close(file)
        if status is not None:
            daemon.wait_for("/api/v1/events", lambda found: killed_texts(found))
        events = daemon.get("/api/v1/events").json
        incidents = daemon.get("/api/v1/incidents").json

    assert device_bytes(still, held.pid) == {"gpu0": 31 * GIB}
    within("from the kill to the list of processes", took, 3.0, "s")
    assert before - after > 300 << 20
    assert incidents == []
    if status is not None:
        (text,) = killed_texts(events)
        assert text.startswith("an unknown sender killed ")
        assert f"(PID {held.pid}" in text
        assert "while memory was not short; it had 31.0 GiB of VRAM and 40" in text


def device_bytes(processes: Any, pid: int) -> Any:
    """Return the device memory of a listed process, None if it is not listed."""
    return next((one["device_bytes"] for one in processes if one["pid"] == pid), None)


def resident_bytes(daemon: RunningDaemon) -> int:
    return sum(one["rss_bytes"] for one in daemon.get("/api/v1/owners?by=user").json["owners"])


def killed_texts(events: Any) -> list[str]:
    return [one["text"] for one in events if one["kind"] == "process.killed"]


def victim_pids(incident: Any) -> list[int]:
    return [one["pid"] for one in incident["victims"]]


@pytest.mark.host
@pytest.mark.long
def test_real_kill_at_the_limit_of_a_cgroup_names_its_program(tmp_path: Path) -> None:
    """A program outgrows its group. Without the permission to create one, the same lines in a file are read."""
    with memory_cgroup(256 << 20) as group:
        if group is None:
            check_simulated_group_kill(tmp_path)
            return
        with running_daemon(tmp_path, config='[processes]\ninterval = "1s"\n', watches_this_machine=True) as daemon:
            daemon.wait_until_ok("processes")
            reads_log = any(
                (one["name"], one["state"]) == ("kmsg", "ok") for one in daemon.get("/api/v1/collectors").json
            )
            hog = group.run(HOG, "40", "1024")
            assert hog.wait(MAX_WAIT_SECONDS) == -9
            if (
                not reads_log
            ):  # by the counters of the group, or by the end of its process while the machine reclaims
                assert killer_kind(wait_for_incident(daemon, kind="kill")) in ("cgroup_oom", "unknown")
                return
            listed = daemon.wait_for(
                "/api/v1/incidents", lambda found: any(hog.pid in victim_pids(one) for one in found)
            )
            one = next(one for one in listed if hog.pid in victim_pids(one))
            found = daemon.get(f"/api/v1/incidents/{one['id']}").json
    assert killer_kind(found) == "cgroup_oom", found["sentence"]
    assert found["victim"]["pid"] == hog.pid
    assert group.folder.name in found["killer"]["evidence"]
    assert found["cause"] is None or found["cause"]["pid"] == hog.pid


def check_simulated_group_kill(tmp_path: Path) -> None:
    host = IncidentHost(tmp_path / "host")
    with running_daemon(tmp_path, *host.arguments, config=host.config) as daemon:
        daemon.wait_until_ok("processes")
        host.use(4.0, {77: 3.0, 78: 0.3})
        daemon.wait_for(
            "/api/v1/processes",
            lambda found: any(one["pid"] == 77 and one["rss_bytes"] >= 3 << 30 for one in found),
        )
        host.log_kernel(line for _, line in group_kill(77, "vllm", kib(3.0), GROUPS[77], 0.0))
        found = wait_for_incident(daemon, kind="kill")

    assert (killer_kind(found), found["victim"]["pid"], found["cause"]["pid"]) == ("cgroup_oom", 77, 77)


def test_kill_at_the_limit_of_a_container_is_compared_within_it(tmp_path: Path) -> None:
    check_simulated_group_kill(tmp_path)


def test_notification_of_a_critical_level_links_to_its_incident(tmp_path: Path) -> None:
    """The incident begins at the tick that sends the alert."""
    host = IncidentHost(tmp_path / "host")
    with receiving() as receiver:
        config = (
            f'{host.config}[web]\nurl = "https://spark/memory"\n'
            f'[[alerts.webhooks]]\nname = "ops"\nurl = "{receiver.url}"\nsecret = "{SECRET}"\n'
        )
        with running_daemon(tmp_path, *host.arguments, config=config) as daemon:
            daemon.wait_until_ok("processes")
            host.fill()
            found = daemon.wait_for("/api/v1/incidents", bool)
            wait_until(lambda: len(receiver.deliveries) > 0)
    body = json.loads(receiver.deliveries[0].body)

    assert body["event"] == "pressure.critical"
    assert body["incident_url"] == f"https://spark/memory/incidents/{found[-1]['id']}"
