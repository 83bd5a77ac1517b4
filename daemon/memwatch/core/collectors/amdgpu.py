"""AMD GPUs through the amdgpu driver's files in sysfs: no library, no privileges, and no suspended GPU wakes up."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.drivers.amd import amdgpu_cards as cards
from memwatch.core.drivers.amd.architecture import decide_architecture
from memwatch.core.drivers.amd.records import AmdCard, AmdGpu, AmdReading, Region
from memwatch.core.drivers.amd.sysfs import (
    EvictedTime,
    absent_reason,
    build_region,
    held_by_gpu,
    parse_figure,
    parse_gpu_id,
    parse_statistics_gpu_id,
    parse_text,
)
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.pci import GpuPids, is_awake_status
from memwatch.core.model import Absent, Bytes, Words, known_or

# Intervals for hot-plugged cards, and for the memory of processes in the compute driver (KFD).
RESCAN_SECONDS = 2.0
HELD_SECONDS = 5.0
# No machine has more GPU processes than this; a folder with more entries is not the driver's.
MAX_PROCESSES = 4096
# Files in the order in which they are read: each is one system call on a descriptor that stays open.
FIGURES = ("mem_info_vram_used", "mem_info_vis_vram_used", "mem_info_gtt_used", "power/runtime_status")
_GONE = (errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.ESRCH)

Layout = tuple[list[str], "bytes | Absent", "cards.Driver | None"]
NO_LAYOUT: Layout = ([], b"", None)

AskFused = Callable[[Path, Words], "bool | Absent"]


class CardGoneError(Exception):
    """An open file belongs to a device that was removed."""


class OpenCard:
    """One GPU with its files open. Their contents are parsed only if they changed."""

    def __init__(self, device: Path, card: AmdCard) -> None:
        self.card = card
        self._opened: list[int | Absent] = []
        try:
            for name in FIGURES:
                self._opened.append(_open(device / name))
        except OSError:
            self.close()
            raise
        self._contents: list[bytes | Absent] = []
        self._gpu = AmdGpu(card, Region(), Region(), Region(), Absent.NOT_AVAILABLE)

    def read(self, held: dict[int, int]) -> AmdGpu:
        """Read the GPU. Raises `CardGoneError` if the driver released the card."""
        contents = [file if isinstance(file, Absent) else _pread(file) for file in self._opened]
        if contents != self._contents or held != self._gpu.held:
            self._gpu, self._contents = build_gpu(self.card, contents, held), contents
        return self._gpu

    def close(self) -> None:
        for file in self._opened:
            if not isinstance(file, Absent):
                os.close(file)
        self._opened = []


def build_gpu(card: AmdCard, contents: list[bytes | Absent], held: dict[int, int]) -> AmdGpu:
    """`contents`: contents of the files in FIGURES."""
    vram, visible, gtt = (parse_figure(one) for one in contents[:3])
    return AmdGpu(
        card,
        build_region(card.vram_bytes, vram),
        build_region(card.visible_vram_bytes, visible),
        build_region(card.gtt_bytes, gtt),
        parse_text(contents[3]),
        held,
    )


def mark_missing(gpu: AmdGpu) -> AmdGpu:
    """Build the entry of a GPU that disappeared: no figures, but the same name and place in the list."""
    gone = Region(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    return AmdGpu(gpu.card, gone, gone, gone, Absent.NOT_AVAILABLE, state="missing")


def count_rejected(gpu: AmdGpu) -> int:
    """Count inconsistent figures."""
    figures: list[Bytes] = [one for part in (gpu.vram, gpu.visible_vram, gpu.gtt) for one in _both(part)]
    return sum(figure is Absent.INCONSISTENT for figure in figures)


def _both(region: Region) -> tuple[Bytes, Bytes]:
    return region.total_bytes, region.used_bytes


def _open(path: Path) -> int | Absent:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return absent_reason(error)


def _pread(file: int) -> bytes | Absent:
    try:
        return os.pread(file, 64, 0)
    except OSError as error:
        if error.errno in _GONE:
            raise CardGoneError from None
        return absent_reason(error)


class Collector(BaseCollector):
    """Reads a few figures of each card on every tick, and the rest at the start and when cards change."""

    name = "amdgpu"
    signs: tuple[str, ...] = ("sys/class/drm/",)

    def __init__(
        self,
        roots: Roots,
        page_size: int,
        pids: GpuPids,
        ask_fused: AskFused = cards.is_fused,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roots, self._page_size = roots, page_size
        self._drm = roots.sysfs / "class/drm"
        self._kfd = roots.sysfs / "class/kfd/kfd"
        self._pids, self._monotonic = pids, monotonic
        self._open: list[OpenCard] = []
        self._last: dict[str, AmdGpu] = {}
        self._held: dict[str, dict[int, int]] = {}
        self._evicted = EvictedTime()
        self._layout = NO_LAYOUT
        self._look_at = self._held_at = 0.0
        self._rejected = 0
        self._left_out: dict[str, int] = {}
        if not cards.find(self._drm).gpus:
            raise SourceUnavailable(f"{self._drm}: no card of the driver {cards.DRIVER}")
        self._take_up(ask_fused)

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.page_size, host.gpu_pids)

    def collect(self) -> Findings:
        if self._monotonic() >= self._look_at:
            self._rescan()
        if self._monotonic() >= self._held_at:
            self._read_held()
        gpus = self._read_all()
        if len(gpus) < len(self._open):
            self._take_up()
            gpus = self._read_all()
        self._last |= {gpu.card.pci: gpu for gpu in gpus}
        here = {gpu.card.pci for gpu in gpus}
        missing = [mark_missing(gpu) for pci, gpu in self._last.items() if pci not in here]
        reading = replace(self._frame, gpus=tuple(sorted([*gpus, *missing], key=lambda gpu: gpu.card.pci)))
        rejected = self._rejected + sum(map(count_rejected, gpus))
        return Findings(amdgpu=reading, left_out=self._left_out, rejected=rejected)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def _read_all(self) -> list[AmdGpu]:
        """Read all GPUs except those that disappeared."""
        gpus = []
        for one in self._open:
            with suppress(CardGoneError):
                gpus.append(one.read(self._held.get(one.card.pci, {})))
        return gpus

    def _rescan(self) -> None:
        """Check if cards, partitions or limits changed: five small reads. Reopen everything only if they did."""
        if self._layout != self._layout_now():
            self._take_up()
        self._look_at = self._monotonic() + RESCAN_SECONDS

    def _layout_now(self) -> Layout:
        generation = cards.read(self._kfd / "topology/generation_id")
        return cards.list_names(self._drm), generation, cards.read_driver(self._roots, self._page_size)

    def _take_up(self, ask_fused: AskFused | None = None) -> None:
        """Open all files again and read static data. `ask_fused` only at the start, as it opens a GPU.

        If file descriptors run out, nothing is kept, and the next tick starts over.
        """
        self.close()
        self._layout, self._look_at = NO_LAYOUT, 0.0
        try:
            layout = self._layout_now()
            self._open_all(ask_fused)
        except OSError:
            self.close()
            raise
        self._layout = layout

    def _open_all(self, ask_fused: AskFused | None) -> None:
        found, driver = cards.find(self._drm), cards.read_driver(self._roots, self._page_size)
        nodes = cards.read_nodes(self._kfd / "topology", list(found.gpus))
        names = cards.read_names(self._roots)
        for entries in found.gpus.values():
            device = Path(os.path.realpath(self._drm / entries[0] / "device"))
            card = cards.read_card(device, entries, nodes, found.partitions, names, driver.release)
            self._open.append(OpenCard(device, self._decide_architecture(card, device, ask_fused)))
        self._frame = AmdReading((), driver.version, driver.pages_limit_bytes)
        self._held_at = 0.0

    def _decide_architecture(self, card: AmdCard, device: Path, ask: AskFused | None) -> AmdCard:
        """Tell an APU from a card. If files do not decide it, query the GPU, but only while it is awake."""
        if known := self._last.get(card.pci):
            card = replace(card, is_fused=known.card.is_fused, metrics_format=known.card.metrics_format)
        status = parse_text(cards.read(device / "power/runtime_status"))
        if decide_architecture(card).is_apu is not None or not is_awake_status(status):
            return card
        card = replace(card, metrics_format=cards.read_metrics_format(device))
        if decide_architecture(card).is_apu is not None or ask is None or isinstance(card.render_node, Absent):
            return card
        return replace(card, is_fused=ask(self._roots.rootfs / "dev/dri" / card.render_node, status))

    def _read_held(self) -> None:
        """Read the memory of processes in the compute driver. Never its `sdma_` files: they are expensive."""
        self._held_at = self._monotonic() + HELD_SECONDS
        nodes = [node for one in self._open for node in one.card.nodes]
        figures: list[tuple[int, int, Bytes]] = []
        evicted: list[tuple[int, int, Bytes]] = []
        names = cards.names_or_reason(self._kfd / "proc") if nodes else []
        listed = known_or(names, [])
        self._left_out = {"kfd_processes": len(listed[MAX_PROCESSES:])}
        for name in listed[:MAX_PROCESSES]:
            if name.isdecimal() and len(name) <= 10:
                figures += [(int(name), *one) for one in _list_held(self._kfd / "proc" / name)]
                evicted += [(int(name), *one) for one in _list_evicted(self._kfd / "proc" / name)]
        self._held, self._rejected = held_by_gpu(figures, nodes)
        self._frame = replace(
            self._frame,
            evicted_seconds=self._evicted.add(evicted, nodes),
            lists_compute=len(listed) <= MAX_PROCESSES and names in (Absent.NOT_SUPPORTED, listed),
        )
        self._pids.update(self.name, frozenset(pid for held in self._held.values() for pid in held))


def _list_held(folder: Path, is_context: bool = False) -> list[tuple[int, Bytes]]:
    """Return a process's figures by GPU, with those of its further contexts, which are subfolders (Linux 6.19)."""
    found: list[tuple[int, Bytes]] = []
    for name in cards.list_names(folder):
        gpu_id = parse_gpu_id(name)
        if gpu_id is not None:
            found.append((gpu_id, parse_figure(cards.read(folder / name, 64))))
        elif name.startswith("context_") and not is_context:
            found += _list_held(folder / name, is_context=True)
    return found


def _list_evicted(folder: Path) -> list[tuple[int, Bytes]]:
    """Return the milliseconds that a process's queues were evicted, by GPU (Linux 5.10)."""
    gpu_ids = {name: parse_statistics_gpu_id(name) for name in cards.list_names(folder)}
    return [
        (gpu_id, parse_figure(cards.read(folder / name / "evicted_ms", 64)))
        for name, gpu_id in gpu_ids.items()
        if gpu_id is not None
    ]
