"""What one look at a snapshot says: how bad it is, where, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from memwatch.model import Absent, Bytes, Pool, PoolKind, Process, Share, ShareKind
from memwatch.pressure.rules import PressureRules
from memwatch.render import words as wording
from memwatch.snapshot import Level, Pressure, Snapshot


class Room(Struct, frozen=True):
    """What programs can still have, and what it is that ends first."""

    label: str
    size_bytes: Bytes


def worst_of(snapshot: Snapshot) -> Pressure | None:
    """The target that is nearest to its end: by level, then by use."""
    return max(snapshot.pressure, key=lambda verdict: (verdict.level, verdict.ratio), default=None)


def room_of(snapshot: Snapshot) -> Room | None:
    """What a program without a GPU can have: what System RAM has available, or less where a limit ends first."""
    ram = next((pool for pool in snapshot.pools if pool.kind is PoolKind.SYSTEM_RAM), None)
    if ram is None or isinstance(ram.available_bytes, Absent):
        return None if ram is None else Room(ram.label, ram.available_bytes)
    label, least = ram.label, ram.available_bytes
    for share in snapshot.shares if snapshot.machine.in_container else ():
        left = _left(share)
        if share.kind is ShareKind.CGROUP and not isinstance(left, Absent) and left < least:
            label, least = snapshot.relation(share), left
    return Room(label, least)


def _left(share: Share) -> Bytes:
    if isinstance(share.limit_bytes, Absent):
        return share.limit_bytes
    if isinstance(share.used_bytes, Absent):
        return share.used_bytes
    return max(0, share.limit_bytes - share.used_bytes)


def cuda_free_of(snapshot: Snapshot) -> int | None:
    """What CUDA itself calls free on a machine of one pool, where that is known."""
    frees = [device.api_free_bytes.get("cuda") for device in snapshot.devices]
    return next((size for size in frees if isinstance(size, int)), None)


def by_footprint(processes: Iterable[Process]) -> list[Process]:
    """Largest first; those whose footprint is not known stand last."""
    return sorted(processes, key=lambda process: (-_known(process.footprint_low_bytes), process.pid))


def _known(figure: Bytes) -> int:
    return -1 if isinstance(figure, Absent) else figure


def latest_of(snapshot: Snapshot, rules: PressureRules) -> Mapping[str, Any]:
    """What the script in the page needs of a tick: for the title, the chart and the look of freshness."""
    worst = worst_of(snapshot)
    thresholds = rules.for_target(worst.target) if worst else rules.thresholds
    return {
        "seq": snapshot.seq,
        "unix": snapshot.unix,
        "interval_seconds": snapshot.interval_seconds,
        "level": worst.level.word if worst else "unknown",
        "title": title_of(snapshot, worst),
        "verdict": sentence_of(snapshot, worst),
        "thresholds": {level: getattr(thresholds, level) for level in ("medium", "high", "critical")},
        "targets": [
            {
                "id": verdict.target,
                "label": snapshot.labels.get(verdict.target, verdict.target),
                "level": verdict.level.word,
                "ratio": verdict.ratio,
            }
            for verdict in snapshot.pressure
        ],
    }


def title_of(snapshot: Snapshot, worst: Pressure | None) -> str:
    """What a tab says from afar: "critical 96.4 % · spark-1"."""
    if worst is None:
        return snapshot.host
    word = "" if worst.level is Level.LOW else f"{worst.level.word} "
    return f"{word}{wording.ratio(worst.ratio)} · {snapshot.host}"


def has_figures(pool: Pool) -> bool:
    """False where its collector is silent. With figures and without a verdict it is a carve-out that is not judged,
    since its device has more memory elsewhere."""
    return not isinstance(pool.used_bytes, Absent) and not isinstance(pool.available_bytes, Absent)


def sentence_of(snapshot: Snapshot, worst: Pressure | None) -> str:
    """How the machine is; a pool that cannot be judged is named, or calm would be said of it too."""
    if worst is None:
        return "No pool has a figure to judge"
    judged = {verdict.target for verdict in snapshot.pressure}
    dark = ", ".join(pool.label for pool in snapshot.pools if pool.id not in judged and not has_figures(pool))
    sentence = wording.verdict(snapshot.labels.get(worst.target, worst.target), worst)
    return f"{sentence}. Nothing is known of {dark}" if dark else sentence
