"""Answer to "does it fit" beside the leases of others, whose bytes count as used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from memwatch.core.accounting.leased import find_room, held_by_pool, with_leases_used
from memwatch.core.leases import Lease, without_lease
from memwatch.core.listing import some_of
from memwatch.core.model import find_system_ram
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.answer import FitAnswer
from memwatch.planning.fit import CPU, FitVerdict

NAMED_LEASES = 2


def answer_beside_leases(snapshot: Snapshot, own: str, answer: Callable[[Snapshot], FitAnswer]) -> FitAnswer:
    """Answer on a machine on which leased bytes are used. `own`: the lease of the asker, which does not count."""
    leases = without_lease(snapshot.leases, own)
    if not leases:
        return answer(snapshot)
    found = answer(with_leases_used(snapshot, leases))
    verdicts = tuple(_name_leases(one, snapshot, leases) for one in found.fit.verdicts)
    return replace(found, fit=replace(found.fit, verdicts=verdicts))


def _name_leases(verdict: FitVerdict, snapshot: Snapshot, leases: Sequence[Lease]) -> FitVerdict:
    """Add the leases that lower the headroom of a verdict to its reason."""
    ram = find_system_ram(snapshot.pools)
    room = find_room(snapshot, ram.id if verdict.device == CPU and ram else verdict.device)
    left = verdict.headroom_bytes
    if room is None or not isinstance(room.left, int) or not isinstance(left, int) or left >= room.left:
        return verdict
    leased = room.left - left
    names = [f"{one.name} ({one.pid})" for one in leases if _lowers(one, verdict, snapshot)]
    reason = f"{verdict.reason}; {size(leased)} is leased to {some_of(names, NAMED_LEASES)}"
    return replace(verdict, reason=reason, leased_bytes=leased)


def _lowers(lease: Lease, verdict: FitVerdict, snapshot: Snapshot) -> bool:
    """Check that a lease holds bytes of a pool that the device of a verdict allocates from."""
    device = next((one for one in snapshot.devices if one.id == verdict.device), None)
    ram = find_system_ram(snapshot.pools)
    places = device.allocates_from if device else (ram.id,) if ram else ()
    own = held_by_pool([replace(lease, held=dict.fromkeys(places, 0))], snapshot.shares)
    return any(held and pool in own for pool, held in held_by_pool([lease], snapshot.shares).items())
