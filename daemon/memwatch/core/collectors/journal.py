"""Kills in the journal: systemd-oomd, earlyoom, nohang, kubelet, container runtimes, and the service manager.

`journalctl --follow` runs as a child process. Only lines of these units are read: the journal sets the unit of a
line itself, so another program cannot forge it. Docker's logging driver `journald` writes the output of containers
as lines of docker.service with the field CONTAINER_ID. Those are ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.findings import Findings
from memwatch.core.kernel_log import KillSource, ServiceKill
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.line_program import LineProgram
from memwatch.core.options import AUTO, Accepts, Converter, SwitchableOptions, program_path
from memwatch.core.printable import printable
from memwatch.core.runtime.programs import find_program
from memwatch.core.runtime.worker import Backoff

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


MAX_LINE, MAX_NAME = 500, 200

# Lines in which services report a kill. Which service wrote one is checked before: any program may log any text.

# Names of processes and cgroups may contain any character, so patterns end at a text after them.
# earlyoom, kill.c. 1.0 to 1.2: `killing process 27541 "bash" with signal 15: badness …`. 1.3 to 1.5: `sending
# SIGTERM to process 12006 "bash": badness …`. 1.6 to 1.8: with `uid 1000`. 1.9: `oom_score`, not `badness`.
_EARLYOOM = re.compile(
    r'(?:sending SIG(?:TERM|KILL) to process|[Kk]illing process) (\d{1,10}) (?:uid \d{1,10} )?"(.*)"'
    r"(?: with signal \d{1,2})?: (?:badness|oom_score) "
)
# The next line of a dry run: nothing was killed.
DRY_RUN = "dryrun, not actually sending any signal"
# nohang 0.2.0: the candidate, and some lines later the action without a name.
_NOHANG_VICTIM = re.compile(r"^ *PID: +(\d{1,10}), [Nn]ame: (.*), badness: ")
_NOHANG_ACTION = re.compile(r"^ *Send(?:ing)? SIG(?:TERM|KILL) to the victim")
# systemd-oomd, oomd-manager.c: 248 to 257 `Killed`, later `Marked … for killing`. 248 named the swap only.
_OOMD = re.compile(
    r"^(?:Killed (.*)|Marked (.*) for killing) due to (?:memory pressure for|memory used \(|swap used \()"
)
# systemd, core/unit.c and core/service.c.
_OOM_REPORT = re.compile(r"^(\S+): A process of this unit has been killed by the OOM killer")
_OOMD_REPORT = re.compile(r"^(\S+): systemd-oomd killed (?:\d{1,6}|some) process")
_UNIT_END = re.compile(r"^(\S+): Main process exited, code=killed, status=9/KILL")
# kubelet, eviction_manager.go: structured since 1.21, before `pod default/nginx is evicted successfully`.
_EVICTED = re.compile(
    r'viction manager: (?:pod is evicted successfully" pod="([^"]{1,512})"|pod (\S{1,512}) is evicted successfully)'
)
# containerd, cri/server/events.go: `TaskOOM event container_id:"…"`, in 1.x `&TaskOOM{ContainerID:…,`.
_TASK_OOM = re.compile(r'TaskOOM event (?:container_id:\\?"|&TaskOOM\{ContainerID:)([0-9a-f]{12,64})')
# dockerd, daemon/stop.go: since 20.10 the container is a field, before it was a part of the sentence.
_FORCED = re.compile(
    r"Container (?:([0-9a-f]{12,64}) )?failed to exit within \S{1,20}(?: seconds)? of signal \d{1,2}"
)
_CONTAINER = re.compile(r"\bcontainer=\"?([0-9a-f]{12,64})")


class KillLine(NamedTuple):
    """The content of a line: what was killed, and by which service."""

    source: KillSource
    pid: int | None = None
    name: str = ""
    place: str = ""


def parse_earlyoom(text: str) -> KillLine | None:
    found = _EARLYOOM.search(text)
    return KillLine("earlyoom", int(found[1]), found[2][:MAX_NAME]) if found else None


def parse_oomd(text: str) -> KillLine | None:
    found = _OOMD.search(text)
    return KillLine("systemd_oomd", place=(found[1] or found[2])[:MAX_NAME]) if found else None


def parse_systemd(text: str) -> KillLine | None:
    """Parse a line of the service manager."""
    if found := _OOM_REPORT.search(text):
        return KillLine("oom_report", place=found[1][:MAX_NAME])
    if found := _OOMD_REPORT.search(text):
        return KillLine("systemd_oomd", place=found[1][:MAX_NAME])
    if found := _UNIT_END.search(text):
        return KillLine("unit_end", place=found[1][:MAX_NAME])
    return None


def parse_kubelet(text: str) -> KillLine | None:
    found = _EVICTED.search(text)
    return KillLine("kubelet", place=(found[1] or found[2])[:MAX_NAME]) if found else None


def parse_runtime(text: str) -> KillLine | None:
    if found := _TASK_OOM.search(text):
        return KillLine("runtime_oom", place=found[1])
    found = _FORCED.search(text)
    container = found and (found[1] or next(iter(_CONTAINER.findall(text)), ""))
    return KillLine("runtime", place=container) if container else None


Parse = Callable[[str], "KillLine | None"]
# The units whose lines are read, with the parsers of each. k3s and rke2 contain a kubelet and containerd.
_NODE: tuple[Parse, ...] = (parse_kubelet, parse_runtime)
PARSERS: Mapping[str, tuple[Parse, ...]] = {
    "systemd-oomd.service": (parse_oomd,),
    "earlyoom.service": (parse_earlyoom,),
    "nohang.service": (),
    "nohang-desktop.service": (),
    "kubelet.service": (parse_kubelet,),
    "k3s.service": _NODE,
    "k3s-agent.service": _NODE,
    "rke2-server.service": _NODE,
    "rke2-agent.service": _NODE,
    "containerd.service": (parse_runtime,),
    "docker.service": (parse_runtime,),
    "init.scope": (parse_systemd,),
}
NOHANG = frozenset({"nohang.service", "nohang-desktop.service"})


class KillLineTracker:
    """Accumulator of parsed lines. `kills` are the latest, at most `MAX_KILLS`."""

    MAX_KILLS = 32

    def __init__(self) -> None:
        self.kills: tuple[ServiceKill, ...] = ()
        self._number = 0
        self._candidate: KillLine | None = None

    def read(self, unit: str, text: str, unix: float) -> None:
        """Add a line that a unit has logged."""
        if unit == "earlyoom.service" and text.startswith(DRY_RUN) and self.kills:
            self.kills = self.kills[:-1]
        found = self._parse_nohang(text) if unit in NOHANG else _parse(unit, text)
        if found is not None:
            self._number += 1
            kill = ServiceKill(
                self._number,
                unix,
                found.source,
                printable(text[:MAX_LINE]),
                found.pid,
                printable(found.name),
                printable(found.place),
            )
            self.kills = (*self.kills, kill)[-self.MAX_KILLS :]

    def _parse_nohang(self, text: str) -> KillLine | None:
        """Remember the candidate. A message may have several lines."""
        for line in text.split("\n"):
            if found := _NOHANG_VICTIM.search(line):
                self._candidate = KillLine("nohang", int(found[1]), found[2][:MAX_NAME])
            elif _NOHANG_ACTION.search(line) and self._candidate is not None:
                victim, self._candidate = self._candidate, None
                return victim
        return None


def _parse(unit: str, text: str) -> KillLine | None:
    return next((found for parse in PARSERS.get(unit, ()) if (found := parse(text))), None)
