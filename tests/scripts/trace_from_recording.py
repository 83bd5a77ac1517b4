"""Turn a recording of `memwatch record` into a trace for the pressure benchmark (`make trace RECORDING=FILE`)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from memwatch.core.kernel_log import DriverError, KernelLog
from memwatch.core.model import Absent, Architecture, PoolKind, find_system_ram
from memwatch.core.snapshot import Kernel, MemoryPsi, PsiLine, Snapshot, Swap
from memwatch.reporting.recording import RecordingError
from memwatchd.recording.player import open_recording, read_frames
from support.trace_file import FORMAT, TraceError, parse_trace

Json = dict[str, Any]


def main() -> None:
    options = parse_arguments()
    try:
        open_recording(options.recording, salvage=True)
        lines = list(trace_lines(list(read_frames(options.recording)), options))
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        parse_trace(text, options.recording.name)
    except (RecordingError, TraceError) as error:
        sys.exit(f"no trace was made: {error}")
    if options.output:
        options.output.write_text(text)
    else:
        sys.stdout.write(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--name", default="a machine", help="what the machine did")
    parser.add_argument("--source", default="a recording", help="where the recording comes from")
    parser.add_argument("--highest", default="low", help="highest level that was justified on a healthy machine")
    parser.add_argument("--begins", type=float, default=0.0, help="seconds at which a collapse began")
    parser.add_argument("--ends", type=float, help="seconds at which the machine or a process was lost")
    parser.add_argument("--output", type=Path, help="file to write, such as tests/traces/NAME.jsonl")
    return parser.parse_args()


def trace_lines(frames: list[Snapshot], options: argparse.Namespace) -> Iterator[Json]:
    first = frames[0]
    ram = find_system_ram(first.pools)
    if ram is None:
        raise TraceError("the recording has no System RAM")
    header: Json = {
        "trace": FORMAT,
        "name": options.name,
        "half": "healthy" if options.ends is None else "wedge",
        "source": options.source,
        "given": f"{len(frames)} snapshots of memwatch record",
        "assumed": "nothing",
        "size_bytes": ram.size_bytes,
        "seconds": round(frames[-1].unix - first.unix, 3),
        "highest": options.highest if options.ends is None else "critical",
        "begins": options.begins,
        "ends": options.ends,
        "swap_bytes": first.swap.size_bytes if isinstance(first.swap, Swap) else 0,
        "huge_pages_bytes": ram.set_aside_bytes,
        "gpu": describe_gpu(first),
    }
    yield header
    before = first
    for frame in frames:
        at = round(frame.unix - first.unix, 3)
        yield {"at": at, **columns(frame)}
        yield from ({"at": at, **error} for error in new_errors(before, frame))
        before = frame


def describe_gpu(snapshot: Snapshot) -> Json | None:
    """Describe the first GPU. Its PCI address is not needed: errors are assigned by the recording daemon."""
    for device in snapshot.devices:
        unified = device.architecture is Architecture.UNIFIED
        vram = [pool for pool in snapshot.pools if pool.kind is PoolKind.VRAM and pool.id in device.allocates_from]
        return {
            "vendor": device.vendor,
            "name": device.name,
            "pci": "",
            "unified": unified,
            "vram_bytes": vram[0].size_bytes if vram else 0,
        }
    return None


def columns(snapshot: Snapshot) -> Json:
    """Return the columns of one snapshot. Figures that it does not have are left out."""
    ram = find_system_ram(snapshot.pools)
    found: dict[str, float | Absent] = {}
    if ram is not None:
        found |= {"available_bytes": ram.available_bytes, "free_bytes": ram.free_bytes}
    if isinstance(snapshot.swap, Swap):
        found["swap_used_bytes"] = snapshot.swap.used_bytes
    if isinstance(snapshot.psi, MemoryPsi):
        found["psi_some_seconds"] = snapshot.psi.some.total_seconds
        if isinstance(snapshot.psi.full, PsiLine):
            found["psi_full_seconds"] = snapshot.psi.full.total_seconds
    found |= {name: getattr(snapshot.kernel, name) for name in Kernel.__struct_fields__}
    held = [share.used_bytes for share in snapshot.shares if share.within == "ram" and share.device is not None]
    if held:
        found["device_bytes"] = sum(size for size in held if isinstance(size, int))
    blocks = [node.free_large_blocks_bytes for node in snapshot.nodes]
    if blocks:
        found["large_blocks_bytes"] = sum(size for size in blocks if isinstance(size, int))
    return {name: value for name, value in found.items() if not isinstance(value, Absent)}


def new_errors(before: Snapshot, now: Snapshot) -> Iterator[Json]:
    """Yield the new errors of drivers. A redacted recording has their kind, not their text."""
    counts = {(one.driver, one.pci, one.kind): one.count for one in _errors(before)}
    for one in _errors(now):
        new = one.count - counts.get((one.driver, one.pci, one.kind), 0)
        if new > 0:
            yield {"driver_error": f"{one.driver} {one.kind}", "times": new}


def _errors(snapshot: Snapshot) -> Iterable[DriverError]:
    return snapshot.kernel_log.driver_errors if isinstance(snapshot.kernel_log, KernelLog) else ()


if __name__ == "__main__":
    main()
