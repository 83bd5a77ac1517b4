"""Jetsons in the running daemon: expected figures, and tegrastats failures that affect only its own figures."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import host_of
from simulators.tegra_machine import Tegrastats, is_alive, wait_until_gone
from support.daemon_process import POWERLESS, RunningDaemon, running_daemon
from support.machine_folders import NAMES, machine_folder
from support.paths import SYSTEMD
from support.waiting import wait_until

JETSONS = [name for name in NAMES if machine_folder(name).report]
ORIN = "jetson-agx-orin-jp6"
QUICK = '[collectors.tegrastats]\ninterval = "200ms"\n'
CLIENTS = "kernel/debug/nvmap/iovmm/clients"


def test_simulated_machines_cover_all_jetsons() -> None:
    """From Nano to Thor, and from JetPack 4 to 7.2."""
    tegras = [machine_folder(name).expected["tegra"]["tegra"] for name in JETSONS]

    assert {one["soc"] for one in tegras} == {"tegra210", "tegra186", "tegra194", "tegra234", "tegra264"}
    assert {one["jetpack"] for one in tegras} == {"4", "5", "6", "7", "7.2"}


def test_snapshot_of_a_jetson_has_the_expected_figures(tmp_path: Path) -> None:
    """tegrastats as a program, and the GPU memory of each process. The other figures are laws of all Jetsons."""
    host, expected = host_of(ORIN, tmp_path), machine_folder(ORIN).report
    processes = '[processes]\ninterval = "1s"\n'
    with running_daemon(tmp_path, *host.roots, environ=host.environ, config=processes) as daemon:
        for collector in host.waits_for:
            daemon.wait_until_ok(collector)
        found = daemon.wait_for("/api/v1/snapshot", lambda one: held_in(one) == expected["held_bytes"])

    (share,), (device,) = found["shares"], found["devices"]
    assert (share["relation"], share["used_bytes"]) == ("CUDA Pool ⊂ System RAM", expected["cuda_pool_bytes"])
    assert found["tegrastats"] == {
        key: expected[key] for key in ("largest_free_block_bytes", "largest_free_blocks")
    }
    assert device["busy_ratio"] == expected["busy_ratio"]


def held_in(snapshot: Any) -> dict[str, int]:
    return {str(one["pid"]): one["device_bytes"]["cuda0"] for one in snapshot["processes"] if one["device_bytes"]}


@contextmanager
def jetson_daemon(tmp_path: Path, name: str = ORIN) -> Iterator[tuple[RunningDaemon, Tegrastats]]:
    jetson = Tegrastats.of(tmp_path, name)
    with running_daemon(
        tmp_path, "--interval", "100ms", *jetson.roots, environ=jetson.environ, config=QUICK
    ) as daemon:
        daemon.wait_until_ok("tegrastats")
        yield daemon, jetson


def collector_in(snapshot: Any, name: str) -> Any:
    return next(one for one in snapshot["collectors"] if one["name"] == name)


# Of six seconds each.
RARE_FAILURES = ("die", "garbage", "cut", "long", "silent")
# Some figures come in between, or all lines have some.
NEVER_STALE = ("kill", "die", "cut")


def ticks_during(daemon: RunningDaemon, jetson: Tegrastats, what: str, count: int) -> dict[int, Any]:
    """Return snapshots by the number of their tick while tegrastats fails: of `count`, and until it is stale."""
    jetson.does("print" if what == "kill" else what)
    ticks: dict[int, Any] = {}

    def are_all_seen() -> bool:
        if what == "kill" and is_alive(jetson.pids()[-1]):
            os.kill(jetson.pids()[-1], signal.SIGKILL)
        snapshot = daemon.snapshot()
        ticks[snapshot["seq"]] = snapshot
        return snapshot["seq"] - min(ticks) >= count and (what in NEVER_STALE or is_stale(snapshot))

    wait_until(are_all_seen, describe=lambda: f"ticks {min(ticks)} to {max(ticks)} only")
    return ticks


def is_stale(snapshot: Any) -> bool:
    return (snapshot["tegrastats"], snapshot["absent"].get("tegrastats")) == (None, "stale")


@pytest.mark.parametrize(
    "what", ["kill", "hang", *(pytest.param(one, marks=pytest.mark.long) for one in RARE_FAILURES)]
)
def test_failing_tegrastats_delays_no_tick(what: str, tmp_path: Path) -> None:
    """Only its own figures become stale: System RAM and the CUDA Pool stay current. It recovers without help."""
    with jetson_daemon(tmp_path) as (daemon, jetson):
        ticks = ticks_during(daemon, jetson, what, 60)
        jetson.does("print")
        daemon.wait_for("/api/v1/snapshot", lambda one: one["tegrastats"] is not None)
        daemon.wait_until_ok("tegrastats")
        log = daemon.read_log()

    last = ticks[max(ticks)]
    lags = sorted(one["self"]["tick_lag_seconds"] for one in ticks.values())
    # Ticks that waited for tegrastats would be seconds late each; a busy test machine delays few of them.
    assert lags[len(lags) // 2] < 0.5
    assert all(one["shares"][0]["used_bytes"] == 24114503680 for one in ticks.values())
    assert all(collector_in(one, "meminfo")["state"] == "ok" for one in ticks.values())
    if what == "cut":  # the fields before the cut stay
        assert last["tegrastats"] is not None
        assert last["devices"][0]["state"] == "ok"
    elif what not in NEVER_STALE:
        assert is_stale(last)
        assert last["devices"][0]["busy_ratio"] is None
        assert last["devices"][0]["state"] == "ok"
    assert log.count("collector tegrastats is failing") <= 3


def test_skipped_lines_are_counted_as_errors(tmp_path: Path) -> None:
    """In /metrics, with the reason `inconsistent`, after the next valid line."""
    with jetson_daemon(tmp_path) as (daemon, jetson):
        jetson.does("garbage")
        wait_until(lambda: jetson.printed("garbage") >= 3)
        jetson.does("print")
        found = daemon.wait_for(
            "/api/v1/snapshot", lambda one: collector_in(one, "tegrastats")["errors"].get("inconsistent")
        )
        metrics = daemon.get("/metrics").text

    count = collector_in(found, "tegrastats")["errors"]["inconsistent"]
    assert 3 <= count <= jetson.printed("garbage")
    assert f'memwatch_collector_errors_total{{collector="tegrastats",reason="inconsistent"}} {count}.0' in metrics


@pytest.mark.parametrize("what", ["print", "hang"])
def test_stopping_daemon_ends_tegrastats(what: str, tmp_path: Path) -> None:
    """Without a leftover process, even if tegrastats hangs and ignores signals."""
    with jetson_daemon(tmp_path) as (daemon, jetson):
        jetson.does(what, deaf=True)
        jetson.wait_until_it_does(what)
        (pid,) = jetson.pids()
        assert is_alive(pid)
        code = daemon.terminate()

    assert code == 0
    wait_until_gone(pid)


@contextmanager
def copied(name: str, folder: Path) -> Iterator[list[str]]:
    """Copy a machine's folders so that a test can change them. Yield the arguments for the copy."""
    source = machine_folder(name).roots.procfs.parent
    for part in ("proc", "sys", "root"):
        shutil.copytree(source / part, folder / part, symlinks=True)
    yield [f"--procfs={folder / 'proc'}", f"--sysfs={folder / 'sys'}", f"--rootfs={folder / 'root'}"]


def test_without_root_the_cuda_pool_is_present_and_processes_are_not_permitted(tmp_path: Path) -> None:
    """debugfs is not readable, so its process list is not permitted. All users can read NvMapMemUsed."""
    with copied(ORIN, tmp_path / "host") as roots:
        debugfs = tmp_path / "host/sys/kernel/debug"
        debugfs.chmod(0)
        try:
            with running_daemon(tmp_path, *roots, without_privileges=True) as daemon:
                daemon.wait_until_ok("nvmap")
                found = daemon.snapshot()
        finally:
            debugfs.chmod(0o700)

    (share,), (device,) = found["shares"], found["devices"]
    assert (share["used_bytes"], share["source"]) == (24114503680, "meminfo:NvMapMemUsed")
    assert device["absent"]["process_list"] == "not_permitted"
    assert device["notes"] == [
        f"GPU memory by process is not available: /sys/{CLIENTS} is not readable; "
        "use the drop-in jetson.conf, or run memwatchd as root."
    ]
    assert held_in(found) == {}


def test_jetson_drop_in_shows_processes_without_a_capability(tmp_path: Path) -> None:
    """Its mount makes NvMap's table readable, and nothing else of debugfs."""
    drop_in = (SYSTEMD / "drop-ins/jetson.conf").read_text()
    (mount,) = re.findall("^BindReadOnlyPaths=(.+)$", drop_in, re.MULTILINE)
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = 'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && shift 2 && exec "$@"'
    with copied(ORIN, tmp_path / "host") as roots:
        debugfs = tmp_path / "host/sys/kernel/debug"
        places = [str(tmp_path / "host" / one.lstrip("-/")) for one in mount.split(":")]
        debugfs.chmod(0)
        try:
            through = [*namespace, "sh", "-c", script, "sh", *places, *POWERLESS]
            with running_daemon(tmp_path, *roots, through=through) as daemon:
                daemon.wait_until_ok("nvmap")
                found = daemon.snapshot()
                status = Path(f"/proc/{daemon.pid}/status").read_text()
                seen = os.listdir(f"/proc/{daemon.pid}/root{debugfs}")
        finally:
            debugfs.chmod(0o700)

    assert held_in(found)
    assert "process_list" not in found["devices"][0]["absent"]
    assert seen == ["iovmm"]
    assert os.geteuid() != 0 or "CapEff:\t0000000000000000" in status


def test_without_debugfs_and_tegrastats_everything_else_works(tmp_path: Path) -> None:
    """Sources that are not mounted or not installed are unavailable, without errors."""
    with copied(ORIN, tmp_path / "host") as roots:
        shutil.rmtree(tmp_path / "host/sys/kernel/debug")
        with running_daemon(tmp_path, *roots) as daemon:
            found = daemon.wait_for(
                "/api/v1/snapshot", lambda one: all(c["state"] != "starting" for c in one["collectors"])
            )
            checks = {one["id"]: one for one in daemon.get("/api/v1/doctor").json["checks"]}

    assert checks["collectors.tegrastats"]["remedy"] == "set path under [collectors.tegrastats]"
    assert "mount debugfs" in checks["collectors.nvmap"]["remedy"]
    states = {one["name"]: (one["state"], one["errors"]) for one in found["collectors"]}
    assert states["nvmap"] == states["tegrastats"] == ("unavailable", {})
    assert states["tegra"] == ("ok", {})
    assert found["shares"][0]["used_bytes"] == 24114503680
    assert found["tegrastats"] is None


def test_soc_is_configurable_without_a_device_tree(tmp_path: Path) -> None:
    """In a container, for all three collectors that need it."""
    jetson = Tegrastats.of(tmp_path, ORIN)
    config = '[collectors.tegra]\nboard = "tegra234"\n'
    with copied(ORIN, tmp_path / "host") as roots:
        shutil.rmtree(tmp_path / "host/proc/device-tree")
        with running_daemon(tmp_path, *roots, environ=jetson.environ, config=config) as daemon:
            for collector in ("tegra", "nvmap", "tegrastats"):
                daemon.wait_until_ok(collector)
            found = daemon.snapshot()

    assert found["machine"]["details"] == {"soc": "tegra234", "l4t": "36.3.0", "jetpack": "6"}
    assert found["shares"][0]["used_bytes"] == 24114503680


def test_device_tree_of_the_host_is_read_from_sysfs(tmp_path: Path) -> None:
    """In a container, /proc/device-tree is a broken absolute link. Its target is under --sysfs."""
    with copied(ORIN, tmp_path / "host") as roots:
        folder = tmp_path / "host/sys/firmware/devicetree"
        folder.mkdir(parents=True)
        shutil.move(tmp_path / "host/proc/device-tree", folder / "base")
        (tmp_path / "host/proc/device-tree").symlink_to(tmp_path / "nowhere")
        with running_daemon(tmp_path, *roots) as daemon:
            for collector in ("tegra", "nvmap"):
                daemon.wait_until_ok(collector)
            found = daemon.snapshot()

    assert found["machine"]["name"] == "NVIDIA Jetson AGX Orin Developer Kit"
    assert found["machine"]["details"]["soc"] == "tegra234"
    assert found["shares"][0]["used_bytes"] == 24114503680


def test_tegra_collectors_are_unavailable_on_other_machines(tmp_path: Path) -> None:
    """Even with a tegrastats on PATH."""
    jetson = Tegrastats.of(tmp_path, "workstation")
    with running_daemon(tmp_path, *jetson.roots, environ=jetson.search_path) as daemon:
        found = daemon.wait_for(
            "/api/v1/snapshot", lambda one: all(c["state"] != "starting" for c in one["collectors"])
        )

    states = {one["name"]: one["state"] for one in found["collectors"]}
    assert {states[name] for name in ("tegra", "nvmap", "tegrastats")} == {"unavailable"}
    assert jetson.pids() == []
    assert found["devices"] == []


def test_program_on_path_that_another_user_could_replace_is_not_run_by_root(tmp_path: Path) -> None:
    """The status names the program, the reason and a remedy. Another user runs it as before."""
    jetson = Tegrastats.of(tmp_path, ORIN)
    with running_daemon(tmp_path, *jetson.roots, environ=jetson.search_path, config=QUICK) as daemon:
        found = daemon.wait_for(
            "/api/v1/collectors",
            lambda found: any(one["name"] == "tegrastats" and one["state"] != "starting" for one in found),
        )

    state, error = next((one["state"], one["error"]) for one in found if one["name"] == "tegrastats")
    if os.geteuid() == 0:
        assert state == "unavailable"
        assert error.startswith(f"found {jetson.program}, which root must not run: other users may write to /")
        assert error.endswith("; set path under [collectors.tegrastats], or do not run memwatchd as root")
        assert jetson.pids() == []
    else:
        assert (state, error) == ("ok", None)
