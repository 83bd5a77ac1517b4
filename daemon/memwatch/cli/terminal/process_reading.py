"""Read on request: the PSS of one process, from the daemon, and its OOM score, from this machine's /proc."""

from __future__ import annotations

import os

from memwatch.cli.headroom import is_this_machine
from memwatch.cli.http import Address, CommandError, RequestDeclinedError, ask
from memwatch.cli.terminal.moment import ProcessReading
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent, Bytes, Process
from memwatch.core.processes.process_folder import read_oom_score
from memwatch.core.processes.pss import PssError, PssReader
from memwatch.core.snapshot import Snapshot
from memwatch.library.daemon_client import read_roots

OTHER_MACHINE = "readable on the machine itself only"


def read_process(address: Address | None, snapshot: Snapshot, pid: int) -> ProcessReading | None:
    """Read the figures of a listed process, None if it is not listed. Without `address` all are read here."""
    process = next((one for one in snapshot.processes if one.pid == pid), None)
    if process is None:
        return None
    roots = Roots(*read_roots(os.environ))
    pss, pss_note = _pss_here(roots, process) if address is None else _pss_of(address, pid)
    is_here = not snapshot.simulated and is_this_machine(snapshot)
    score = read_oom_score(roots, process) if is_here else Absent.NOT_AVAILABLE
    demo = "demo data (simulated process)" if snapshot.simulated else OTHER_MACHINE
    note = "" if is_here else demo
    return ProcessReading(pid, pss, pss_note, score, note)


def _pss_of(address: Address, pid: int) -> tuple[Bytes, str]:
    try:
        return int(ask(address, f"/api/v1/processes/{pid}/pss").json["pss_bytes"]), ""
    except RequestDeclinedError as error:
        return Absent.NOT_AVAILABLE, error.detail or str(error)
    except CommandError as error:
        return Absent.NOT_AVAILABLE, str(error)


def _pss_here(roots: Roots, process: Process) -> tuple[Bytes, str]:
    try:
        return PssReader(roots).read(process).pss_bytes, ""
    except PssError as error:
        return Absent.NOT_AVAILABLE, str(error)
