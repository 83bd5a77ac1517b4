"""The library speaks of the GPU that a program means, with the same figures with a daemon and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators import nvml_parts, sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state_file import state_file
from support.client_process import memwatch
from support.daemon_process import RunningDaemon, clean_environment, running_daemon
from support.ingest_client import own_ticks, post
from support.library_process import roots_environment, run_json, run_program
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS, wait_until

GIB = 1 << 30
PATHS = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])]))
EIGHT = sample_nvml.EIGHT_H100
FIGURES = """
import json, sys, memwatch
found = [memwatch.memory_info(name) for name in sys.argv[1:] or ("cuda:0", "cuda:1", 1, "gpu0")]
print(json.dumps([one and [one.pool, one.total_bytes, one.headroom_after_reclaim_bytes] for one in found]))
"""


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, Simulator]]:
    """Eight H100 with a simulated driver. Each has 1 MiB more in use than the one before."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, EIGHT)
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"] * 8)
        yield running, simulator


def environment(simulator: Simulator, **environ: str) -> dict[str, str]:
    return {**roots_environment(str(simulator.host)), **simulator.environ, **environ}


@pytest.mark.parametrize("listed", ["5,2", f"GPU-5a3d8005,{EIGHT.gpus[2].uuid}", "5,2,-1,0"])
def test_reordered_gpus_are_those_that_cuda_means(listed: str, eight: tuple[RunningDaemon, Simulator]) -> None:
    """With a daemon and without one. An id is the machine's."""
    daemon, simulator = eight
    environ = environment(simulator, CUDA_VISIBLE_DEVICES=listed)

    by_daemon = run_json(FIGURES, daemon.url, **environ)
    alone = run_json(FIGURES, **environ)

    assert by_daemon == alone
    assert [pool for pool, _, _ in alone] == ["gpu5", "gpu2", "gpu2", "gpu0"]
    assert len({headroom for _, _, headroom in alone}) == 3


REPORT = """
import memwatch, sys
from support.custom_pool import OwnPool
for name in ("cuda:0", "cuda:1", "host"):
    pool = OwnPool()
    pool.device = name
    memwatch.register_pool(pool)
print("ready", flush=True)
sys.stdin.readline()
memwatch.log_memory_usage("step")
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, Path]]:
    """The same with a copy of the host's files, so that a test can add its process, and the folder of processes."""
    folder = tmp_path_factory.mktemp("copied")
    simulator = Simulator.of(folder, EIGHT)
    host = shutil.copytree(MACHINES / str(simulator.host), folder / "host", symlinks=True)
    roots = [f"--{name}fs={host / name}" for name in ("proc", "sys", "root")]
    with running_daemon(folder, *roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"] * 8)
        yield running, host / "proc"


def show_process(procfs: Path, pid: int) -> None:
    """Let the daemon find a real process in its /proc."""
    folder = procfs / str(pid)
    folder.mkdir(exist_ok=True)
    for name in ("stat", "status"):
        (folder / name).write_bytes(Path(f"/proc/{pid}/{name}").read_bytes())


def test_reports_are_of_the_gpus_that_cuda_means(copied: tuple[RunningDaemon, Path]) -> None:
    """The daemon attributes an allocator by the UUID: its cuda:0 is another GPU than the machine's first."""
    daemon, procfs = copied
    environ = clean_environment(MEMWATCH_URL=daemon.url, CUDA_VISIBLE_DEVICES="6,3", PYTHONPATH=PATHS)
    with subprocess.Popen(
        [sys.executable, "-c", REPORT], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        program.stdout.readline()
        show_process(procfs, program.pid)
        program.stdin.write(b"\n")
        program.stdin.flush()
        daemon.wait_for("/api/v1/snapshot", lambda found: found["claims"])
        claims = daemon.snapshot()["claims"]
        program.communicate()

    assert [(one["device"], one["gpu"]) for one in claims] == [
        ("cuda:0", "gpu6"),
        ("cuda:1", "gpu3"),
        ("host", None),
    ]


def test_reports_of_older_programs_and_of_unknown_gpus_are_taken(copied: tuple[RunningDaemon, Path]) -> None:
    """Older ones have no identity. A PCI address may be written in any usual way."""
    daemon, procfs = copied
    show_process(procfs, os.getpid())
    address = next(one["pci"] for one in daemon.get("/api/v1/devices").json if one["id"] == "gpu2")
    names = [None, EIGHT.gpus[4].uuid, address.upper(), "GPU-unknown", ""]
    claims = [{"name": "x", "device": "cuda:0", **({} if name is None else {"gpu": name})} for name in names]

    body = {"pid": os.getpid(), "start_ticks": own_ticks(), "claims": claims}
    assert post(daemon, "/api/v1/reports", body)[0] == 200
    own = daemon.wait_for(
        "/api/v1/snapshot", lambda found: [one for one in found["claims"] if one["pid"] == os.getpid()]
    )["claims"]

    assert [one["gpu"] for one in own if one["pid"] == os.getpid()] == [None, "gpu4", "gpu2", None, None]


def test_figures_without_a_daemon_stay_current(tmp_path: Path) -> None:
    """The library reads the driver again while it is used, and its helper process ends with the program."""
    simulator = Simulator.of(tmp_path, EIGHT)
    code = f"""
import memwatch, os, time
state = {str(simulator.folder / "state")!r}
before = memwatch.memory_info("cuda:0").headroom_after_reclaim_bytes
os.replace(state + ".later", state)
until = time.monotonic() + {MAX_WAIT_SECONDS}
while memwatch.memory_info("cuda:0").headroom_after_reclaim_bytes == before and time.monotonic() < until:
    time.sleep(0.05)
now = memwatch.machine()
here, other = memwatch.memory_info("cuda:0"), now.devices[1]
print(before, here.headroom_after_reclaim_bytes, other.headroom_after_reclaim_bytes, now.from_daemon)
"""
    later = EIGHT.with_gpu(0, memory=nvml_parts.mib(81559, 1000))
    (simulator.folder / "state.later").write_text(state_file(later))

    done = run_program(code, **environment(simulator))

    before, after, other, from_daemon = done.stdout.split()
    assert (int(before), from_daemon) == (11398021120, "False")
    assert int(after) > 70 * GIB
    assert int(other) == 11396972544
    assert done.stderr == ""
    helpers = {call.pid for call in simulator.calls()}
    assert len(helpers) == 1
    pid = helpers.pop()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_wait_for_answers_without_a_daemon(eight: tuple[RunningDaemon, Simulator]) -> None:
    """10 GiB are available, 60 GiB are not within the timeout, and 100 GiB never are."""
    code = """
import json, memwatch, time
def took(*arguments, **options):
    began = time.monotonic()
    return [memwatch.wait_for(*arguments, **options), time.monotonic() - began]
def refused():
    try:
        memwatch.wait_for("1GiB", device="cuda:2")
    except memwatch.DeviceError as error:
        return str(error)
print(json.dumps([took("10GiB", device="cuda:1"), took("60GiB", 1.0, "cuda:1", 0.1), took("100GiB", None, 0),
                  refused()]))
"""
    room, full, never, missing = run_json(code, **environment(eight[1], CUDA_VISIBLE_DEVICES="5,2"))

    assert (room[0], full[0], never[0]) == (True, False, False)
    assert full[1] <= MAX_WAIT_SECONDS
    assert never[1] <= MAX_WAIT_SECONDS
    assert missing.startswith('device is "cuda:2", and this program sees with CUDA_VISIBLE_DEVICES="5,2": cuda:0')


def test_missing_gpu_is_none_in_a_step_and_an_error_elsewhere(eight: tuple[RunningDaemon, Simulator]) -> None:
    environ = environment(eight[1], CUDA_VISIBLE_DEVICES="")
    code = "import memwatch; print(memwatch.memory_info('cuda:0'), memwatch.is_unified_memory_gpu())"

    done = run_program(code, eight[0].url, **environ)
    refused = run_program("import memwatch; memwatch.get_device_memory_bytes(0)", eight[0].url, **environ)

    assert done.stdout == "None False\n"
    assert done.stderr.startswith(
        'memory_info: device is "cuda:0", and this program sees with CUDA_VISIBLE_DEVICES'
    )
    assert "DeviceError" in refused.stderr


@pytest.mark.parametrize("with_daemon", [False, True], ids=["alone", "with a daemon"])
def test_mig_instance_has_its_own_memory(with_daemon: bool, tmp_path: Path) -> None:
    """The first MIG device of the list, or of the machine."""
    machine = sample_nvml.H200_MIG
    assert machine.gpus[0].mig is not None
    uuid = machine.gpus[0].mig.devices[3].uuid  # of GPU instance 9
    simulator = Simulator.of(tmp_path, machine)
    listed = environment(simulator, CUDA_VISIBLE_DEVICES=f"{uuid},MIG-0")
    code = "import sys; sys.argv[1:] = ['cuda:0']" + FIGURES

    def figures(url: str | None) -> list[object]:
        return [run_json(code, url, **listed), run_json(code, url, **environment(simulator))]

    if with_daemon:
        with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
            daemon.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
            found = figures(daemon.url)
    else:
        found = figures(None)

    assert found == [[["gpu0.mig9", 17179869184, 17170432000]], [["gpu0.mig2", 74893492224, 57146343424]]]


@pytest.mark.parametrize(
    "environ", [{"HIP_VISIBLE_DEVICES": "1,0"}, {"ROCR_VISIBLE_DEVICES": "GPU-9f1c2b3a4d5e6f71,0"}]
)
def test_amd_gpus_follow_rocm(environ: dict[str, str]) -> None:
    """PyTorch names them cuda."""
    found = run_json(FIGURES, **roots_environment("mi210"), **environ)

    assert [pool for pool, _, _ in found] == ["gpu1", "gpu0", "gpu0", "gpu0"]


def test_backends_advice_and_fit_are_of_visible_gpus(eight: tuple[RunningDaemon, Simulator]) -> None:
    code = """
import json, memwatch
names = [one.name for one in memwatch.advise()]
found = memwatch.discover_backends()
cuda = next(one for one in found.backends if one.name == "cuda")
fits = sorted(one.device for one in memwatch.fit("1GiB").fit.verdicts)
print(json.dumps([[one.id for one in cuda.devices], "pin_memory" in names, fits]))
"""
    daemon, simulator = eight

    assert run_json(code, daemon.url, **environment(simulator, CUDA_VISIBLE_DEVICES="6,1")) == [
        ["gpu1", "gpu6"],
        True,
        ["cpu", "gpu1", "gpu6"],
    ]
    assert run_json(code, daemon.url, **environment(simulator, CUDA_VISIBLE_DEVICES="")) == [[], False, ["cpu"]]


def test_forked_child_reads_the_machine_itself(eight: tuple[RunningDaemon, Simulator]) -> None:
    """It has neither the parent's thread nor its helper process."""
    code = """
import json, memwatch, os, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
first = memwatch.memory_info("cuda:0").headroom_after_reclaim_bytes
pid = os.fork()
if pid == 0:
    memwatch.library.machine.machine_cache.forget()
    os._exit(0 if memwatch.memory_info("cuda:0").headroom_after_reclaim_bytes == first else 1)
status = os.waitpid(pid, 0)[1]
print(json.dumps([status, memwatch.memory_info("cuda:0").headroom_after_reclaim_bytes == first]))
"""
    assert run_json(code, **environment(eight[1])) == [0, True]


def test_wait_names_the_gpu_as_its_command_does(eight: tuple[RunningDaemon, Simulator]) -> None:
    daemon, simulator = eight
    environ = environment(simulator, CUDA_VISIBLE_DEVICES="5,2")

    def wait(size: str, device: str) -> tuple[int, str, str]:
        done = memwatch("--url", daemon.url, "wait", "--free", size, "--device", device, **environ)
        return done.returncode, done.stdout, done.stderr

    assert wait("10GiB", "cuda:0")[0] == wait("10GiB", str(EIGHT.gpus[5].uuid))[0] == 0
    assert wait("100GiB", "cuda:0")[2].startswith('memwatch: --free is "100GiB", but gpu5 has 79.6 GiB in total')
    assert wait("10GiB", "cuda:2")[2].startswith('memwatch: --device is "cuda:2", and this program sees with CUDA_')
    assert wait("64MiB", "cpu")[0] == 0


def test_reading_again_and_again_keeps_no_files(eight: tuple[RunningDaemon, Simulator]) -> None:
    """System RAM alone needs neither a thread nor a helper process afterwards."""
    code = """
import json, memwatch, os, threading
from memwatch.library.machine import machine_cache
def read():
    machine_cache.forget()
    memwatch.memory_info("cpu")
    return len(os.listdir("/proc/self/fd"))
read()
print(json.dumps([read() - read(), [one.name for one in threading.enumerate()]]))
"""
    assert run_json(code, **environment(eight[1])) == [0, ["MainThread"]]
