"""Machine whose cgroups count OOM kills as the kernel does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from memwatch.core.linux.files import Roots
from support.psi_host import write

MOUNTS = {
    "v2": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
    "local": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,memory_localevents\n",
    "old": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "v1": "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
}


class KillHost:
    """Folder of a machine. `layout`: version 2, with `memory_localevents`, before Linux 5.2, or version 1."""

    def __init__(self, folder: Path, layout: str = "v2") -> None:
        self.roots = Roots(folder / "proc", folder / "sys", folder)
        self.layout = layout
        self._gone = folder / "gone"
        self.groups = folder / "sys/fs/cgroup" / ("memory" if layout == "v1" else "")
        self.groups.mkdir(parents=True)
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/mountinfo").write_text(MOUNTS[layout])
        (folder / "proc/self/cgroup").write_text("4:memory:/own\n" if layout == "v1" else "0::/own\n")
        self._own: dict[str, Counter[str]] = {}
        self._total: dict[str, Counter[str]] = {}
        self.kills = self.stalls = 0
        self.write_vmstat()

    def add(self, *paths: str) -> None:
        """Create groups, with those around them."""
        for path in paths:
            for each in (*parents_of(path), path):
                if each not in self._own:
                    self._own[each], self._total[each] = Counter(), Counter()
                    (self.groups / each).mkdir()
                    self._write(each)

    def remove(self, path: str) -> None:
        """Remove a group and those in it. The groups around it keep their counts."""
        for each in [one for one in self._own if one == path or one.startswith(f"{path}/")]:
            del self._own[each], self._total[each]
        # Kept elsewhere: the kernel never uses the inode of a group again.
        self._gone.mkdir(exist_ok=True)
        (self.groups / path).rename(self._gone / str(len(os.listdir(self._gone))))

    def hit(self, path: str, times: int = 1) -> None:
        """Reach the limit of a group, without a kill."""
        self._count(path, "oom", times)

    def kill(self, victim: str, limit: str = "", times: int = 1) -> None:
        """Kill processes in a group, at the limit of a group or because the machine is out of memory."""
        if limit:
            self.hit(limit)
        self._count(victim, "oom_kill", times)
        self.kills += times
        self.write_vmstat()

    def reclaim(self) -> None:
        self.stalls += 1
        self.write_vmstat()

    def limit(self, path: str, size_bytes: int) -> None:
        name = "memory.limit_in_bytes" if self.layout == "v1" else "memory.max"
        write(self.groups / path / name, f"{size_bytes}\n")

    def write_vmstat(self) -> None:
        # Digits of one number: the file is written in place, and must not keep the end of a longer text.
        text = f"nr_free_pages 1000\nallocstall_normal {self.stalls:09}\noom_kill {self.kills:09}\n"
        write(self.roots.procfs / "vmstat", text)

    def kill_in_each(self, paths: Sequence[str]) -> None:
        """Kill a process in each of these groups, at its limit."""
        for path in paths:
            for each in (path, *parents_of(path)):
                self._total[each].update(oom=1, oom_kill=1)
            self._own[path].update(oom=1, oom_kill=1)
        for changed in {each for path in paths for each in (path, *parents_of(path))}:
            self._write(changed)
        self.kills += len(paths)
        self.write_vmstat()

    def _count(self, path: str, key: str, times: int) -> None:
        self._own[path][key] += times
        for each in (path, *reversed(parents_of(path))):
            self._total[each][key] += times
            self._write(each)

    def _write(self, path: str) -> None:
        """Write the files of a group in place: the digits of a number, and so the size, stay the same."""
        folder, own, total = self.groups / path, self._own[path], self._total[path]
        if self.layout == "v1":
            write(folder / "memory.failcnt", f"{own['oom']:06}\n")
            write(
                folder / "memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {own['oom_kill']:06}\n"
            )
            return
        write(folder / "memory.events", events(total if self.layout == "v2" else own))
        if self.layout != "old":
            write(folder / "memory.events.local", events(own))


def events(counts: Counter[str]) -> str:
    return f"low 0\nhigh 0\nmax 9\noom {counts['oom']:06}\noom_kill {counts['oom_kill']:06}\noom_group_kill 0\n"


def parents_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
