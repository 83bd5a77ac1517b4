"""Jetson and other Tegra boards: the board, NvMap's table of GPU memory by process, and the program tegrastats."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector, Collector, Host
from memwatch.core.doc import Doc
from memwatch.core.drivers.tegra.nvmap import KERNEL_PID, parse_clients, parse_meminfo
from memwatch.core.drivers.tegra.records import NvMapReading, TegraReading, TegrastatsReading
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable, kept_file, read_once
from memwatch.core.linux.gpu_presence import AUTO, SOME_TEGRA, detect_soc, device_tree, find_sign
from memwatch.core.linux.line_program import LineProgram
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent, Words
from memwatch.core.options import Accepts, Bounds, Converter, Duration, SwitchableOptions, program_path, seconds
from memwatch.core.printable import decode
from memwatch.core.runtime.programs import Program, find_program
from memwatch.core.runtime.worker import Backoff

_RELEASE = re.compile(rb"^# R(\d{1,4}) \(release\), REVISION: (\d{1,4}(?:\.\d{1,4}){0,3}),", re.MULTILINE)

JETPACK_BY_L4T = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7.2"}


class Release(NamedTuple):
    """The release of Jetson Linux, such as "36.4.3", and the JetPack version that contains it."""

    l4t: Words
    jetpack: Words


def parse_release(data: bytes | None) -> Release:
    """Parse /etc/nv_tegra_release. Its BOARD is not used: it may be "generic" where the device tree is precise."""
    found = _RELEASE.search(data or b"")
    if found is None:
        return Release(Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE)
    major, revision = found[1].decode(), found[2].decode()
    return Release(f"{major}.{revision}", JETPACK_BY_L4T.get(major, Absent.NOT_AVAILABLE))


class TegraOptions(SwitchableOptions, frozen=True, kw_only=True):
    """Options of every collector that reads a Tegra."""

    board: Annotated[
        Literal["auto", "tegra210", "tegra186", "tegra194", "tegra234", "tegra264"],
        Doc(
            'The chip: "tegra210" (Nano, TX1), "tegra186" (TX2), "tegra194" (Xavier), "tegra234" (Orin) or '
            '"tegra264" (Thor), for containers that do not see the device tree; "auto" reads it there.'
        ),
    ] = "auto"


class BoardCollector(BaseCollector):
    """Jetson and other Tegra boards: names of board and chip, and GPU memory in System RAM. Needs no privileges.

    Reads the names of board and release once, and the memory on every tick.
    """

    name = "tegra"
    options: type[TegraOptions] = TegraOptions

    def __init__(self, roots: Roots, board: str = AUTO) -> None:
        """`board`: the chip, if the device tree is not visible, as in most containers."""
        soc = detect_soc(roots, board)
        if soc is None:
            raise SourceUnavailable("no Tegra: /proc/device-tree/compatible does not name one")
        model = decode(device_tree(roots, "model").split(b"\0")[0].strip())
        l4t, jetpack = parse_release(read_once(roots.rootfs / "etc/nv_tegra_release"))
        sign = find_sign(roots) if soc == SOME_TEGRA else None
        self._board = TegraReading(soc, model or Absent.NOT_AVAILABLE, l4t, jetpack, sign=sign or "")
        self._meminfo = kept_file(roots.procfs / "meminfo")

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.options_for(TegraOptions).board)

    def collect(self) -> Findings:
        try:
            memory = parse_meminfo(self._meminfo.read())
        except DecodeError as error:
            raise ParseError(str(error)) from None
        return Findings(tegra=replace(self._board, gpu_bytes=memory.used_bytes, free_bytes=memory.free_bytes))

    def close(self) -> None:
        self._meminfo.close()


CLIENTS = "kernel/debug/nvmap/iovmm/clients"
# With the drop-in jetson.conf, NvMap's folder alone is mounted in place of debugfs.
PATHS = (CLIENTS, "kernel/debug/iovmm/clients")
MAX_BYTES = 1 << 20
WITHOUT_NVMAP = frozenset({"tegra264"})
REFUSED = NvMapReading(
    Absent.NOT_PERMITTED,
    Absent.NOT_PERMITTED,
    f"GPU memory by process is not available: /sys/{CLIENTS} is not readable; "
    "use the drop-in jetson.conf, or run memwatchd as root.",
)


class NvmapCollector(BaseCollector):
    """GPU memory of a Tegra by process, from NvMap's table in debugfs.

    Only root may enter debugfs. The table itself is readable by all users (nvmap_dev.c: S_IRUGO).

    It is read in its own thread, not on the tick: the kernel walks every buffer of every client under their locks.
    """

    name = "nvmap"
    period_seconds: float = 5.0
    may_block = True
    about = "GPU memory of a Jetson by process. Needs root or the drop-in jetson."

    def __init__(self, roots: Roots, pids: GpuPids, board: str = AUTO) -> None:
        soc = detect_soc(roots, board)
        if soc is None:
            raise SourceUnavailable("no Tegra: /proc/device-tree/compatible does not name one")
        if soc in WITHOUT_NVMAP:
            raise SourceUnavailable(f"{soc} does not allocate GPU memory through NvMap; NVML lists its processes")
        self._sysfs = roots.sysfs
        self._pids = pids

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.gpu_pids, host.options_for(TegraOptions).board)

    def collect(self) -> Findings:
        try:
            data = self._read()
        except PermissionError:
            self._pids.update(self.name, frozenset())
            return Findings(nvmap=REFUSED)
        if data is None:
            self._pids.update(self.name, frozenset())
            raise SourceUnavailable(f"{self._sysfs / CLIENTS}: does not exist; is debugfs mounted?")
        try:
            table = parse_clients(data)
        except DecodeError as error:
            raise ParseError(str(error)) from None
        self._pids.update(self.name, frozenset(one.pid for one in table.clients if one.pid != KERNEL_PID))
        return Findings(nvmap=NvMapReading(table.total_bytes, table.clients), rejected=table.rejected)

    def _read(self) -> bytes | None:
        for path in PATHS:
            with suppress(FileNotFoundError), (self._sysfs / path).open("rb") as file:
                return file.read(MAX_BYTES)
        return None


log: logging.Logger = logging.getLogger(__name__)

MIN_DEADLINE_SECONDS = 5.0
PAUSE_FIRST_SECONDS, MAX_PAUSE_SECONDS = 1.0, 10.0
# A pipe buffers 64 KiB; more than that in one run means that the program prints without pause.
MAX_READS = 8


def find_tegrastats(
    roots: Roots, path: str, board: str, search_path: str | None, uid: int | None = None
) -> Program:
    """Return the program to run: the configured path as given, or on a Tegra the program on PATH."""
    if path == AUTO:
        return find_program("tegrastats", search_path, uid) if detect_soc(roots, board) else Program(None)
    return Program(path if os.access(path, os.X_OK) else None)


def explain_missing(roots: Roots, path: str, board: str, found: Program) -> str:
    if path != AUTO:
        return f"{path}: no such program"
    if detect_soc(roots, board) is None:
        return "no Tegra: /proc/device-tree/compatible does not name one"
    if found.rejected:
        return f"{found.rejected}; set path under [collectors.tegrastats], or do not run memwatchd as root"
    return "no tegrastats on PATH: utilization of GPU and memory is unknown"


class TegrastatsOptions(SwitchableOptions, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Converter(program_path),
        Accepts('"auto" or the path of a program', '"/usr/bin/tegrastats"'),
        Doc(
            'The program to run: its path, or "auto" for the one on PATH. A daemon that runs as root skips a '
            "program that other users could replace."
        ),
    ] = AUTO
    interval: Annotated[
        Duration, Bounds(seconds(0.1), seconds(60)), Doc("Interval between two of its lines, 100ms to 60s.")
    ] = seconds(1)


class TegrastatsCollector(BaseCollector):
    """Data of a Jetson from `tegrastats`: largest free blocks, and utilization of GPU and memory.

    The program runs as a child process and prints one line per interval. If it exits, it is restarted after a
    backoff. If it prints nothing until the deadline, it is killed. Other collectors are not affected.

    Each `collect` waits for a valid line. Invalid lines, and invalid fields of it, are counted and left out.
    """

    name = "tegrastats"
    may_block = True
    options: type[TegrastatsOptions] = TegrastatsOptions

    def __init__(
        self,
        roots: Roots,
        path: str = AUTO,
        interval_seconds: float = 1.0,
        board: str = AUTO,
        search_path: str | None = None,
        deadline_seconds: float = MIN_DEADLINE_SECONDS,
    ) -> None:
        """`search_path`: search path for the program, PATH by default.

        `deadline_seconds`: the program is killed after this long without a valid line, or after three intervals if
        that is longer.
        """
        found = find_tegrastats(roots, path, board, search_path)
        if found.path is None:
            raise SourceUnavailable(explain_missing(roots, path, board, found))
        self.period_seconds = interval_seconds
        self._deadline = max(3 * interval_seconds, deadline_seconds)
        from memwatch.core.drivers.tegra.tegrastats import MAX_LINE_BYTES, parse_line

        command = [found.path, "--interval", f"{interval_seconds * 1000:.0f}"]
        backoff = Backoff(PAUSE_FIRST_SECONDS, MAX_PAUSE_SECONDS)
        self._program = LineProgram("tegrastats", command, MAX_LINE_BYTES, backoff, quiet=True)
        self._rejected, self._parse_line = 0, parse_line

    @classmethod
    def create(cls, host: Host) -> Collector:
        given, board = host.options_for(TegrastatsOptions), host.options_for(TegraOptions).board
        return cls(host.roots, given.path, given.interval.total_seconds(), board)

    def collect(self) -> Findings:
        self._program.ensure_running()
        reading = self._newest()
        self._program.reset_pause()
        rejected, self._rejected = self._rejected, 0
        return Findings(tegrastats=reading, rejected=rejected + reading.odd_fields)

    def close(self) -> None:
        self._program.stop()

    def _newest(self) -> TegrastatsReading:
        """Return the last line already printed, or the first one printed before the deadline."""
        until = time.monotonic() + self._deadline
        newest: TegrastatsReading | None = None
        reads = 0
        while True:
            left = 0.0 if newest else until - time.monotonic()
            may_read = left >= 0 and reads < MAX_READS
            lines = self._program.read(left, keep_end=newest is not None) if may_read else None
            if lines is None and newest:
                return newest
            if lines is None:
                self._program.give_up(f"printed no valid line for {self._deadline:g} s and was killed")
            newest = self._parse_last(lines) or newest
            reads += newest is not None

    def _parse_last(self, lines: list[bytes]) -> TegrastatsReading | None:
        readings = [reading for line in lines if (reading := self._parse(line))]
        self._rejected += self._program.take_cut()
        return readings[-1] if readings else None

    def _parse(self, line: bytes) -> TegrastatsReading | None:
        try:
            return self._parse_line(line)
        except DecodeError as error:
            self._rejected += 1
            log.debug("%s", error)
            return None
