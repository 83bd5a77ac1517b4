"""`memwatch run -- CMD` reports the peak memory of a program.

It adds the sizes of the tree of processes in each sample, and has the peaks of its cgroup.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, field

from memwatch.cli.context import (
    ClientContext,
    build_context,
    check_shape,
    common,
    print_errors,
)
from memwatch.cli.http import Address, CommandError, ask
from memwatch.cli.tables import clock, columns
from memwatch.core.events import MARK, Event
from memwatch.core.linux.daemon_connection import ANSWER_SECONDS
from memwatch.core.linux.user_files import folder_to_write
from memwatch.core.model import RAM_LABEL, Absent
from memwatch.core.printable import describe_error, printable
from memwatch.core.runtime.own_files import open_own
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.wire import Json
from memwatch.library.host import KEEP_PEAK, MAXRSS_UNIT, Ram, host
from memwatch.reporting.render import words as wording

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MAX_PROCESSES = 10_000
MAX_PIDS = 100_000


def read_tree(pid: int, procfs: Path = Path("/proc")) -> dict[int, int]:
    """Return RSS in bytes by process id, for a process and its descendants. Ended processes are skipped."""
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting and len(found) < MAX_PROCESSES:
        one = waiting.pop()
        resident = _resident(procfs / str(one))
        if resident is not None and one not in found:
            found[one] = resident
            waiting += _children(procfs / str(one))
    return found


def _resident(folder: Path) -> int | None:
    try:
        return int((folder / "statm").read_bytes().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def _children(folder: Path) -> list[int]:
    """Return the children of all threads, since any thread may have forked."""
    found: list[int] = []
    try:
        for thread in (folder / "task").iterdir():
            found += [int(word) for word in (thread / "children").read_bytes().split()]
    except (OSError, ValueError):
        return found
    return found


def read_children_peak() -> int | None:
    """Return the peak RSS of the largest of the ended children and their children, as the kernel counted it.

    A child also inherits the peak of this process when it starts. None if its own is not above that.
    """
    own, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return largest * MAXRSS_UNIT if largest > own else None


class Peaks(Struct):
    """Peaks of a running program. RSS is the sum over its processes; shared pages count once per process.

    `process_rss_bytes` and `cgroup_bytes` are counted by the kernel, the others are the greatest of the samples.
    `is_partial`: it had more processes than are followed, and the samples are lower bounds.
    """

    rss_bytes: int | None = None
    process_rss_bytes: int | None = None
    cgroup_bytes: int | None = None
    used_bytes: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    began_unix: float = field(default_factory=time.time)
    is_simulated: bool = False
    is_partial: bool = False

    def see_tree(self, tree: Mapping[int, int]) -> None:
        if tree:
            self.rss_bytes = max(self.rss_bytes or 0, sum(tree.values()))
        self.is_partial |= len(tree) >= MAX_PROCESSES or len(self.pids) >= MAX_PIDS
        if len(self.pids) < MAX_PIDS:
            self.pids.update(tree)

    def see_counters(self, process_rss_bytes: int | None, cgroup_bytes: int | None) -> None:
        self.process_rss_bytes, self.cgroup_bytes = process_rss_bytes, cgroup_bytes
        if process_rss_bytes is not None:
            self.rss_bytes = max(self.rss_bytes or 0, process_rss_bytes)

    def see_ram(self, ram: Ram | Absent) -> None:
        if not isinstance(ram, Absent) and not self.used_bytes.keys() - {RAM_LABEL}:
            _raise(self.used_bytes, RAM_LABEL, ram.total_bytes - ram.available_bytes)

    def see_snapshot(self, snapshot: Snapshot) -> None:
        """Update from a snapshot: use of pools and shares by all programs, device memory of this process tree."""
        self.is_simulated |= snapshot.simulated
        for place in snapshot.places:
            if isinstance(place.used_bytes, int):
                _raise(self.used_bytes, place.label, place.used_bytes)
        in_use: dict[str, int] = {}
        for process in snapshot.processes:
            if process.pid in self.pids:
                for held_in, count in process.device_bytes.items():
                    if isinstance(count, int):
                        label = snapshot.labels.get(held_in, held_in)
                        in_use[label] = in_use.get(label, 0) + count
        for label, count in in_use.items():
            _raise(self.device_bytes, label, count)

    def json(self) -> dict[str, Any]:
        counted = {
            "peak_rss_bytes": self.rss_bytes,
            "peak_process_rss_bytes": self.process_rss_bytes,
            "peak_cgroup_bytes": self.cgroup_bytes,
        }
        return {
            **counted,
            "absent": {name: Absent.NOT_AVAILABLE.value for name, figure in counted.items() if figure is None},
            "peak_used_bytes": self.used_bytes,
            "peak_device_bytes": self.device_bytes,
            "processes": len(self.pids),
            "partial": self.is_partial,
        }


def _raise(peaks: dict[str, int], label: str, count: int) -> None:
    peaks[label] = max(count, peaks.get(label, 0))


REMOVE_SECONDS = 0.5


class PeakCgroup(Struct, frozen=True):
    """A separate group. `counter`: the file with its peak."""

    folder: Path
    counter: str

    def join(self) -> None:
        """Move the calling process into the group. For the child, between fork and exec."""
        with suppress(OSError):
            (self.folder / "cgroup.procs").write_text("0")

    def read_peak(self) -> int | None:
        """Return the peak with page cache and kernel memory, None if no process was in the group."""
        try:
            return int((self.folder / self.counter).read_text()) or None
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        """Remove the group. Processes that outlive the program go back to the group above."""
        with suppress(OSError):
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (self.folder.parent / "cgroup.procs").write_text(pid)
        until = time.monotonic() + REMOVE_SECONDS
        while os.path.exists(self.folder) and time.monotonic() < until:
            with suppress(OSError):
                self.folder.rmdir()  # works once the last process has been reaped
                return
            time.sleep(0.01)


@contextmanager
def peak_cgroup(roots: Path = Path("/")) -> Iterator[PeakCgroup | None]:
    """Yield a new group below this process's own, so that all its limits hold. None where that is not permitted."""
    found = find_home(roots)
    group = None if found is None else make(*found)
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def make(home: Path, counter: str) -> PeakCgroup | None:
    group = PeakCgroup(home / f"memwatch-run-{os.getpid()}", counter)
    try:
        group.folder.mkdir()
    except OSError:
        return None
    if os.path.exists(group.folder / counter) and os.access(group.folder / "cgroup.procs", os.W_OK):
        return group
    group.remove()
    return None


def find_home(roots: Path) -> tuple[Path, str] | None:
    """Return the folder of this process's memory group, and the name of the counter.

    Version 2 allows groups below one that has processes only at the root, where memory is then in
    cgroup.subtree_control. Version 1 allows them everywhere.
    """
    try:
        lines = (roots / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return roots / "sys/fs/cgroup/memory" / path.lstrip("/"), "memory.max_usage_in_bytes"
        if not controllers:
            home = roots / "sys/fs/cgroup" / path.lstrip("/")
            if has_memory(home):
                return home, "memory.peak"
    return None


def has_memory(home: Path) -> bool:
    try:
        return "memory" in (home / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


# Poll a daemon in a separate thread while a program runs, without blocking the caller.

POLL_SECONDS = 1.0


class SnapshotPoller:
    """Poller of one snapshot per second. Stops after the first failed request."""

    def __init__(self, context: ClientContext) -> None:
        self.address: Address = context.address
        self._context = context
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self._is_over = threading.Event()

    @property
    def is_answered(self) -> bool:
        """True if no request has failed yet and `end` was not called."""
        return not self._is_over.is_set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="memwatch-poller", daemon=True).start()

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshots received since the last call."""
        while not self._snapshots.empty():
            yield self._snapshots.get()

    def end(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._snapshots.put(self._context.read_snapshot(ANSWER_SECONDS))
            except CommandError:
                self._is_over.set()
            self._is_over.wait(POLL_SECONDS)


SAMPLE_SECONDS = 0.1
# Deadline of the last request, after the program has ended. A daemon that takes longer is still building its API or
# hangs.
STAGES_SECONDS = 10.0
# Exit codes as in POSIX shells: cannot be executed, not found, killed by a signal.
EXIT_NOT_RUN, EXIT_NOT_FOUND, EXIT_SIGNAL = 126, 127, 128
FORWARDED = (signal.SIGTERM, signal.SIGHUP)
ROOT = 0
# Mode of a report, less those bits that the umask takes.
MODE = 0o666
# Only root makes files in these folders: /dev/stdout is a link of root, and may lead to a pipe or a terminal.
TRUSTED_FOLDERS = frozenset(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))

COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED)
PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class CommandNotRunError(CommandError):
    """A program that could not be started."""

    def __init__(self, program: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            why, code = f"cannot be run ({describe_error(error)})", EXIT_NOT_RUN
        elif shutil.which(program) is None:
            why, code = "was not found; check its name and PATH", EXIT_NOT_FOUND
        else:
            why, code = "cannot be run (the interpreter in its first line was not found)", EXIT_NOT_RUN
        super().__init__(f"{program} {why}", code)


@click.command(short_help="Run a program and report its peak memory.", context_settings=PASS_THROUGH)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file instead of stderr.",
)
@COMMAND
@common
def run(output: Path | None, command: tuple[str, ...], url: Address | None, as_json: bool) -> int:
    """Run COMMAND and report the peak memory of it and its children: RSS, pools, GPUs, and stages.

    Its exit code is passed through. The kernel counts the peak of the largest process, and of the program's own
    control group where one can be made. Other peaks are the greatest of samples every 0.1 s. GPU values and stages
    come from the daemon, if one is running.
    """
    if not command:
        raise click.UsageError("COMMAND is missing; for example memwatch run -- python train.py")
    context = build_context(url, as_json)
    if output is not None:
        _try(output)
    peaks = Peaks()
    began = time.monotonic()
    poller = SnapshotPoller(context)
    with peak_cgroup() as group:
        code = _run(command, poller, peaks, group)
        peaks.see_counters(read_children_peak(), None if group is None else group.read_peak())
    found = {
        "command": list(command),
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 3),
        **peaks.json(),
        "stages": _stages(poller, peaks),
    }
    lines = [json.dumps(found)] if context.as_json else _lines(found, peaks.is_simulated)
    _print("".join(f"{printable(line)}\n" for line in lines), output)
    return code


def _try(output: Path) -> None:
    """Raise UsageError if the file cannot be written, before the program starts. Keep its content for now."""
    is_there = os.path.lexists(output)
    if _is_special(output):
        return  # closing a pipe here would signal end of file to its reader
    try:
        os.close(_open(output))
    except OSError as error:
        raise click.UsageError(
            f'--output is "{output}", which cannot be written ({describe_error(error)}); use a file in a '
            "writable folder, for example --output report.txt"
        ) from None
    if not is_there:
        with suppress(OSError), folder_to_write(output) as (folder, name):
            os.unlink(name, dir_fd=folder)


def _is_special(output: Path) -> bool:
    """Return True for a pipe or a terminal, such as /dev/stdout."""
    return not _is_suspect(output) and os.path.lexists(output) and not os.path.isfile(output)


def _is_suspect(output: Path) -> bool:
    """Return True if another user may have put something in the place of root's file."""
    return os.geteuid() == ROOT and output.parent not in TRUSTED_FOLDERS


def _open(output: Path, flags: int = 0) -> int:
    """Open a file to write. Root uses no link, no pipe and no file of another user, who may have put it there.

    Nor is a folder on the way such a link.
    """
    if _is_suspect(output):
        with folder_to_write(output) as (folder, name):
            return open_own(name, os.O_WRONLY | flags, MODE, folder)
    return os.open(output, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, MODE)


def _run(command: Sequence[str], poller: SnapshotPoller, peaks: Peaks, group: PeakCgroup | None) -> int:
    """Run the program and return its exit code as a shell would."""
    environ = {**os.environ, KEEP_PEAK: "1"}
    join = None if group is None else group.join
    try:
        process = subprocess.Popen(command, env=environ, preexec_fn=join)  # noqa: S603  the user's program
    except OSError as error:
        raise CommandNotRunError(command[0], error) from None
    before = {one: signal.signal(one, lambda number, _frame: process.send_signal(number)) for one in FORWARDED}
    before[signal.SIGINT] = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends SIGINT to both processes
    poller.start()
    try:
        while process.poll() is None:
            peaks.see_tree(read_tree(process.pid))
            peaks.see_ram(host.ram())
            _see_answers(poller, peaks)
            try:
                process.wait(SAMPLE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return process.returncode if process.returncode >= 0 else EXIT_SIGNAL - process.returncode


def _see_answers(poller: SnapshotPoller, peaks: Peaks) -> None:
    for snapshot in poller.snapshots():
        peaks.see_snapshot(snapshot)


def _stages(poller: SnapshotPoller, peaks: Peaks) -> list[Json]:
    """Return the marks that processes of the tree have set since the start."""
    if not poller.is_answered:
        return []
    poller.end()
    ends = tuple(f"(process {pid})" for pid in peaks.pids)
    try:
        sent = ask(poller.address, "/api/v1/events?limit=1000", seconds=STAGES_SECONDS).json
        with check_shape(poller.address):
            events: tuple[Event, ...] = RECORDS.decode(tuple[Event, ...], sent)
    except CommandError:
        return []
    marks = [one for one in reversed(events) if one.kind == MARK and one.unix >= peaks.began_unix - 1]
    return [{"unix": one.unix, "text": one.text} for one in marks if one.text.endswith(ends)]


def _print(text: str, output: Path | None) -> None:
    try:
        if output is not None:
            if _is_special(output):
                output.write_text(text, encoding="utf-8")
                return
            with open(_open(output, os.O_TRUNC), "w", encoding="utf-8") as file:
                file.write(text)
            return
    except OSError as error:
        print_errors([f"cannot write {output} ({describe_error(error)}); the report is:"])
    sys.stderr.write(text)


def _lines(found: Json, is_simulated: bool) -> Iterator[str]:
    took = wording.duration(found["seconds"])
    yield f"{' '.join(found['command'])[:200]}: exit code {found['exit_code']} after {took}"
    if is_simulated:
        yield f"  {wording.SIMULATED} Peaks of pools and GPUs are of that machine."
    rows = [("  peak RSS, all processes of the program, sampled", _size(found["peak_rss_bytes"]))]
    if found["peak_process_rss_bytes"] is not None:
        rows.append(("  peak RSS, its largest process", _size(found["peak_process_rss_bytes"])))
    if found["peak_cgroup_bytes"] is not None:
        rows.append(("  peak of its control group, with page cache", _size(found["peak_cgroup_bytes"])))
    rows += [
        (f"  peak of {name}, whole machine, sampled", _size(count))
        for name, count in found["peak_used_bytes"].items()
    ]
    rows += [
        (f"  peak of {name}, this program, sampled", _size(count))
        for name, count in found["peak_device_bytes"].items()
    ]
    yield from columns(rows, right=frozenset({1}))
    if found["partial"]:
        yield f"  It had more processes than are followed ({MAX_PROCESSES:,} at once): the peaks are lower bounds."
    yield from (f"  {clock(stage['unix'])} {stage['text']}" for stage in found["stages"])


def _size(count: int | None) -> str:
    return f"{wording.DASH} it ended before the first sample" if count is None else wording.size(count)
