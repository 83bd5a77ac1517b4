"""Machine with AMD GPUs, built file by file in a folder, with the sysfs layout of the amdgpu driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from memwatch.core.linux.files import Roots

MIB, GIB = 1 << 20, 1 << 30
PCI = "0000:03:00.0"


class AmdMachine(Struct, frozen=True):
    """Machine in `folder`, which has proc, sys and root. Methods add files; a test may overwrite them later."""

    folder: Path

    @property
    def roots(self) -> Roots:
        return Roots(self.folder / "proc", self.folder / "sys", self.folder / "root")

    @property
    def arguments(self) -> list[str]:
        return [f"--procfs={self.folder}/proc", f"--sysfs={self.folder}/sys", f"--rootfs={self.folder}/root"]

    def device(self, pci: str = PCI) -> Path:
        return self.folder / "sys/devices/pci0000:00" / pci

    def write(self, path: str, text: str | bytes | int) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def link(self, path: str, target: Path) -> None:
        """Create a relative link, as in sysfs."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(os.path.relpath(target, file.parent))

    def host(self, ram: int, available: int, kernel: str = "6.16.0", held_by_nobody: int = 0) -> None:
        """Write /proc; memory that is neither available nor unattributed is anonymous."""
        anonymous = ram - available - held_by_nobody
        lines = {"MemTotal": ram, "MemFree": available, "MemAvailable": available, "AnonPages": anonymous}
        lines |= {"Shmem": 0, "SUnreclaim": 0}
        self.write("proc/meminfo", "\n".join(f"{name}: {size >> 10} kB" for name, size in lines.items()))
        self.write("proc/sys/kernel/osrelease", kernel)
        self.write("proc/stat", "btime 1763000000")
        for name in ("proc/2", "sys/bus", "root"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def gpu(self, files: Mapping[str, str | bytes | int], pci: str = PCI, card: int = 1) -> None:
        device = self.device(pci)
        defaults = {"class": "0x030000", "vendor": "0x1002", "device": "0x744c", "revision": "0xc8"}
        power = {"power/control": "on", "power/runtime_status": "active"}
        for name, text in {**defaults, **power, **files}.items():
            self.write(f"{device.relative_to(self.folder)}/{name}", text)
        drivers = self.folder / "sys/bus/pci/drivers/amdgpu"
        drivers.mkdir(parents=True, exist_ok=True)
        self.link(f"sys/devices/pci0000:00/{pci}/driver", drivers)
        self.link(f"sys/bus/pci/devices/{pci}", device)
        for name in (f"card{card}", f"renderD{127 + card}"):
            self.link(f"sys/devices/pci0000:00/{pci}/drm/{name}/device", device)
        self.plug(pci, card)

    def plug(self, pci: str = PCI, card: int = 1) -> None:
        for name in (f"card{card}", f"renderD{127 + card}"):
            self.link(f"sys/class/drm/{name}", self.device(pci) / "drm" / name)

    def unplug(self, card: int = 1) -> None:
        for name in (f"card{card}", f"renderD{127 + card}"):
            (self.folder / "sys/class/drm" / name).unlink()

    def node(self, number: int, gpu_id: int, location: int, bank: int, gfx: int = 110501) -> None:
        """Add a GPU to the compute driver's topology."""
        folder = f"sys/class/kfd/kfd/topology/nodes/{number}"
        self.write(f"{folder}/gpu_id", gpu_id)
        lines = {"simd_count": 80, "gfx_target_version": gfx, "location_id": location, "domain": 0}
        lines |= {"drm_render_minor": 127 + number}
        self.write(f"{folder}/properties", "\n".join(f"{name} {value}" for name, value in lines.items()))
        self.write(f"{folder}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {bank}")
        self.write("sys/class/kfd/kfd/topology/generation_id", number)

    def held(self, pid: int, gpu_id: int, size: int | str) -> None:
        self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}", size)

    def evicted(self, pid: int, gpu_id: int, milliseconds: int) -> None:
        self.write(f"sys/class/kfd/kfd/proc/{pid}/stats_{gpu_id}/evicted_ms", milliseconds)


def discrete(vram: int = 24 * GIB, used: int = 0, gtt: int = 32 * GIB, gtt_used: int = 0) -> dict[str, str | int]:
    """Return the files of a card."""
    return {**memory(vram, used, gtt, gtt_used), "board_info": "type : cem"}


def memory(vram: int, used: int, gtt: int, gtt_used: int) -> dict[str, str | int]:
    """Return the memory files of any GPU; without board_info on Linux 6.12 and later, of an APU."""
    return {
        "mem_info_vram_total": vram,
        "mem_info_vram_used": used,
        "mem_info_vis_vram_total": vram,
        "mem_info_vis_vram_used": used,
        "mem_info_gtt_total": gtt,
        "mem_info_gtt_used": gtt_used,
    }
