"""`memwatch doctor --report`: a redacted archive about this machine, for a bug report."""

from __future__ import annotations

import mmap
import os
import platform
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from memwatch.build_info import REVISION, __version__
from memwatch.cli import local
from memwatch.cli.context import ClientContext, check_shape, print_errors
from memwatch.cli.http import CommandError, RequestDeclinedError, ask
from memwatch.cli.record import Recorded, write_recording
from memwatch.core.linux.daemon_connection import INQUIRY_SECONDS
from memwatch.core.linux.files import Roots, read_once
from memwatch.core.linux.user_files import folder_to_write
from memwatch.core.printable import describe_error
from memwatch.core.reading.identity import read_identity
from memwatch.core.reading.machine import DirectReading
from memwatch.core.runtime.own_files import remedy_to_write
from memwatch.core.snapshot import UNKNOWN_BOOT
from memwatch.core.units import size
from memwatch.core.wire import to_bytes
from memwatch.reporting.doctor.versions import InstalledVersions, find_version, read_versions
from memwatch.reporting.recording import RecordingFile, Redactor
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.json import snapshot_json
from memwatch.reporting.report.contents import (
    ALWAYS_LISTED,
    FORMAT,
    KEY,
    RECORDING,
    VALID,
    Contents,
    Evidence,
    EvidenceReader,
    build_archive,
    read_drivers,
    read_users,
    summarize_files,
    write_archive,
)
from memwatch.reporting.report.redaction import MIN_PERSON, TextRedactor

Json = Any

# Numbers of the processes in a report. 1 and 2 keep theirs, which have a meaning of their own.
FIRST_PID = 1001
INTERVAL_SECONDS = 1.0
OTHER_MACHINE = "the daemon watches another machine than this one: run memwatch doctor --report there"
SIMULATED = "the data is simulated"
NO_PROCFS = "this system has no /proc"


class ReportRedactor:
    """Redacts everything in one report by the same words."""

    def __init__(self) -> None:
        self.redactor: Redactor = Redactor(("pci",), {pid: pid for pid in ALWAYS_LISTED}, FIRST_PID)
        self.names: TextRedactor = TextRedactor(self.redactor)

    def redact(self, snapshot: Json) -> Json:
        return self.names.tree(self.redactor.redact(snapshot))


class ReportFile(Struct, frozen=True):
    """A report that was written."""

    path: Path
    bytes: int
    contents: Contents

    def json(self) -> Json:
        found = self.contents.summary
        return {"file": str(self.path), "bytes": self.bytes, "hidden": dict(self.contents.hidden), "report": found}

    def lines(self) -> Iterator[str]:
        return self.contents.lines(str(self.path), size(self.bytes))


def default_name(unix: float) -> Path:
    """Return a name with the date, without the host."""
    return Path(f"memwatch-report-{datetime.fromtimestamp(unix, timezone.utc):%Y-%m-%d}.tar.gz")


def write_report(context: ClientContext, path: Path | None, seconds: float, overwrite: bool) -> ReportFile:
    """Write a report with a recording of `seconds`. Raise CommandError if the file exists or cannot be written."""
    unix = time.time()
    file = path or default_name(unix)
    check_writable(file, overwrite)
    print_errors([f"recording for {seconds:g} s; Ctrl-C ends the recording early"])
    contents = collect(context, seconds, unix)
    data = build_archive(contents.members(), int(unix))
    try:
        write_archive(file, data, overwrite)
    except OSError as error:
        why = describe_error(error)
        raise CommandError(f"cannot write {file}: {why}; {remedy_to_write(error)}") from None
    return ReportFile(file, len(data), contents)


def check_writable(file: Path, overwrite: bool) -> None:
    """Raise CommandError if a report cannot be written to the file. Call before the recording, which takes long."""
    if os.path.lexists(file) and not overwrite:
        raise CommandError(f"{file} exists; name another file, or replace it with --overwrite")
    why = "no permission for its folder" if os.path.exists(file.parent) else "its folder does not exist"
    if os.access(file.parent, os.W_OK):
        try:
            with folder_to_write(file):
                return
        except OSError as error:
            why = f"its folder {error.strerror}"
    raise CommandError(f"cannot write {file}: {why}; name a file in another one")


def collect(context: ClientContext, seconds: float, unix: float) -> Contents:
    """Read this machine and its daemon. Without a daemon, the machine is read directly."""
    reading, settings_error = local.load_reading_despite_settings()
    answer = context.snapshot(reading)
    direct = reading if answer.unix is None else None
    hide = ReportRedactor()
    with check_shape(context.address):
        snapshot = answer.json
        why_none = find_obstacle(reading.roots, snapshot)
        for folder, shown in zip(_folders(reading.roots), ("/proc", "/sys", ""), strict=True):
            hide.names.add_folder(folder, shown)
        hide.names.add_names("host", host_names(reading.roots, str(snapshot["host"])))
        hide.names.add_names("user", user_names(reading.roots, snapshot))
        pids = [int(process["pid"]) for process in snapshot["processes"]]
        evidence = Evidence() if why_none else EvidenceReader(reading.roots, hide.names).read(pids)
        drivers = {} if why_none else read_drivers(reading.collectors, hide.names)
        redacted = hide.redact(snapshot)
        scan = snapshot["process_scan"] or {}
        files = summarize_files(evidence, count_processes(evidence), scan.get("seen"), why_none)
        doctor = hide.redact(diagnose(context, direct))
    recording, note = record_snapshots(context, direct, hide, seconds)
    summary = {
        KEY: FORMAT,
        "made": datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            **own_versions(),
            **({} if direct else {"memwatchd": daemon_version(context, doctor)}),
            **({} if why_none else system_versions(reading.roots, evidence, drivers)),
        },
        "daemon": "none: the machine was read directly" if direct else "reached",
        "settings": hide.names.text(settings_error) or VALID,
        "simulated": bool(redacted.get("simulated")),
        "page_size": mmap.PAGESIZE,
        "machine": redacted["machine"],
        "collectors": redacted["collectors"],
        "doctor": doctor,
        "recording": {"file": RECORDING, "text": note},
        "files": files,
        "hidden": hide.names.counts,
    }
    return Contents(summary, recording, drivers, evidence, hide.names.counts)


def _folders(roots: Roots) -> tuple[str, str, str]:
    return str(roots.procfs), str(roots.sysfs), str(roots.rootfs)


def diagnose(context: ClientContext, direct: DirectReading | None) -> Json:
    """Return the results of doctor. A daemon with simulated data has none, and says why."""
    if direct:
        return local.doctor(direct)
    try:
        return ask(context.address, "/api/v1/doctor", seconds=INQUIRY_SECONDS).json
    except RequestDeclinedError as error:
        return {"checks": [], "error": str(error)}


def find_obstacle(roots: Roots, snapshot: Json) -> str:
    """Return why files of this machine are not evidence for the snapshot. Empty if they are."""
    if snapshot.get("simulated"):
        return SIMULATED
    if not os.path.isdir(roots.procfs):
        return NO_PROCFS
    here = read_identity(roots)
    same_boot = here.boot_id == snapshot["boot_id"] and here.boot_id != UNKNOWN_BOOT
    return "" if same_boot and here.host == snapshot["host"] else OTHER_MACHINE


def host_names(roots: Roots, host: str) -> set[str]:
    """Return the names of the machine and of this host, with and without their domains."""
    names = {host, read_identity(roots).host, socket.gethostname()}
    return names | {name.partition(".")[0] for name in names}


def user_names(roots: Roots, snapshot: Json) -> set[str]:
    """Return the users that own processes or are people, and the user who runs this command."""
    names = {str(process["user"]) for process in snapshot["processes"] if process.get("user")}
    names |= {name for uid, name in read_users(roots.rootfs) if uid >= MIN_PERSON}
    return names | {os.environ[key] for key in ("USER", "LOGNAME", "SUDO_USER") if os.environ.get(key)}


def count_processes(evidence: Evidence) -> int:
    """Return the number of processes with files. Process 2 is a thread of the kernel."""
    found = (path.split("/") for path in evidence.files)
    return sum(len(parts) == 3 and parts[2] == "stat" and parts[1] != "2" for parts in found)


def record_snapshots(
    context: ClientContext, direct: DirectReading | None, hide: ReportRedactor, seconds: float
) -> tuple[bytes, str]:
    """Record, and return the file with the number of its snapshots. If that fails, the sentence has the reason."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, RECORDING)
        try:
            if direct:
                recorded = record_directly(direct, path, hide, seconds)
            else:
                recorded = write_recording(context.address, path, seconds, hide)
        except CommandError as error:
            return path.read_bytes() if os.path.exists(path) else b"", hide.names.text(f"incomplete: {error}")
        return path.read_bytes(), recording_text(recorded, seconds)


def recording_text(recorded: Recorded, seconds: float) -> str:
    found = wording.count(recorded.snapshots, "snapshot")
    if recorded.interrupted_after is None:
        return f"{found} in {seconds:g} s"
    return f"{found}: interrupted after {recorded.interrupted_after:.0f} of {seconds:g} s"


def record_directly(reading: DirectReading, path: Path, hide: ReportRedactor, seconds: float) -> Recorded:
    """Record snapshots of this machine without a daemon. Ctrl-C ends it early."""
    file = RecordingFile(path, host="host-1", redacted=True)
    snapshots, began = local.snapshots(INTERVAL_SECONDS, reading), time.monotonic()
    interrupted_after = None
    try:
        with closing(snapshots):  # type: ignore[type-var]
            for snapshot in islice(snapshots, max(1, int(seconds / INTERVAL_SECONDS))):
                file.write(to_bytes(hide.redact(snapshot_json(snapshot))))
    except KeyboardInterrupt:
        interrupted_after = time.monotonic() - began
    file.close()
    return Recorded(file.lines - 1, interrupted_after)


def own_versions() -> dict[str, str]:
    return {"memwatch": __version__, "revision": REVISION, "Python": platform.python_version()}


def system_versions(roots: Roots, evidence: Evidence, drivers: Json) -> dict[str, str]:
    """Return versions of the system, its drivers and packages. Unknown ones are left out."""
    kernel = (read_once(roots.procfs / "sys/kernel/osrelease") or b"").decode("utf-8", "replace").strip()
    reading = drivers.get("nvml", {}).get("reading", {})
    nvml = {name: find_version(str(reading.get(name)).encode()) for name in ("driver", "cuda")}
    named = {"Linux": kernel, "distribution": distribution(evidence), "CUDA": nvml["cuda"]}
    installed = driver_versions(read_versions(roots)) | {"NVIDIA driver": nvml["driver"]}
    return {name: version for name, version in {**named, **installed}.items() if version}


def daemon_version(context: ClientContext, doctor: Json) -> str:
    """Return the version in the results of doctor. A daemon with simulated data has it in its schema only."""
    if "version" in doctor:
        return str(doctor["version"])
    try:
        return str(ask(context.address, "/openapi.json").json["info"]["version"])
    except (CommandError, LookupError, TypeError) as error:
        return f"not known ({error})"


def driver_versions(installed: InstalledVersions) -> dict[str, str | None]:
    packages = {f"package {name}": find_version(text.encode()) for name, text in installed.packages.items()}
    return {
        "nvidia module": installed.nvidia_module,
        "nvidia library": installed.nvidia_library,
        "ROCm": installed.rocm,
        **packages,
    }


def distribution(evidence: Evidence) -> str:
    """Return ID and VERSION_ID of os-release: "debian 12"."""
    files = (evidence.files.get(f"root/{path}", b"") for path in ("etc/os-release", "usr/lib/os-release"))
    text = b"".join(files).decode()
    fields = dict(line.partition("=")[::2] for line in text.splitlines())
    return " ".join(_unquoted(fields, ("ID", "VERSION_ID")))


def _unquoted(fields: dict[str, str], names: Iterable[str]) -> Iterator[str]:
    yield from (fields[name].strip('"') for name in names if name in fields)
