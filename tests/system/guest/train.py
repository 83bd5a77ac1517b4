"""Take memory of the simulated GPU: python3 train.py FILL_RATIO SECONDS_FILE [term | hang | fork].

It fills System RAM up to FILL_RATIO, and on SIGUSR1 takes the rest within the seconds of the file. A refused
allocation is tried again, as some programs do. With `term` it ignores SIGTERM, with `hang` a thread of it hangs in
the driver, and with `fork` it starts processes that take memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

STEP_SECONDS = 0.02
FILL_SECONDS = 4.0
RETRY_SECONDS = 0.1
CHILD_BYTES, FORK_SECONDS = 2 << 20, 0.5


def meminfo() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}


def take(device: int, size: int) -> bool:
    try:
        os.write(device, b"%d" % size)
    except OSError:
        return False
    return True


def grow(device: int, size: int, seconds: float) -> None:
    """Take `size` bytes evenly in `seconds`."""
    began, taken = time.monotonic(), 0
    while taken < size:
        due = min(size, round(size * (time.monotonic() - began) / seconds))
        if due > taken and take(device, due - taken):
            taken = due
        time.sleep(STEP_SECONDS)


def multiply() -> None:
    """Start processes that start processes, each with its own memory."""
    held = []
    while True:
        with contextlib.suppress(OSError, MemoryError):
            if os.fork() == 0:
                held.append(bytearray(b"x") * CHILD_BYTES)
        time.sleep(FORK_SECONDS)


def main() -> None:
    ratio = float(sys.argv[1])
    if "term" in sys.argv[3:]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    with open("/proc/self/comm", "w") as comm:
        comm.write("train")
    device = os.open("/dev/gpumem", os.O_WRONLY)
    now = meminfo()
    grow(device, now["MemAvailable"] - round((1 - ratio) * now["MemTotal"]), FILL_SECONDS)
    signal.sigwait({signal.SIGUSR1})
    seconds = float(Path(sys.argv[2]).read_text())
    if "hang" in sys.argv[3:]:
        threading.Thread(target=os.write, args=(os.open("/dev/gpumem", os.O_WRONLY), b"wait")).start()
    if "fork" in sys.argv[3:]:
        multiply()
    now = meminfo()
    grow(device, now["MemAvailable"], seconds * now["MemAvailable"] / ((1 - ratio) * now["MemTotal"]))
    # It asks for more: the kernel then takes it from other processes.
    while True:
        if not take(device, 1 << 20):
            time.sleep(RETRY_SECONDS)
        time.sleep(STEP_SECONDS)


main()
