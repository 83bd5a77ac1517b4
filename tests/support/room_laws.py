"""Laws of an answer about room, for any machine: what it says is what `fit` says, and no byte counts twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from memwatch.core.model import Absent, Process
from memwatch.core.processes.protected import is_protected
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import answer_beside_leases, answer_size
from memwatch.reporting.render.room import RoomAnswer, RoomTarget, find_room_for, list_room_targets
from memwatch.reporting.render.room_candidates import RANKS, list_candidates

GIB = 1 << 30


def needs_of(snapshot: Snapshot) -> list[int]:
    """Return sizes from one that fits to one that is more than the machine has."""
    largest = max((one.size_bytes for one in snapshot.pools), default=GIB)
    return [largest * part // 100 for part in (1, 25, 50, 75, 90, 99, 120)]


def broken_room_laws(snapshot: Snapshot) -> Iterator[str]:
    """Yield each law that the answers of a machine break: for all sizes, targets, and the default ones."""
    pids = Counter(member.pid for one in list_candidates(snapshot) for member in one.members)
    if pids and max(pids.values()) > 1:
        yield f"processes are in several candidates: {pids}"
    for need in needs_of(snapshot):
        for target in ("", *list_room_targets(snapshot)):
            found = find_room_for(need, snapshot, target)
            where = f"{need} on {target or 'all'}"
            yield from (f"{where}: {why}" for one in found.targets for why in broken_by(one, need, snapshot))
            yield from (f"{where}: {why}" for why in broken_choice(found))
            if what_goes(find_room_for(need, shuffled(snapshot), target)) != what_goes(found):
                yield f"{where}: another order of processes changes the answer"
        yield from broken_beside_fit(need, snapshot)


def what_goes(found: RoomAnswer) -> list[object]:
    """Return an answer without the words of `fit`, which names the first of equal holders."""
    return [found.best, *((one.enough, one.steps, one.alternatives, one.unknown) for one in found.targets)]


def shuffled(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, processes=snapshot.processes[::-1], engines=snapshot.engines[::-1])


def broken_beside_fit(need: int, snapshot: Snapshot) -> Iterator[str]:
    """The verdicts now are those of `fit`."""
    fit = answer_beside_leases(snapshot, "", lambda seen: answer_size(need, "", seen)).fit
    verdicts = {one.device: one for one in fit.verdicts}
    for one in find_room_for(need, snapshot).targets:
        if one.fit != verdicts[one.fit.device]:
            yield f"{need}: fit says {verdicts[one.fit.device]}, room {one.fit}"


def broken_choice(found: RoomAnswer) -> Iterator[str]:
    best = [one for one in found.targets if one.fit.device == found.best]
    if found.best is None and any(one.enough is True for one in found.targets):
        yield "a device would do, and none is chosen"
    if best and best[0].enough is not True:
        yield "the chosen device does not do"
    if best and best[0].steps and any(one.fit.fits is True for one in found.targets):
        yield "steps are chosen where it fits elsewhere now"


def broken_by(found: RoomTarget, need: int, snapshot: Snapshot) -> Iterator[str]:
    now = found.fit.headroom_after_reclaim_bytes
    if isinstance(now, Absent):
        if found.steps or found.enough is not now:
            yield "memory is not known, and the answer is certain"
        return
    if found.fit.fits is True and (found.steps or found.enough is not True):
        yield "it fits, and something would have to go"
    if not found.steps:
        return
    rooms = [now]
    for step in found.steps:
        rooms.append(rooms[-1] + step.freed_bytes)
        if step.available_bytes != rooms[-1]:
            yield f"{step.subject}: {rooms[-1]} is not {step.available_bytes}"
        if isinstance(step.freed_most_bytes, int) and step.freed_bytes > step.freed_most_bytes:
            yield f"{step.subject}: frees more than at most"
    if found.after.headroom_after_reclaim_bytes != rooms[-1]:
        yield "the room after the steps is not that of fit"
    if (found.enough is True) != (rooms[-1] >= need) or found.enough is not found.after.fits:
        yield f"{rooms[-1]} of {need}, and enough is {found.enough}"
    if rooms[-2] >= min(need, rooms[-1]):
        yield "the last step is needless"
    yield from broken_holders(found, snapshot)


def broken_holders(found: RoomTarget, snapshot: Snapshot) -> Iterator[str]:
    """Each process at most once, none protected, and no more bytes than the processes hold or the pools have."""
    by_pid = {one.pid: one for one in snapshot.processes}
    pids = [pid for step in found.steps for pid in step.pids]
    if len(pids) != len(set(pids)):
        yield f"a process goes twice: {pids}"
    yield from (f"{by_pid[pid].title} may never go" for pid in pids if is_protected(by_pid[pid]))
    ranks = [RANKS[step.kind] for step in found.steps]
    if ranks != sorted(ranks):
        yield f"out of order: {[step.kind for step in found.steps]}"
    for step in found.steps:
        held = sum(held_by(by_pid[pid]) for pid in step.pids)
        if step.freed_bytes > held:
            yield f"{step.subject} frees {step.freed_bytes}, and holds {held}"
    freed = sum(step.freed_bytes for step in found.steps)
    used = sum(pool.used_bytes for pool in snapshot.pools if isinstance(pool.used_bytes, int))
    if freed > used:
        yield f"{freed} are freed of {used}"
    size, after = found.fit.size_bytes, found.after.headroom_after_reclaim_bytes
    if isinstance(size, int) and isinstance(after, int) and after > size:
        yield "more is available than there is"


def held_by(process: Process) -> int:
    """Return the known bytes of a process, each once: places inside others are not keys of one process."""
    figures = (process.rss_bytes, *process.device_bytes.values())
    return sum(one for one in figures if isinstance(one, int))
