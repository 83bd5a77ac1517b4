"""What a snapshot shows and what it lacks."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.doctor.model import Check, Verdict
from memwatch.model import Absent, Device
from memwatch.snapshot import CollectorStatus, Snapshot
from memwatch.units import size

# Without these something is wrong, and said elsewhere.
_EVERYWHERE = frozenset({"meminfo", "psi", "vmstat", "processes", "machine"})
# What to do where a collector has no figures, by its name and a part of its error.
_REMEDIES = (
    ("nvml", "no NVIDIA driver is installed", "install NVIDIA's driver, and its library in a container"),
    ("nvml", "modprobe nvidia", "modprobe nvidia"),
    ("nvml", "another version than the library", "restart the machine, or reload the nvidia modules"),
    ("nvmap", "debugfs", "mount debugfs at /sys/kernel/debug, and let memwatchd read it as root"),
    ("nvmap", "ermission", "let memwatchd run as root: the kernel shows NvMap's clients to root only"),
    ("tegrastats", "no tegrastats on PATH", "name it with path under [collectors.tegrastats]"),
    ("tegrastats", "no such program", "set collectors.tegrastats.path to where tegrastats is"),
    ("kmsg", "ermi", "give memwatchd CAP_SYSLOG, or set kernel.dmesg_restrict = 0"),
    ("drm", "ermission", "let memwatchd run as root, or with CAP_SYS_PTRACE"),
    ("amdsmi", "cannot be imported", "install ROCm's amd-smi-lib of the same release, or pip uninstall amdsmi"),
)


def seen(snapshot: Snapshot) -> Iterator[Check]:
    """Pools, devices, processes and collectors, in this order."""
    yield from _pools(snapshot)
    yield from _gpus(snapshot)
    for device in snapshot.devices:
        yield from _device(device)
    yield from _processes(snapshot)
    yield from _collectors(snapshot)


def _pools(snapshot: Snapshot) -> Iterator[Check]:
    if not snapshot.pools:
        yield Check("pools", Verdict.PROBLEM, "not even System RAM can be read", "look at the collectors below")
    for pool in snapshot.pools:
        text = f"{pool.label}: {size(pool.size_bytes)}, says {pool.source}"
        if isinstance(pool.used_bytes, Absent):
            why = pool.used_bytes.value.replace("_", " ")
            yield Check(f"pools.{pool.id}", Verdict.PROBLEM, f"{text}; how much is used is {why}")
        else:
            yield Check(f"pools.{pool.id}", Verdict.OK, text)


def _gpus(snapshot: Snapshot) -> Iterator[Check]:
    """GPUs on the bus that nobody reads are told by the machine's own sentence."""
    if not snapshot.devices:
        unread = "is not read here" in snapshot.machine.explanation
        yield Check("devices", Verdict.PROBLEM if unread else Verdict.OK, snapshot.machine.explanation)


def _device(device: Device) -> Iterator[Check]:
    name = f"{device.id}, {device.name}"
    if device.state == "ok":
        why = f" ({device.evidence[0]})" if device.evidence else ""
        yield Check(f"devices.{device.id}", Verdict.OK, f"{name}: {device.architecture.value}{why}")
    else:
        yield Check(f"devices.{device.id}", Verdict.PROBLEM, f"{name} is {device.state.replace('_', ' ')}")
    if isinstance(device.headroom_bytes, Absent):
        why = device.headroom_bytes.value.replace("_", " ")
        text = f"{name}: what it could allocate is {why}"
        yield Check(f"devices.{device.id}.headroom", Verdict.HINT, text)
    for number, note in enumerate(device.notes):
        yield Check(f"devices.{device.id}.notes.{number}", Verdict.HINT, f"{name}: {note}")


def _processes(snapshot: Snapshot) -> Iterator[Check]:
    if snapshot.machine.sees_all_processes is False:
        yield Check(
            "processes.hidden",
            Verdict.HINT,
            "processes outside this container are not seen, so memory that they hold has no owner here",
            "run the container with --pid=host (hostPID: true in Kubernetes)",
        )
    scan = snapshot.process_scan
    if not isinstance(scan, Absent) and scan.unreadable:
        yield Check(
            "processes.unreadable",
            Verdict.HINT,
            "some processes of other users cannot be looked into",
            "let memwatchd run as root, or with CAP_SYS_PTRACE",
        )


def _collectors(snapshot: Snapshot) -> Iterator[Check]:
    """Collectors that fail are problems; those that are not needed here are one line together."""
    well = [one.name for one in snapshot.collectors if one.state == "ok"]
    for status in snapshot.collectors:
        if status.state in ("failing", "stalled") or remedy_of(status):
            failing = status.state in ("failing", "stalled")
            verdict = Verdict.PROBLEM if failing else Verdict.HINT
            text = f"{status.name} is {status.state}: {status.error or 'no answer'}"
            yield Check(f"collectors.{status.name}", verdict, text, remedy_of(status))
    yield Check("collectors", Verdict.OK, f"collectors that answer: {', '.join(well) or 'none'}")
    absent = [one.name for one in snapshot.collectors if one.state == "unavailable" and _is_not_missed(one)]
    if absent:
        yield Check(
            "collectors.absent", Verdict.OK, f"collectors that this machine has no use for: {', '.join(absent)}"
        )


def _is_not_missed(status: CollectorStatus) -> bool:
    return not remedy_of(status) and status.name not in _EVERYWHERE


def remedy_of(status: CollectorStatus) -> str | None:
    """What somebody can do about a collector without figures; None where nothing is wrong, or nothing is known."""
    if status.state == "ok" or not status.error:
        return None
    return next(
        (remedy for name, part, remedy in _REMEDIES if name == status.name and part in status.error),
        None,
    )
