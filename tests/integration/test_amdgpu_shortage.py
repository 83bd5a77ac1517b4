"""The amdgpu collector without free file descriptors: a temporary error, and no value lost for good."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from memwatch.core.collectors.amdgpu import RESCAN_SECONDS, Collector
from memwatch.core.linux.pci import GpuPids
from simulators.amd_machine import GIB, AmdMachine, discrete
from simulators.amd_readings import FakeIoctl, ManualClock, only_gpu, reading_of
from support.fd_limit import descriptors, few_descriptors, no_descriptors


@pytest.mark.parametrize("left", range(4))
def test_descriptor_shortage_fails_once_and_recovers_fully(tmp_path: Path, left: int) -> None:
    """Descriptors run out while a card is opened, at the start or later. All values follow afterwards."""
    machine, watch = AmdMachine(tmp_path), ManualClock()
    machine.gpu(discrete())
    make = partial(Collector, machine.roots, 4096, GpuPids(), FakeIoctl(), watch)
    before = descriptors()
    whole = make()
    expected = reading_of(whole.collect()).gpus

    with few_descriptors(left), pytest.raises(OSError, match="Too many open files"):
        make()
    assert descriptors() == before + 4

    machine.gpu(discrete(vram=8 * GIB), pci="0000:0a:00.0", card=2)
    watch.now += RESCAN_SECONDS
    with few_descriptors(left), pytest.raises(OSError, match="Too many open files"):
        whole.collect()
    later = reading_of(whole.collect()).gpus
    whole.close()

    assert descriptors() == before
    assert later[0] == expected[0]
    assert [gpu.state for gpu in later] == ["ok", "ok"]
    assert later[1].vram.used_bytes == expected[0].vram.used_bytes


def test_card_lost_during_a_shortage_returns_afterwards(tmp_path: Path) -> None:
    """The driver drops the card and no file can be opened. The next tick with descriptors reads it."""
    machine = AmdMachine(tmp_path)
    machine.gpu(discrete())
    figure = machine.device() / "mem_info_vram_used"
    figure.unlink()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as owner:
        figure.symlink_to(f"/proc/{owner.pid}/oom_score")
        collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl(), ManualClock())
        collector.collect()
        figure.unlink()
        figure.write_text(f"{5 * GIB}\n")
    owner.wait()

    for _ in range(2):
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            collector.collect()
    after = only_gpu(collector.collect())
    collector.close()

    assert (after.state, after.vram.used_bytes) == ("ok", 5 * GIB)
