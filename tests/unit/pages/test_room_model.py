"""The model under "Room": the largest that fits, as `memwatch fit --what` lists it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import Snapshot
from memwatch.planning.model_table import list_runnable
from memwatch.planning.request import Use
from memwatch_web.pages.overview import FILLED, LOST_PAUSE_SECONDS, PAUSE_SECONDS, RoomModel, find_rooms, fits
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader
from support.sample_parts import GIB
from support.sample_snapshots import calm_workstation, critical_gb10, discrete_gpu, mig_server, unknown_figures


def with_room(room: Bytes, seconds: float = 0.0) -> Snapshot:
    base = discrete_gpu()
    one = replace(base.devices[0], headroom_bytes=room, headroom_after_reclaim_bytes=room)
    return replace(base, devices=(one,), monotonic=base.monotonic + seconds)


@pytest.mark.parametrize("snapshot", [calm_workstation(), mig_server()])
def test_model_is_the_largest_compared_one_of_the_list_of_the_command(snapshot: Snapshot) -> None:
    found = RoomModel().find(snapshot)

    rooms = find_rooms(snapshot)
    listed = [one for one in list_runnable(snapshot, Use()) if one.dtype == "q4_k" and one.is_compared]
    assert found == next(one for one in listed if fits(one, rooms, FILLED))


def test_model_is_named_beside_the_room() -> None:
    found = RoomModel().find(calm_workstation())

    assert found is not None
    assert f"more fit, such as {found.model} as q4_k, " in Reader(Pages().page("overview", calm_workstation())).text
    assert "such as" not in Reader(Pages().page("overview", unknown_figures())).text
    assert "such as" not in Reader(Pages().page("overview", critical_gb10())).text


def test_model_that_no_longer_fits_gives_place_to_another_one_at_once() -> None:
    """Half a minute long no model was named. Searches have a shorter pause then, so that their cost is bounded."""
    model = RoomModel()
    first = model.find(with_room(30 * GIB))
    later = model.find(with_room(6 * GIB, seconds=LOST_PAUSE_SECONDS - 0.25))
    searched = model.find(with_room(6 * GIB, seconds=LOST_PAUSE_SECONDS))

    assert first is not None
    assert first.bytes > 6 * GIB
    assert later is None
    assert searched is not None
    assert model.find(with_room(6 * GIB, seconds=2 * PAUSE_SECONDS)) is searched
    assert model.find(with_room(60 * GIB, seconds=2 * LOST_PAUSE_SECONDS)) is searched, "it still fits"
    assert searched.bytes <= 6 * GIB
    assert RoomModel().find(with_room(Absent.NOT_AVAILABLE)) is None
