"""Test that a Tegra is recognized by device tree or settings, and that missing parts are unavailable, never 0."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from memwatch.core.collectors import tegra
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent
from support.budget import within
from support.machine_folders import machine_folder

CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"


@pytest.fixture
def nano(tmp_path: Path) -> Roots:
    """Copy of a Jetson Nano that a test may change."""
    source = machine_folder("jetson-nano-jp4").roots.procfs.parent
    shutil.copytree(source, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "root")


def test_chip_in_the_settings_replaces_a_hidden_device_tree(nano: Roots) -> None:
    """Settings also override the device tree; without either there is a Tegra whose chip is not known."""
    named = tegra.BoardCollector(nano, "tegra186").collect().tegra
    shutil.rmtree(nano.procfs / "device-tree")
    hidden = tegra.BoardCollector(nano, "tegra210").collect().tegra

    assert named is not None
    assert hidden is not None
    assert named.soc == "tegra186"
    assert (hidden.soc, hidden.board, hidden.l4t) == ("tegra210", Absent.NOT_AVAILABLE, "32.7.1")
    unnamed = tegra.BoardCollector(nano).collect().tegra
    assert unnamed is not None
    assert unnamed.soc == "tegra"


SIGNS = ("NvMapMemUsed", "nv_tegra_release", "/dev/nvhost-ctrl", "/dev/nvmap")


@pytest.mark.parametrize("sign", SIGNS)
def test_each_sign_shows_a_tegra_without_a_device_tree(nano: Roots, sign: str) -> None:
    """Docker hides /proc/device-tree and /sys/firmware; what the runtime mounts differs (ultralytics#18449)."""
    hide_all_signs(nano)
    if sign == "NvMapMemUsed":
        with (nano.procfs / "meminfo").open("a") as meminfo:
            meminfo.write("NvMapMemUsed:     740388 kB\n")
    else:
        path = nano.rootfs / ("etc/nv_tegra_release" if sign == "nv_tegra_release" else sign.lstrip("/"))
        path.parent.mkdir(exist_ok=True)
        path.write_text("# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x\n")

    found = tegra.BoardCollector(nano).collect().tegra

    assert found is not None
    assert found.soc == "tegra"
    assert sign in found.sign


def test_machine_without_any_sign_is_no_tegra(nano: Roots) -> None:
    """Neither the collector of the board nor that of NvMap is available."""
    hide_all_signs(nano)

    for collector in (tegra.BoardCollector, lambda roots: tegra.NvmapCollector(roots, GpuPids())):
        with pytest.raises(SourceUnavailable, match="no Tegra"):
            collector(nano)


def hide_all_signs(roots: Roots) -> None:
    shutil.rmtree(roots.procfs / "device-tree")
    (roots.rootfs / "etc/nv_tegra_release").unlink()
    meminfo = roots.procfs / "meminfo"
    lines = meminfo.read_text().splitlines(keepends=True)
    meminfo.write_text("".join(line for line in lines if not line.startswith("NvMap")))


def test_board_without_a_release_file_is_recognized(nano: Roots) -> None:
    """Automotive systems and containers have none."""
    (nano.rootfs / "etc/nv_tegra_release").unlink()

    found = tegra.BoardCollector(nano).collect().tegra

    assert found is not None
    assert (found.l4t, found.jetpack) == (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)


def test_memory_is_read_on_every_collection(nano: Roots) -> None:
    """A contradiction is rejected."""
    collector = tegra.BoardCollector(nano)
    meminfo = nano.procfs / "meminfo"
    text = meminfo.read_text()
    before = collector.collect().tegra
    meminfo.write_text(text.replace("NvMapMemUsed:     740388", "NvMapMemUsed:     740392"))
    after = collector.collect().tegra
    meminfo.write_text(text.replace("NvMapMemUsed:     740388", "NvMapMemUsed:   99740388"))
    with pytest.raises(ParseError, match="exceeds MemTotal"):
        collector.collect()
    collector.close()

    assert before is not None
    assert after is not None
    assert (before.gpu_bytes, after.gpu_bytes) == (740388 << 10, 740392 << 10)


@pytest.mark.measure
def test_reading_on_a_tick_is_cheap(nano: Roots) -> None:
    """It is read on every tick: below one millisecond on a busy machine (20 µs on an idle one)."""
    collector = tegra.BoardCollector(nano)
    costs = []
    for _ in range(20):
        started = time.process_time()
        for _ in range(50):
            collector.collect()
        costs.append((time.process_time() - started) / 50)
    collector.close()

    within("reading of nvmap", min(costs), 0.001, "s")


def test_small_holders_of_gpu_memory_are_listed(nano: Roots) -> None:
    """The kernel's own clients are not processes."""
    pids = GpuPids()
    with (nano.procfs.parent / CLIENTS).open("r+") as file:
        rows = file.read().replace("total", "nvgpu   kernel   0   0K\ntotal")
        file.seek(0)
        file.write(rows)

    found = tegra.NvmapCollector(nano, pids).collect().nvmap

    assert found is not None
    assert isinstance(found.clients, tuple)
    assert len(found.clients) == 4
    assert pids() == {4401, 4630, 8421}


@pytest.mark.parametrize("content", [b"", b"CLIENT PROCESS PID SIZE\n", b"\xff" * 100, b"x" * (2 << 20)])
def test_invalid_table_of_clients_is_rejected(nano: Roots, content: bytes) -> None:
    """Empty, truncated, binary, or endless."""
    (nano.procfs.parent / CLIENTS).write_bytes(content)

    with pytest.raises(ParseError, match="nvmap clients"):
        tegra.NvmapCollector(nano, GpuPids()).collect()


def test_debugfs_mounted_later_is_read(nano: Roots) -> None:
    """Unmounted debugfs is unavailable; once mounted, its values are read."""
    path = nano.procfs.parent / CLIENTS
    collector = tegra.NvmapCollector(nano, GpuPids())
    path.rename(path.with_name("away"))
    with pytest.raises(SourceUnavailable, match="is debugfs mounted"):
        collector.collect()
    path.with_name("away").rename(path)
    found = collector.collect().nvmap

    assert found is not None
    assert found.total_bytes == 740388 << 10
