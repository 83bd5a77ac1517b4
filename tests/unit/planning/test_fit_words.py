"""Test the verdict about one device at the limits of its total and of its headroom."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.planning.fit import compute_fit, exceeds_totals
from support.fakes import GIB
from support.gpu_cards import cards


def with_room(room: int, size: int = 80) -> Snapshot:
    base = cards(1, size * GIB)
    return replace(base, devices=(replace(base.devices[0], headroom_after_reclaim_bytes=room * GIB),))


@pytest.mark.parametrize(
    ("need", "reserve", "words"),
    [
        (80 * GIB, 0, "short by 10.0 GiB now; it fits if other processes free memory"),
        (76 * GIB, 4 * GIB, "short by 10.0 GiB now beside the reserve of 4.0 GiB; it fits if other processes"),
        (81 * GIB, 0, "short by 1.0 GiB: its total is 80.0 GiB"),
        (77 * GIB, 4 * GIB, "short by 1.0 GiB beside the reserve of 4.0 GiB: its total is 80.0 GiB"),
    ],
)
def test_more_than_the_total_never_fits_and_the_total_itself_may(need: int, reserve: int, words: str) -> None:
    """The reserve counts in both."""
    found = compute_fit(need, with_room(70), reserve).verdicts[0]

    assert found.fits is False
    assert found.reason.startswith(words)


def test_gpu_of_unknown_size_may_fit_later() -> None:
    """Without a total no need is too large for it."""
    base = with_room(70)
    pools = tuple(pool for pool in base.pools if pool.id == "ram")
    device = replace(base.devices[0], allocates_from=())

    found = compute_fit(90 * GIB, replace(base, pools=pools, devices=(device,))).verdicts[0]

    assert found.size_bytes is Absent.NOT_AVAILABLE
    assert found.reason == "short by 20.0 GiB now; it fits if other processes free memory"


@pytest.mark.parametrize(("left", "is_critical"), [(5, False), (3, True), (0, True)])
def test_fit_that_leaves_less_than_five_percent_is_critical(left: int, is_critical: bool) -> None:
    """4 GiB of 80."""
    found = compute_fit((80 - left) * GIB, with_room(80)).verdicts[0]

    assert found.fits is True
    assert ("which is critical" in found.reason) is is_critical


@pytest.mark.parametrize(
    ("gpus", "need", "is_beyond"), [(2, 81, False), (1, 4000, True), (8, 4000, True), (8, 600, False)]
)
def test_need_beyond_all_totals_has_no_right_now(gpus: int, need: int, is_beyond: bool) -> None:
    """600 GiB may fit onto eight GPUs of 80 GiB later."""
    assert exceeds_totals(compute_fit(need * GIB, cards(gpus, 80 * GIB)).verdicts) is is_beyond


def test_total_that_is_not_known_is_not_exceeded() -> None:
    verdicts = compute_fit(4000 * GIB, cards(1, 80 * GIB)).verdicts
    unknown = replace(verdicts[0], size_bytes=Absent.NOT_AVAILABLE)

    assert not exceeds_totals([unknown, *verdicts[1:]])
