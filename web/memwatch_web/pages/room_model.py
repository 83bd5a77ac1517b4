"""The largest model that fits into the room that is left, for the overview."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from memwatch.core.accounting.leased import with_leases_used
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import Snapshot
from memwatch.planning.fit import CPU
from memwatch.planning.model_table import Runnable, list_largest
from memwatch.reporting.render.summary import compute_headroom

# Least time between two searches, and the change of the room that needs one. A search takes 20 to 50 ms of CPU time
# on the machines of the demos (Xeon, CPython 3.11).
PAUSE_SECONDS, STEP_BYTES = 30.0, 1 << 30
# A model that fills more than this part of the room would not fit a moment later.
FILLED = 0.95


class RoomModel:
    """The last search. It is repeated when the room changes."""

    def __init__(self) -> None:
        self._searched = -inf
        self._rooms: dict[str, int] = {}
        self._found: Runnable | None = None

    def find(self, snapshot: Snapshot) -> Runnable | None:
        """Return the largest model that fits, None if none does or if it is not known.

        What leases hold counts as used, as for `memwatch fit --what`.
        """
        rooms = find_rooms(snapshot)
        is_other = rooms.keys() != self._rooms.keys() or any(
            abs(size - self._rooms[name]) >= STEP_BYTES for name, size in rooms.items()
        )
        found = self._found if self._found and fits(self._found, rooms) else None
        if (not is_other and found is self._found) or 0 <= snapshot.monotonic - self._searched < PAUSE_SECONDS:
            return found
        self._searched, self._rooms = snapshot.monotonic, rooms
        models = list_largest(with_leases_used(snapshot, snapshot.leases)) if rooms else iter(())
        self._found = next((one for one in models if fits(one, rooms, FILLED)), None)
        return self._found


def fits(model: Runnable, rooms: Mapping[str, int], part: float = 1.0) -> bool:
    """Check that a model takes at most this part of the room of its devices."""
    return model.bytes <= part * sum(rooms.get(name, 0) for name in model.devices)


def find_rooms(snapshot: Snapshot) -> dict[str, int]:
    """Return the known bytes that can be allocated, by device, or on the CPU of a machine without one."""
    rooms: dict[str, Bytes] = {one.id: one.headroom_after_reclaim_bytes for one in snapshot.devices}
    ram = compute_headroom(snapshot)
    if not rooms and ram is not None:
        rooms[CPU] = ram.headroom_after_reclaim_bytes
    return {name: room for name, room in rooms.items() if not isinstance(room, Absent)}
