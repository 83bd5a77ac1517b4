"""Checks of a snapshot: data that is there and data that is missing, and GPUs that no collector reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from memwatch.core.engines.records import NOT_SENT
from memwatch.core.linux.files import Roots
from memwatch.core.linux.key_owner import TOKEN_NOT_SENT
from memwatch.core.linux.pci import PciGpu, bound_driver, pci_numbers, read_gpu
from memwatch.core.listing import LISTS, left_out_texts
from memwatch.core.model import Absent, Architecture, Device
from memwatch.core.options import ConfigState
from memwatch.core.snapshot import CollectorStatus, Snapshot
from memwatch.core.units import size
from memwatch.reporting.answers import Check, Verdict
from memwatch.reporting.doctor.versions import RELOAD_NVIDIA

# Collectors that every machine needs: if one is unavailable, it is not listed as "not applicable".
_EVERYWHERE = frozenset({"meminfo", "psi", "vmstat", "processes", "machine"})
# Remedies by the name of the collector and a part of its error.
_REMEDIES = (
    ("nvml", "no NVIDIA driver is installed", "install NVIDIA's driver, and its library in a container"),
    ("nvml", "modprobe nvidia", "modprobe nvidia"),
    ("nvml", "another version than the library", RELOAD_NVIDIA),
    ("nvmap", "debugfs", "mount debugfs at /sys/kernel/debug, and use the drop-in jetson.conf or root"),
    ("nvmap", "ermission", "use the drop-in jetson.conf, or run memwatchd as root: only root may enter debugfs"),
    ("tegrastats", "no tegrastats on PATH", "set path under [collectors.tegrastats]"),
    ("tegrastats", "root must not run", "set path under [collectors.tegrastats]"),
    ("amd_cli", "root must not run", "set amd_smi or rocm_smi under [collectors.amd_cli]"),
    ("amd_cli", "no such program", "set amd_smi and rocm_smi under [collectors.amd_cli] to paths of programs"),
    ("tegrastats", "no such program", "set collectors.tegrastats.path to the path of tegrastats"),
    (
        "kmsg",
        "pass it as a device",
        "pass it as a device: devices in Compose, the component kernel-log in Kubernetes",
    ),
    (
        "kmsg",
        "ermi",
        "give memwatchd CAP_SYSLOG (kernel-log.conf, in Compose kernel-log.yml), or set kernel.dmesg_restrict = 0",
    ),
    ("kmsg", "", "give memwatchd the host's /dev/kmsg and CAP_SYSLOG"),
    ("drm", "ermission", "let memwatchd run as root, or with CAP_SYS_PTRACE"),
    ("amdsmi", "cannot be imported", "install ROCm's amd-smi-lib of the same release, or pip uninstall amdsmi"),
)
CONFIG_REMEDY = "check it with memwatchd --check-config, then systemctl reload or restart memwatchd"
DELIVERY_REMEDY = "check the receiver, then memwatchd --test-alert"
# What is not known if a collector is unavailable.
_MISSING = {"kmsg": "errors of GPU drivers, and processes that the OOM killer ended, are not known"}


def run_checks(snapshot: Snapshot) -> Iterator[Check]:
    """Check pools, devices, processes, model servers, neighbours, lists and collectors, in this order."""
    yield from _pools(snapshot)
    yield from _gpus(snapshot)
    for device in snapshot.devices:
        yield from _device(device)
    yield from _processes(snapshot)
    yield from _engines(snapshot)
    yield from _neighbours(snapshot)
    yield from _lists(snapshot)
    yield from check_collectors(snapshot)


def _lists(snapshot: Snapshot) -> Iterator[Check]:
    for name in LISTS:
        for text in left_out_texts(snapshot.left_out, name):
            yield Check(f"lists.{name}", Verdict.HINT, text)


def _pools(snapshot: Snapshot) -> Iterator[Check]:
    if not snapshot.pools:
        yield Check("pools", Verdict.PROBLEM, "System RAM cannot be read", "see the collectors below")
    for pool in snapshot.pools:
        text = f"{pool.label}: {size(pool.size_bytes)} (source: {pool.source})"
        if isinstance(pool.used_bytes, Absent):
            why = pool.used_bytes.value.replace("_", " ")
            verdict = Verdict.OK if pool.used_bytes is Absent.SUSPENDED else Verdict.PROBLEM
            yield Check(f"pools.{pool.id}", verdict, f"{text}; used memory is {why}")
        else:
            yield Check(f"pools.{pool.id}", Verdict.OK, text)


def _gpus(snapshot: Snapshot) -> Iterator[Check]:
    if not snapshot.devices:
        machine = snapshot.machine
        # For a GPU on the bus without a collector, the explanation says that it is not read here.
        unread = "is not read here" in machine.explanation
        none = Verdict.OK if machine.architecture == "cpu_only" else Verdict.HINT
        yield Check("devices", Verdict.PROBLEM if unread else none, machine.explanation)


def _device(device: Device) -> Iterator[Check]:
    name = f"{device.id}, {device.name}"
    why = f" ({device.evidence[0]})" if device.evidence else ""
    if device.state == "ok" and device.headroom_after_reclaim_bytes is Absent.SUSPENDED:
        yield Check(f"devices.{device.id}", Verdict.OK, f"{name}: suspended, or idle and left alone{why}")
    elif device.state == "ok" and device.architecture is Architecture.UNKNOWN:
        why = f" ({'; '.join(device.evidence)})" if device.evidence else ""
        text = f"{name}: architecture unknown{why}, so its memory may be part of System RAM or separate"
        yield Check(f"devices.{device.id}", Verdict.PROBLEM, text)
    elif device.state == "ok":
        yield Check(f"devices.{device.id}", Verdict.OK, f"{name}: {device.architecture.value}{why}")
    else:
        yield Check(f"devices.{device.id}", Verdict.PROBLEM, f"{name} is {device.state.replace('_', ' ')}")
    if (
        isinstance(device.headroom_after_reclaim_bytes, Absent)
        and device.headroom_after_reclaim_bytes is not Absent.SUSPENDED
    ):
        why = device.headroom_after_reclaim_bytes.value.replace("_", " ")
        text = f"{name}: headroom is {why}"
        yield Check(f"devices.{device.id}.headroom", Verdict.HINT, text)
    for number, note in enumerate(device.notes):
        yield Check(f"devices.{device.id}.notes.{number}", Verdict.HINT, f"{name}: {note}")


def _processes(snapshot: Snapshot) -> Iterator[Check]:
    if snapshot.machine.sees_all_processes is False:
        yield Check(
            "processes.hidden",
            Verdict.HINT,
            "processes outside this container are not visible, so their memory is unaccounted",
            "run the container with --pid=host (hostPID: true in Kubernetes)",
        )
    scan = snapshot.process_scan
    if isinstance(scan, Absent):
        return
    if scan.note and snapshot.machine.sees_all_processes:
        what, _, remedy = scan.note.rstrip(".").partition("; ")
        yield Check("processes.hidden", Verdict.HINT, what, remedy or None)
    elif scan.unreadable:
        yield Check(
            "processes.unreadable",
            Verdict.HINT,
            "some processes of other users cannot be read",
            "let memwatchd run as root, or with CAP_SYS_PTRACE",
        )


def check_config(config: ConfigState) -> Iterator[Check]:
    """Each setting of the daemon that is not in force is a problem."""
    for number, problem in enumerate(config.problems, start=1):
        yield Check(f"config.{number}", Verdict.PROBLEM, problem, CONFIG_REMEDY)


def check_deliveries(failures: Iterable[str]) -> Iterator[Check]:
    """Each receiver whose last attempt failed is a problem."""
    for number, failure in enumerate(failures):
        what, _, remedy = failure.partition("; ")
        yield Check(f"receivers.{number}", Verdict.PROBLEM, what, remedy or DELIVERY_REMEDY)


class MachineNames(NamedTuple):
    """Names of this machine for Prometheus: the address of its scrapes, and the label of memwatchd's alerts."""

    scraped: str
    sent: str


def check_names(names: MachineNames | None) -> Iterator[Check]:
    """Yield a hint if scrapes and alerts seem to name two machines. Relabelling by the scrape is not seen."""
    if names is None or names.scraped == names.sent:
        return
    scraped, sent = names
    text = (
        f"Prometheus scrapes this machine as {scraped}, and its own alerts have instance {sent}: "
        "Alertmanager takes the two for different machines"
    )
    labels, key = f'labels: {{instance: "{sent}"}}', 'instance = "{}" under [alerts]'.format
    remedy = f"set {key(scraped)}"
    if scraped.startswith(("127.", "localhost", "[::1]")):
        remedy = f"add {labels} to the target in prometheus.yml, and set {key(sent)}"
    yield Check("alerts.instance", Verdict.HINT, text, f"{remedy}; if the scrape relabels instance, set that one")


def _engines(snapshot: Snapshot) -> Iterator[Check]:
    """Check that the key of each model server reaches it."""
    for number, engine in enumerate(snapshot.engines):
        for note in engine.notes:
            if NOT_SENT in note:
                what, _, remedy = note.rstrip(".").partition("; ")
                yield Check(f"engines.{number}", Verdict.PROBLEM, f"{engine.id}: {what}", remedy or None)


def _neighbours(snapshot: Snapshot) -> Iterator[Check]:
    """Check that the token of each neighbour reaches it."""
    for number, one in enumerate(snapshot.neighbours):
        _, found, why = one.text.partition(TOKEN_NOT_SENT)
        if found:
            what, _, remedy = why.partition(")")[0].partition("; ")
            yield Check(f"neighbours.{number}", Verdict.PROBLEM, f"{one.name}: {found}{what}", remedy or None)


def check_locked_memory(lock_error: str | None) -> Iterator[Check]:
    if lock_error:
        yield Check(
            "memory_lock",
            Verdict.HINT,
            f"{lock_error}: memwatchd reacts late while the machine swaps",
            "give memwatchd LimitMEMLOCK=infinity, in Compose ulimits with memlock: -1, or root and CAP_IPC_LOCK",
        )


def check_collectors(snapshot: Snapshot) -> Iterator[Check]:
    """Check collectors. Each failing one is a problem; those that do not apply share one line."""
    working = [one.name for one in snapshot.collectors if one.state == "ok"]
    for status in snapshot.collectors:
        if status.state in ("failing", "stalled") or find_remedy(status):
            failing = status.state in ("failing", "stalled")
            verdict = Verdict.PROBLEM if failing else Verdict.HINT
            missing = f"; {_MISSING[status.name]}" if status.name in _MISSING else ""
            text = f"{status.name} is {status.state}: {status.error or 'no answer'}{missing}"
            yield Check(f"collectors.{status.name}", verdict, text, find_remedy(status))
    yield Check("collectors", Verdict.OK, f"working collectors: {', '.join(working) or 'none'}")
    absent = [one.name for one in snapshot.collectors if one.state == "unavailable" and _is_not_needed(one)]
    if absent:
        yield Check("collectors.absent", Verdict.OK, f"collectors not applicable here: {', '.join(absent)}")


def _is_not_needed(status: CollectorStatus) -> bool:
    return not find_remedy(status) and status.name not in _EVERYWHERE


def find_remedy(status: CollectorStatus) -> str | None:
    """Return the remedy for a collector without data. None if it works or no remedy is known."""
    if status.state == "ok" or not status.error:
        return None
    return next(
        (remedy for name, part, remedy in _REMEDIES if name == status.name and part in status.error),
        None,
    )


# The driver of PCI functions that are assigned to virtual machines.
VFIO = "vfio-pci"
_GPU_REMEDIES = {
    "": "install or load its driver",
    "nouveau": "install NVIDIA's driver: nouveau does not report the memory of a GPU",
}


def find_unseen_gpus(roots: Roots, snapshot: Snapshot) -> Iterator[Check]:
    """Yield a check for each GPU that is on the bus and not in the snapshot.

    If it has no GPU at all, another check reports that. Under WSL and on boards, devices have no PCI address: each
    of them counts for one GPU of its vendor.
    """
    if not snapshot.devices or snapshot.simulated:
        return
    seen = {pci_numbers(device.pci) for device in snapshot.devices}
    unplaced = Counter(device.vendor for device in snapshot.devices if pci_numbers(device.pci) is None)
    for address, gpu in _list_gpus(roots.sysfs / "bus/pci/devices"):
        if pci_numbers(address) in seen:
            continue
        if unplaced[gpu.maker]:
            unplaced[gpu.maker] -= 1
            continue
        driver = bound_driver(roots.sysfs / "bus/pci/devices" / address)
        yield _build_check(address, gpu, driver, bool(snapshot.machine.in_container))


def _build_check(address: str, gpu: PciGpu, driver: str, contained: bool) -> Check:
    name, number = f"{gpu} at {address}", f"devices.pci.{address}"
    if driver == VFIO:
        return Check(
            number, Verdict.HINT, f"{name} is assigned to a virtual machine ({VFIO}): its memory is not read"
        )
    if contained:
        text = f"{name} is not visible in this container: its memory is not read"
        return Check(
            number, Verdict.HINT, text, "give the container access to the GPU, or run memwatchd on the host"
        )
    how = f"its driver is {driver}" if driver else "no driver is bound"
    text = f"{name} is not reported by any collector ({how}): its memory is not read"
    return Check(number, Verdict.PROBLEM, text, _GPU_REMEDIES.get(driver, "see the collectors below"))


def _list_gpus(folder: Path) -> Iterator[tuple[str, PciGpu]]:
    """Yield address and GPU. Virtual functions (SR-IOV) are parts of a GPU that is listed itself."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        gpu = read_gpu(folder / name)
        if gpu is not None and not os.path.exists(folder / name / "physfn"):
            yield name, gpu
