"""`memwatch wait` where the available memory is not known: neither a yes, nor the failure of too little memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from memwatch.cli.context import SnapshotAnswer
from memwatch.cli.http import DEFAULT, EXIT_FAILURE, EXIT_UNKNOWN, CommandError
from memwatch.cli.wait import Wish, wait_for
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from support.sample_snapshots import discrete_gpu


class Daemon:
    """Context of a command whose daemon sends one snapshot again and again."""

    address, as_json = DEFAULT, False

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshots(self, _seconds: float) -> Iterator[SnapshotAnswer]:
        while True:
            yield SnapshotAnswer(read=self._snapshot)


def with_headroom(room: int | Absent) -> Snapshot:
    base = discrete_gpu()
    device = replace(base.devices[0], headroom_after_reclaim_bytes=room, headroom_bytes=room)
    return replace(base, devices=(device, *base.devices[1:]))


@pytest.mark.parametrize(
    ("room", "code", "words"),
    [
        (Absent.NOT_PERMITTED, EXIT_UNKNOWN, "available memory is unknown"),
        (1 << 30, EXIT_FAILURE, "1.0 GiB available"),
    ],
)
def test_wait_ends_with_the_code_of_an_unknown(room: int | Absent, code: int, words: str) -> None:
    wish = Wish("2GiB", 2 << 30, "gpu0", False, 0.0001, None, ())
    with pytest.raises(CommandError, match=f"2GiB did not become available within .*{words}") as caught:
        wait_for(wish, Daemon(with_headroom(room)))  # type: ignore[arg-type]
    assert caught.value.code == code
