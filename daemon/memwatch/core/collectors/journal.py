"""Kills in the journal: systemd-oomd, earlyoom, nohang, kubelet, container runtimes, and the service manager.

`journalctl --follow` runs as a child process. Only lines of these units are read: the journal sets the unit of a
line itself, so another program cannot forge it. Docker's logging driver `journald` writes the output of containers
as lines of docker.service with the field CONTAINER_ID. Those are ignored.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.kill_lines import PARSERS, KillLineTracker
from memwatch.core.linux.line_program import LineProgram
from memwatch.core.options import Accepts, Converter, SwitchableOptions, program_path
from memwatch.core.runtime.backoff import Backoff
from memwatch.core.runtime.programs import find_program

AUTO = "auto"
MAX_LINE_BYTES, MAX_READS = 1 << 16, 64
PAUSE_FIRST_SECONDS, MAX_PAUSE_SECONDS = 10.0, 300.0
FIELDS = "_SYSTEMD_UNIT,MESSAGE,CONTAINER_ID"


class Options(SwitchableOptions, frozen=True, kw_only=True):
    enabled: bool = False
    path: Annotated[
        str,
        Converter(program_path),
        Accepts('"auto" or the path of a program', '"/usr/bin/journalctl"'),
        Doc(
            'The program to run: its path, or "auto" for the one on PATH. A daemon that runs as root skips a '
            "program that other users could replace."
        ),
    ] = AUTO


class Collector(BaseCollector):
    """Each `collect` reads the lines that came since the last one. It does not wait for any."""

    name = "journal"
    period_seconds: float = 1.0
    may_block = True
    options: type[Options] = Options
    about = (
        "Kills by systemd-oomd, earlyoom, nohang, kubelet and container runtimes, from journalctl --follow. "
        "Needs root or the group systemd-journal."
    )

    def __init__(self, roots: Roots, path: str = AUTO, search_path: str | None = None) -> None:
        """`search_path`: search path for the program, PATH by default."""
        command = build_command(roots, path, search_path)
        backoff = Backoff(PAUSE_FIRST_SECONDS, MAX_PAUSE_SECONDS)
        self._program = LineProgram("journalctl", command, MAX_LINE_BYTES, backoff)
        self._tracker = KillLineTracker()
        self._rejected = 0

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.options_for(Options).path)

    def collect(self) -> Findings:
        self._program.ensure_running()
        for _ in range(MAX_READS):
            lines = self._program.read(0.0)
            if lines is None:
                break
            for line in lines:
                self._read(line)
        rejected, self._rejected = self._rejected + self._program.take_cut(), 0
        return Findings(service_kills=self._tracker.kills, rejected=rejected)

    def close(self) -> None:
        self._program.stop()

    def _read(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            unit, text = found["_SYSTEMD_UNIT"], found["MESSAGE"]
            unix = int(found["__REALTIME_TIMESTAMP"]) / 1e6
        except (ValueError, KeyError, TypeError):
            self._rejected += 1
            return
        self._program.reset_pause()
        # A message that is not UTF-8 is a list of bytes.
        if isinstance(unit, str) and isinstance(text, str) and "CONTAINER_ID" not in found:
            self._tracker.read(unit, text, unix)


def build_command(roots: Roots, path: str, search_path: str | None) -> list[str]:
    """Return the command. Raises SourceUnavailable without the program, or for a root that is not this system's."""
    if path == AUTO and roots.rootfs.resolve() != roots.rootfs.__class__("/"):
        raise SourceUnavailable(f"the journal of {roots.rootfs} is not read; set path under [collectors.journal]")
    program = find_program("journalctl", search_path) if path == AUTO else None
    found = path if program is None else program.path
    if found is None or not os.access(found, os.X_OK):
        rejected = program.rejected if program is not None else ""
        raise SourceUnavailable(
            rejected or ("no journalctl on PATH" if path == AUTO else f"{path}: no such program")
        )
    command = [found, "--follow", "--lines=0", "--output=json", f"--output-fields={FIELDS}", "--no-pager"]
    matches = [f"_SYSTEMD_UNIT={unit}" for unit in PARSERS]
    return [*command, *matches]  # journalctl joins matches of one field by "or"
