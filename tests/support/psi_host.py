"""Machine whose cgroups stall on memory, as files of its kernel."""

from __future__ import annotations

from pathlib import Path

from memwatch.core.linux.files import Roots

MOUNTS = {
    "unified": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "hybrid": "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
}
FOLDERS = {"unified": "sys/fs/cgroup", "hybrid": "sys/fs/cgroup/unified"}


class Host:
    """Folder of a machine with stalled tasks."""

    def __init__(self, folder: Path, layout: str = "unified", used: float = 0.2) -> None:
        self.roots = Roots(folder / "proc", folder / "sys", folder)
        self.groups = folder / FOLDERS[layout]
        self.groups.mkdir(parents=True)
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/pressure").mkdir()
        (folder / "proc/self/mountinfo").write_text(MOUNTS[layout])
        total = 16 << 20
        (folder / "proc/meminfo").write_text(
            f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {int(total * (1 - used))} kB\n"
        )
        self.wait(0.0)

    def wait(self, seconds: float, **groups: float) -> None:
        """Set the stall times of the machine and of cgroups; a name is a path with _ for /."""
        write(self.roots.procfs / "pressure/memory", pressure(seconds))
        for name, waited in groups.items():
            folder = self.groups / name.replace("_", "/")
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "memory.pressure", pressure(waited))


def write(path: Path, text: str) -> None:
    """Write in place, since readers keep the file open, and in one call, since they may read at any time."""
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        file.write(text.encode())


def pressure(seconds: float) -> str:
    line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={int(seconds * 1e6):012}\n"
    return f"some {line}full {line}"
