"""Pictures of neighbours, from what their ticks have: every kind of machine, earlier times, odd figures."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch_monitor.neighbours.tick import PoolTick, Tick
from memwatch_web.asgi.problems import ProblemError
from memwatch_web.pages.machine_wall import Tile, build_tile
from memwatch_web.pages.neighbour_picture import build_neighbour_picture, build_shown
from memwatch_web.pages.picture import FORMS, THEMES, PictureQuery
from memwatch_web.pages.renderer import Pages
from support.fakes import GIB
from support.sample_fleet import NEIGHBOURS, Fleet, build_given_tick
from support.sample_snapshots import calm_workstation

NOW = PictureQuery(None, FORMS["1200x630"], THEMES["light"])
SENDING = [one for one in NEIGHBOURS if one.pools]
# Unix time of the first tick of a past.
BEGAN = 1_700_000_000.0


def tile_of(name: str) -> Tile:
    return build_tile(next(one for one in Fleet().machines(calm_workstation()) if one.name == name))


def ticks_of(name: str) -> list[Tick]:
    one = next(one for one in NEIGHBOURS if one.name == name)
    return [build_given_tick(one, step / 60, BEGAN + 10 * step) for step in range(61)]


@pytest.mark.parametrize("size", FORMS)
@pytest.mark.parametrize("name", [one.name for one in SENDING])
def test_every_machine_of_a_fleet_has_a_picture_with_its_name(name: str, size: str) -> None:
    """Also one that is silent, one of an early version, and one with markup as its name."""
    card = build_neighbour_picture(tile_of(name), ticks_of(name), replace(NOW, form=FORMS[size]))

    svg = ElementTree.fromstring(Pages().card(card))

    words = " ".join(svg.itertext())
    assert card.heading.host[:4] in words
    assert svg.findall(".//{*}rect[@data-gib]")
    assert "<b>x" not in Pages().card(card).decode()


def test_past_is_drawn_where_the_form_has_room() -> None:
    tile, ticks = tile_of("older"), ticks_of("older")
    tile = replace(tile, machine=replace(tile.machine, tick=ticks[-1]))
    large, small = (build_neighbour_picture(tile, ticks, replace(NOW, form=FORMS[size])) for size in FORMS)

    assert any(area.kind == "used" for area in large.drawing.areas)
    assert small.drawing.areas == ()


def test_earlier_time_is_the_tick_before_it() -> None:
    ticks = ticks_of("older")
    first = build_neighbour_picture(tile_of("older"), ticks, replace(NOW, at=BEGAN + 305.0))

    assert first.heading.moment.startswith("14 Nov 2023, 22:18:20 UTC")
    with pytest.raises(ProblemError, match=r"no tick of older of .* is kept: kept are from"):
        build_neighbour_picture(tile_of("older"), ticks, replace(NOW, at=BEGAN - 100))


def test_machine_that_has_sent_nothing_has_none_and_says_why() -> None:
    with pytest.raises(ProblemError, match="new has sent nothing yet: "):
        build_neighbour_picture(tile_of("new"), [], NOW)


def test_figures_that_do_not_add_up_are_cut_and_unknown_ones_stay_unknown() -> None:
    pools = (
        PoolTick("ram", "System RAM", 4 * GIB, 9 * GIB, 9 * GIB, "critical", "system_ram", 3 * GIB, 8 * GIB),
        PoolTick("gpu0", "VRAM", 8 * GIB, None, None, "unknown", "vram"),
        PoolTick("none", "Empty", 0, 0, 0, "low", "no such kind"),
    )
    tick = replace(ticks_of("older")[-1], pools=pools)
    shown = build_shown(tick, "odd")
    ram, card, empty = shown.pools

    assert (ram.used_bytes, ram.available_bytes) == (4 * GIB, 0)
    assert [part.size_bytes for part in ram.contents] == [3 * GIB, GIB]
    assert card.used_bytes is Absent.NOT_AVAILABLE
    assert empty.size_bytes == 0
    assert [one.target for one in shown.pressure] == ["ram"]
    tile = tile_of("older")
    odd = replace(tile, machine=replace(tile.machine, tick=tick))
    assert ElementTree.fromstring(Pages().card(build_neighbour_picture(odd, [tick, tick], NOW))) is not None
