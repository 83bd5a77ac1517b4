"""Test the cost of reading eight AMD GPUs, and that GPUs that come and go leave no descriptor open."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from memwatch.core.collectors.amdgpu import RESCAN_SECONDS, Collector
from memwatch.core.linux.pci import GpuPids
from simulators.amd_machine import GIB, MIB, AmdMachine, discrete
from simulators.amd_readings import FakeIoctl, ManualClock
from support.budget import within


def eight_gpus(folder: Path) -> AmdMachine:
    machine = AmdMachine(folder)
    for at in range(8):
        machine.gpu(discrete(used=at * GIB), pci=f"0000:{at + 3:02x}:00.0", card=at + 1)
        machine.node(at + 1, 900 + at, (at + 3) << 8, 24 * GIB)
        machine.held(100 + at, 900 + at, GIB)
    return machine


@pytest.mark.measure
def test_tick_with_eight_gpus_is_cheap(tmp_path: Path) -> None:
    """Measured: 0.05 ms without changes, 0.15 ms with changes everywhere; five times that is allowed."""
    machine = eight_gpus(tmp_path)
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl())
    collector.collect()
    spent = []
    for at in range(200):
        for gpu in range(8):
            path = machine.device(f"0000:{gpu + 3:02x}:00.0") / "mem_info_vram_used"
            path.write_text(f"{at * MIB + gpu}\n")
        started = time.thread_time()
        collector.collect()
        spent.append(time.thread_time() - started)
    collector.close()

    within("tick with eight AMD GPUs", sorted(spent)[100], 0.0008, "s")


def test_hotplug_leaks_no_descriptor(tmp_path: Path) -> None:
    """Cards unplugged and plugged a hundred times leave no descriptor open."""
    machine, watch = eight_gpus(tmp_path), ManualClock()
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl(), watch)
    collector.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        machine.unplug(card=3)
        watch.now += RESCAN_SECONDS
        collector.collect()
        machine.plug("0000:05:00.0", card=3)
        watch.now += RESCAN_SECONDS
        collector.collect()
    after = len(os.listdir("/proc/self/fd"))
    collector.close()

    assert after == before
    assert len(os.listdir("/proc/self/fd")) == before - 8 * 4
