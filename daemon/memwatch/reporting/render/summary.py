"""Summary of a snapshot: the worst target, its level, memory still available, and the silences in force."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from math import inf
from typing import Any, NamedTuple

from msgspec import Struct

from memwatch.core.backends.devices import read_system_ram
from memwatch.core.model import Absent, Bytes, Pool, Process, find_system_ram
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Level, Pressure, Snapshot
from memwatch.reporting.render import words as wording

# "root (uid 0)", as callers are recorded. The id is for the list of silences.
UID = re.compile(r" \(uid \d+\)\Z")
# One line each; the list of silences has the others.
MAX_NOTICES = 3
# From this number of GPUs on they are counted and drawn together.
MANY_GPUS = 3


class SilenceNotice(Struct, frozen=True):
    """Sentence about one silence, in parts: each display formats `until_unix` in its own time zone."""

    id: str
    before: str
    until_unix: float
    after: str

    def text(self, until: str) -> str:
        return f"{self.before} {until}{self.after}"


def build_notices(silences: Iterable[Silence], labels: Mapping[str, str]) -> list[SilenceNotice]:
    """Return a notice for each silence that no other one contains, the widest first. `labels`: names of targets."""
    return [_build_notice(one, labels) for one in find_widest(silences)]


def notices_of(snapshot: Snapshot) -> list[SilenceNotice]:
    return build_notices(snapshot.silences, target_labels(snapshot)) if snapshot.silences else []


def find_notice(snapshot: Snapshot, worst: Pressure | None) -> SilenceNotice | None:
    """Return the notice of the widest silence that mutes alerts about the worst level, None without one."""
    target = worst.target if worst else ""
    muting = [one for one in snapshot.silences if one.target in (None, target) and _is_about_levels(one)]
    return build_notices(muting, target_labels(snapshot))[0] if muting else None


def target_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the name of each pool, share and device by its id."""
    return {**snapshot.labels, **{device.id: device.name for device in snapshot.devices}}


def find_widest(silences: Iterable[Silence]) -> list[Silence]:
    """Return the silences without those that a wider one outlasts: all alerts, then targets, then events."""
    ranked = sorted(silences, key=lambda one: (one.target is not None, one.event is not None, -one.until_unix))
    found: list[Silence] = []
    for one in ranked:
        if not any(_contains(other, one) for other in found):
            found.append(one)
    return found


def _contains(wide: Silence, narrow: Silence) -> bool:
    return (
        wide.until_unix >= narrow.until_unix
        and wide.event in (None, narrow.event)
        and wide.target in (None, narrow.target)
    )


def _is_about_levels(silence: Silence) -> bool:
    return silence.event is None or silence.event.startswith("pressure.")


def _build_notice(silence: Silence, labels: Mapping[str, str]) -> SilenceNotice:
    target = None if silence.target is None else labels.get(silence.target, silence.target)
    if silence.event is not None:
        subject = f"{silence.event} alerts{f' of {target}' if target else ''} are "
        after = ": no one is notified of them"
    elif target is not None:
        subject, after = f"{target} is ", ": no one is notified of it"
    else:
        subject, after = "", ": no one is notified"
    by = f" by {UID.sub('', silence.made_by)}" if silence.made_by else ""
    return SilenceNotice(silence.id, f"{subject}silenced{by} until", silence.until_unix, after)


def notice_lines(notices: Sequence[SilenceNotice], now: float) -> list[str]:
    """Return a line for each notice in the local time zone, with the command that ends the silence."""
    lines = [
        f"{one.text(until_local(one.until_unix, now))} ({end_command(one.id)})" for one in notices[:MAX_NOTICES]
    ]
    if len(notices) > MAX_NOTICES:
        lines.append(f"{len(notices) - MAX_NOTICES} more silences (memwatch silence --list)")
    return lines


def end_command(silence_id: str) -> str:
    return f"end it: memwatch silence --end {silence_id}"


def until_utc(unix: float, now: float) -> str:
    """Format an end in UTC: "18:17 UTC", with the date unless it is that of `now`."""
    end, today = (datetime.fromtimestamp(one, timezone.utc) for one in (unix, now))
    return end.strftime("%H:%M UTC" if end.date() == today.date() else "%Y-%m-%d %H:%M UTC")


def until_local(unix: float, now: float) -> str:
    """Format an end in the local time zone: "18:17", with the date unless it is that of `now`."""
    end = time.localtime(unix)
    return time.strftime("%H:%M" if end[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M", end)


class Allocatable(NamedTuple):
    """Memory that can be allocated now and after reclaim of page cache, and in which device, pool or limit."""

    label: str
    headroom_bytes: Bytes
    headroom_after_reclaim_bytes: Bytes


def find_worst(snapshot: Snapshot) -> Pressure | None:
    """Return the target with the highest urgency."""
    return max(snapshot.pressure, key=measure_urgency, default=None)


def measure_urgency(one: Pressure) -> tuple[Level, float, float]:
    """Return what orders targets: the level; at critical the time until it is full; then the use."""
    left = one.seconds_to_full if one.level is Level.CRITICAL else Absent.NOT_AVAILABLE
    return one.level, -inf if isinstance(left, Absent) else -left, one.ratio


def compute_headroom(snapshot: Snapshot) -> Allocatable | None:
    """Return the memory available to a program without a GPU: that of System RAM, or of a tighter limit."""
    ram = find_system_ram(snapshot.pools)
    if ram is None:
        return None
    room, limit = read_system_ram(snapshot)
    is_tighter = limit is not None and room.headroom_after_reclaim_bytes != ram.available_bytes
    label = snapshot.relation(limit) if limit is not None and is_tighter else ram.label
    return Allocatable(label, room.headroom_bytes, room.headroom_after_reclaim_bytes)


def find_cuda_free(snapshot: Snapshot) -> int | None:
    """Return the free memory that CUDA reports on a machine with one pool, if known."""
    frees = [device.api_free_bytes.get("cuda") for device in snapshot.devices]
    return next((size for size in frees if isinstance(size, int)), None)


def by_footprint(processes: Iterable[Process]) -> list[Process]:
    """Sort by footprint, largest first, unknown footprints last."""
    return sorted(processes, key=lambda process: (-_known(process.footprint_low_bytes), process.pid))


def _known(figure: Bytes) -> int:
    return -1 if isinstance(figure, Absent) else figure


def build_latest(snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the part of a sample that the page's script needs: title, verdict, time."""
    worst = find_worst(snapshot)
    notice = find_notice(snapshot, worst)
    return {
        "seq": snapshot.seq,
        "unix": snapshot.unix,
        "interval_seconds": snapshot.interval_seconds,
        "level": worst.level.word if worst else "unknown",
        "title": build_title(snapshot, worst, notice),
        "silence": _until(notice, snapshot.unix) if notice else None,
        "verdict": build_sentence(snapshot, worst),
    }


def _until(notice: SilenceNotice, now: float) -> Mapping[str, Any]:
    """Return the end of a silence, and its words in the title: the script replaces them by local time."""
    return {"until_unix": notice.until_unix, "words": until_utc(notice.until_unix, now)}


def build_title(snapshot: Snapshot, worst: Pressure | None, notice: SilenceNotice | None = None) -> str:
    """Return the title of a browser tab, with the silence of its level.

    For example "high 84.1% · spark-1" and "critical, full in ~17 s · spark-1".
    """
    parts = [_level_title(worst)] if worst else []
    parts += [snapshot.host, *([notice.text(until_utc(notice.until_unix, snapshot.unix))] if notice else [])]
    return " · ".join(parts)


def _level_title(worst: Pressure) -> str:
    if worst.level is Level.CRITICAL and wording.full(worst):
        return f"{worst.level.label}, {wording.full(worst)}"
    word = "" if worst.level is Level.LOW else f"{worst.level.label} "
    return f"{word}{wording.ratio(worst.ratio)}"


def has_figures(pool: Pool) -> bool:
    """Check that a pool's use is known.

    A pool with a known use and no verdict is a carve-out without a level: its device has more memory elsewhere.
    """
    return not isinstance(pool.used_bytes, Absent) and not isinstance(pool.available_bytes, Absent)


def build_sentence(snapshot: Snapshot, worst: Pressure | None) -> str:
    """Describe the state of the machine. Pools without data are named, so that OK is not read to include them."""
    if worst is None:
        return "No memory data"
    sentence = wording.verdict(snapshot.labels.get(worst.target, worst.target), worst)
    unknown = name_unknown(snapshot)
    return f"{sentence}. {unknown}" if unknown else sentence


def name_unknown(snapshot: Snapshot) -> str:
    """Name the pools without data: "No data for GPU 0 VRAM". Empty if there are none."""
    judged = {verdict.target for verdict in snapshot.pressure}
    labels = [pool.label for pool in snapshot.pools if pool.id not in judged and not has_figures(pool)]
    return f"No data for {', '.join(labels)}" if labels else ""
