"""Test graphics cards by their files: identity, size and use of their own memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.drm import Collector
from memwatch.core.drivers.drm.records import DrmReading, DrmRegion
from memwatch.core.linux.files import SourceUnavailable
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent
from simulators.drm_machine import DrmMachine, fdinfo

IGPU, DGPU = "0000:00:02.0", "0000:03:00.0"
BOTH = ("card0", "renderD128")


@pytest.fixture
def machine(tmp_path: Path) -> DrmMachine:
    """Laptop with an integrated Intel GPU under xe."""
    laptop = DrmMachine(tmp_path)
    laptop.card("card0", "xe", IGPU, device="0x64a0")
    laptop.process(1, "systemd")
    return laptop


def collector_of(machine: DrmMachine, pids: GpuPids | None = None) -> Collector:
    return Collector(machine.roots, pids or GpuPids())


def reading(collector: Collector) -> DrmReading:
    found = collector.collect().drm
    assert found is not None
    return found


def test_collector_is_unavailable_without_cards(tmp_path: Path) -> None:
    """Without a card there is no collector, so no thread scans all processes."""
    machine = DrmMachine(tmp_path)
    machine.process(1)

    with pytest.raises(SourceUnavailable, match="no DRM device found"):
        collector_of(machine)


@pytest.mark.parametrize(("driver", "nodes"), [("ast", ("card0",)), ("nvidia", BOTH), ("vkms", BOTH)])
def test_cards_without_memory_information_are_left_out(tmp_path: Path, driver: str, nodes: tuple[str, ...]) -> None:
    """A management display, NVIDIA's own driver (read through NVML) and a virtual display."""
    machine = DrmMachine(tmp_path)
    machine.process(1)
    machine.card("card0", driver, DGPU, nodes)

    with pytest.raises(SourceUnavailable, match="no DRM device found"):
        collector_of(machine)


def test_nouveau_is_listed_without_a_scan_of_processes(tmp_path: Path) -> None:
    """Its descriptors have no memory keys, so processes are not scanned."""
    machine = DrmMachine(tmp_path)
    machine.card("card0", "nouveau", DGPU, vendor="0x10de", device="0x1f82")
    machine.opens(2100, 7, fdinfo("nouveau", 12, DGPU))

    found = reading(collector_of(machine))

    assert [card.driver for card in found.cards] == ["nouveau"]
    assert (found.clients, found.seen) == ((), 0)


def test_card_is_read_from_its_files(tmp_path: Path) -> None:
    """Address, ids, driver and device files; connectors and render nodes of the class are not cards."""
    machine = DrmMachine(tmp_path)
    machine.process(1)
    machine.card("card1", "xe", DGPU, ("card1", "renderD128"), device="0x56a0")
    for name in ("card1-DP-1", "renderD128", "version"):
        (machine.roots.sysfs / "class/drm" / name).mkdir()

    (card,) = reading(collector_of(machine)).cards

    assert (card.name, card.driver, card.place, card.pdev) == ("card1", "xe", DGPU, DGPU)
    assert (card.vendor_id, card.device_id, card.nodes) == ("8086", "56a0", ("card1", "renderD128"))


def test_gpu_of_a_system_on_a_chip_has_no_pci_address(tmp_path: Path) -> None:
    """A platform device has no PCI address; the device tree names it."""
    machine = DrmMachine(tmp_path)
    machine.process(1)
    uevent = "DRIVER=panthor\nOF_COMPATIBLE_0=rockchip,rk3588-mali\nOF_COMPATIBLE_1=arm,mali-valhall-csf"
    machine.card("card1", "panthor", "fb000000.gpu", ("card1", "renderD128"), uevent=uevent)

    (card,) = reading(collector_of(machine)).cards

    assert (card.driver, card.place, card.pdev) == ("panthor", "fb000000.gpu", None)
    assert (card.vendor_id, card.compatible) == (Absent.NOT_SUPPORTED, "arm,mali-valhall-csf")


def test_vram_is_read_from_the_dmem_controller(machine: DrmMachine) -> None:
    """dmem.capacity and dmem.current of the root group cover the whole device; "max" is not a value."""
    machine.card("card1", "xe", DGPU)
    group = machine.roots.sysfs / "fs/cgroup"
    group.mkdir(parents=True)
    (group / "dmem.capacity").write_text(f"drm/{DGPU}/vram0 8514437120\ndrm/{DGPU}/stolen 67108864\n")
    (group / "dmem.current").write_text(f"drm/{DGPU}/vram0 12550144\ndrm/{DGPU}/stolen max\n")

    cards = {card.name: card for card in reading(collector_of(machine)).cards}

    assert cards["card0"].regions == ()
    assert cards["card1"].regions == (
        DrmRegion("stolen", 67108864, Absent.NOT_SUPPORTED, "cgroup:dmem.current"),
        DrmRegion("vram0", 8514437120, 12550144, "cgroup:dmem.current"),
    )


def test_vram_is_read_from_debugfs(machine: DrmMachine) -> None:
    """Readable by root: xe's memory manager lists size and usage; a suspended card is not read."""
    machine.card("card1", "xe", DGPU, power__runtime_status="active")
    manager = machine.roots.sysfs / "kernel/debug/dri" / DGPU / "tile0/vram_mm"
    manager.parent.mkdir(parents=True)
    text = "  use_type: 1\n  use_tt: 0\n  size: 25669140480\n  usage: {}\nvisible_size: 24480MiB\n"
    manager.write_text(text.format(21970649088))
    collector = collector_of(machine)
    awake = reading(collector).cards[1]

    (machine.roots.sysfs / "class/drm/card1/device/power/runtime_status").write_text("suspended\n")
    manager.write_text(text.format(1))
    asleep = reading(collector).cards[1]

    assert awake.regions == (DrmRegion("vram0", 25669140480, 21970649088, "debugfs:vram_mm"),)
    assert asleep == awake


def test_vram_size_is_known_without_its_use(tmp_path: Path) -> None:
    """Intel's build of i915 exposes the size to all users and the use to none."""
    machine = DrmMachine(tmp_path)
    machine.process(1)
    machine.card("card0", "i915", DGPU, drm__card0__lmem_total_bytes="17079205888")

    (card,) = reading(collector_of(machine)).cards

    assert card.regions == (DrmRegion("local0", 17079205888, Absent.NOT_PERMITTED, "sysfs:lmem_total_bytes"),)


def test_use_beyond_the_size_is_inconsistent(machine: DrmMachine) -> None:
    """The value is dropped; the size stays."""
    group = machine.roots.sysfs / "fs/cgroup"
    group.mkdir(parents=True)
    (group / "dmem.capacity").write_text(f"drm/{IGPU}/vram0 1000\n")
    (group / "dmem.current").write_text(f"drm/{IGPU}/vram0 1001\n")

    (card,) = reading(collector_of(machine)).cards

    assert card.regions == (DrmRegion("vram0", 1000, Absent.INCONSISTENT, "cgroup:dmem.current"),)


def test_collector_is_unavailable_after_the_card_is_unplugged(machine: DrmMachine) -> None:
    """No error and no flapping: the card is gone, and processes are no longer scanned."""
    machine.opens(2100, 7, fdinfo("xe", 12, IGPU, gtt="1 MiB"))
    pids = GpuPids()
    collector = collector_of(machine, pids)
    reading(collector)
    (machine.roots.sysfs / "class/drm/card0").unlink()

    for _ in range(15):
        with pytest.raises(SourceUnavailable):
            collector.collect()
    assert pids() == frozenset()


def test_card_is_named_by_the_pci_ids(machine: DrmMachine) -> None:
    """The list of PCI ids is used if installed; a subsystem of another vendor's card is ignored."""
    ids = machine.roots.rootfs / "usr/share/misc/pci.ids"
    ids.parent.mkdir(parents=True)
    ids.write_text(
        "8085  Other Maker\n\t64a0  Other Device\n"
        "8086  Intel Corporation\n\t56a0  DG2 [Arc A770]\n\t\t1849 64a0  Phantom\n\t64a0  Lunar Lake [Arc 140V]\n"
    )
    machine.card("card1", "xe", DGPU, device="0xffff")

    cards = reading(collector_of(machine)).cards

    assert [card.model for card in cards] == ["Intel Arc 140V", Absent.NOT_AVAILABLE]
