"""Write machines/NAME/figures.json, and nvml.state, of the lines of machines.json: `python -m conformance.derive`.

Each figure comes from a file of the machine's folder or from its driver's state, never from a monitor, by the rule
of its kind, and carries the reason. Review what it writes. `NAME...` names some machines, `--check` only compares.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.data import FORMAT, HERE, host_folder, read_index
from simulators.nvml_state_file import state_file
from simulators.sample_nvml import READY

Json = dict[str, Any]
KIB, MIB = 1 << 10, 1 << 20
ALL_USED = "all memory in use on the machine, page cache left out, given as the GPU's"


class Host:
    """Files of a machine's folder and the state of its driver, as far as the kinds need them."""

    def __init__(self, name: str, line: Mapping[str, Any]) -> None:
        self.folder = host_folder(name, line)
        self.driver = line.get("driver")
        self.meminfo = {
            key: int(value) * KIB
            for key, value in re.findall(r"^(\S+): +(\d+) kB", self.read("proc/meminfo"), re.MULTILINE)
        }
        self.state = dict(re.findall(r"^(\S+) = (.*)$", driver_state(self.driver) or "", re.MULTILINE))

    def read(self, path: str) -> str:
        return (self.folder / path).read_text()

    @property
    def gpus(self) -> list[str]:
        return [f"gpu.{slot}" for slot in self.state.get("devices", "").split()]

    def holders(self, gpu: str) -> dict[int, list[int]]:
        """Return the bytes of each process, one number for each list of the driver that has it."""
        found: dict[int, list[int]] = {}
        for kind in ("compute", "graphics", "mps"):
            for pid, used in re.findall(r"(\d+):(\d+|na)", self.state.get(f"{gpu}.{kind}", "")):
                found.setdefault(int(pid), []).extend([] if used == "na" else [int(used)])
        return found

    def has_process(self, pid: int) -> bool:
        return (self.folder / "proc" / str(pid)).is_dir()


def driver_state(driver: str | None) -> str | None:
    return None if driver is None else state_file(READY[driver])


def figure(value: float | None, reason: str, source: str, unit: str = "bytes", **more: Any) -> Json:
    return {
        "value": value,
        "unit": unit,
        "tolerance": more.pop("tolerance", 0),
        "reason": reason,
        "source": source,
    } | {key: one for key, one in more.items() if one}


def other(value: float, reason: str, together_with: str | None = None) -> Json:
    return {"value": value, "reason": reason} | ({"together_with": together_with} if together_with else {})


def host_figures(host: Host) -> dict[str, Json]:
    """Return the figures of every Linux machine, from /proc/meminfo."""
    info, source = host.meminfo, "proc/meminfo"
    total, free, available = (info[f"Mem{key}"] for key in ("Total", "Free", "Available"))
    caches, size = info["Buffers"] + info["Cached"], info["SwapTotal"]
    used = [
        other(total - free - caches - info["SReclaimable"], "free(1) before procps 4: without caches."),
        other(total - free - caches - info["Slab"], "collectd: without caches and the slab."),
        other(total - free - caches, "Without page cache and buffers."),
        other(total - free - caches - info["SReclaimable"] + info["Shmem"], "htop: shared memory is used."),
    ]
    roomier = []
    if pool := info.get("GPUReclaim"):
        reason = "With GPUReclaim: pages that GPU drivers give back under pressure, which MemAvailable leaves out."
        roomier = [other(available + pool, reason)]
        used.append(other(total - available - pool, reason))
    cached = [other(size - info["SwapFree"] - info["SwapCached"], "htop: without SwapCached.")]
    estimate = "MemAvailable: free and reclaimable, as the kernel estimates."
    choice = (
        "MemTotal - MemAvailable, as free(1) since procps 4. Linux defines no used memory, so that the other"
        " published formulas without caches are right as well."
    )
    cache = [other(total - free, "page cache counted as used")]
    return {
        "ram.size": figure(total, "MemTotal: what the kernel manages.", source),
        "ram.free": figure(free, "MemFree: pages that nothing uses.", source),
        "ram.available": figure(available, estimate, source, also=roomier),
        "ram.used": figure(total - available, choice, source, also=used, wrong=cache),
        "swap.size": figure(size, "SwapTotal.", source),
        "swap.used": figure(size - info["SwapFree"], "SwapTotal - SwapFree.", source, also=cached),
    }


def in_ram(host: Host, gpu: str, used: int, reason: str, source: str, **more: Any) -> Iterator[tuple[str, Json]]:
    """Yield the figures of a GPU that allocates from RAM: its part is within RAM, and RAM is its size."""
    total = host.meminfo["MemTotal"]
    yield (
        f"{gpu}.size",
        figure(
            total,
            "The GPU allocates from RAM and has no other memory, so that its size is MemTotal.",
            "proc/meminfo",
            within="ram",
            twice=[other(total, "the bytes of RAM, given again as the GPU's without a sign of that", "ram.size")],
            wrong=[other(0, "0 for a size that the driver does not report")],
        ),
    )
    wrong = [
        other(total - host.meminfo["MemAvailable"], ALL_USED),
        other(total - host.meminfo["MemFree"], ALL_USED + ", with the page cache"),
        other(0, "0 for a value that the driver does not report"),
    ]
    yield f"{gpu}.used", figure(used, reason, source, within="ram", wrong=wrong, **more)
    yield (
        f"{gpu}.used_ratio",
        figure(
            round(used / total, 6),
            "The GPU's bytes by MemTotal.",
            f"{source}, proc/meminfo",
            "ratio",
            tolerance=0.005,
            within="ram",
            wrong=[other(round(1 - host.meminfo["MemAvailable"] / total, 6), ALL_USED)],
        ),
    )


def nvidia_processes(host: Host, gpu: str, name: str) -> Iterator[tuple[str, Json]]:
    for pid, values in host.holders(gpu).items():
        if not host.has_process(pid):
            continue
        twice = [other(sum(values), "in two lists of the driver, added")] if len(values) > 1 else []
        reason = "Bytes that the driver lists for this process" + (", in two lists, once." if twice else ".")
        if not values:
            reason = "The driver lists this process without its bytes."
        yield (
            f"{name}.process.{pid}",
            figure(max(values) if values else None, reason, "nvml.state", tolerance=MIB, twice=twice),
        )


def nvidia_lists(host: Host) -> Iterator[tuple[str, Json]]:
    """NVIDIA's GPU in RAM with nvidia.ko: memory info is not supported, the lists of processes have the bytes."""
    for number, gpu in enumerate(host.gpus):
        held = host.holders(gpu)
        used = sum(max(values) for values in held.values() if values)
        doubled = sum(sum(values) for values in held.values())
        twice = [other(doubled, "a process in two lists of the driver, added")] if doubled != used else []
        reason = "Sum of the driver's lists of processes, each process once; this chip has no memory info."
        yield from in_ram(host, f"gpu{number}", used, reason, "nvml.state", twice=twice, tolerance=MIB)
        yield from nvidia_processes(host, gpu, f"gpu{number}")


def nvidia_own(host: Host) -> Iterator[tuple[str, Json]]:
    """NVIDIA's GPU with separate memory, also a part of RAM that firmware keeps from the kernel."""
    for number, gpu in enumerate(host.gpus):
        name = f"gpu{number}"
        total, used, reserved = (int(host.state[f"{gpu}.memory.{key}"]) for key in ("total", "used", "reserved"))
        both = [other(used + reserved, "NVML's memory info of version 1: with the driver's reserved memory.")]
        yield f"{name}.size", figure(total, "NVML's memory info: total.", "nvml.state", tolerance=MIB)
        yield (
            f"{name}.used",
            figure(used, "NVML's memory info of version 2: used.", "nvml.state", tolerance=MIB, also=both),
        )
        yield (
            f"{name}.used_ratio",
            figure(
                round(used / total, 6),
                "Used by total.",
                "nvml.state",
                "ratio",
                tolerance=0.005,
                also=[other(round((used + reserved) / total, 6), "With reserved memory.")],
            ),
        )
        yield from nvidia_processes(host, gpu, name)


def gh200_numa(host: Host) -> Iterator[tuple[str, Json]]:
    """The HBM is a NUMA node of the kernel, so that MemTotal contains it."""
    node = "sys/devices/system/node/node1/meminfo"
    sizes = {key: int(value) * KIB for key, value in re.findall(r"(\w+): +(\d+) kB", host.read(node))}
    total, hbm = host.meminfo["MemTotal"], sizes["MemTotal"]
    yield (
        "ram.size",
        figure(
            total - hbm,
            "MemTotal without node 1, the GPU's HBM. MemTotal is right for a tool that has no size of the GPU.",
            f"proc/meminfo, {node}",
            also=[other(total, "MemTotal, with the HBM.")],
            twice=[other(total, "the HBM is in MemTotal, and again in the size of the GPU", "gpu0.size")],
        ),
    )
    for key, one in nvidia_own(host):
        if key == "gpu0.size":
            yield key, one | {"also": [other(hbm, "What the kernel manages of it: MemTotal of node 1.")]}
        elif key == "gpu0.used":
            taken = hbm - sizes["MemFree"]
            by_kernel = [
                other(taken, "MemTotal - MemFree of node 1: what the kernel holds there as well."),
                other(taken - sizes["FilePages"], "The same without page cache."),
            ]
            yield key, one | {"also": [*one["also"], *by_kernel]}
        else:
            yield key, one


def nvgpu(host: Host) -> Iterator[tuple[str, Json]]:
    """Jetson with nvgpu: the driver counts the GPU's bytes in NvMapMemUsed."""
    reason = "NvMapMemUsed: what nvmap has allocated for the GPU, in RAM."
    yield from in_ram(host, "gpu0", host.meminfo["NvMapMemUsed"], reason, "proc/meminfo")


def gpu_active(host: Host) -> Iterator[tuple[str, Json]]:
    """A kernel that counts the pages of all GPU drivers."""
    reason = "GPUActive: pages of RAM that GPU drivers hold."
    yield from in_ram(host, "gpu0", host.meminfo["GPUActive"], reason, "proc/meminfo")


def fdinfo(host: Host) -> Iterator[tuple[str, Json]]:
    """GPU in RAM of which only the clients are counted, by the kernel's fdinfo: each client of the driver once."""
    clients: dict[str, tuple[int, int]] = {}
    for file in sorted(host.folder.glob("proc/[0-9]*/fdinfo/*")):
        text = file.read_text()
        driver = re.search(r"^drm-driver:\s+(\S+)", text, re.MULTILINE)
        client = re.search(r"^drm-client-id:\s+(\d+)", text, re.MULTILINE)
        if driver and client and driver[1] in ("i915", "xe", "msm", "panthor", "panfrost"):
            clients[client[1]] = sizes_in(text, "(?:drm|panthor)-resident"), sizes_in(text, "drm-shared")
    shared = [one for _, one in clients.values()]
    most, unsure = sum(one for one, _ in clients.values()), sum(shared) - max(shared)
    reason = "Sum of the resident memory of the driver's clients, each client id once. The kernel has no total."
    if unsure:
        reason += (
            " Clients share buffers, and fdinfo does not say which: any value is right that has each once or more."
        )
    yield from in_ram(host, "gpu0", most - unsure // 2, reason, "proc/*/fdinfo", tolerance=(unsure + 1) // 2)


def sizes_in(text: str, key: str) -> int:
    found = re.findall(rf"^{key}-\S+:\s+(\d+)(?: (KiB|MiB))?$", text, re.MULTILINE)
    return sum(int(size) * {"": 1, "KiB": KIB, "MiB": MIB}[unit] for size, unit in found)


def amd_cards(host: Host) -> list[Path]:
    return sorted({file.parent for file in host.folder.glob("sys/devices/**/mem_info_gtt_total")})


def amd_readings(card: Path) -> dict[str, int]:
    files = [*card.glob("mem_info_*_total"), *card.glob("mem_info_*_used")]
    return {file.name.removeprefix("mem_info_"): int(file.read_text()) for file in files}


def amd(host: Host) -> Iterator[tuple[str, Json]]:
    """AMD's GPU in the processor: a part that firmware keeps from the kernel, and GTT, which is in RAM."""
    for number, card in enumerate(amd_cards(host)):
        name, source = f"gpu{number}", str(card.relative_to(host.folder))
        read = amd_readings(card)
        gtt, size, used = read["gtt_used"], read.get("vram_total", 0), read.get("vram_used", 0)
        reason = "mem_info_gtt_used: pages of RAM that the GPU has mapped."
        yield f"{name}.gtt.used", figure(gtt, reason, source, within="ram")
        if size:
            reason = "mem_info_vram_total: kept by firmware, so that MemTotal does not have it."
            yield f"{name}.carveout.size", figure(size, reason, source)
            yield f"{name}.carveout.used", figure(used, "mem_info_vram_used.", source)
        both, limit = used + gtt, size + read["gtt_total"]
        yield (
            f"{name}.used_ratio",
            figure(
                round(both / limit, 6),
                "Used by size of both parts, GTT by its limit.",
                source,
                "ratio",
                tolerance=0.005,
                wrong=[other(round(used / size, 6), "of the part kept by firmware only, named the GPU's")]
                if size
                else [],
            ),
        )


def amd_own(host: Host) -> Iterator[tuple[str, Json]]:
    """AMD's card with separate memory. GTT is RAM, and not part of the card."""
    for number, card in enumerate(amd_cards(host)):
        name, source = f"gpu{number}", str(card.relative_to(host.folder))
        read = amd_readings(card)
        size, used, gtt, limit = (read[key] for key in ("vram_total", "vram_used", "gtt_used", "gtt_total"))
        added = "RAM that the card has mapped, or may map, added to its own memory"
        yield f"{name}.size", figure(size, "mem_info_vram_total.", source, twice=[other(size + limit, added)])
        yield f"{name}.used", figure(used, "mem_info_vram_used.", source, twice=[other(used + gtt, added)])
        yield (
            f"{name}.used_ratio",
            figure(
                round(used / size, 6),
                "Used by total.",
                source,
                "ratio",
                tolerance=0.005,
                twice=[other(round((used + gtt) / (size + limit), 6), added)],
            ),
        )


KINDS: Mapping[str, Callable[[Host], Iterator[tuple[str, Json]]]] = {
    "nvidia-lists": nvidia_lists,
    "nvidia-own": nvidia_own,
    "gh200-numa": gh200_numa,
    "nvgpu": nvgpu,
    "gpu-active": gpu_active,
    "fdinfo": fdinfo,
    "amd": amd,
    "amd-own": amd_own,
    "no-gpu": lambda _: iter(()),
}
# MemAvailable of the whole kernel has the HBM's pages: of RAM alone it is not known.
NOT_KNOWN = {"gh200-numa": ("ram.available", "ram.used", "ram.free")}


def derived(name: str) -> Mapping[Path, str]:
    """Return the files of a machine with their text."""
    line = read_index()[name]
    host, folder = Host(name, line), HERE / "machines" / name
    figures = host_figures(host) | dict(KINDS[line["kind"]](host))
    kept = {key: one for key, one in figures.items() if key not in NOT_KNOWN.get(line["kind"], ())}
    texts = {folder / "figures.json": json.dumps({"format": FORMAT, "figures": kept}, indent=1) + "\n"}
    state = driver_state(host.driver)
    return texts | ({folder / "nvml.state": state} if state else {})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="conformance.derive", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    options = parser.parse_args(arguments)
    texts = {file: text for name in options.names or read_index() for file, text in derived(name).items()}
    changed = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    for file in changed:
        print(file)
        if not options.check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(texts[file])
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
