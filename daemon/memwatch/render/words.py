"""Figures in words, absent ones included."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from markupsafe import Markup, escape

from memwatch import units
from memwatch.model import Absent, Process
from memwatch.pressure.signals import full_in
from memwatch.snapshot import Level, Pressure

DASH = "—"
SIMULATED = "SIMULATED: no such machine is here."
# Of a carve-out.
NOT_JUDGED = "not judged by itself: its GPU has more memory elsewhere"
DAY_SECONDS = 86_400

ABSENT_WORDS = {
    Absent.NOT_SUPPORTED: "not supported",
    Absent.NOT_PERMITTED: "not permitted",
    Absent.NOT_AVAILABLE: "not available",
    Absent.STALE: "stale",
    Absent.INCONSISTENT: "contradictory",
}
ABSENT_SENTENCES = {
    Absent.NOT_SUPPORTED: "This machine, its kernel or its driver has no such figure.",
    Absent.NOT_PERMITTED: "There is such a figure, and this user may not read it.",
    Absent.NOT_AVAILABLE: "There should be such a figure, and it has not come yet.",
    Absent.STALE: "The collector stopped answering, and its last figure is too old to repeat.",
    Absent.INCONSISTENT: "The driver or the kernel contradicts itself, so its answer was rejected.",
}

CONTENT_WORDS = {
    "anonymous": "processes",
    "shared_memory": "shared memory",
    "huge_pages": "huge pages",
    "kernel": "kernel",
    "devices": "held by devices",
    "unattributed": "unattributed",
    "page_cache": "page cache",
    "free": "free",
    "used": "used",
    "reserved": "reserved",
    "available": "available",
}
CONTENT_SENTENCES = {
    "anonymous": "Memory that processes asked for: heaps, stacks, private data.",
    "shared_memory": "Memory that processes share and files in memory (tmpfs). It needs swap to go away.",
    "huge_pages": "Set aside for huge pages, used or not; nothing else can have it.",
    "kernel": "The kernel's own: slabs, page tables, stacks, reserves, compressed swap.",
    "devices": "Held for a GPU or another device and in no process's own pages.",
    "unattributed": "Used, and nobody known holds it; often a driver's own pages.",
    "page_cache": "Copies of files that the kernel gives back when memory is asked for.",
    "free": "Nobody uses it for anything.",
    "used": "Used, by whomever.",
    "reserved": "The driver keeps it for itself.",
    "available": "Can be had now.",
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
    "job": "Slurm jobs",
    "unit": "systemd units",
    "user": "Users",
}
API_WORDS = {"cuda": "CUDA", "rocm": "ROCm"}
FACT_WORDS = {
    "cuda": "CUDA",
    "gfx": "Instruction set",
    "jetpack": "JetPack",
    "l4t": "L4T",
    "mig": "MIG",
    "pci_id": "PCI id",
    "soc": "Chip",
}
BASIS_WORDS = {
    "rss": "rss (resident set size: a page that several processes share counts in each of them)",
    "rss + device": "rss + device (what it holds of GPUs lies outside of its resident set)",
    "rss + device, perhaps overlapping": "rss + device as a range, where some pages may count in both",
    "rss + device, unknown": "rss + device, at least, where what a process holds of a GPU is not known",
}

FIGURE = re.compile(r"(?:&lt; )?\d[\d.,]* (?:%|[KMGTPE]iB|B|µs|ms|s|min|h|d)(?!\w)")


def absent(reason: Absent) -> str:
    """A figure that is not there: "— not permitted"."""
    return f"{DASH} {ABSENT_WORDS[reason]}"


def api(name: str) -> str:
    """A programming interface as its makers write it."""
    return API_WORDS.get(name, name)


def size(count: int | Absent) -> str:
    """Bytes as people say them: 13314398208 is "12.4 GiB"."""
    return absent(count) if isinstance(count, Absent) else units.size(count)


def footprint(process: Process) -> str:
    """One figure, or the least and the most it can be: "1.2 – 1.4 GiB"; "≥ 1.2 GiB" where the most is not known."""
    if process.footprint_range is None:
        return size(process.footprint_bytes)
    low, high = process.footprint_range
    return between(low, high)


def between(low: int, high: int | Absent) -> str:
    """A figure that is known by its bounds."""
    if isinstance(high, Absent):
        return f"≥ {units.size(low)}"
    least, most = units.size(low), units.size(high)
    if least == most:
        return most
    same_unit = least.split()[1] == most.split()[1]
    return f"{least.split()[0] if same_unit else least} – {most}"


def change(grown: int | Absent) -> str:
    """What came or went: "+1.2 GiB", "−30.0 MiB", "0 B"."""
    if isinstance(grown, Absent):
        return absent(grown)
    sign = "+" if grown > 0 else "−" if grown < 0 else ""
    return sign + units.size(abs(grown))


def exact(count: int | Absent) -> str:
    """Every byte: "13,314,398,208 bytes"; for what is absent, why."""
    return ABSENT_SENTENCES[count] if isinstance(count, Absent) else f"{count:,} bytes"


def ratio(part: float | Absent) -> str:
    """A part of a whole: 0.9641 is "96.4 %". Nearly nothing is not 0 %, and nearly all is not 100 %."""
    if isinstance(part, Absent):
        return absent(part)
    percent = part * 100
    if 0 < percent < 0.05:
        return "< 0.1 %"
    if 99.95 <= percent < 100:
        return "99.9 %"
    return f"{percent:.1f} %"


def duration(seconds: float | Absent) -> str:
    """A stretch of time, two units at most: "35 µs", "0.4 s", "3 min 20 s", "3 d 4 h"."""
    return absent(seconds) if isinstance(seconds, Absent) else units.duration(seconds)


def age(seconds: float | Absent) -> str:
    """How long ago: "now", "12 s ago"."""
    if isinstance(seconds, Absent):
        return absent(seconds)
    return "now" if seconds < 0.5 else f"{duration(seconds)} ago"


def clock(unix: float) -> str:
    """The time of day of an event: "10:22:33 UTC"."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%H:%M:%S UTC")


def timestamp(unix: float) -> str:
    """The same instant for machines: "2026-11-21T10:22:33Z"."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(unix: float) -> str:
    """An instant that need not be of today: "2026-11-21 10:22:33 UTC"."""
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def when(unix: float, now: float) -> str:
    """An instant as somebody says it at `now`: the time of day, and the date where it is another one."""
    return clock(unix) if unix // DAY_SECONDS == now // DAY_SECONDS else moment(unix)


def figure(value: float, unit: str) -> str:
    """A figure of a series in its unit."""
    if unit == "bytes":
        return units.size(int(value))
    if unit == "ratio":
        return ratio(value)
    return units.duration(value) if unit == "seconds" else f"{value:,.4g}"


def reasons(pressure: Pressure) -> str:
    """Why a level is what it is: "96.4 % used; full in about 40 s at the current rate"."""
    texts = [reason.text for reason in pressure.reasons] or [f"{ratio(pressure.ratio)} used"]
    if not isinstance(pressure.seconds_to_full, Absent) and all(r.signal != "ttf" for r in pressure.reasons):
        texts.append(full_in(pressure.seconds_to_full))
    return "; ".join(texts)


def verdict(label: str, pressure: Pressure) -> str:
    """One sentence about one target: "System RAM is critical: 96.4 % used."""
    if pressure.level is Level.LOW:
        return f"{label} is calm: {reasons(pressure)}"
    return f"{label} is {pressure.level.word}: {reasons(pressure)}"


def waited(part: float, window: str, who: str = "tasks") -> str:
    """What pressure stall information says: "tasks waited for memory 0.3 % of the last 10 s"."""
    return f"{who} waited for memory {ratio(part)} of the last {window}"


def count(number: int, noun: str) -> str:
    """A number of things: "1 process", "312 processes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def architecture(name: str) -> str:
    return ARCHITECTURE_WORDS.get(name, name)


def printable(text: str) -> str:
    """A name somebody else chose, with what would not show or would turn the line around made visible."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def glued(text: str) -> Markup:
    """A sentence for a page, in which no line ends between a number and its unit."""
    return Markup(FIGURE.sub(r'<span class="figure">\g<0></span>', str(escape(text))))  # noqa: S704  escaped


def fact(name: str) -> str:
    """What a detail is called: "L4T", "MIG", "Addressing mode"."""
    if name in FACT_WORDS:
        return FACT_WORDS[name]
    return name[:1].upper() + name[1:].replace("_", " ")


def fault(kind: str) -> str:
    """A kind of error as NVIDIA and AMD write of it: "XID 79", "ECC uncorrected"."""
    return re.sub(r"^(xid|ecc|ras)(?=_|$)", lambda word: word[0].upper(), kind).replace("_", " ")


def content(kind: str) -> str:
    return CONTENT_WORDS.get(kind, kind.replace("_", " "))


def content_sentence(kind: str) -> str:
    return CONTENT_SENTENCES.get(kind, "")


def basis(word: str) -> str:
    """What a footprint was added up from."""
    return BASIS_WORDS.get(word, word)
