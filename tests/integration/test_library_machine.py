"""The library's view of the machine: pools that add up, also if a GPU driver reports no memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.model import Absent
from memwatch.library.backend_selection import NoBackendError, select
from memwatch.library.daemon_client import Daemon
from memwatch.library.host import Ram
from memwatch.library.local_reading import NOT_NEEDED
from memwatch.library.machine import MachineCache, from_daemon, with_current_ram
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Trouble
from support.budget import within
from support.daemon_process import RunningDaemon, running_daemon
from support.dead_address import dead_address
from support.fork_server import installed_programs
from support.library_process import roots_environment, run_json, run_program
from support.open_things import kept_open

GIB = 1 << 30
SUMMARY = """
import json, memwatch
here, gpu = memwatch.machine(), memwatch.memory_info("cuda:0")
print(json.dumps({
    "architecture": here.architecture, "from_daemon": here.from_daemon,
    "unified": memwatch.is_unified_memory_gpu("cuda:0"), "no_such": memwatch.is_unified_memory_gpu(7),
    "size": memwatch.get_device_memory_bytes(0, default=0), "cpu": memwatch.get_device_memory_bytes("cpu"),
    "missing": memwatch.get_device_memory_bytes(9, default=5), "pool": gpu and gpu.pool,
     "total": gpu and gpu.total_bytes, "ram": memwatch.memory_info().total_bytes,
    "sum": sum(pool.size_bytes for pool in here.pools),
}))
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, Simulator]]:
    """A GB10 with a simulated driver."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running, simulator


def test_unified_gpu_has_the_memory_of_its_pool(spark: tuple[RunningDaemon, Simulator]) -> None:
    """NVML returns NOT_SUPPORTED on a GB10. Its memory is System RAM, with and without a daemon."""
    daemon, simulator = spark
    by_daemon = run_json(SUMMARY, daemon.url, **roots_environment("gb10"))
    alone = run_json(SUMMARY, **roots_environment("gb10"), **simulator.environ)

    assert by_daemon["from_daemon"]
    assert not alone["from_daemon"]
    for found in (by_daemon, alone):
        assert found["architecture"] == "unified"
        assert (found["unified"], found["no_such"], found["missing"], found["pool"]) == (True, False, 5, "ram")
        assert found["size"] == found["total"] == found["ram"] == found["sum"]


HEADROOM = """
import json, memwatch
from msgspec import to_builtins
found = [(memwatch.memory_info(gpu.id).headroom_bytes, gpu.headroom_bytes) for gpu in memwatch.machine().devices]
print(json.dumps(to_builtins(found)))
"""


@pytest.mark.parametrize(("name", "known"), [("n1x-carveout", False), ("strix-halo", True), ("gb10", True)])
def test_headroom_of_a_gpu_is_that_of_the_machine(name: str, known: bool, tmp_path: Path) -> None:
    """A GPU with a carve-out may use System RAM as well, up to a limit that may be unknown."""
    driver = Simulator.of(tmp_path, sample_nvml.READY[name]).environ if name in sample_nvml.READY else {}
    ((of_gpu, of_machine),) = run_json(HEADROOM, **roots_environment(name), **driver)

    assert of_gpu == of_machine
    assert of_gpu != "not_supported" if known else of_gpu == "not_supported"


LATER = """
import json, time, memwatch
from msgspec.structs import replace
from memwatch.library.machine import machine_cache
while len(memwatch.machine().pools) < 2:  # the driver has not answered yet
    time.sleep(0.05)
while memwatch.memory_info().total_bytes > 500 << 30:
    time.sleep(0.05)
first = memwatch.memory_info()
machine_cache._machine = replace(machine_cache._machine, monotonic=machine_cache._machine.monotonic - 60)
later = memwatch.memory_info()
print(json.dumps([[one.total_bytes, one.used_bytes, one.available_bytes] for one in (first, later)]))
"""


def test_system_ram_without_the_memory_of_a_gpu_stays_current(tmp_path: Path) -> None:
    """On a GH200 /proc/meminfo contains the HBM, so the machine is read again."""
    simulator = Simulator.of(tmp_path, sample_nvml.GH200_NUMA)
    first, later = run_json(LATER, **roots_environment("gh200-numa"), **simulator.environ)

    assert first == later
    assert later[1] + later[2] == later[0] == 514120351744


EVERYWHERE = """
import json, logging, time, memwatch
logging.basicConfig(handlers=[logging.NullHandler()])
from memwatch.library.host import host
while len(memwatch.machine().pools) < 2:  # the driver has not answered yet
    time.sleep(0.05)
memwatch.memory_info()
while host.ram().total_bytes > 500 << 30:
    time.sleep(0.05)
with memwatch.track("step") as stats:
    line = memwatch.log_memory_usage("step")
profiler = memwatch.MemoryProfiler()
with profiler:
    profiler.stage("a")
info, ratios = memwatch.memory_info(), []
watch = memwatch.on_pressure(print)
watch._look()
watch.stop()
print(json.dumps([info.used_bytes, stats.pool.peak_bytes, profiler.peak("a").pool_used_bytes,
                  host.ram().total_bytes - host.available_bytes(), line.partition(" |")[0], watch._levels["ram"]]))
"""


@pytest.mark.parametrize("by_daemon", [False, True], ids=["alone", "daemon"])
def test_memory_of_a_gpu_is_not_in_system_ram_of_any_function(tmp_path: Path, by_daemon: bool) -> None:
    """On a GH200 the steps of a program have the System RAM that `memory_info` has, 478.8 GiB."""
    simulator = Simulator.of(tmp_path, sample_nvml.GH200_NUMA)
    environ = {**roots_environment("gh200-numa"), **simulator.environ}
    with ExitStack() as stack:
        url = None
        if by_daemon:
            daemon = stack.enter_context(running_daemon(tmp_path, environ=environ))
            daemon.wait_for("/api/v1/pools", lambda pools: len(pools) == 2)
            url = daemon.url
        used, tracked, profiled, here, line, level = run_json(EVERYWHERE, url, **environ)

    assert used == tracked == profiled == here
    assert line == f"[step] Free: {units.size(514120351744 - used)}"
    assert level == 0


ELSEWHERE = """
import json, memwatch
from memwatch import NoDaemonError
raised = []
for name in ("machine", "get_device_memory_bytes", "discover_backends"):
    try:
        getattr(memwatch, name)()
    except NoDaemonError as error:
        raised.append(str(error))
try:
    memwatch.fit("1GiB")
except NoDaemonError as error:
    raised.append(str(error))
print(json.dumps([raised, memwatch.memory_info(), memwatch.memory_info(0), memwatch.is_unified_memory_gpu(),
                  memwatch.get_device_memory_bytes(0, default=5)]))
"""


def test_this_machine_is_not_described_in_place_of_another_one() -> None:
    """MEMWATCH_URL names a machine whose daemon does not answer. A step goes on, with a line for each function."""
    url = f"http://0.0.0.0:{dead_address().rpartition(':')[2]}"
    done = run_program(ELSEWHERE, url, **roots_environment("gb10"))

    raised, *others = json.loads(done.stdout)
    assert len(raised) == 4
    (why,) = set(raised)
    assert why.startswith(
        f'no answer from memwatchd at MEMWATCH_URL "{url}", and this machine is not read in its place'
    )
    assert others == [None, None, False, 5]
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == ["memory_info:", "is_unified_memory_gpu"]


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        (None, True),
        ("unix:/run/box/memwatchd.sock", True),
        ("http://127.0.0.1:6360", True),
        ("http://[::1]:1", True),
        ("https://10.0.0.7:6360", False),
        ("http://box.lan:6360", False),
        ("box:6360", False),
    ],
)
def test_only_a_daemon_of_this_machine_is_replaced_by_reading_it(url: str | None, is_here: bool) -> None:
    assert Daemon(url).is_here is is_here


PARTITION = """
import json, memwatch
gpu = memwatch.memory_info("cuda:0")
print(json.dumps({
    "pool": gpu.pool, "label": gpu.label, "total": gpu.total_bytes, "unified": gpu.unified,
    "figures": [one if isinstance(one, int) else one.value for one in
                (gpu.used_bytes, gpu.available_bytes, gpu.headroom_after_reclaim_bytes, gpu.headroom_bytes)],
    "size": memwatch.get_device_memory_bytes(0), "sum": sum(pool.size_bytes for pool in memwatch.machine().pools),
}))
"""


def test_partitioned_gpu_has_the_memory_of_its_limit(tmp_path: Path) -> None:
    """Inside a memory partition the driver reports a limit of 20 GiB, and not the size of the card."""
    simulator = Simulator.of(tmp_path, sample_nvml.CONTAINER_PARTITION)
    host = str(sample_nvml.CONTAINER_PARTITION.host)
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as daemon:
        daemon.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        ram = next(pool["size_bytes"] for pool in daemon.snapshot()["pools"])
        by_daemon = run_json(PARTITION, daemon.url, **roots_environment(host))
    alone = run_json(PARTITION, **roots_environment(host), **simulator.environ)

    limit = {"pool": "gpu0.limit", "label": "GPU memory limit", "total": 20 * GIB, "unified": False}
    limit |= {"size": 20 * GIB, "sum": ram}
    assert by_daemon == alone == {**limit, "figures": [15 * GIB, 5 * GIB, 5 * GIB, 5 * GIB]}


def test_gpu_of_unknown_memory_has_none_and_a_reason(tmp_path: Path) -> None:
    gpu = sample_nvml.RTX_4090.with_gpu(0, memory=None)
    simulator = Simulator.of(tmp_path, gpu)
    code = "import memwatch; print(memwatch.memory_info(0)); memwatch.get_device_memory_bytes(0)"

    done = run_program(code, **roots_environment(str(gpu.host)), **simulator.environ)

    assert done.stdout == "None\n"
    assert done.stderr.count("the memory of gpu0 (NVIDIA GeForce RTX 4090) is not known") == 2
    assert "DeviceError" in done.stderr.splitlines()[-1]


def test_machine_without_gpu_has_system_ram() -> None:
    """A GPU that is not there is None, the default, or an error: never System RAM."""
    done = run_program(SUMMARY, **roots_environment("zram-laptop"))
    found = json.loads(done.stdout)

    assert (found["unified"], found["pool"], found["size"], found["missing"]) == (False, None, 0, 5)
    assert found["cpu"] == found["ram"] == found["sum"]
    assert done.stderr == 'memory_info: device is "cuda:0", but this machine has no GPU; for example cpu\n'
    refused = run_program("import memwatch; memwatch.get_device_memory_bytes()", **roots_environment("zram-laptop"))
    assert 'DeviceError: device is "0", but this machine has no GPU; for example cpu' in refused.stderr


SLOW = """
import json, time, memwatch
here = memwatch.machine()
try:
    memwatch.get_device_memory_bytes(0)
except memwatch.DeviceError as error:
    refused = str(error)
while memwatch.machine().unread:
    time.sleep(0.05)
later = memwatch.get_device_memory_bytes(0)
print(json.dumps([here.unread, len(here.devices), refused, memwatch.machine().unread, later]))
"""


def test_gpu_whose_driver_has_not_answered_yet_is_not_said_to_be_absent(tmp_path: Path) -> None:
    """The first reading waits two seconds for it, as on a busy machine. It is found later."""
    slow = replace(sample_nvml.RTX_4090, troubles={"nvmlInitWithFlags": Trouble(latency_ms=2500, times=1)})
    simulator = Simulator.of(tmp_path, slow)
    unread, count, refused, then, later = run_json(SLOW, **roots_environment("rtx-4090"), **simulator.environ)

    assert (unread, count) == ({"nvml": "has not answered yet"}, 0)
    assert refused == 'device is "0", and it is not known if there is one: nvml has not answered yet'
    assert then == {}
    assert later > 20 << 30


def test_values_without_a_daemon_become_stale(spark: tuple[RunningDaemon, Simulator]) -> None:
    """After the only reading, System RAM stays current, other values become stale, and the architecture stays."""
    found = replace(MachineCache(Daemon(spark[0].url)).any(), from_daemon=False)
    ram = found.ram
    assert ram is not None

    later = with_current_ram(found, Ram(ram.size_bytes, GIB, GIB // 2))
    coherent = with_current_ram(found, Ram(2 * ram.size_bytes, GIB))

    assert later.ram is not None
    assert (later.ram.available_bytes, later.ram.used_bytes) == (GIB, ram.size_bytes - GIB)
    assert later.shares[0].used_bytes is Absent.STALE
    assert later.ram.free_bytes == GIB // 2
    assert later.devices[0].headroom_after_reclaim_bytes is later.devices[0].headroom_bytes is Absent.STALE
    assert later.architecture == "unified"
    assert coherent.ram is not None
    assert coherent.ram.used_bytes is Absent.STALE


def test_figures_from_before_the_thread_started_are_read_again() -> None:
    """Properties of the machine are kept regardless of age; `machine()` returns current figures."""
    cache = MachineCache(Daemon("http://127.0.0.1:9"))
    with kept_open():  # the thread ends some time after the last call
        old = replace(cache.any(), monotonic=time.monotonic() - 20)
        cache._machine = old

        assert cache.any() is old
        assert cache.fresh().monotonic > old.monotonic + 19
        cache.forget()


def test_unreachable_daemon_is_not_tried_again_at_once() -> None:
    """A bad address or a closed port: one attempt, then a pause. Nothing is raised."""
    for url in ("http://127.0.0.1:1", "nonsense", "unix:/nonexistent/socket", "http://[::bad"):
        daemon = Daemon(url)

        assert daemon.get("/api/v1/snapshot") is None
        assert daemon.is_silent
        assert from_daemon(daemon) is None


def test_invalid_snapshot_is_ignored(spark: tuple[RunningDaemon, Simulator]) -> None:
    """For any other JSON, the machine is read directly."""

    class Elsewhere(Daemon):
        def get(self, path: str, seconds: float = 2.0) -> object:
            assert seconds
            return {"pools": 1, "machine": {"name": None, "architecture": 7}, "path": path}

    assert from_daemon(Elsewhere("http://127.0.0.1:1")) is None
    assert MachineCache(Daemon(spark[0].url)).any().from_daemon


@pytest.mark.measure
def test_import_is_fast_and_needs_only_the_standard_library() -> None:
    """At most 30 ms in the best of five runs."""
    code = (
        "import sys, time; before = set(sys.modules); at = time.perf_counter(); import memwatch; "
        "took = time.perf_counter() - at; new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "import json; print(json.dumps([took, sorted(new)]))"
    )
    answers = [run_json(code) for _ in range(5)]

    within("import memwatch", min(took for took, _ in answers), 0.030, "s")
    for _, names in answers:
        assert set(names) <= set(sys.stdlib_module_names) | {"memwatch"}


def test_whole_library_needs_only_msgspec() -> None:
    """Everything else comes from the standard library."""
    code = (
        "import sys, memwatch; before = set(sys.modules); "
        "[getattr(memwatch, name) for name in [*memwatch.__all__, *memwatch.training.__all__]]; "
        "memwatch.machine(); memwatch.log_memory_usage('x'); "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} "
        "- set(sys.stdlib_module_names) - {'memwatch', 'typing_extensions'}; print(sorted(new))"
    )
    with installed_programs(True):
        done = run_program(code, **roots_environment("zram-laptop"))

    assert done.stdout == "['msgspec']\n"
    assert done.stderr.startswith("[x] Free: ")


def test_functions_of_a_monitor_load_no_tools_for_training() -> None:
    """Neither do the daemon and the command `memwatch`, except for `memwatch autopsy`."""
    code = (
        "import json, sys, memwatch\n"
        "listed = set(memwatch.__all__) - set(memwatch.training.__all__)\n"
        "calls = [getattr(memwatch, name) for name in sorted(listed)]\n"
        "memwatch.machine(), memwatch.memory_info(), memwatch.memory_tree(), memwatch.advise()\n"
        "with memwatch.track(), memwatch.guard('1GiB'), memwatch.MemoryProfiler(): pass\n"
        "memwatch.on_pressure(print).stop()\n"
        "import memwatch.cli.cli, memwatchd.run, memwatchd.wiring, memwatchd.web_app\n"
        "found = [name for name in sys.modules if name.startswith('memwatch.training.')]\n"
        "memwatch.swap_blocks, memwatch.retry_on_oom\n"
        "print(json.dumps([len(calls) > 30, found, 'memwatch.training.block_swap' in sys.modules]))"
    )
    with installed_programs(True):
        assert run_json(code, **roots_environment("zram-laptop")) == [True, [], True]


def test_first_backend_with_headroom_is_selected_or_all_are_listed() -> None:
    """The error lists every backend that was tried."""
    from memwatch.core.backends.model import Backend, BackendDevice, Backends

    def backend(name: str, available: bool | Absent, *rooms: int | Absent) -> Backend:
        kind = "cpu" if name == "cpu" else "gpu"
        devices = tuple(BackendDevice(None, f"{name} device", kind, room, room, room, False) for room in rooms)  # type: ignore[arg-type]
        return Backend(name, name.upper(), available, "no driver is here", devices)

    found = Backends(
        "cuda", "", 0.0, (backend("cuda", True, 8 * GIB), backend("rocm", False), backend("cpu", True, 20 * GIB))
    )

    assert select(found, 7 * GIB).name == "cuda"
    assert select(found, 19 * GIB).name == "cpu"
    with pytest.raises(NoBackendError) as rejected:
        select(found, 30 * GIB)
    assert str(rejected.value) == (
        "no backend can allocate 30.0 GiB now. Tried: CUDA: cuda device can allocate 8.0 GiB; "
        "ROCM: no driver is here; CPU: cpu device can allocate 20.0 GiB"
    )
    twins = Backends("cuda", "", 0.0, (backend("cuda", True, 20 * GIB, 2 * GIB),))
    assert select(twins, 10 * GIB).name == "cuda"  # of two devices with one name, the larger headroom counts
    with pytest.raises(NoBackendError, match=r"cuda device can allocate 20\.0 GiB"):
        select(twins, 30 * GIB)
    (half,) = backend("rocm", True, 48 * GIB).devices
    ruled = Backend("rocm", "ROCm", True, "", (replace(half, own_headroom_bytes=26 * GIB),))
    with pytest.raises(NoBackendError, match=r"rocm device can allocate 26\.0 GiB"):
        select(Backends("rocm", "", 0.0, (ruled,)), 30 * GIB)
    with pytest.raises(NoBackendError, match="the headroom of its devices is not known"):
        select(Backends("cpu", "", 0.0, (backend("cuda", True, Absent.NOT_SUPPORTED),)), 1)


def test_backends_come_from_the_daemon(spark: tuple[RunningDaemon, Simulator]) -> None:
    """20GiB fit on the CPU of a GB10 without a CUDA library."""
    code = (
        "import json, memwatch; found = memwatch.discover_backends(); "
        "print(json.dumps([found.recommended, memwatch.best_available_backend(), "
        "memwatch.select_backend_for('20GiB').name, [one.name for one in found.backends]]))"
    )

    assert run_json(code, spark[0].url) == [
        "cpu",
        "cpu",
        "cpu",
        ["cpu", "cuda", "rocm", "metal", "opencl", "vulkan"],
    ]


def test_reading_without_a_daemon_loads_no_loop_and_no_collector_in_vain() -> None:
    program = (
        "import json, sys, memwatch; memwatch.machine(); memwatch.memory_info(); print(json.dumps([*sys.modules]))"
    )

    with installed_programs(True):
        loaded = run_json(program)

    assert "memwatch.core.reading.machine" in loaded
    assert [name for name in loaded if name.startswith("memwatch.reporting")] == []
    assert "memwatch.core.collectors.meminfo" in loaded
    assert {f"memwatch.core.collectors.{name}" for name in NOT_NEEDED}.isdisjoint(loaded)
    unused = {"http.client", "ssl", "email", "ctypes", "encodings.idna", "memwatch.core.redaction"}
    assert unused.isdisjoint(loaded)
    assert "memwatch.core.engines.kinds" not in loaded


@pytest.mark.parametrize(
    ("machine", "hardware"),
    [
        ("headless-server", ()),
        ("jetson-orin-nx", ("tegra", "nvml", "dmem")),
        ("strix-halo", ("amdgpu", "drm", "dmem")),
    ],
)
def test_reading_loads_no_module_for_hardware_that_is_not_there(machine: str, hardware: tuple[str, ...]) -> None:
    """Neither its collector nor its drivers nor its accounting. Without a daemon it also needs no JSON."""
    program = "import sys, memwatch; memwatch.machine(); had = [*sys.modules]; import json; print(json.dumps(had))"

    with installed_programs(True):
        loaded = run_json(program, **roots_environment(machine))

    collectors = {name.rpartition(".")[2] for name in loaded if name.startswith("memwatch.core.collectors.")}
    accounted = {name.rpartition(".")[2] for name in loaded if name.startswith("memwatch.core.accounting.")}
    assert collectors & {"tegra", "nvml", "amdgpu", "drm", "dmem"} == set(hardware)
    assert bool(accounted & {"nvidia", "amd", "drm", "tegra", "apple", "gpu_limits"}) == bool(hardware)
    if not hardware:
        assert {"json", "mmap", "memwatch.core.budget", "memwatch.core.backends.model"}.isdisjoint(loaded)
        assert sum(name.startswith("memwatch") for name in loaded) <= 86
