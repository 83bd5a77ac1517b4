"""Records of the largest holders: rows, then titles. They are in the files of the tiers with the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from memwatch.core.helper.codec import DecodeError, from_line, to_line
from memwatch.monitor.history.disk.payload_reader import PayloadReader
from memwatch.monitor.history.disk.record_codec import HOLDER_ROWS, pack_entry
from memwatch.monitor.history.holder_history import HolderHistory
from memwatch.monitor.history.holders import parse_name
from memwatch.monitor.history.tier import RowBlock

# The files of the tiers.
FILES = ("medium", "coarse")


class Titles(Struct, frozen=True):
    """Titles of holders by kind and id."""

    titles: Mapping[str, str] = field(default_factory=dict)


def pack_holders(rows: RowBlock, titles: Mapping[str, str]) -> bytes:
    """Encode rows and the titles of the holders in them."""
    holders = {f"{parsed[0]}.{parsed[1]}" for parsed in map(parse_name, rows.columns) if parsed}
    return pack_entry(rows, to_line(Titles({one: titles[one] for one in sorted(holders & titles.keys())})))


def restore_holders(
    reader: PayloadReader, holders: HolderHistory, shifts: Mapping[bytes, float]
) -> tuple[int, ...]:
    """Load the holders of earlier runs. Return for each tier the number of the row after the loaded ones."""
    titles: dict[str, str] = {}

    def read(name: str, seconds: float) -> Iterator[RowBlock]:
        for rows, rest in reader.row_blocks(name, HOLDER_ROWS, seconds, shifts):
            titles.update(_unpack_titles(rest))
            yield rows

    past = [read(name, tier.spec.seconds) for name, tier in zip(FILES, holders.history.tiers, strict=True)]
    return holders.restore(past, titles)


def _unpack_titles(data: bytes) -> Mapping[str, str]:
    """Return the titles, or none if another version wrote them: the series are then shown by their ids."""
    try:
        return from_line(Titles, data).titles
    except DecodeError:
        return {}
