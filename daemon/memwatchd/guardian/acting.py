"""Steps of the guardian on one victim, the mildest first. After each it checks if the memory came back.

The victim is held by a descriptor (pidfd), which stays that of this process: a number that is used again is never
hit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from memwatch.core.engines.records import Engine
from memwatch.core.linux.cgroup_mounts import V2, parse_figure, parse_limit
from memwatch.core.linux.files import ParseError, read_once
from memwatch.core.linux.process_files import STAT_BYTES, parse_stat, read_at
from memwatch.core.model import Absent
from memwatch.core.printable import describe_error
from memwatchd.guardian.load_guard import own_cgroup
from memwatchd.guardian.records import Candidate, GroupMemory, Step
from memwatchd.guardian.requests import ask_engine

# asm-generic/unistd.h: the number is the same on all processors that have it since Linux 5.15.
SYS_PROCESS_MRELEASE = 448
# A decision whose first step begins later than this is not carried out.
MAX_LATE_SECONDS = 1.0
LOOK_SECONDS = 0.05
# Drivers give memory back a moment after the end of a process.
SETTLE_SECONDS = 0.5
MAX_RECLAIM_BYTES = 4 << 30
NO_OWN_CGROUP = "its cgroup has other processes as well, or is not known"


class VictimGoneError(Exception):
    """The chosen process has ended, or its number belongs to another one. The message is a clause."""


class StepResult(Struct, frozen=True):
    """One step of a record. `result` is a clause; `available_bytes` after it; `seconds`: how long it took."""

    step: str
    result: str
    available_bytes: int
    seconds: float


class Victim:
    """A descriptor of exactly one process. Opening raises VictimGoneError and OSError."""

    def __init__(self, procfs: Path, pid: int, start_ticks: int) -> None:
        self.pid = pid
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise VictimGoneError("it has ended") from None
        try:
            found = read_start_ticks(procfs, pid)
            # The process of the descriptor lives after its number was read: the number was its own.
            if found != start_ticks or self.has_ended(0):
                raise VictimGoneError("it has ended, and its number belongs to another process")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.fd)

    def has_ended(self, seconds: float) -> bool:
        """Wait for its end. A process whose parent has not asked for its exit code has ended."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def send(self, number: signal.Signals) -> str:
        """Send a signal and return the result as a clause."""
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            return "it had ended"
        except OSError as error:
            return f"not sent: {describe_error(error)}"
        return "sent"

    def release(self) -> str:
        """Have the kernel take the memory of a killed process at once (process_mrelease). Empty if it has ended."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(SYS_PROCESS_MRELEASE, self.fd, 0) == 0:
            return "its memory was released"
        code = ctypes.get_errno()
        if code == errno.ESRCH:
            return ""
        return f"process_mrelease: {os.strerror(code).lower()}"


def read_start_ticks(procfs: Path, pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None for kernel threads and ended processes."""
    try:
        folder = os.open(procfs / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        stat = parse_stat(read_at(folder, "stat", STAT_BYTES) or b"")
    except ParseError:
        return None
    finally:
        os.close(folder)
    return stat.start_ticks if stat else None


class Means(Struct, frozen=True):
    """Means of the steps. `hook`: program and arguments. `cgroups`: where cgroup v2 is mounted."""

    hook: tuple[str, ...] = ()
    cgroups: Path = Path("/sys/fs/cgroup")
    engine: Engine | None = None


def act(
    victim: Victim,
    candidate: Candidate,
    steps: Sequence[Step],
    means: Means,
    look: Callable[[], tuple[int, bool]],
    decided_at: float,
) -> list[StepResult]:
    """Take the steps until one helped. `look` returns the available bytes, and whether it is critical no longer.

    A decision that is too old, as the guardian was stopped in between, is not carried out. `decided_at`: monotonic.
    """
    results = []
    for step in steps:
        if step.why_not:
            results.append(StepResult(step.name, f"not taken: {step.why_not}", look()[0], 0.0))
            continue
        began = time.monotonic()
        if began - decided_at > MAX_LATE_SECONDS + sum(one.seconds for one in steps[: steps.index(step)]):
            available, _ = look()
            late = f"not taken: the decision is {began - decided_at:.1f} s old"
            results.append(StepResult(step.name, late, available, 0.0))
            break
        result = take(step, victim, candidate, means)
        available, has_helped = wait(step, began, victim, look)
        seconds = round(time.monotonic() - began, 3)
        # A process gives its memory back before it has ended.
        if step.name in ("sigterm", "sigkill") and victim.has_ended(SETTLE_SECONDS if has_helped else 0):
            result += "; it ended"
        results.append(StepResult(step.name, result, available, seconds))
        if has_helped or victim.has_ended(0):
            break
    return results


def wait(step: Step, began: float, victim: Victim, look: Callable[[], tuple[int, bool]]) -> tuple[int, bool]:
    """Wait until the step helped, the victim ended, or its time is over. Return the last look."""
    while True:
        found = look()
        left = began + step.seconds - time.monotonic()
        if found[1] or left <= 0:
            return found
        if victim.has_ended(min(left, LOOK_SECONDS)):
            ended = time.monotonic()
            while not (found := look())[1] and time.monotonic() - ended < SETTLE_SECONDS:
                time.sleep(LOOK_SECONDS)
            return found


def take(step: Step, victim: Victim, candidate: Candidate, means: Means) -> str:
    """Take one step and return its result as a clause."""
    if step.name == "hook":
        return run_hook(means.hook, candidate, step.seconds)
    if step.name == "engine":
        return ask_engine(means.engine, step.seconds) if means.engine else "the model server is not known"
    if step.name == "reclaim":
        return reclaim(means.cgroups, candidate, step)
    if step.name == "sigterm":
        return victim.send(signal.SIGTERM)
    sent = victim.send(signal.SIGKILL)
    return "; ".join(filter(None, (sent, victim.release()))) if sent == "sent" else sent


def run_hook(hook: Sequence[str], candidate: Candidate, seconds: float) -> str:
    """Run the operator's program, without a shell, and end it at the deadline. Return the result as a clause."""
    facts = {
        "MEMWATCH_PID": str(candidate.pid),
        "MEMWATCH_NAME": candidate.name,
        "MEMWATCH_UNIT": text_of(candidate.unit),
        "MEMWATCH_USER": text_of(candidate.user),
        "MEMWATCH_CONTAINER": text_of(candidate.container),
        "MEMWATCH_BYTES": str(candidate.footprint_bytes),
    }
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **facts}
    try:
        child = subprocess.Popen(  # noqa: S603  the program is the operator's setting
            list(hook),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"not started: {describe_error(error)}"
    try:
        code = child.wait(seconds)
    except subprocess.TimeoutExpired:
        # Its whole session: the program may have started others.
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        return f"it did not end within {seconds:.1f} s and was killed"
    return f"it ended with {code}"


def text_of(value: str | Absent | None) -> str:
    return value if isinstance(value, str) else ""


def read_group(cgroups: Path, candidate: Candidate) -> GroupMemory | str:
    """Return the memory of a process's own cgroup, or why it is not known, as a clause."""
    path = own_cgroup(candidate)
    if path is None:
        return NO_OWN_CGROUP
    folder = cgroups / path
    stat = parse_memory_stat(read_once(folder / "memory.stat") or b"")
    if not {"inactive_anon", "active_anon"} <= stat.keys():
        return "the memory of its cgroup is not readable"
    file = sum(stat.get(name, 0) for name in V2.reclaimable)
    anonymous = stat["inactive_anon"] + stat["active_anon"]
    try:
        # Without these files the kernel does not count swap by cgroup, and has no limit.
        most = parse_limit(read_once(folder / "memory.swap.max") or b"max")
        used = parse_figure(read_once(folder / "memory.swap.current") or b"0")
    except ParseError:
        return "the swap of its cgroup is not readable"
    return GroupMemory(file, anonymous if most is None else min(anonymous, max(0, most - used)))


def parse_memory_stat(data: bytes) -> dict[str, int]:
    pairs = (line.split() for line in data.splitlines())
    return {
        pair[0].decode("ascii", "replace"): int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()
    }


def reclaim(cgroups: Path, candidate: Candidate, step: Step) -> str:
    """Have the kernel reclaim pages of the victim's own cgroup. Return the result as a clause.

    The write blocks until the pages are reclaimed, so a thread does it, which is left alone at the deadline.
    """
    path = own_cgroup(candidate)
    if path is None:
        return NO_OWN_CGROUP
    file = cgroups / path / "memory.reclaim"
    wanted = min(MAX_RECLAIM_BYTES, step.reclaim_bytes)
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(write_reclaim(file, wanted)), daemon=True)
    thread.start()
    thread.join(step.seconds)
    return results[0] if results else f"not done within {step.seconds:.1f} s"


def write_reclaim(file: Path, wanted: int) -> str:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        return f"not done: {describe_error(error)}"
    try:
        os.write(descriptor, b"%d" % wanted)
    except OSError as error:
        # The kernel reclaimed less than was asked for.
        return "done in part" if error.errno == errno.EAGAIN else f"not done: {describe_error(error)}"
    finally:
        os.close(descriptor)
    return "done"


def would_take(steps: Sequence[Step], available: int) -> list[StepResult]:
    """Return the steps of a dry run, none of which is taken."""
    results = (f"not taken: {step.why_not}" if step.why_not else "would be taken" for step in steps)
    return [StepResult(step.name, result, available, 0.0) for step, result in zip(steps, results, strict=True)]


def names_of(steps: Sequence[Step]) -> str:
    """Return the names of the steps that are taken."""
    return ", ".join(step.name for step in steps if not step.why_not)
