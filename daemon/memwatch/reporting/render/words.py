"""Format values, levels and absent values as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone

from memwatch.core import units
from memwatch.core.accounting.driver_errors import describe_kind
from memwatch.core.model import Absent, Bytes, Process, Vitals, known_or, name_accelerators
from memwatch.core.pressure.signals import PAST, SPACING_SECONDS, WINDOW_SECONDS, full_in
from memwatch.core.snapshot import LEVEL_WORDS, Level, Pressure, Reason

DASH = "—"
SIMULATED = "Simulated data: replayed from a recording, not measured on this machine."
# For a carve-out.
NOT_JUDGED = "no pressure level (the GPU also uses System RAM)"
LEVEL_LABELS: Mapping[str, str] = {level.word: level.label for level in Level}
# Why a level is held, as `pressure.judge.describe_hold` writes it.
HELD = re.compile(
    r"; (?=calm for|\w+ clears)(?:calm for (?P<calm>\d+) s(?:; )?)?"
    r"(?:(?P<held>\w+) clears (?P<way>after [\d.]+ s below \d+%))?"
)
DAY_SECONDS = 86_400
# A smaller difference between the two bounds of a headroom is not worth a second figure: it is a percent of the
# larger one, or what a process takes at its start.
RECLAIM_RATIO, MIN_RECLAIM_BYTES = 0.01, 64 << 20

ABSENT_WORDS = {
    Absent.NOT_SUPPORTED: "not supported",
    Absent.NOT_PERMITTED: "not permitted",
    Absent.NOT_AVAILABLE: "not available",
    Absent.NOT_READ: "not read",
    Absent.SUSPENDED: "suspended",
    Absent.STALE: "stale",
    Absent.INCONSISTENT: "inconsistent",
}
ABSENT_SENTENCES = {
    Absent.NOT_SUPPORTED: "Not provided by this hardware, kernel or driver.",
    Absent.NOT_PERMITTED: "The user that memwatchd runs as is not permitted to read it.",
    Absent.NOT_AVAILABLE: "Not available at the moment.",
    Absent.NOT_READ: "memwatchd does not read it on such hardware.",
    Absent.SUSPENDED: "The device is suspended, or idle and left alone so that it can be: reading would wake it.",
    Absent.STALE: "The collector stopped responding, and its last value is too old to show.",
    Absent.INCONSISTENT: "The reported values contradict each other and were rejected.",
}

CONTENT_WORDS = {
    "anonymous": "processes",
    "shared_memory": "shared memory",
    "huge_pages": "huge pages",
    "kernel": "kernel",
    "devices": "GPU and devices",
    "unattributed": "unattributed",
    "page_cache": "page cache",
    "free": "free",
    "used": "used",
    "reserved": "reserved",
    "available": "available",
}

ARCHITECTURE_WORDS = {
    "discrete": "discrete GPU memory",
    "unified": "unified memory",
    "carveout": "carve-out",
    "coherent": "coherent memory",
    "mixed": "mixed architectures",
    "cpu_only": "CPU only",
    "unknown": "architecture unknown",
}
GROUP_WORDS = {
    "process": "Processes",
    "container": "Containers",
    "pod": "Kubernetes pods",
    "job": "Batch jobs",
    "unit": "systemd units",
    "user": "Users",
}
API_WORDS = {"cuda": "CUDA", "rocm": "ROCm"}
FACT_WORDS = {
    "cuda": "CUDA",
    "gfx": "LLVM target",
    "jetpack": "JetPack",
    "l4t": "L4T",
    "mig": "MIG",
    "pci_id": "PCI ID",
    "power": "Power state",
    "soc": "SoC",
}
CLOCK_WORDS = {"sm": "SM clock", "graphics": "GPU clock", "memory": "memory clock"}
THROTTLE_WORDS = {
    "thermal": "temperature",
    "hw_thermal": "temperature (hardware)",
    "hw_slowdown": "hardware slowdown",
    "pl1": "power limit (PL1)",
    "pl2": "power limit (PL2)",
    "pl4": "current limit (PL4)",
    "ratl": "average temperature (RATL)",
    "prochot": "temperature (PROCHOT)",
    "ppt0": "power limit (PPT0)",
    "unnamed": "for a reason that the driver does not name",
}
# A deadline below this is no figure.
IN_SECONDS = 5.0
BASIS_WORDS = {
    "rss": "RSS (shared pages count in each process)",
    "rss + device": "RSS + GPU memory (GPU memory is not part of RSS)",
    "rss + device, perhaps overlapping": "RSS + GPU memory as a range (some pages may count in both)",
    "rss + device, perhaps shared": "RSS + GPU memory as a range (its clients may share buffers)",
    "device": "at least GPU memory (the process is not visible from here)",
    "rss + device, unknown": "at least RSS + known GPU memory (some is unknown)",
}
# The same in a list of processes with several of them, in this order.
BASIS_PARTS = {
    "rss": "RSS",
    "rss + device": "plus GPU memory where a process has some (it is not part of RSS)",
    "rss + device, perhaps overlapping": "plus GPU memory as a range where some pages may count in both",
    "rss + device, perhaps shared": "plus GPU memory as a range where its clients may share buffers",
    "rss + device, unknown": "plus the known GPU memory where some is unknown",
    "device": "at least GPU memory where a process is not visible from here",
}


def absent(reason: Absent) -> str:
    """Format an absent value: "— not permitted"."""
    return f"{DASH} {ABSENT_WORDS[reason]}"


def api(name: str) -> str:
    """Format the name of a GPU API: "CUDA"."""
    return API_WORDS.get(name, name)


def size(count: int | Absent) -> str:
    """Format bytes: 13314398208 is "12.4 GiB"."""
    return absent(count) if isinstance(count, Absent) else units.size(count)


def size_within(part: int, whole: int) -> str:
    """Format bytes in the unit of the whole, without it: "43.0" of "79.6 GiB", "<0.1" below 0.1 GiB."""
    (number, unit), (_, unit_of_whole) = size(part).split(), size(whole).split()
    if unit == unit_of_whole or not part:
        return number
    scaled = part / 1024 ** (units.BINARY_UNITS.index(unit_of_whole) + 1)
    return f"{scaled:.1f}" if scaled >= 0.1 else "<0.1"


def footprint(process: Process) -> str:
    """Format a footprint as one value or as its bounds: "1.2 – 1.4 GiB", "≥ 1.2 GiB" without an upper bound."""
    if process.footprint_range is None:
        return size(process.footprint_bytes)
    low, high = process.footprint_range
    return between(low, high)


def between(low: int, high: int | Absent) -> str:
    """Format a lower and an upper bound."""
    if isinstance(high, Absent):
        return f"≥ {units.size(low)}"
    least, most = units.size(low), units.size(high)
    if least == most:
        return most
    same_unit = least.split()[1] == most.split()[1]
    return f"{least.split()[0] if same_unit else least} – {most}"


def needs_reclaim(certain: Bytes, most: Bytes) -> bool:
    """Return True if a noticeable part of a headroom is free only after the kernel has reclaimed page cache."""
    if isinstance(certain, Absent) or isinstance(most, Absent):
        return False
    return most - certain > max(MIN_RECLAIM_BYTES, most * RECLAIM_RATIO)


def headroom(certain: Bytes, most: Bytes) -> str:
    """Format a headroom: "44.3 GiB", or both bounds if they differ noticeably: "14.5 – 44.3 GiB"."""
    if needs_reclaim(certain, most):
        return between(int(certain), most)  # type: ignore[arg-type]
    return size(most if isinstance(most, Absent) or isinstance(certain, Absent) else certain)


def can_allocate(certain: Bytes, most: Bytes) -> str:
    """Say what a device can allocate: "can allocate 14.5 GiB at once, up to 44.3 GiB after reclaim"."""
    if isinstance(most, Absent):
        return f"headroom {absent(most)}"
    if needs_reclaim(certain, most):
        return f"can allocate {size(certain)} at once, up to {size(most)} after reclaim"
    if isinstance(certain, Absent):
        return f"can allocate up to {size(most)} after reclaim"
    return f"can allocate {size(certain)} now"


def change(grown: int | Absent) -> str:
    """Format a difference in bytes: "+1.2 GiB", "−30.0 MiB", "0 B"."""
    if isinstance(grown, Absent):
        return absent(grown)
    sign = "+" if grown > 0 else "−" if grown < 0 else ""
    return sign + units.size(abs(grown))


def exact(count: int | Absent) -> str:
    """Format the exact number: "13,314,398,208 bytes". An absent value gives the reason."""
    return ABSENT_SENTENCES[count] if isinstance(count, Absent) else f"{count:,} bytes"


def ratio(part: float | Absent) -> str:
    """Format a fraction as a percentage: 0.9641 is "96.4%". Only 0 reads 0.0% and only 1 reads 100.0%."""
    if isinstance(part, Absent):
        return absent(part)
    percent = part * 100
    if 0 < percent < 0.05:
        return "< 0.1%"
    if 99.95 <= percent < 100:
        return "99.9%"
    return f"{percent:.1f}%"


def celsius(degrees: float | Absent) -> str:
    """Format a temperature: "61 °C"."""
    return absent(degrees) if isinstance(degrees, Absent) else f"{degrees:.0f} °C"


def watts(power: float | Absent) -> str:
    """Format a power: "287 W", "4.7 W"."""
    return absent(power) if isinstance(power, Absent) else f"{power:.{0 if power >= 9.95 else 1}f} W"


def hertz(clock: int | Absent) -> str:
    """Format the frequency of a clock: "2,715 MHz"."""
    return absent(clock) if isinstance(clock, Absent) else f"{clock / 1e6:,.0f} MHz"


def clock_name(name: str) -> str:
    """Format the name of a clock: "SM clock"."""
    return CLOCK_WORDS.get(name, name)


def throttled(names: Iterable[str] | Absent) -> str:
    """Format the reasons for lowered clocks: "power cap, temperature", "no"."""
    if isinstance(names, Absent):
        return absent(names)
    return ", ".join(THROTTLE_WORDS.get(name, name.replace("_", " ")) for name in names) or "no"


def vitals(found: Vitals) -> str:
    """Join the known values: "61 °C, 287 W, SM clock 2,715 MHz, throttled: power cap". Empty if none is known."""
    clocks = known_or(found.clock_hertz, {})
    known = [celsius(found.temperature_celsius)] * (not isinstance(found.temperature_celsius, Absent))
    known += [watts(found.power_watts)] * (not isinstance(found.power_watts, Absent))
    known += [f"{clock_name(name)} {hertz(clock)}" for name, clock in clocks.items()]
    if found.throttled and not isinstance(found.throttled, Absent):
        known.append(f"throttled: {throttled(found.throttled)}")
    return ", ".join(known)


def duration(seconds: float | Absent) -> str:
    """Format a duration in at most two units: "35 µs", "0.4 s", "3 min 20 s", "3 d 4 h"."""
    return absent(seconds) if isinstance(seconds, Absent) else units.duration(seconds)


def age(seconds: float | Absent) -> str:
    """Format an age: "now", "12 s ago"."""
    if isinstance(seconds, Absent):
        return absent(seconds)
    return "now" if seconds < 0.5 else f"{duration(seconds)} ago"


def elapsed(seconds: float) -> str:
    """Format a time since an event in whole seconds: "7 s", "3 min 20 s"."""
    return units.duration_of_whole(int(seconds))


def clock(unix: float) -> str:
    """Format the time of day: "10:22:33 UTC"."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%H:%M:%S UTC")


def timestamp(unix: float) -> str:
    """Format an instant as RFC 3339: "2026-11-21T10:22:33Z"."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(unix: float) -> str:
    """Format an instant with its date: "2026-11-21 10:22:33 UTC"."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def when(unix: float, now: float) -> str:
    """Format an instant as the time of day, with the date unless it is that of `now` (UTC)."""
    return clock(unix) if unix // DAY_SECONDS == now // DAY_SECONDS else moment(unix)


def figure(value: float, unit: str) -> str:
    """Format a value of a history series in its unit."""
    if unit == "bytes":
        return units.size(int(value))
    if unit == "ratio":
        return ratio(value)
    return units.duration(value) if unit == "seconds" else f"{value:,.4g}"


def reasons(pressure: Pressure) -> str:
    """Join the reasons for a level: "full in about 40 s at the current rate; 96.4% used".

    At high levels the time left is first, since displays cut the end. The end of a level that is held is last.
    """
    left, found = pressure.seconds_to_full, stated(pressure)
    deadline = [] if isinstance(left, Absent) else [full_in(left)]
    texts = [one.text for one in found if not deadline or one.signal != "ttf"]
    texts += [] if found else [f"{ratio(pressure.ratio)} used"]
    ordered = deadline + texts if pressure.level >= Level.HIGH else texts + deadline
    return "; ".join([*ordered, *countdown(pressure)])


def stated(pressure: Pressure) -> tuple[Reason, ...]:
    """Return the reasons, without a forecast that is over if use explains the level: it has not come true."""
    by_use = pressure.base_level >= pressure.level
    by_use = by_use or any(one.signal == "util" and HELD.search(one.text) for one in pressure.reasons)
    return by_age(
        one for one in pressure.reasons if not (by_use and one.signal == "ttf" and PAST.fullmatch(one.text))
    )


def by_age(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Return reasons in their order, those that are over last and the newest of them first."""
    pasts = [(one, PAST.fullmatch(one.text)) for one in reasons]
    return tuple(one for one, _ in sorted(pasts, key=lambda pair: int(pair[1]["age"]) if pair[1] else -1))


def full(pressure: Pressure) -> str:
    """Return the time left at the current rate: "full in ~17 s". Empty if memory does not fill."""
    left = pressure.seconds_to_full
    return "" if isinstance(left, Absent) else full_after(left)


def full_after(seconds: float) -> str:
    """Format a deadline: "full in ~17 s"; "full in seconds" where a figure would be over before it is read."""
    return "full in seconds" if seconds < IN_SECONDS else f"full in ~{units.forecast(seconds)}"


def countdown(pressure: Pressure) -> list[str]:
    """Return the level that follows if everything stays as it is: ["medium in 12 s"], or an empty list."""
    left, follows = pressure.clears_in_seconds, pressure.clears_to
    if isinstance(left, Absent):
        return []
    # Early development versions do not say which level follows.
    what = f"{pressure.level.label} clears" if isinstance(follows, Absent) else follows.label
    return [f"{what} in {units.duration_of_whole(max(1, round(left)))}"]


def recovery(pressure: Pressure) -> str:
    """Return how a held level ends: "recovering, medium in 12 s". Empty if that is not known."""
    return ", ".join(["recovering"] * is_recovering(pressure) + countdown(pressure))


def over_for(text: str) -> int | None:
    """Return for how many seconds the reason of a held level has been over, None for one that is not."""
    past, held = PAST.fullmatch(text), HELD.search(text)
    age = past["age"] if past else held["calm"] if held else None
    return None if age is None else int(age)


def way_out(text: str) -> str:
    """Return what ends the level that a text of use names: "OK after 30 s below 57%". Empty if it names none."""
    held = HELD.search(text)
    if held is None or held["way"] is None:
        return ""
    follows = LEVEL_WORDS[max(0, LEVEL_WORDS.index(held["held"]) - 1)]
    return f"{level(follows)} {held['way']}"


def verdict(label: str, pressure: Pressure) -> str:
    """Format the level of one target with its reasons: "System RAM is critical: 96.4% used"."""
    return f"{label} is {level(pressure.level.word)}: {reasons(pressure)}"


def is_recovering(verdict: Pressure) -> bool:
    """Check that a high level is only held: use is below it, memory does not fill, other reasons are over.

    Those of the last seconds before a kill are over as well: stalls are counted over the time before it, too.
    """
    if verdict.level < Level.HIGH or verdict.base_level >= verdict.level:
        return False
    if not isinstance(verdict.seconds_to_full, Absent):
        return False
    if verdict.base_level < Level.HIGH and _is_just_killed(verdict):
        return True
    return bool(verdict.reasons) and all(
        one.signal == "util" or PAST.fullmatch(one.text) for one in verdict.reasons
    )


def _is_just_killed(verdict: Pressure) -> bool:
    """Check that a process was killed for lack of this memory, so late that signals also count the time before."""
    ages = [over_for(one.text) or 0 for one in verdict.reasons if one.signal == "oom_kill"]
    return any(age <= WINDOW_SECONDS + SPACING_SECONDS for age in ages)


def level(word: str) -> str:
    """Return the word for people of a level, or of "unknown", as the API gives it."""
    return LEVEL_LABELS.get(word, word)


def waited(part: float) -> str:
    """Format avg10 of PSI: "tasks stalled on memory for 0.3% of the time (avg10)".

    It is a moving average: levels and their reasons count the stalls of the last 10 s, which differ from it.
    """
    return f"tasks stalled on memory for {ratio(part)} of the time (avg10)"


def count(number: int, noun: str) -> str:
    """Format a count with its noun: "1 process", "312 processes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def architecture(name: str) -> str:
    return ARCHITECTURE_WORDS.get(name, name)


def fact(name: str) -> str:
    """Format the name of a machine or device detail: "L4T", "MIG", "Addressing mode"."""
    if name in FACT_WORDS:
        return FACT_WORDS[name]
    return name[:1].upper() + name[1:].replace("_", " ")


def fault(kind: str) -> str:
    """Format a kind of driver error: "XID 79: GPU has fallen off the bus", "ECC uncorrected"."""
    if kind.startswith("xid_"):
        return describe_kind(kind)
    return re.sub(r"^(ecc|ras)(?=_|$)", lambda word: word[0].upper(), kind).replace("_", " ")


def content(kind: str) -> str:
    return CONTENT_WORDS.get(kind, kind.replace("_", " "))


def basis(word: str, places: Iterable[str] = ()) -> str:
    """Describe how a footprint was calculated. `places`: those that the process holds memory of."""
    return BASIS_WORDS.get(word, word).replace("GPU", name_accelerators(places))


def bases(processes: Iterable[Process]) -> str:
    """Describe how the footprints of a list were calculated, in an order that does not depend on its rows."""
    places: dict[str, list[str]] = {}
    for one in processes:
        if one.footprint_basis:
            places.setdefault(one.footprint_basis, []).extend(one.device_bytes)
    if len(places) < 2:
        return "".join(f"Footprint = {basis(word, held)}." for word, held in places.items())
    known = {"rss", *places} if any(one.startswith("rss + ") for one in places) else places.keys()
    named = ((text, name_accelerators(places.get(one, ()))) for one, text in BASIS_PARTS.items() if one in known)
    parts = [text.replace("GPU", name) for text, name in named]
    others = sorted(places.keys() - BASIS_PARTS.keys())
    shared = " Shared pages count in each process." * ("rss" in known)
    return f"Footprint = {', '.join([*parts, *others])}.{shared}"
