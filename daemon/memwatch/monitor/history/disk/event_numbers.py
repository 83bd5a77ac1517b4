"""Numbers of events across runs: no number names two events, also after an unclean shutdown.

Invariant: every number that a run gave to an event is at most `last + SKIPPED_NUMBERS`. `last` is the highest
number in the files of the state folder. The writer is woken when `MAX_UNWRITTEN` numbers are not on disk. The rest
of the distance is for a disk that fails or hangs meanwhile. A run that ends cleanly writes its last number, and
the next run continues there. A run that cannot write from its start takes numbers from the clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from memwatch.monitor.history.disk.record_codec import MAX_SEQ, STARTED, STOPPED
from memwatch.monitor.history.disk.ring_file import Record
from memwatch.monitor.history.disk.ring_set import RingSet

MAX_UNWRITTEN = 4096
# 10,000 events a second for 100 s. 2^52 numbers suffice for 2^32 unclean shutdowns.
SKIPPED_NUMBERS = 1 << 20
_NUMBER = struct.Struct("<Q")


def pack_number(seq: int) -> bytes:
    """Encode the last number as the payload of the record of a start or a clean stop."""
    return _NUMBER.pack(seq)


def last_number(ring_set: RingSet, numbers: Iterable[int], unix: float) -> int:
    """Return a number that is at least as high as every number used by earlier runs; 0 if there were none.

    `numbers`: those of the events that were read.
    """
    newest = [record for kind in (STARTED, STOPPED) for record in ring_set.records("flight", kind)[-1:]]
    known = [*numbers, *filter(None, (_read_number(ring_set, record) for record in newest))]
    if ring_set.lost and not known:
        return number_from_clock(unix)
    last = max(known, default=0)
    return last if _ended_cleanly(ring_set) or not ring_set.stamps else last + SKIPPED_NUMBERS


def number_from_clock(unix: float) -> int:
    """Return the Unix time in milliseconds: above the numbers of most runs, below 2^52."""
    return int(unix * 1000)


def _ended_cleanly(ring_set: RingSet) -> bool:
    """Return True if the last record of the previous run has its last number, or no event can be missing.

    Version 0.1.0 wrote no number.
    """
    contents = ring_set.contents.get("flight")
    records = contents.records if contents else ()
    if not records or records[-1].kind != STOPPED:
        return False
    return bool(_read_number(ring_set, records[-1])) or not ring_set.lost


def _read_number(ring_set: RingSet, record: Record) -> int:
    payload = ring_set.payload("flight", record)
    number = int(_NUMBER.unpack(payload)[0]) if len(payload) == _NUMBER.size else 0
    return number if number < MAX_SEQ else 0
