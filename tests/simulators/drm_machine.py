"""Machine with graphics cards in a folder: cards and descriptors of processes, and nothing else.

    machine = DrmMachine(tmp_path)
    machine.card("card0", "xe", "0000:00:02.0")
    machine.opens(2100, 7, fdinfo("xe", 12, "0000:00:02.0", gtt="1 GiB"))
    ...
    machine.ends(2100)

Links point to /dev/dri/renderD128 as in /proc; they are never followed. (In tests/machines they point to the
machine's own root/dev: a source distribution must not contain links to absolute paths.)
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from msgspec import Struct

from memwatch.core.linux.files import Roots

USER_PROCESS, KERNEL_THREAD = 0x400100, 0x208040


def fdinfo(driver: str, client: int, pdev: str | None = None, *lines: str, **resident: str) -> str:
    """Return the kernel's fdinfo of one descriptor: `resident` by region, and further lines verbatim."""
    head = ["pos:\t0", "flags:\t02100002", "mnt_id:\t26", "ino:\t284"]
    head += [f"drm-driver:\t{driver}", f"drm-client-id:\t{client}"]
    head += [f"drm-pdev:\t{pdev}"] if pdev else []
    sizes = [
        f"drm-{kind}-{region.replace('_', '-')}:\t{size if kind != 'shared' else 0}"
        for region, size in resident.items()
        for kind in ("total", "shared", "active", "resident")
    ]
    return "\n".join([*head, *sizes, *lines, f"drm-engine-render:\t{client * 977} ns"]) + "\n"


class DrmMachine(Struct, frozen=True):
    folder: Path

    @property
    def roots(self) -> Roots:
        return Roots(self.folder / "proc", self.folder / "sys", self.folder / "root")

    def card(
        self,
        name: str,
        driver: str,
        place: str,
        nodes: tuple[str, ...] = (),
        vendor: str = "0x8086",
        device: str = "0x56a0",
        kind: str = "drm",
        **files: str,
    ) -> Path:
        """Add a card: a PCI function, or a platform device if `place` is no PCI address."""
        bus = "pci0000:00" if place.count(":") == 2 else "platform"
        folder = self.folder / "sys/devices" / bus / place
        for node in nodes or (name, f"renderD{128 + int(name[4:])}"):
            (folder / kind / node).mkdir(parents=True)
        (self.folder / "sys/class" / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / name / "device").symlink_to("../..")
        (self.folder / "sys/class" / kind / name).symlink_to(f"../../devices/{bus}/{place}/{kind}/{name}")
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if bus != "platform":
            files = {"vendor": vendor, "device": device} | files
        for path, text in files.items():
            file = folder / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        return folder

    def npu(self, name: str, driver: str, place: str, vendor: str = "0x8086", device: str = "0x643e") -> Path:
        """Add a neural processing unit: a device that computes and has no display."""
        return self.card(name, driver, place, (name,), vendor, device, kind="accel")

    def process(
        self,
        pid: int,
        name: str = "python3",
        flags: int = USER_PROCESS,
        files: int = 3,
        state: str = "S",
        threads: int = 1,
    ) -> Path:
        """Add a process with some open files that are not GPUs."""
        folder = self.folder / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        stat = (
            f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 {flags} "
            + "0 " * 10
            + f"{threads} 0 {pid} 1000 250 "
            + "0 " * 28
        )
        (folder / "stat").write_text(stat.strip() + "\n")
        for fd in range(files):
            self.links(pid, fd, "/dev/null")
        return folder

    def opens(self, pid: int, fd: int, text: str, node: str = "/dev/dri/renderD128") -> None:
        """Make descriptor `fd` of a process a graphics device; the process is created if needed."""
        if not (self.folder / "proc" / str(pid)).exists():
            self.process(pid)
        self.says(pid, fd, text)
        self.links(pid, fd, node)

    def opens_in_thread(self, pid: int, thread: int, fd: int, text: str) -> None:
        """Make a descriptor of a thread other than the first a graphics device."""
        folder = self.folder / "proc" / str(pid) / "task" / str(thread)
        for name in ("fd", "fdinfo"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "statm").write_text("999 250 3 1 0 40 0\n")
        (folder / "fdinfo" / str(fd)).write_text(text)
        os.symlink("/dev/dri/renderD128", folder / "fd" / str(fd))

    def thread_ends(self, pid: int, thread: int) -> None:
        shutil.rmtree(self.folder / "proc" / str(pid) / "task" / str(thread))

    def says(self, pid: int, fd: int, text: str) -> None:
        (self.folder / "proc" / str(pid) / "fdinfo" / str(fd)).write_text(text)

    def links(self, pid: int, fd: int, target: str) -> None:
        os.symlink(target, self.folder / "proc" / str(pid) / "fd" / str(fd))

    def closes(self, pid: int, fd: int) -> None:
        (self.folder / "proc" / str(pid) / "fd" / str(fd)).unlink()
        (self.folder / "proc" / str(pid) / "fdinfo" / str(fd)).unlink()

    def ends(self, pid: int) -> None:
        shutil.rmtree(self.folder / "proc" / str(pid))
