"""Data of a Jetson from `tegrastats`: largest free blocks, and utilization of GPU and memory.

The program runs as a child process and prints one line per interval. If it exits, it is restarted after a backoff.
If it prints nothing until the deadline, it is killed. Other collectors are not affected.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Annotated

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.drivers.tegra.board import AUTO, TegraOptions, detect_soc
from memwatch.core.drivers.tegra.records import TegrastatsReading
from memwatch.core.drivers.tegra.tegrastats import MAX_LINE_BYTES, parse_line
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.line_program import LineProgram
from memwatch.core.options import (
    Accepts,
    Bounds,
    Converter,
    Duration,
    SwitchableOptions,
    program_path,
    seconds,
)
from memwatch.core.runtime.backoff import Backoff
from memwatch.core.runtime.programs import Program, find_program

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


class Options(SwitchableOptions, frozen=True, kw_only=True):
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


class Collector(BaseCollector):
    """Each `collect` waits for a valid line. Invalid lines, and invalid fields of it, are counted and left out."""

    name = "tegrastats"
    may_block = True
    options: type[Options] = Options

    def __init__(
        self,
        roots: Roots,
        path: str = AUTO,
        interval_seconds: float = 1.0,
        board: str = AUTO,
        search_path: str | None = None,
    ) -> None:
        """`search_path`: search path for the program, PATH by default."""
        found = find_tegrastats(roots, path, board, search_path)
        if found.path is None:
            raise SourceUnavailable(explain_missing(roots, path, board, found))
        self.period_seconds = interval_seconds
        self._deadline = max(3 * interval_seconds, MIN_DEADLINE_SECONDS)
        command = [found.path, "--interval", f"{interval_seconds * 1000:.0f}"]
        backoff = Backoff(PAUSE_FIRST_SECONDS, MAX_PAUSE_SECONDS)
        self._program = LineProgram("tegrastats", command, MAX_LINE_BYTES, backoff, quiet=True)
        self._rejected = 0

    @classmethod
    def create(cls, host: Host) -> Collector:
        given, board = host.options_for(Options), host.options_for(TegraOptions).board
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
            return parse_line(line)
        except DecodeError as error:
            self._rejected += 1
            log.debug("%s", error)
            return None
