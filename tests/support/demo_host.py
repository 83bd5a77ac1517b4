"""Kernel files of a simulated machine, rewritten as its story advances: see scripts/demo_machines.py."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from msgspec import Struct

KIB, MIB = 1 << 10, 1 << 20
PAGE_KIB = 4
LEAKING_PID = 51210
# The session of a user who logged in and started a training.
LEAKING_CGROUP = "0::/user.slice/user-1000.slice/session-7.scope\n"
# Memory that the kernel reclaims under pressure: parts that add up, and all lines that include them.
CACHE = ("Active(file)", "Inactive(file)", "SReclaimable")
RECLAIMED = (*CACHE, "KReclaimable", "Buffers", "Cached")


def ramp(second: float, start: float, end: float) -> float:
    """Return 0 before `start`, 1 after `end`, and interpolate between."""
    return min(1.0, max(0.0, (second - start) / (end - start)))


class Scene(Struct, frozen=True):
    """One second of the story, as fractions, 0 to 1, of what the machine has for it."""

    second: int
    loaded: float
    cache: float
    leaked: float
    killed: bool
    of_host: bool = True

    @property
    def waiting(self) -> float:
        """Return the fraction of time that tasks stall on memory; a GPU's own memory causes no stalls."""
        return 0.55 * ramp(self.leaked, 0.9, 1.0) if self.of_host else 0.0


def scene_of(second: int, of_host: bool = True) -> Scene:
    killed = second >= 310
    leaked = 0.0 if killed else ramp(second, 200, 302)
    cache = 0.5 * ramp(second, 40, 80) + 0.5 * ramp(second, 150, 175)
    # From the first second on, so that a demo does not seem to stand still.
    loaded = 0.25 * ramp(second - second % 2, 0, 50) + 0.75 * ramp(second, 50, 95)
    return Scene(second, loaded, 0.3 if killed else cache, leaked, killed, of_host)


def figures_in(text: str) -> dict[str, int]:
    """Return the lines of a meminfo by name, of the machine or of a node."""
    return {name: int(value) for name, value in re.findall(r"^(?:Node \d+ )?(\S+):\s+(\d+)", text, re.MULTILINE)}


def with_figures(text: str, values: Mapping[str, int]) -> str:
    """Return the same meminfo with other values in existing lines."""
    for name, value in values.items():
        text = re.sub(rf"^((?:Node \d+ )?{re.escape(name)}:\s+)\d+", rf"\g<1>{value}", text, flags=re.M)
    return text


def split(whole: int, weights: Sequence[int]) -> list[int]:
    """Split `whole` into parts by weight, which add up to it."""
    total = sum(weights) or 1
    ends = [whole * weight // total for weight in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]


def blocks_of(pages: int, counts: Sequence[int]) -> list[int]:
    """Split free pages into blocks of 2^n pages, in the proportions of `counts`."""
    parts = split(pages, [count << order for order, count in enumerate(counts)])
    blocks, rest = [], 0
    for order, part in reversed(list(enumerate(parts))):
        number, rest = divmod(part + rest, 1 << order)
        blocks.append(number)
    return blocks[::-1]


class NodeFile:
    """Meminfo file of a NUMA node."""

    def __init__(self, path: Path) -> None:
        self.number = int(path.parent.name.removeprefix("node"))
        self.text = path.read_text()
        self.base = figures_in(self.text)
        self.is_gpus = not (path.parent / "cpulist").read_text().strip()
        self._path = path

    def now(self) -> dict[str, int]:
        return figures_in(self._path.read_text())

    @property
    def available(self) -> int:
        return self.base["MemFree"] + cache_of(self.base)

    def write(self, free: int, taken: int, leak: int) -> None:
        """Write values with `taken` less available than in the original file."""
        values = {"MemFree": free, "MemUsed": self.base["MemTotal"] - free}
        values["AnonPages"] = self.base.get("AnonPages", 0) + leak
        values |= with_cache(self.base, self.available - taken - free)
        self._path.write_text(with_figures(self.text, values))


@dataclass
class Host:
    """Folder of a machine. `held_bytes`: memory that its GPU holds of MemTotal in the original files.

    Values of System RAM exclude nodes that are a GPU's memory: the GPU writes the files of these, and their values
    are added here. `least` KiB are always available.
    """

    root: Path
    held_bytes: int
    spare: float = 0.012

    def __post_init__(self) -> None:
        self.text = (self.root / "proc/meminfo").read_text()
        self.blocks = (self.root / "proc/buddyinfo").read_text()
        nodes = [NodeFile(path) for path in self.root.glob("sys/devices/system/node/node*/meminfo")]
        nodes.sort(key=lambda node: node.number)
        self.nodes = [node for node in nodes if not node.is_gpus]
        self.gpu_nodes = [node for node in nodes if node.is_gpus and node.base["MemTotal"]]
        beside = added(node.base for node in self.gpu_nodes)
        self.meminfo = {name: value - beside[name] for name, value in figures_in(self.text).items()}
        self.least = int(self.meminfo["MemTotal"] * self.spare)
        self.killed = False

    def write(self, scene: Scene, gpu_bytes: int, leak_bytes: int) -> None:
        """Write the kernel's files for this scene."""
        base = self.meminfo
        leak, least = leak_bytes // KIB, self.least
        taken = (gpu_bytes - self.held_bytes) // KIB + leak
        available = max(least, base["MemAvailable"] - taken)
        room = base["MemFree"] - taken
        free = min(available, max(least // 2, room - int(max(0, room - least) * scene.cache)))
        # Memory that is available and not free is cache, in the proportions of the original file.
        lost = base["MemAvailable"] - available
        cache = cache_of(base) + base["MemFree"] - free - lost
        swapped = int(min(base.get("SwapTotal", 0), base["MemTotal"] // 16) * ramp(scene.waiting, 0.2, 0.55))
        values = {
            "MemFree": free,
            "MemAvailable": available,
            "AnonPages": base["AnonPages"] + leak,
            "SwapFree": base.get("SwapTotal", 0) - swapped,
            **with_cache(base, cache),
        }
        beside = added(node.now() for node in self.gpu_nodes)
        values = {name: value + beside[name] for name, value in values.items()}
        if "NvMapMemUsed" in base:
            values["NvMapMemUsed"] = gpu_bytes // KIB
        (self.root / "proc/meminfo").write_text(with_figures(self.text, values))
        self._write_nodes(free, lost, leak)
        self._write_blocks(free)
        self._write_pressure(scene)
        self._write_leak(scene, leak_bytes)

    def _write_nodes(self, free: int, lost: int, leak: int) -> None:
        """Write the nodes, each with its part of the machine's memory."""
        weights = [node.available for node in self.nodes]
        frees = split(free, [node.base["MemFree"] for node in self.nodes])
        for node, *parts in zip(self.nodes, frees, split(lost, weights), split(leak, weights), strict=True):
            node.write(*parts)

    def _write_blocks(self, free: int) -> None:
        """Write free memory of each node by block size; on a machine without nodes, all is node 0."""
        frees = {node.number: node.now()["MemFree"] for node in (*self.nodes, *self.gpu_nodes)} or {0: free}
        found = re.findall(r"^(Node +(\d+), zone +\S+)((?: +\d+)+)", self.blocks, re.MULTILINE)
        zones = [(head, int(number), [int(word) for word in words.split()]) for head, number, words in found]
        lines = []
        for number, kib in frees.items():
            own = [(head, counts) for head, node, counts in zones if node == number]
            sizes = [sum(count << order for order, count in enumerate(counts)) for _, counts in own]
            for (head, counts), pages in zip(own, split(kib // PAGE_KIB, sizes), strict=True):
                lines.append(f"{head}{''.join(f' {count:6}' for count in blocks_of(pages, counts))} \n")
        (self.root / "proc/buddyinfo").write_text("".join(lines))

    def _write_pressure(self, scene: Scene) -> None:
        some, full = scene.waiting * 100, scene.waiting * 70
        waited = int(scene.waiting * 1e6 * 20)
        (self.root / "proc/pressure/memory").write_text(
            f"some avg10={some:.2f} avg60={some / 2:.2f} avg300={some / 6:.2f} total={waited + 48123}\n"
            f"full avg10={full:.2f} avg60={full / 2:.2f} avg300={full / 6:.2f} total={waited // 2 + 30112}\n"
        )
        if scene.killed and scene.of_host and not self.killed:
            self.killed = True
            path = self.root / "proc/vmstat"
            path.write_text(re.sub(r"^oom_kill \d+", "oom_kill 1", path.read_text(), flags=re.M))

    def _write_leak(self, scene: Scene, leak_bytes: int) -> None:
        """Write the leaking process while it lives: a copy of another one, but of a user, in a session."""
        folder = self.root / "proc" / str(LEAKING_PID)
        if scene.killed:
            shutil.rmtree(folder, ignore_errors=True)
            return
        if not folder.exists():
            shutil.copytree(self._pattern(), folder, symlinks=True, ignore=shutil.ignore_patterns("fd", "fdinfo"))
            (folder / "cgroup").write_text(LEAKING_CGROUP)
            status = re.sub(r"^Name:\t.*$", "Name:\ttrain.py", (folder / "status").read_text(), flags=re.M)
            status = re.sub(r"^(Tgid|Pid):\t\d+$", rf"\g<1>:\t{LEAKING_PID}", status, flags=re.M)
            status = re.sub(r"^([UG]id):.*$", "\\g<1>:\t1000\t1000\t1000\t1000", status, flags=re.M)
            (folder / "status").write_text(status)
        pages = (leak_bytes + 300 * MIB) // 4096
        rest = re.sub(r"^.*\) ", "", (self._pattern() / "stat").read_text()).split()
        rest[21] = str(pages)
        (folder / "stat").write_text(f"{LEAKING_PID} (train.py) {' '.join(rest)}\n")

    def _pattern(self) -> Path:
        numbers = sorted(int(path.name) for path in (self.root / "proc").iterdir() if path.name.isdecimal())
        return self.root / "proc" / str(next(number for number in numbers if number > 2))


def cache_of(figures: Mapping[str, int]) -> int:
    return sum(figures.get(name, 0) for name in CACHE)


def with_cache(base: Mapping[str, int], cache: int) -> dict[str, int]:
    """Return the lines of cache for this amount of it."""
    return {name: base[name] * max(0, cache) // cache_of(base) for name in RECLAIMED if name in base}


def added(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Sum what the nodes of GPUs add to the machine's values; all their cache is reclaimable."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update({name: part[name] for name in ("MemTotal", "MemFree", *CACHE)})
        sums.update({"MemAvailable": part["MemFree"] + cache_of(part), "Cached": cache_of(part)})
    return sums
