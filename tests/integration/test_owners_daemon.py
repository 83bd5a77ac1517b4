"""Who holds the memory, through the running daemon: sums that come out, real processes, what is hidden."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid
from typing import Any

import pytest

from scripts.golden import host_of
from support.container_host import OFTEN, simulated
from support.daemon_process import RunningDaemon, running_daemon
from support.memory_holder import holder, real_cgroup

MIB, GIB = 1 << 20, 1 << 30
AVAILABLE = {"page_cache_bytes", "free_bytes"}


@contextmanager
def machine(name: str, tmp_path: Path) -> Iterator[RunningDaemon]:
    """The daemon on a simulated machine, once its processes are listed with what they hold of devices."""
    host = host_of(name, tmp_path)
    with running_daemon(tmp_path, "--interval", "200ms", *host.roots, config=OFTEN, environ=host.environ) as daemon:
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        for collector in host.waits_for:
            daemon.wait_until_ok(collector)
        daemon.wait_for("/api/v1/processes", lambda found: any(one["device_bytes"] for one in found))
        yield daemon


def held_of(snapshot: Any, place: str) -> int:
    """What all listed processes hold of a pool or share."""
    return sum(process["device_bytes"].get(place, 0) for process in snapshot["processes"])


@pytest.mark.parametrize("name", ["gb10", "strix-halo", "rtx-4090"])
def test_processes_and_the_remainder_are_what_is_used(name: str, tmp_path: Path) -> None:
    """In each pool: what processes hold, what is the kernel's, and what nobody holds add up to what is used."""
    with machine(name, tmp_path) as daemon:
        snapshot = daemon.snapshot()
        owners = daemon.get("/api/v1/owners?by=user").json

    rests = {rest["id"]: rest["unattributed_bytes"] for rest in (*owners["pools"], *owners["shares"])}
    # An NPU's buffers are in shared memory already, as those of most drivers; these are in no line of meminfo.
    beyond = [share["id"] for share in snapshot["shares"] if share["kind"] != "npu_buffers"]
    inside = [share["id"] for share in snapshot["shares"] if share["within"] == "ram" and share["id"] in rests]
    for pool in snapshot["pools"]:
        if pool["id"] == "ram":
            used = {kind: size for kind, size in pool["contents"].items() if kind not in AVAILABLE}
            devices = sum(held_of(snapshot, share) + rests[share] for share in inside if share in beyond)
            assert used.pop("devices_bytes", 0) == devices
            assert used.pop("unattributed_bytes") == rests["ram"]
            assert sum(used.values()) + devices + rests["ram"] == pool["used_bytes"]
        else:
            assert (
                held_of(snapshot, pool["id"]) + (pool["reserved_bytes"] or 0) + rests[pool["id"]]
                == (pool["used_bytes"])
            )
        assert pool["unattributed_note"].startswith("Usually ")


@pytest.mark.parametrize("name", ["gb10", "strix-halo", "rtx-4090"])
@pytest.mark.parametrize("kind", ["unit", "container", "user"])
def test_owners_hold_what_their_processes_hold(name: str, kind: str, tmp_path: Path) -> None:
    """Whatever the processes are grouped by, resident memory and each device's come to the same sums."""
    with machine(name, tmp_path) as daemon:
        snapshot = daemon.snapshot()
        owners = daemon.get(f"/api/v1/owners?by={kind}").json["owners"]

    processes = snapshot["processes"]
    places = {place for process in processes for place in process["device_bytes"]}
    if owners:
        assert sum(owner["rss_bytes"] for owner in owners) == sum(process["rss_bytes"] for process in processes)
        for place in places:
            assert sum(owner["device_bytes"].get(place, 0) for owner in owners) == held_of(snapshot, place)
    for owner in owners:
        mine = [process for process in processes if process[kind] == owner["name"]]
        assert owner["footprint_low_bytes"] <= sum(process["footprint_high_bytes"] for process in mine)
        assert len(mine) == owner["processes"]


def test_the_remainder_has_a_history(tmp_path: Path) -> None:
    """What nobody holds is a series like any other."""
    with machine("gb10", tmp_path) as daemon:
        rest = daemon.snapshot()["pools"][0]["unattributed_bytes"]
        answer = daemon.wait_for(
            "/api/v1/history?series=pool.ram.unattributed_bytes",
            lambda found: found["series"][0]["max"] and found["series"][0]["max"][-1] == rest,
        )

    assert answer["series"][0]["unit"] == "bytes"


def find(daemon: RunningDaemon, pid: int, size: int) -> Any:
    """A process once it was looked at after it held so much: the look before may have come while it took that."""

    def mine(listed: Any) -> Any:
        return next((one for one in listed if one["pid"] == pid and one["rss_bytes"] >= size), None)

    return mine(daemon.wait_for("/api/v1/processes", mine))


def test_a_real_child_is_found_with_its_unit_and_user(tmp_path: Path) -> None:
    """512 MiB in a child: the right process, user, unit and container within one scan, beside the cgroup's figure.

    Where this user may make no cgroups, the child is where it is, and the daemon must say the same as /proc.
    """
    identity = secrets.token_hex(32)
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    daemon_here = running_daemon(tmp_path, "--interval", "200ms", config=OFTEN)
    with real_cgroup(f"memwatchd-test.slice/docker-{identity}.scope") as cgroups, daemon_here as daemon:
        before = owners_of(daemon, "user")
        with holder(512 * MIB, uid=uid, cgroups=cgroups) as pid:
            process = find(daemon, pid, 512 * MIB)
            units, containers, users = (owners_of(daemon, kind) for kind in ("unit", "container", "user"))
            paths = Path(f"/proc/{pid}/cgroup").read_text()
            page = daemon.get("/processes").text

    user = getpwuid(uid).pw_name
    assert process["user"] == user
    assert 512 * MIB <= process["rss_bytes"] < 600 * MIB
    assert process["footprint_bytes"] == process["rss_bytes"]
    assert rss_of(users, user) - rss_of(before, user) >= 500 * MIB
    assert (identity[:12] == process["container"]) == (identity in paths) == bool(cgroups)
    if cgroups:
        (container,) = (owner for owner in containers if owner["name"] == identity[:12])
        (unit,) = (owner for owner in units if owner["name"] == f"docker-{identity}.scope")
        assert container["processes"] == unit["processes"] == 1
        assert 512 * MIB <= container["rss_bytes"] < 600 * MIB
        assert 500 * MIB <= container["cgroup_bytes"] < 600 * MIB
        assert container["cgroup_note"] is None
        assert identity[:12] in page


def test_a_command_line_is_in_no_metric(tmp_path: Path) -> None:
    """Where it is configured it is in the API, from the first argument on; metrics of processes never have it."""
    config = OFTEN + "command_lines = true\nmetrics = true\n"
    size = 256 * MIB + 12345
    with running_daemon(tmp_path, "--interval", "200ms", config=config) as daemon, holder(size) as pid:
        process = find(daemon, pid, size)
        metrics = daemon.get("/metrics").text

    assert f"memory_holder.py {size}" in process["command"]
    assert f'pid="{pid}"' in metrics
    assert str(size) not in metrics


def owners_of(daemon: RunningDaemon, kind: str) -> Any:
    return daemon.get(f"/api/v1/owners?by={kind}").json["owners"]


def rss_of(owners: Any, name: str) -> int:
    return sum(owner["rss_bytes"] for owner in owners if owner["name"] == name)


@pytest.mark.parametrize(
    ("kind", "name", "counted"),
    [("container", "c0ffeec0ffee", 600 * MIB), ("pod", "1a" * 16, 700 * MIB), ("user", "ada", None)],
)
def test_a_container_on_a_simulated_host(kind: str, name: str, counted: int | None, tmp_path: Path) -> None:
    """Container, pod and user of a process, with what the cgroup itself counts."""
    with running_daemon(tmp_path, *simulated(tmp_path / "host"), config=OFTEN) as daemon:
        (owner,) = daemon.wait_for(f"/api/v1/owners?by={kind}", lambda found: found["owners"])["owners"]

    assert (owner["name"], owner["processes"], owner["rss_bytes"]) == (name, 1, 512 * MIB)
    assert owner["cgroup_bytes"] == counted


@pytest.mark.parametrize(
    ("hiding", "says"),
    [({"contained": True}, "--pid=host"), ({"mount": "rw,hidepid=invisible"}, "hidepid")],
    ids=["container", "hidepid"],
)
def test_hidden_processes_give_a_partial_list(hiding: dict[str, Any], says: str, tmp_path: Path) -> None:
    """In a container, and behind hidepid, everything that lists processes says that it is not all of them."""
    with running_daemon(tmp_path, *simulated(tmp_path / "host", **hiding), config=OFTEN) as daemon:
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda found: found["processes"])
        owners = daemon.get("/api/v1/owners").json
        page = daemon.get("/processes").text

    assert snapshot["process_scan"]["process_list"] == owners["process_list"] == "partial"
    assert says in snapshot["process_scan"]["note"]
    assert owners["note"] == snapshot["process_scan"]["note"]
    assert says in page
    assert "not visible from here" in snapshot["pools"][0]["unattributed_note"]


def test_hidden_holders_of_a_gpu_are_not_an_idle_gpu(tmp_path: Path) -> None:
    """A GPU whose holders are outside this container: its list is partial, and what they hold is nobody's."""
    host = host_of("container-hidden-pids", tmp_path)
    with running_daemon(tmp_path, *host.roots, config=OFTEN, environ=host.environ) as daemon:
        daemon.wait_until_ok("nvml")
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda found: found["processes"] and found["devices"])

    assert snapshot["process_scan"]["process_list"] == snapshot["devices"][0]["process_list"] == "partial"
    for pool in snapshot["pools"]:
        assert pool["unattributed_bytes"] is None or "not visible from here" in pool["unattributed_note"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon for requests that change nothing."""
    folder = tmp_path_factory.mktemp("asked")
    with running_daemon(folder, *simulated(folder / "host")) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/owners?by=cgroup", "'unit', 'container', 'pod', 'job' or 'user'"),
        ("/api/v1/growth?since=yesterday", "since is 'yesterday'"),
        ("/api/v1/growth?since=2999-01-01T00:00:00Z", "not in the past"),
        ("/api/v1/growth?since=0s", "not in the past"),
        ("/api/v1/growth?since=1e400", "since is '1e400'"),
        ("/api/v1/growth?since=-1", "since is before 1970: use a time such as 2026-01-31T12:00:00Z."),
        ("/api/v1/growth?since=999999h", "since is before 1970"),
        ("/api/v1/growth?limit=0", "limit is '0'"),
    ],
)
def test_bad_questions_get_a_sentence(path: str, says: str, asked: RunningDaemon) -> None:
    """What cannot be answered is refused by name, with what would work."""
    answer = asked.get(path)

    assert answer.status == 422
    assert says in answer.json["detail"]


def test_who_grew_through_the_daemon(tmp_path: Path) -> None:
    """A process that began since then grew by all it holds, and stands first."""
    with running_daemon(tmp_path, "--interval", "200ms", config=OFTEN) as daemon, holder(700 * MIB) as pid:
        answer = daemon.wait_for(
            "/api/v1/growth?since=1h&limit=1000",
            lambda found: any(one["pid"] == pid for one in found["processes"]),
            20.0,
        )

    mine = next(one for one in answer["processes"] if one["pid"] == pid)
    assert mine["grown_bytes"] == mine["to_bytes"] >= 700 * MIB
    assert mine["whole"] is True
    assert answer["processes"] == sorted(answer["processes"], key=lambda one: (-one["grown_bytes"], one["pid"]))
    assert answer["suspects"] == []
