"""GET /api/v1/backends of a running daemon: content, cost, and drivers that misbehave."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import roots_arguments
from simulators import opencl_binding, sample_nvml
from simulators.nvml_machine import Simulator
from simulators.opencl_binding import binding, times_imported
from support.api_schema import check_answer
from support.client_process import memwatch
from support.daemon_process import RunningDaemon, quiet_machine, running_daemon
from support.null_reasons import figures_without_a_reason
from support.waiting import MAX_WAIT_SECONDS, Stopwatch, wait_until

# Drivers of this machine, which do not depend on its load.
HERE = quiet_machine(rootfs="/")
POCL = "Portable Computing Language"


def backend(answer: Any, name: str) -> Any:
    return next(one for one in answer["backends"] if one["name"] == name)


def test_backends_of_this_machine_match_the_contract(tmp_path: Path) -> None:
    """The CPU has System RAM's size. PoCL is listed as a CPU, not as a GPU."""
    with running_daemon(tmp_path, *HERE) as daemon:
        answer = daemon.get("/api/v1/backends")
        ram = daemon.snapshot()["pools"][0]
        again = daemon.get("/api/v1/backends").json

    check_answer(answer.body, "Backends")
    (cpu,) = backend(answer.json, "cpu")["devices"]
    opencl = backend(answer.json, "opencl")
    assert cpu["size_bytes"] == ram["size_bytes"]
    assert cpu["headroom_after_reclaim_bytes"] > 0
    assert opencl["available"] is True
    assert POCL in opencl["reason"]
    assert {device["kind"] for device in opencl["devices"] if POCL in device["note"]} == {"cpu"}
    assert all(device["size_bytes"] is None for device in opencl["devices"] if device["kind"] == "cpu")
    assert again["age_seconds"] > 0


def test_opencl_without_a_driver_is_unavailable_with_a_reason(tmp_path: Path) -> None:
    """OCL_ICD_VENDORS names an empty folder."""
    empty = tmp_path / "vendors"
    empty.mkdir()
    with running_daemon(tmp_path, *HERE, environ={"OCL_ICD_VENDORS": f"{empty}/"}) as daemon:
        opencl = backend(daemon.get("/api/v1/backends").json, "opencl")

    assert opencl["available"] is False
    assert "PLATFORM_NOT_FOUND_KHR" in opencl["reason"]
    assert opencl["devices"] == []


@pytest.mark.parametrize(
    ("library", "available", "recommended"), [(True, True, "cuda"), (False, False, "cpu")], ids=["there", "missing"]
)
def test_cuda_needs_its_library(library: bool, available: bool, recommended: str, tmp_path: Path) -> None:
    """A simulated GB10 has the snapshot's headroom; libcuda lies in the host's root folder."""
    simulator = Simulator.of(tmp_path, sample_nvml.READY["gb10"])
    root = tmp_path / "host"
    shutil.copytree(simulator.roots[2].removeprefix("--rootfs="), root, symlinks=True)
    if library:
        (root / "usr/lib/aarch64-linux-gnu").mkdir(parents=True)
        (root / "usr/lib/aarch64-linux-gnu/libcuda.so.1").write_bytes(b"")
    with running_daemon(tmp_path, *simulator.roots[:2], f"--rootfs={root}", environ=simulator.environ) as daemon:
        daemon.wait_for("/api/v1/devices", lambda devices: len(devices) == 1)
        answer = daemon.get("/api/v1/backends").json
        device = daemon.get("/api/v1/devices").json[0]

    cuda = backend(answer, "cuda")
    assert (cuda["available"], answer["recommended"]) == (available, recommended)
    assert cuda["devices"][0]["id"] == "gpu0"
    assert cuda["devices"][0]["unified"] is True
    assert cuda["devices"][0]["headroom_after_reclaim_bytes"] == device["headroom_after_reclaim_bytes"]
    assert backend(answer, "opencl")["devices"] == []


def test_rocm_headroom_on_an_apu_is_reported_separately(tmp_path: Path) -> None:
    """Strix Halo with a 96 GiB carve-out: 48.7 GiB are left of both kinds, and ROCm gets one of them."""
    root = tmp_path / "host"
    (root / "opt/rocm-7.1.0/.info").mkdir(parents=True)
    (root / "opt/rocm-7.1.0/.info/version").write_text("7.1.0-66\n")
    (root / "dev").mkdir()
    (root / "dev/kfd").write_bytes(b"")
    folders = roots_arguments("strix-halo-96g")[:2]
    (root / "dev/kfd").chmod(0o060)  # the owner, as which the daemon runs here, has no access
    with running_daemon(tmp_path, *folders, f"--rootfs={root}", without_privileges=True) as daemon:
        daemon.wait_for("/api/v1/devices", lambda devices: len(devices) == 1)
        answer = daemon.get("/api/v1/backends").json
        printed = memwatch("--url", daemon.url, "backends").stdout

    (gpu,) = backend(answer, "rocm")["devices"]
    assert backend(answer, "rocm")["reason"].endswith("for programs that may open /dev/kfd: group root")
    assert (gpu["headroom_after_reclaim_bytes"] >> 20, gpu["own_headroom_bytes"] >> 20) == (49879, 26624)
    assert figures_without_a_reason(answer) == ["id"]  # of the CPU, which is no device of the snapshot
    assert backend(answer, "cpu")["devices"][0]["absent"]["own_headroom_bytes"] == "not_supported"
    assert (
        "    gpu0: AMD Radeon 8060S (Strix Halo): 127.0 GiB of unified memory, can allocate 37.8 GiB at once, "
        "up to 48.7 GiB after reclaim, with ROCm: 26.0 GiB\n"
    ) in printed
    assert "Recommended: ROCm — the vendor's backend for AMD Radeon 8060S (Strix Halo)\n" in printed


def test_crashing_driver_affects_only_its_backend(tmp_path: Path) -> None:
    """A segfault in the child is a reason. The daemon and the other backends go on."""
    with running_daemon(tmp_path, *HERE, environ=binding(tmp_path, opencl_binding.CRASHES)) as daemon:
        answer = daemon.get("/api/v1/backends").json
        alive = daemon.get("/healthz").status

    opencl = backend(answer, "opencl")
    assert opencl["available"] is None
    assert opencl["absent"] == {"available": "not_available"}
    assert "killed by signal 11" in opencl["reason"]
    assert backend(answer, "cpu")["available"] is True
    assert alive == 200


def start_request(daemon: RunningDaemon, answers: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(daemon.get("/api/v1/backends").json))
    thread.start()
    return thread


def test_concurrent_requests_start_one_child(tmp_path: Path) -> None:
    """Eight requests during a slow probe, and one more within a minute, share one probe."""
    answers: list[Any] = []
    with running_daemon(tmp_path, *HERE, environ=binding(tmp_path, opencl_binding.SLOW_AND_EMPTY)) as daemon:
        threads = [start_request(daemon, answers) for _ in range(8)]
        for thread in threads:
            thread.join()
        start_request(daemon, answers).join()

    assert len(answers) == 9
    assert all(backend(answer, "opencl")["available"] is False for answer in answers)
    assert times_imported(tmp_path) == 1


def test_hanging_driver_delays_neither_requests_nor_shutdown(tmp_path: Path) -> None:
    """/metrics is answered meanwhile. SIGTERM ends daemon and child, and the waiting client gets an error."""
    with running_daemon(tmp_path, *HERE, environ=binding(tmp_path, opencl_binding.HANGS)) as daemon:
        answers: list[Any] = []
        waiting = start_request(daemon, answers)
        child = child_of(daemon)
        scrapes = [daemon.get("/metrics").status for _ in range(20)]
        answered = list(answers)
        code = daemon.terminate()
        waiting.join()
        log = daemon.read_log()

    assert [answer["detail"] for answer in answers] == ["memwatchd is stopping."]
    assert "Traceback" not in log
    assert (scrapes, answered) == ([200] * 20, [])
    assert code == 0
    wait_until_gone(child)


def seconds_for(daemon: RunningDaemon, path: str) -> float:
    watch = Stopwatch(daemon.pid)
    assert daemon.get(path).status == 200
    return watch.seconds


def child_of(daemon: RunningDaemon) -> Path:
    """Wait for the child that probes OpenCL; return its /proc folder."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        for task in Path(f"/proc/{daemon.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # threads and children come and go
                for pid in (task / "children").read_text().split():
                    if b"opencl_child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return Path(f"/proc/{pid}")
        assert time.monotonic() < until, "no child was started"
        time.sleep(0.02)


def wait_until_gone(process: Path) -> None:
    def is_gone() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):  # reaped
            return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    wait_until(is_gone, describe=lambda: f"{process} still runs")
