"""Decoding of intact records. Those that this version cannot decode are left out, counted and reported by file."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from memwatch.core.events import Event
from memwatch.core.helper.codec import DecodeError
from memwatch.monitor.history.disk.record_codec import unpack_entry, unpack_events
from memwatch.monitor.history.disk.ring_file import Record
from memwatch.monitor.history.disk.ring_set import RingSet
from memwatch.monitor.history.disk.row_codec import RowDecodeError
from memwatch.monitor.history.notable_ticks import Tick, unpack
from memwatch.monitor.history.tier import RowBlock


class PayloadReader:
    """Decodes payloads. `unreadable`: numbers of the records that cannot be decoded, by file."""

    def __init__(self, ring_set: RingSet) -> None:
        self.unreadable: defaultdict[str, set[int]] = defaultdict(set)
        self._ring_set = ring_set

    def rows(self, name: str, record: Record) -> tuple[RowBlock, bytes] | None:
        try:
            return unpack_entry(self._ring_set.payload(name, record))
        except RowDecodeError:
            self.unreadable[name].add(record.seq)
            return None

    def row_blocks(
        self, name: str, kind: int, seconds: float, shifts: Mapping[bytes, float]
    ) -> Iterator[tuple[RowBlock, bytes]]:
        """Yield the newest rows that fill a tier, oldest first, on this boot's time line, one record at a time.

        With each comes the data behind its rows.
        """
        records = self._ring_set.records(name, kind)
        times = [record.stamp.boottime + shifts[record.stamp.boot] for record in records]
        for record, at in zip(records, times, strict=True):
            entry = self.rows(name, record) if at >= times[-1] - seconds else None
            if entry is not None:
                (own_times, columns), rest = entry
                shift = shifts[record.stamp.boot]
                yield RowBlock(array("d", [time + shift for time in own_times]), columns), rest

    def events(self, record: Record) -> tuple[Event, ...]:
        try:
            return unpack_events(self._ring_set.payload("events", record))
        except DecodeError:
            self.unreadable["events"].add(record.seq)
            return ()

    def tick(self, name: str, record: Record) -> Tick | None:
        return self.decode_tick(name, record, self._ring_set.payload(name, record))

    def decode_tick(self, name: str, record: Record, data: bytes) -> Tick | None:
        try:
            return unpack(data)
        except DecodeError:
            self.unreadable[name].add(record.seq)
            return None

    def notable_ticks(self, records: Sequence[Record]) -> Iterator[tuple[Record, bytes]]:
        """Yield the records of notable ticks with their payloads, which stay encoded.

        A run is of one version, so its newest tick stands for all of them: decoding 2,000 takes 0.3 s. If that one
        cannot be decoded, each of the run is tried.
        """
        for _, group in groupby(records, key=lambda record: record.stamp.run):
            run = list(group)
            readable = self.tick("ticks", run[-1]) is not None
            for record in run:
                if readable or self.tick("ticks", record) is not None:
                    yield record, self._ring_set.payload("ticks", record)

    def report(self) -> None:
        """Count unreadable records as lost, with a sentence for each file."""
        for name, numbers in self.unreadable.items():
            records = "1 record" if len(numbers) == 1 else f"{len(numbers)} records"
            self._ring_set.lost += len(numbers)
            self._ring_set.complaints.append(
                f"{self._ring_set.rings[name].path}: {records} cannot be read by this version of memwatchd: "
                "left out; the version that wrote them can read them"
            )
