"""Does it fit, where, with how much to spare, and why. Pure: bytes and a snapshot in, verdicts out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from memwatch.backends.devices import capacity_of, condition_of, system_ram_of
from memwatch.holding import ram_of
from memwatch.model import Absent, Bytes, Device, Process
from memwatch.snapshot import Snapshot
from memwatch.units import size

CPU = "cpu"
NAMED_HOLDERS = 2
# Above this part of a pool's use, by the default thresholds, the machine is critical.
CRITICAL_RATIO = 0.95


class Verdict(Struct, frozen=True):
    """One place. `spare_bytes`: what would be left, or, below zero, what is missing; `reason`: a sentence."""

    device: str
    name: str
    fits: bool | Absent
    size_bytes: Bytes
    headroom_bytes: Bytes
    spare_bytes: Bytes
    reason: str


class Fit(Struct, frozen=True):
    """`best`: the device to use, None where it fits nowhere."""

    bytes: int
    best: str | None
    verdicts: tuple[Verdict, ...]


def fit_of(need: int, snapshot: Snapshot) -> Fit:
    """Every GPU, then the CPU. The GPU with most to spare is best; the CPU where no GPU will do."""
    verdicts = (*(_on_device(need, device, snapshot) for device in snapshot.devices), _on_cpu(need, snapshot))
    fitting = [one for one in verdicts if one.fits is True]
    gpus = [one for one in fitting if one.device != CPU]
    best = max(gpus, key=_spare, default=fitting[0] if fitting else None)
    return Fit(need, best.device if best else None, verdicts)


def _spare(verdict: Verdict) -> int:
    return verdict.spare_bytes if isinstance(verdict.spare_bytes, int) else -1


def _on_device(need: int, device: Device, snapshot: Snapshot) -> Verdict:
    whole = capacity_of(device, snapshot)
    if device.state != "ok":
        reason = f"{device.id} {condition_of(device)}"
        return Verdict(device.id, device.name, False, whole, device.headroom_bytes, Absent.NOT_AVAILABLE, reason)
    shares = [share.id for share in snapshot.shares if share.device == device.id]
    holders = _holders(snapshot.processes, [*shares, *device.allocates_from])
    return _judged(need, Verdict(device.id, device.name, False, whole, device.headroom_bytes, 0, ""), holders)


def _on_cpu(need: int, snapshot: Snapshot) -> Verdict:
    ram = ram_of(snapshot.pools)
    if ram is None:
        reason = "System RAM is not known"
        return Verdict(CPU, "CPU", Absent.NOT_AVAILABLE, *(Absent.NOT_AVAILABLE,) * 3, reason)
    whole, room = system_ram_of(snapshot)
    holders = _holders(snapshot.processes, ())
    return _judged(need, Verdict(CPU, ram.label, False, whole, room, 0, ""), holders)


def _judged(need: int, blank: Verdict, holders: str) -> Verdict:
    room, whole = blank.headroom_bytes, blank.size_bytes
    if isinstance(room, Absent):
        why = f"what it could allocate is not known ({room.value.replace('_', ' ')})"
        return replace(blank, fits=room, spare_bytes=room, reason=why)
    spare = room - need
    if spare >= 0:
        tight = isinstance(whole, int) and whole > 0 and spare < whole * (1 - CRITICAL_RATIO)
        warning = f", which is critical: less than {1 - CRITICAL_RATIO:.0%} of {size(whole)}" if tight else ""  # type: ignore[arg-type]
        return replace(blank, fits=True, spare_bytes=spare, reason=f"leaves {size(spare)}{warning}")
    if isinstance(whole, int) and need > whole:
        return replace(
            blank, spare_bytes=spare, reason=f"it has {size(whole)} in all, {size(need - whole)} too few"
        )
    reason = f"{size(-spare)} are missing now; it would fit if others let go of them{holders}"
    return replace(blank, spare_bytes=spare, reason=reason)


def _holders(processes: Sequence[Process], places: Sequence[str]) -> str:
    """Who holds the most of these places, or of System RAM."""
    held = [(_held(process, places), process) for process in processes]
    largest = sorted((one for one in held if one[0]), key=lambda one: -one[0])[:NAMED_HOLDERS]
    words = ", ".join(f"{process.name} ({process.pid}) {size(count)}" for count, process in largest)
    return f": {words}" if words else ""


def _held(process: Process, places: Sequence[str]) -> int:
    figures = [process.device_bytes.get(place, 0) for place in places] if places else [process.rss_bytes]
    return sum(figure for figure in figures if isinstance(figure, int))
