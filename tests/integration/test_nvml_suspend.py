"""NVIDIA GPUs that may be suspended: they are not called while they sleep, and not kept awake once they are idle.

The simulated driver behaves as measured on laptops: opening NVML and every call resume a GPU, and closing NVML lets
an unused one be suspended. A wrong call is thus seen in the log, and in the GPU's status.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.drivers.nvml.records import Asleep, GpuMemory, GpuReading, NvmlReading
from memwatch.core.drivers.nvml.runtime_suspend import IDLE_SECONDS, RELEASED_SECONDS, RESCAN_SECONDS
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent
from simulators.amd_machine import AmdMachine
from simulators.nvml_child import Child
from simulators.nvml_clocked import WALL_OFFSET, clocked_child
from simulators.nvml_machine import Simulator
from simulators.nvml_parts import GIB, MIB, mib, uuid
from simulators.nvml_state import Gpu, Holder, Machine, Sensors
from support.daemon_process import running_daemon

NEEDED_PROGRAMS = ("cc",)

ASLEEP = Absent.SUSPENDED
TEN_MINUTES = 600
FIRST, SECOND = "0000:01:00.0", "0000:41:00.0"
# A turn of the vitals takes 12 s at one reading a second, so the first idle reading may come two turns later.
UNTIL_RELEASED = int(IDLE_SECONDS) + 25
D3 = "Runtime D3 status:          {}\nVideo Memory:               Active\n"


def laptop_gpu(address: str, number: int, busy: int = 0) -> Gpu:
    return Gpu(
        name="NVIDIA RTX 2000 Ada Generation Laptop GPU",
        uuid=uuid(number),
        bus_id=f"0000{address.upper()}",
        device_id=0x28B810DE,
        memory=mib(8188, used=14, reserved=330),
        compute=(),
        graphics=(Holder(2101, 4 * MIB),),  # a display server that lists the GPU
        sensors=Sensors(45, 9_000, 210, 405, throttle=0, busy=busy, memory_busy=0),
    )


class Laptop:
    """GPUs with their folders in /sys and /proc, the driver, and memwatchd's connection to it."""

    def __init__(self, folder: Path, *gpus: Gpu) -> None:
        self.roots = Roots(folder / "proc", folder / "sys", folder / "root")
        self.addresses = [gpu.bus_id[4:].lower() for gpu in gpus]
        files = [str(self.power(address) / "runtime_status") for address in self.addresses]
        changed = [
            Machine((gpu,)).with_gpu(0, power_file=file).gpus[0] for gpu, file in zip(gpus, files, strict=True)
        ]
        self.machine = Machine(tuple(changed))
        self.simulator = Simulator.of(folder, self.machine)
        for address in self.addresses:
            self.set(address, control="auto", runtime_status="active")

    def power(self, address: str) -> Path:
        return self.roots.sysfs / "bus/pci/drivers/nvidia" / address / "power"

    def set(self, address: str, **files: str) -> None:
        self.power(address).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (self.power(address) / name).write_text(f"{text}\n")

    def status(self, address: str = FIRST) -> str:
        return (self.power(address) / "runtime_status").read_text().strip()

    def driver_says(self, text: str, address: str = FIRST) -> None:
        folder = self.roots.procfs / "driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "power").write_text(D3.format(text))

    def change(self, slot: int = 0, **changes: Any) -> None:
        self.machine = self.machine.with_gpu(slot, **changes)
        self.simulator.show(self.machine)

    @property
    def calls(self) -> int:
        return len(self.simulator.calls())


def after(child: Child, seconds: int) -> NvmlReading:
    """Return the reading after that many seconds with a reading in each."""
    found = child.ask(str(seconds))
    assert isinstance(found, NvmlReading), found
    return found


def gpu_after(child: Child, seconds: int) -> GpuReading:
    (gpu,) = after(child, seconds).gpus
    return gpu


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path, laptop_gpu(FIRST, 1))


@pytest.fixture
def child(laptop: Laptop) -> Iterator[Child]:
    with clocked_child(laptop.simulator, laptop.roots) as running:
        yield running


def test_idle_gpu_is_suspended_and_stays_so_for_ten_minutes(laptop: Laptop, child: Child) -> None:
    assert gpu_after(child, 1).asleep is None
    gpu_after(child, UNTIL_RELEASED)
    assert laptop.simulator.calls()[-1].function == "nvmlShutdown"
    laptop.simulator.clear_calls()

    asleep = gpu_after(child, TEN_MINUTES)

    assert laptop.calls == 0
    assert laptop.status() == "suspended"
    assert asleep.asleep is not None
    assert asleep.asleep.status == "suspended"
    assert WALL_OFFSET + IDLE_SECONDS < asleep.asleep.since_unix < WALL_OFFSET + UNTIL_RELEASED + 2  # type: ignore[operator]
    assert (asleep.uuid, asleep.name) == (uuid(1), "NVIDIA RTX 2000 Ada Generation Laptop GPU")
    assert isinstance(asleep.memory, GpuMemory)
    assert asleep.memory.total_bytes == 8188 * MIB
    assert (asleep.processes, asleep.busy_ratio, asleep.vitals.power_watts) == (ASLEEP, ASLEEP, ASLEEP)


def test_gpu_that_is_used_again_is_read_again_and_suspended_again(laptop: Laptop, child: Child) -> None:
    gpu_after(child, 1 + UNTIL_RELEASED)
    laptop.change(
        in_use=True,
        compute=(Holder(4242, 3 * GIB),),
        sensors=Sensors(60, 40_000, 2000, 7000, throttle=0, busy=80, memory_busy=5),
    )
    laptop.set(FIRST, runtime_status="active")  # the program's call resumed it

    used = gpu_after(child, 1)
    kept = gpu_after(child, TEN_MINUTES)
    laptop.change(in_use=False, compute=(), sensors=laptop_gpu(FIRST, 1).sensors)
    asleep = gpu_after(child, UNTIL_RELEASED)

    assert used.asleep is kept.asleep is None
    assert not isinstance(used.processes, Absent)
    assert sum(one.used_bytes for one in used.processes if isinstance(one.used_bytes, int)) == 3 * GIB + 4 * MIB
    assert asleep.asleep is not None
    assert laptop.status() == "suspended"


def test_gpu_that_sleeps_from_the_start_is_not_woken(laptop: Laptop, child: Child) -> None:
    """Only its address is known, and NVML is not even loaded. Once it is used, it is read."""
    laptop.set(FIRST, runtime_status="suspended")

    asleep = gpu_after(child, TEN_MINUTES)
    calls = laptop.calls
    laptop.set(FIRST, runtime_status="active")
    awake = gpu_after(child, 1)

    assert calls == 0
    assert asleep.asleep == Asleep("suspended", Absent.NOT_AVAILABLE)
    assert (asleep.pci, asleep.uuid, asleep.memory) == ("00000000:01:00.0", ASLEEP, ASLEEP)
    assert (awake.asleep, awake.uuid) == (None, uuid(1))


@pytest.mark.parametrize("status", ["suspending", "resuming"])
def test_gpu_on_its_way_is_not_called(laptop: Laptop, child: Child, status: str) -> None:
    laptop.set(FIRST, runtime_status=status)
    gpu_after(child, 60)
    assert (laptop.calls, laptop.status()) == (0, status)


def test_sleeping_gpu_is_left_alone_while_another_one_is_read(tmp_path: Path) -> None:
    """NVML is opened without GPUs, and only the busy one by its address. The idle one then sleeps."""
    laptop = Laptop(tmp_path, laptop_gpu(FIRST, 1), laptop_gpu(SECOND, 2, busy=90))
    laptop.change(1, in_use=True)

    with clocked_child(laptop.simulator, laptop.roots) as child:
        both = after(child, 1)
        after(child, UNTIL_RELEASED)
        laptop.set(FIRST, runtime_status="suspended")
        after(child, 2)
        laptop.simulator.clear_calls()
        found = after(child, TEN_MINUTES)
        called = {call.device for call in laptop.simulator.calls()}
        laptop.set(FIRST, runtime_status="active")
        again = after(child, 1)

    assert [gpu.asleep for gpu in both.gpus] == [None, None]
    asleep, busy = sorted(found.gpus, key=lambda gpu: str(gpu.pci))
    assert "gpu.0" not in called
    assert "gpu.1" in called
    assert asleep.asleep is not None
    assert (asleep.uuid, busy.uuid, busy.asleep) == (uuid(1), uuid(2), None)
    assert isinstance(busy.memory, GpuMemory)
    assert found.missing == ()
    assert [(gpu.uuid, gpu.asleep) for gpu in again.gpus] == [(uuid(1), None), (uuid(2), None)]


def test_gpu_whose_control_is_on_is_never_released(laptop: Laptop, child: Child) -> None:
    """As on servers and desktops by default: NVML is opened once, and the GPU is read every time."""
    laptop.set(FIRST, control="on")

    assert gpu_after(child, TEN_MINUTES).asleep is None
    functions = [call.function for call in laptop.simulator.calls()]
    assert functions.count("nvmlInitWithFlags") == 1
    assert functions.count("nvmlShutdown") == 0
    assert functions.count("nvmlDeviceGetMemoryInfo_v2") == TEN_MINUTES


@pytest.mark.parametrize("text", ["Not supported", "Disabled", "Disabled by default"])
def test_gpu_that_the_driver_never_suspends_is_never_released(laptop: Laptop, child: Child, text: str) -> None:
    """Some distributions set `auto` for every NVIDIA GPU."""
    laptop.driver_says(text)

    assert gpu_after(child, TEN_MINUTES).asleep is None
    assert "nvmlShutdown" not in {call.function for call in laptop.simulator.calls()}


def test_gpu_that_the_driver_may_suspend_is_released(laptop: Laptop, child: Child) -> None:
    laptop.driver_says("Enabled (fine-grained)")
    gpu_after(child, 1 + UNTIL_RELEASED)
    assert laptop.status() == "suspended"


def test_gpu_that_does_not_fall_asleep_is_released_ever_less_often(laptop: Laptop, child: Child) -> None:
    """A screen may keep an idle GPU awake: after 20 s it is read again, for twice as long as before."""
    laptop.change(in_use=True)
    released = []
    for _ in range(TEN_MINUTES):
        gpu = gpu_after(child, 1)
        released.append(gpu.asleep is not None)
        assert gpu.asleep is None or gpu.asleep.status == "idle"

    starts = [at for at in range(1, TEN_MINUTES) if released[at] and not released[at - 1]]
    assert len(starts) == 4
    assert sum(released) == len(starts) * (RELEASED_SECONDS - 1)  # readings, one a second
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert all(later > 1.5 * earlier for earlier, later in pairwise(pauses))


@pytest.mark.parametrize(
    "changes",
    [
        {"compute": (Holder(4242, 400 * MIB),)},
        {"compute": (Holder(4242, None),)},
        {"compute": None, "graphics": None},
        {"sensors": Sensors(60, 40_000, 2000, 7000, throttle=0, busy=1, memory_busy=0)},
        {"sensors": Sensors(60, 40_000, 2000, 7000, throttle=0)},
    ],
    ids=["held", "unknown-bytes", "unknown-processes", "busy", "unknown-utilization"],
)
def test_gpu_that_is_not_known_to_be_idle_is_not_released(
    laptop: Laptop, child: Child, changes: dict[str, Any]
) -> None:
    laptop.change(**changes)
    assert gpu_after(child, TEN_MINUTES).asleep is None


def test_gpu_whose_control_is_set_to_on_is_read_again(laptop: Laptop, child: Child) -> None:
    gpu_after(child, 1 + UNTIL_RELEASED)
    laptop.set(FIRST, control="on", runtime_status="active")
    assert gpu_after(child, int(RESCAN_SECONDS)).asleep is None


def test_event_thread_ends_before_a_gpu_is_released(laptop: Laptop, child: Child) -> None:
    """Its wait takes up to 5 s of real time. The GPU is not called in the meantime."""
    laptop.change(event_types=0x1C)
    gpu_after(child, 1)
    laptop.simulator.wait_for_call("nvmlEventSetWait_v2")
    while gpu_after(child, 1).asleep is None:
        pass
    laptop.simulator.clear_calls()
    child.until(lambda _: laptop.status() == "suspended")
    assert {call.device for call in laptop.simulator.calls()} == {"-"}


def test_daemon_shows_a_sleeping_gpu_and_does_not_wake_it(tmp_path: Path) -> None:
    """Its figures are absent with a reason, on the page, in the API and in the metrics."""
    laptop = Laptop(tmp_path / "laptop", laptop_gpu(FIRST, 1))
    laptop.set(FIRST, runtime_status="suspended")
    host = AmdMachine(tmp_path / "laptop")
    host.host(64 * GIB, 50 * GIB)
    (laptop.roots.procfs / "driver/nvidia").mkdir(parents=True)

    with running_daemon(tmp_path, *host.arguments, environ=laptop.simulator.environ) as daemon:
        daemon.wait_for("/api/v1/devices", lambda devices: len(devices) == 1)
        (device,) = daemon.get("/api/v1/devices").json
        metrics = daemon.get("/metrics").text
        page = daemon.get("/devices").text

    assert (device["state"], device["headroom_after_reclaim_bytes"], device["busy_ratio"]) == ("ok", None, None)
    assert {
        device["absent"][name] for name in ("headroom_after_reclaim_bytes", "busy_ratio", "temperature_celsius")
    } == {"suspended"}
    assert device["details"]["power"] == "suspended"
    assert "Suspended since" in page
    assert 'memwatch_device_up{device="gpu0"} 1' in metrics
    assert 'memwatch_device_headroom_after_reclaim_bytes{device="gpu0"}' not in metrics
    assert (laptop.calls, laptop.status()) == (0, "suspended")
