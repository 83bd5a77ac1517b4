"""Memory by owner in the running daemon: sums, real processes and hidden processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
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


Machines = Callable[[str], RunningDaemon]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Return the daemon of a simulated machine by its name. Each is started once, for tests that only read."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(machine(name, tmp_path_factory.mktemp("machine"))))


@contextmanager
def machine(name: str, folder: Path) -> Iterator[RunningDaemon]:
    """Run the daemon on a simulated machine, and wait until processes have device memory."""
    host = host_of(name, folder)
    with running_daemon(folder, "--interval", "200ms", *host.roots, config=OFTEN, environ=host.environ) as daemon:
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        for collector in host.waits_for:
            daemon.wait_until_ok(collector)
        daemon.wait_for("/api/v1/processes", lambda found: any(one["device_bytes"] for one in found))
        yield daemon


def device_bytes_of(snapshot: Any, place: str) -> int:
    """Return the bytes of a pool or share that all listed processes use."""
    return sum(process["device_bytes"].get(place, 0) for process in snapshot["processes"])


@pytest.mark.parametrize("name", ["gb10", "strix-halo", "rtx-4090"])
def test_process_kernel_and_unattributed_memory_add_up_to_used(name: str, machines: Machines) -> None:
    """Checked for every pool, and for the shares of System RAM."""
    snapshot = machines(name).snapshot()
    owners = machines(name).get("/api/v1/owners?by=user").json

    rests = {rest["id"]: rest["unattributed_bytes"] for rest in (*owners["pools"], *owners["shares"])}
    # NPU buffers are already counted as shared memory, like those of most drivers. The other shares are in no line
    # of meminfo.
    outside_meminfo = [share["id"] for share in snapshot["shares"] if share["kind"] != "npu_buffers"]
    inside = [share["id"] for share in snapshot["shares"] if share["within"] == "ram" and share["id"] in rests]
    for pool in snapshot["pools"]:
        if pool["id"] == "ram":
            used = {kind: size for kind, size in pool["contents"].items() if kind not in AVAILABLE}
            devices = sum(
                device_bytes_of(snapshot, share) + rests[share] for share in inside if share in outside_meminfo
            )
            assert used.pop("devices_bytes", 0) == devices
            assert used.pop("unattributed_bytes") == rests["ram"]
            assert sum(used.values()) + devices + rests["ram"] == pool["used_bytes"]
        else:
            assert (
                device_bytes_of(snapshot, pool["id"]) + (pool["reserved_bytes"] or 0) + rests[pool["id"]]
                == (pool["used_bytes"])
            )
        assert pool["unattributed_note"].startswith("Usually ")


@pytest.mark.parametrize("name", ["gb10", "strix-halo", "rtx-4090"])
@pytest.mark.parametrize("kind", ["unit", "container", "user"])
def test_owner_sums_equal_the_sums_of_their_processes(name: str, kind: str, machines: Machines) -> None:
    """Resident and device memory add up for every kind of owner."""
    snapshot = machines(name).snapshot()
    owners = machines(name).get(f"/api/v1/owners?by={kind}").json["owners"]

    processes = snapshot["processes"]
    places = {place for process in processes for place in process["device_bytes"]}
    if owners:
        assert sum(owner["rss_bytes"] for owner in owners) == sum(process["rss_bytes"] for process in processes)
        for place in places:
            assert sum(owner["device_bytes"].get(place, 0) for owner in owners) == device_bytes_of(snapshot, place)
    for owner in owners:
        own = [process for process in processes if process[kind] == owner["name"]]
        assert owner["footprint_low_bytes"] <= sum(process["footprint_high_bytes"] for process in own)
        assert len(own) == owner["processes"]


def test_unattributed_memory_has_a_history(machines: Machines) -> None:
    rest = machines("gb10").snapshot()["pools"][0]["unattributed_bytes"]
    answer = machines("gb10").wait_for(
        "/api/v1/history?series=pool.ram.unattributed_bytes",
        lambda found: found["series"][0]["max"] and found["series"][0]["max"][-1] == rest,
    )

    assert answer["series"][0]["unit"] == "bytes"


def find(daemon: RunningDaemon, pid: int, size: int) -> Any:
    """Return the process as read after it held this much; an earlier scan may have seen it while it allocated."""

    def mine(listed: Any) -> Any:
        return next((one for one in listed if one["pid"] == pid and one["rss_bytes"] >= size), None)

    return mine(daemon.wait_for("/api/v1/processes", mine))


@pytest.mark.host
def test_real_process_is_listed_with_its_unit_container_and_user(tmp_path: Path) -> None:
    """A child with 512 MiB has the right user, unit and container within one scan, and the cgroup's own figure.

    If this user may not create cgroups, the child stays in its own, and the daemon must agree with /proc.
    """
    identity = secrets.token_hex(32)
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    daemon_here = running_daemon(tmp_path, "--interval", "200ms", config=OFTEN, watches_this_machine=True)
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


@pytest.mark.host
def test_command_line_is_in_the_api_but_in_no_metric(tmp_path: Path) -> None:
    """Even with both settings enabled, process metrics have no command line."""
    config = OFTEN + "command_lines = true\nmetrics = true\n"
    size = 256 * MIB + 12345
    with (
        running_daemon(tmp_path, "--interval", "200ms", config=config, watches_this_machine=True) as daemon,
        holder(size) as pid,
    ):
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
def test_container_pod_and_user_have_the_cgroup_figure(
    kind: str, name: str, counted: int | None, tmp_path: Path
) -> None:
    """Each owner has the memory of its processes and the figure of the cgroup. A user has no cgroup."""
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
    """In a container and with hidepid, every process list is marked partial, with the reason."""
    with running_daemon(tmp_path, *simulated(tmp_path / "host", **hiding), config=OFTEN) as daemon:
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda found: found["processes"])
        owners = daemon.get("/api/v1/owners").json
        page = daemon.get("/processes").text

    assert snapshot["process_scan"]["process_list"] == owners["process_list"] == "partial"
    assert says in snapshot["process_scan"]["note"]
    assert owners["note"] == snapshot["process_scan"]["note"]
    assert says in page
    assert "not visible from here" in snapshot["pools"][0]["unattributed_note"]


def test_gpu_with_hidden_processes_has_a_partial_list(tmp_path: Path) -> None:
    """Processes outside the container use the GPU: the list is partial, and their memory is unattributed."""
    host = host_of("container-hidden-pids", tmp_path)
    with running_daemon(tmp_path, *host.roots, config=OFTEN, environ=host.environ) as daemon:
        daemon.wait_until_ok("nvml")
        snapshot = daemon.wait_for("/api/v1/snapshot", lambda found: found["processes"] and found["devices"])

    assert snapshot["process_scan"]["process_list"] == snapshot["devices"][0]["process_list"] == "partial"
    for pool in snapshot["pools"]:
        assert pool["unattributed_bytes"] is None or "not visible from here" in pool["unattributed_note"]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon shared by requests that change nothing."""
    folder = tmp_path_factory.mktemp("shared_daemon")
    with running_daemon(folder, *simulated(folder / "host")) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/owners?by=cgroup", "'unit', 'container', 'pod', 'job' or 'user'"),
        (
            "/api/v1/growth?since=2d",
            "since is '2d': give 10m, 1h, Unix seconds or a time such as 2026-01-31T12:00:00Z.",
        ),
        ("/api/v1/growth?since=2999-01-01T00:00:00Z", "not in the past"),
        ("/api/v1/growth?since=0s", "not in the past"),
        ("/api/v1/growth?since=1e400", "since is '1e400'"),
        ("/api/v1/growth?since=-1", "since is before 1970: use a time such as 2026-01-31T12:00:00Z."),
        ("/api/v1/growth?since=999999h", "since is before 1970"),
        ("/api/v1/growth?limit=0", "limit is '0'"),
    ],
)
def test_invalid_parameter_is_named_in_the_error(path: str, says: str, shared_daemon: RunningDaemon) -> None:
    """Status 422 with valid values."""
    answer = shared_daemon.get(path)

    assert answer.status == 422
    assert says in answer.json["detail"]


@pytest.mark.host
def test_process_started_in_the_window_grew_by_all_its_memory(tmp_path: Path) -> None:
    """A process that began in the window is listed with all of its memory as growth, in order of growth."""
    with (
        running_daemon(tmp_path, "--interval", "200ms", config=OFTEN, watches_this_machine=True) as daemon,
        holder(700 * MIB) as pid,
    ):
        answer = daemon.wait_for(
            "/api/v1/growth?since=1h&limit=1000",
            lambda found: any(one["pid"] == pid for one in found["processes"]),
        )

    mine = next(one for one in answer["processes"] if one["pid"] == pid)
    assert mine["grown_bytes"] == mine["to_bytes"] >= 700 * MIB
    assert mine["whole"] is True
    assert answer["processes"] == sorted(answer["processes"], key=lambda one: (-one["grown_bytes"], one["pid"]))
    assert answer["suspects"] == []


def test_pods_of_a_kubernetes_node_have_names(tmp_path: Path) -> None:
    """In the API, on the page and in /metrics, from the kubelet's links to logs."""
    identity, uid = "c0ffee" * 10 + "beef", "1a" * 16
    arguments = simulated(tmp_path / "node")
    logs = tmp_path / "node/root/var/log/containers"
    logs.mkdir(parents=True)
    (logs / f"vllm-0_ml_server-{identity}.log").symlink_to(f"/var/log/pods/ml_vllm-0_{uid}/server/0.log")
    with running_daemon(tmp_path, *arguments, config=OFTEN) as daemon:
        daemon.wait_until_ok("kubernetes")
        (process,) = daemon.wait_for("/api/v1/processes", lambda found: found and found[0]["pod_name"])
        (owner,) = daemon.get("/api/v1/owners?by=pod").json["owners"]
        page = daemon.get("/processes?by=pod").text
        text = daemon.get("/metrics").text

    assert (process["pod_name"], process["container_name"]) == ("ml/vllm-0", "ml/vllm-0/server")
    assert (owner["name"], owner["pod_name"]) == (uid, "ml/vllm-0")
    assert "ml/vllm-0" in page
    pod = 'kind="pod",name="ml/vllm-0",namespace="ml",pod="vllm-0"'
    assert f"memwatch_owner_resident_bytes{{{pod}}} 5.36870912e+08" in text
    assert 'container="server",kind="container",name="ml/vllm-0/server",namespace="ml",pod="vllm-0"' in text


def test_owners_in_metrics_are_turned_off_by_a_setting(tmp_path: Path) -> None:
    arguments = simulated(tmp_path / "node")
    with running_daemon(tmp_path, *arguments, config=OFTEN + "owners = 0\n") as daemon:
        daemon.wait_for("/api/v1/processes", bool)

        assert "memwatch_owner_" not in daemon.get("/metrics").text
