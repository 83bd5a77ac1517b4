"""Compare the library with PyTorch on a real GPU: `make test-torch`, which runs it where PyTorch has one.

Each row is a figure of the library beside PyTorch's own. It takes half a minute and 12 GiB of the GPU. Exit code 0:
all figures are right. 1: one is wrong, or a check failed. 2: PyTorch has no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import memwatch
from hardware.comparison import Row, Verdict
from hardware.report import Section, render_section
from hardware.torch_plans import check_cache, check_swap, check_training
from hardware.torch_programs import check_programs
from hardware.torch_rows import GIB, GPU, MIB, ROUNDING_BYTES, Rows, beside, blocks, settle, yes
from support.daemon_process import running_daemon

RIGHT, WRONG, NO_GPU = 0, 1, 2
# cuMemGetInfo and NVML are read a moment apart, by a thread of the library once a second.
READ_BYTES = 64 * MIB
# A new process is listed within ten seconds.
LISTED_SECONDS = 15.0
MAX_LINE_SECONDS = 200e-6


def check_device() -> Rows:
    """Sizes and names of the GPU that PyTorch means."""
    free, total = torch.cuda.mem_get_info(0)
    target = memwatch.machine().find(GPU)
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    yield yes("names", "cuda:0 is PyTorch's GPU", target is not None and uuid in str(target.device.uuid))
    # NVML's size contains what the driver keeps for itself, CUDA's does not.
    kept = memwatch.get_device_memory_bytes(0) - total
    yield yes("size", "NVML's is CUDA's and up to 2 GiB more", 0 <= kept <= 2 * GIB, f"{kept / MIB:.0f} MiB more")
    info = memwatch.memory_info(GPU)
    yield beside("free", "available", info.available_bytes if info else None, free, READ_BYTES)
    yield yes("kind", "not unified", not memwatch.is_unified_memory_gpu(GPU))
    yield yes("backend", "cuda is the best", memwatch.best_available_backend() == "cuda")


def check_line() -> Rows:
    """A stage's line, and its cost."""
    kept = blocks(256)
    line = memwatch.log_memory_usage("loaded")
    print(line, file=sys.stderr)
    yield yes("line", "has allocated and reserved", "Allocated: " in line and "Reserved: " in line, line)
    took = min(_time_of(lambda: memwatch.log_memory_usage("cost"), 100) for _ in range(10))
    yield beside("line", "time", round(took * 1e6), 0, MAX_LINE_SECONDS * 1e6, "µs")
    del kept


def _time_of(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def check_track() -> Rows:
    """Exact peaks of what lives shorter than any sampling interval, and counters left as they were."""
    settle()
    kept = blocks(100)
    before = torch.cuda.max_memory_allocated()
    with memwatch.track("outer") as outer:
        del_at_once = blocks(2048)
        del del_at_once
        with memwatch.track("inner") as inner:
            blocks(300)
    yield beside("outer", "peak allocated", outer.allocator.peak_bytes, 2148 * MIB, ROUNDING_BYTES)
    yield beside("outer", "peak reserved", outer.device.peak_bytes, torch.cuda.max_memory_reserved(), 0)
    yield beside("inner", "peak allocated", inner.allocator.peak_bytes, 400 * MIB, ROUNDING_BYTES)
    yield yes("both", "exact", outer.exact and inner.exact)
    yield yes("both", "allocations are 2 and 1", (outer.allocations, inner.allocations) == (2, 1))
    shown = memwatch.pools()[0].stats().peak_bytes
    yield beside("after", "peak of the process", shown, max(before, 2148 * MIB), ROUNDING_BYTES)
    took = min(_time_of(_track_nothing, 50) for _ in range(5))
    yield beside("cost", "time of a block", round(took * 1e6), 0, 2000, "µs")
    del kept


def _track_nothing() -> None:
    with memwatch.track("nothing"):
        pass


def check_pools() -> Rows:
    """Statistics beside PyTorch's own, and what `clear` releases."""
    settle()
    kept, unused = blocks(64), blocks(1024)
    (pool,) = memwatch.pools()
    stats, theirs = pool.stats(), torch.cuda.memory_stats(0)
    yield beside("pool", "allocated", stats.allocated_bytes, torch.cuda.memory_allocated(), 0)
    yield beside("pool", "reserved", stats.reserved_bytes, torch.cuda.memory_reserved(), 0)
    yield beside("pool", "retries", stats.retries, theirs["num_alloc_retries"], 0, "")
    yield beside("pool", "allocations", stats.allocations, theirs["allocation.all.allocated"], 0, "")
    yield beside("pool", "total", pool.total(), torch.cuda.mem_get_info(0)[1], 2 * GIB)
    del unused
    free = torch.cuda.mem_get_info(0)[0]
    released = {one.name: one.released_bytes for one in memwatch.clear()}
    gained = torch.cuda.mem_get_info(0)[0] - free
    yield beside("clear", "released", sum(x for x in released.values() if isinstance(x, int)), gained, 128 * MIB)
    yield beside("clear", "reserved", memwatch.pools()[0].stats().reserved_bytes, 64 * MIB, ROUNDING_BYTES)
    del kept


def check_out_of_memory() -> Rows:
    """An autopsy says what would have fitted, and that much fits. Retry and fallback recognize CUDA's error."""
    settle()
    wanted = torch.cuda.mem_get_info(0)[1] + GIB
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._record_memory_history(max_entries=1000)
        try:
            torch.empty(wanted, dtype=torch.uint8, device=GPU)
            found = None
        except torch.OutOfMemoryError as error:
            found = memwatch.autopsy(error, folder)
        torch.cuda.memory._record_memory_history(enabled=None)
        yield yes("autopsy", "made", found is not None)
        if found is None:
            return
        print(found, file=sys.stderr)
        yield beside("autopsy", "wanted", found.wanted_bytes, wanted, GIB // 50)
        yield yes("autopsy", "of cuda:0", found.device == GPU, str(found.device))
        free = torch.cuda.mem_get_info(0)[0]
        yield beside("autopsy", "would have fitted", found.would_fit_bytes, free, READ_BYTES)
        if isinstance(found.would_fit_bytes, int):
            torch.empty(found.would_fit_bytes - 32 * MIB, dtype=torch.uint8, device=GPU)
            yield yes("autopsy", "that much fits (without 32 MiB)", found)
        yield from _autopsy_files(folder)
    settle()
    batches: list[int] = []

    @memwatch.retry_on_oom(batch_size=256, attempts=8)
    def step(batch_size: int) -> None:
        batches.append(batch_size)
        blocks(batch_size * 1024)

    step()
    yield yes("retry", "halved until it fits", batches[-1] * GIB <= wanted < 2 * batches[-1] * GIB, str(batches))
    settle()
    buffer = memwatch.allocate_with_fallback(
        lambda device: torch.empty(wanted if "cuda" in device else 1, dtype=torch.uint8, device=device), GPU
    )
    yield yes("fallback", "fell back to the CPU", buffer.fell_back, buffer.error)


def _autopsy_files(folder: str) -> Rows:
    names = sorted(one.suffix for one in Path(folder).iterdir())
    yield yes("autopsy", "files", ".json" in names and len(names) == 2, " ".join(names))
    for path in Path(folder).iterdir():
        if path.suffix != ".json":
            command = [str(Path(sys.executable).with_name("memwatch")), "autopsy", str(path)]
            read = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            print(read.stdout, read.stderr, file=sys.stderr)
            yield yes("autopsy", "memwatch autopsy reads the snapshot", read.returncode == 0, read.stderr[:200])


def check_pressure() -> Rows:
    """A callback when the GPU is nearly full, and waiting for memory."""
    settle()
    changes: list[Any] = []
    watch = memwatch.on_pressure(changes.append, level="high")
    time.sleep(3)  # the first reading without a daemon takes up to two seconds
    free = torch.cuda.mem_get_info(0)[0]
    kept = torch.empty(free - 300 * MIB, dtype=torch.uint8, device=GPU)
    began = time.monotonic()
    while not changes and time.monotonic() - began < 10:
        time.sleep(0.05)
    took = time.monotonic() - began
    yield yes(
        "full", "callback", changes, f"{took:.1f} s; {[(one.target, one.level, one.reasons) for one in changes]}"
    )
    yield yes("full", "wait_for 4 GiB fails", not memwatch.wait_for("4GiB", timeout=2, device=GPU))
    del kept
    settle()
    yield yes("freed", "wait_for 4 GiB", memwatch.wait_for("4GiB", timeout=5, device=GPU))
    watch.stop()


def find_own_process() -> Any:
    with urllib.request.urlopen(f"{os.environ['MEMWATCH_URL']}/api/v1/snapshot", timeout=20) as answer:
        return next((one for one in json.load(answer)["processes"] if one["pid"] == os.getpid()), None)


def check_daemon() -> Rows:
    """Find this process in the daemon, with its allocator's memory inside its GPU memory."""
    settle()
    kept = blocks(512)
    memwatch.log_memory_usage("reported")
    began, mine = time.monotonic(), None
    while mine is None and time.monotonic() - began < LISTED_SECONDS:
        time.sleep(0.5)
        mine = find_own_process()
    yield yes("daemon", "lists this process", mine)
    if mine is not None:
        print(mine, file=sys.stderr)
        size = max((x for x in mine["device_bytes"].values() if isinstance(x, int)), default=0)
        reserved = torch.cuda.memory_reserved()
        yield yes(
            "daemon",
            "the process has its allocator's memory and a context",
            reserved <= size <= reserved + GIB,
            f"{size / MIB:.0f} MiB, of it {reserved / MIB:.0f} MiB reserved",
        )
    del kept


CHECKS: Mapping[str, Callable[[], Rows]] = {
    "device": check_device,
    "line": check_line,
    "track": check_track,
    "pools": check_pools,
    "out of memory": check_out_of_memory,
    "training": check_training,
    "cache": check_cache,
    "swap": check_swap,
    "pressure": check_pressure,
    "programs": check_programs,
}
CHECKS_WITH_DAEMON: Mapping[str, Callable[[], Rows]] = {
    "daemon": check_daemon,
    "pressure": check_pressure,
    "line": check_line,
}


def run_checks(checks: Mapping[str, Callable[[], Rows]]) -> list[Row]:
    """Run all checks. One that fails is a row, and its traceback is printed."""
    rows: list[Row] = []
    for name, check in checks.items():
        print(f"{name} …", file=sys.stderr)
        try:
            rows += list(check())
        except Exception as error:  # the other checks are worth their rows
            traceback.print_exc()
            rows.append(Row(name, "check", "", "", "", None, Verdict.WRONG, f"{type(error).__name__}: {error}"))
    return rows


def main(arguments: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        print("PyTorch has no GPU here", file=sys.stderr)
        return NO_GPU
    if arguments:  # the URL of a daemon, which this process knows from its start on
        return report("The library in PyTorch, with a daemon", CHECKS_WITH_DAEMON)
    found = report("The library in PyTorch, without a daemon", CHECKS)
    with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder)) as daemon:
        beside = subprocess.run(
            [sys.executable, "-m", "hardware.torch_checks", daemon.url],
            env={**os.environ, "MEMWATCH_URL": daemon.url},
            timeout=300,
            check=False,
        )
    return max(found, beside.returncode)


def report(title: str, checks: Mapping[str, Callable[[], Rows]]) -> int:
    """Run checks and print their section."""
    rows = run_checks(checks)
    facts = f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}, Python {sys.version.split()[0]}."
    print(render_section(Section(title, rows, facts)), flush=True)
    return WRONG if any(row.verdict is Verdict.WRONG for row in rows) else RIGHT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
