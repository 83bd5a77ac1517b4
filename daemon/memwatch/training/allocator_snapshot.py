"""PyTorch's allocator snapshot (`torch.cuda.memory._dump_snapshot`): the largest blocks by where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.printable import printable
from memwatch.core.runtime.regular_file import NotRegularError, open_regular
from memwatch.training.pickle_reader import PairCounter, PickleReader, PickleRefusedError

MAX_BLOCKS = 250_000
MAX_FRAMES = 200
MAX_COUNT = 1 << 60
# Frames of frameworks, which say less than those of the program that called them.
INSIDE = ("/site-packages/", "/dist-packages/", "/torch/", "<frozen", "??")
SHOWN_STACK = 4


class Site(Struct):
    """Live blocks that one place allocated. `stack`: up to four frames from it outward."""

    location: str
    stack: tuple[str, ...]
    total_bytes: int = 0
    largest_bytes: int = 0
    blocks: int = 0


class DeviceSummary(Struct):
    """Memory of one GPU. `unused_bytes`: reserved and in no live block; `largest_unused_bytes`: in one piece."""

    device: int
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    unused_bytes: int = 0
    largest_unused_bytes: int = 0


class SnapshotSummary(Struct, frozen=True):
    """Summary of a snapshot. `unrecorded_bytes`: live blocks without a stack; `sites`: largest total first.

    `out_of_memory`: errors in the recorded history, None if it is too long to be read.
    """

    devices: tuple[DeviceSummary, ...]
    sites: tuple[Site, ...]
    blocks: int
    unrecorded_bytes: int
    out_of_memory: int | None


def read_snapshot(path: Path) -> SnapshotSummary:
    """Read a snapshot without unpickling it. Raises PickleRefusedError and OSError."""
    try:
        with open_regular(path) as (file, _):
            return read_pickle(file)
    except NotRegularError:
        raise _refused(path, "it is not a file") from None
    except PickleRefusedError as error:
        raise _refused(path, error) from None


def _refused(path: Path, why: object) -> PickleRefusedError:
    return PickleRefusedError(
        f"{path} cannot be read as a snapshot of PyTorch: {why}; save one with "
        'torch.cuda.memory._dump_snapshot("memory.pickle")'
    )


def read_pickle(file: BinaryIO) -> SnapshotSummary:
    """Read the blocks, which come first, and count the out-of-memory errors in the history that follows."""
    reader = PickleReader(file)
    summary = summarize(reader.read("device_traces"))
    if not reader.is_at_last_key:
        return summary
    counter = PairCounter(reader, b"action", b"oom")
    return replace(summary, out_of_memory=counter.count if counter.scan() else None)


def summarize(found: object) -> SnapshotSummary:
    devices: dict[int, DeviceSummary] = {}
    sites: dict[tuple[str, ...], Site] = {}
    stacks = StackReader()
    blocks = unrecorded = 0
    for device, block in list_blocks(found, devices):
        size, state = count_of(block, "size"), block.get("state")
        if state == "inactive":
            device.unused_bytes += size
            device.largest_unused_bytes = max(device.largest_unused_bytes, size)
            continue
        blocks += 1
        device.allocated_bytes += size
        stack = stacks.read(frames_of(block))
        if not stack:
            unrecorded += size
            continue
        site = sites.setdefault(stack, Site(stack[0], stack))
        site.total_bytes += size
        site.largest_bytes = max(site.largest_bytes, size)
        site.blocks += 1
    ranked = sorted(sites.values(), key=lambda one: (-one.total_bytes, one.stack))
    return SnapshotSummary(tuple(devices.values()), tuple(ranked), blocks, unrecorded, count_failures(found))


def list_blocks(found: object, devices: dict[int, DeviceSummary]) -> Iterator[tuple[DeviceSummary, dict[str, Any]]]:
    """Yield all blocks with their device, and add up what the segments reserve.

    A hostile file may have the same list in a million places, so the blocks visited are bounded as well.
    """
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise PickleRefusedError('it has no list "segments"')
    visited = 0
    for segment in found["segments"]:
        if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
            raise PickleRefusedError('a segment has no list "blocks"')
        number = count_of(segment, "device") if "device" in segment else 0
        device = devices.setdefault(number, DeviceSummary(number))
        device.reserved_bytes += count_of(segment, "total_size")
        visited += 1 + len(segment["blocks"])
        if visited > MAX_BLOCKS:
            raise PickleRefusedError(f"it has more than {MAX_BLOCKS:,} blocks, the most that are read")
        for block in segment["blocks"]:
            if not isinstance(block, dict):
                raise PickleRefusedError("a block is not a dict")
            yield device, block


def count_of(record: dict[str, Any], name: str) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_COUNT:
        raise PickleRefusedError(f'"{name}" is missing or is not a whole number from 0')
    return value


def frames_of(block: dict[str, Any]) -> list[Any]:
    """Return the frames, innermost first. PyTorch before 2.2 has them in the block's history."""
    frames = block.get("frames")
    history = block.get("history")
    if not frames and isinstance(history, list) and history and isinstance(history[0], dict):
        frames = history[0].get("frames")
    return frames if isinstance(frames, list) else []


class StackReader:
    """Reads stacks. Blocks share frames and lists of them, and each is read once, as long as the snapshot lives."""

    def __init__(self) -> None:
        self._all: dict[int, str] = {}
        self._own: dict[int, str] = {}
        self._stacks: dict[int, tuple[str, ...]] = {}

    def read(self, frames: list[Any]) -> tuple[str, ...]:
        """Return the program's own frames, innermost first; those of libraries if it has no other."""
        known = self._stacks.get(id(frames))
        if known is None:
            numbers = list(map(id, frames[:MAX_FRAMES]))
            for number, frame in zip(numbers, frames, strict=False):
                if number not in self._all:
                    self._add(number, frame)
            lines = self._pick(self._own, numbers) or self._pick(self._all, numbers)
            known = self._stacks[id(frames)] = lines
        return known

    def _add(self, number: int, frame: object) -> None:
        line = frame_words(frame) if isinstance(frame, dict) else ""
        self._all[number] = line
        self._own[number] = "" if any(part in line for part in INSIDE) else line

    @staticmethod
    def _pick(lines: dict[int, str], numbers: list[int]) -> tuple[str, ...]:
        return tuple(islice(filter(None, map(lines.__getitem__, numbers)), SHOWN_STACK))


def frame_words(frame: dict[str, Any]) -> str:
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    if not isinstance(file, str) or not isinstance(name, str) or not isinstance(line, int):
        return ""
    return printable(f"{file[-200:]}:{line % 10**9} {name[:100]}")


def count_failures(found: Any) -> int:  # noqa: ANN401  a value of a pickle
    """Return the out-of-memory errors in the recorded history."""
    traces = found.get("device_traces")
    if not isinstance(traces, list):
        return 0
    rows = [trace for trace in traces if isinstance(trace, list)]
    if sum(map(len, rows)) > MAX_BLOCKS:
        raise PickleRefusedError(f"its history has more than {MAX_BLOCKS:,} entries, the most that are read")
    return sum(1 for trace in rows for one in trace if isinstance(one, dict) and one.get("action") == "oom")
