"""Rules of the landscape in a real browser: sums, one order of the stack, and colours with one meaning."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import pytest
from playwright.sync_api import Page

from memwatch.core.snapshot import Snapshot
from support.demo_frames import moments_of
from support.live_page import visiting
from support.sample_site import Site
from support.sample_snapshots import critical_gb10, discrete_gpu

MACHINES: dict[str, Callable[[], Snapshot]] = {
    "critical_gb10": critical_gb10,
    "discrete_gpu": discrete_gpu,
    "dgx-spark": lambda: moments_of("dgx-spark").fullest,
    "strix-halo": lambda: moments_of("strix-halo").fullest,
}
# Boxes of each pool from the ground up, without those that only mark a level, a lease or a plan.
TOWERS = """() => [...document.querySelectorAll("svg[id^='now-wide-']")].map((svg) => ({
  pool: svg.id.slice("now-wide-".length),
  boxes: [...svg.querySelectorAll("rect[data-gib]:not(.b-leased, [class*=b-level])")].map((one) => ({
    kind: one.getAttribute("class").split(" ")[0].slice(2),
    name: one.closest("a")?.getAttribute("aria-label") ?? "",
    gib: Number(one.dataset.gib),
    x: Number(one.getAttribute("x")),
    top: Number(one.getAttribute("y")),
    end: Number(one.getAttribute("y")) + Number(one.getAttribute("height")),
    fill: getComputedStyle(one).fill,
  })),
  past: [...document.querySelectorAll(`#past-${CSS.escape(svg.id.slice("now-wide-".length))} path[class^=b-]`)]
    .map((one) => ({ kind: one.getAttribute("class").slice(2), fill: getComputedStyle(one).fill })),
  ahead: [...document.querySelectorAll(`#past-${CSS.escape(svg.id.slice("now-wide-".length))} path.ahead`)]
    .map((one) => ({ kind: one.getAttribute("class").split(" b-")[1], fill: getComputedStyle(one).fill })),
}))"""
# Computed fills of the levels, as any box of one would have them.
LEVELS = """() => ["low", "medium", "high", "critical"].map((level) => {
  const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  box.setAttribute("class", `b-level-${level}`);
  document.querySelector("svg[id^='now-wide-']").append(box);
  const { fill } = getComputedStyle(box);
  box.remove();
  return fill;
})"""
# Two words for one thing: of a GPU and of System RAM.
ALIKE = {"available": "free", "reserved": "kernel"}
# Bytes are written in GiB with three digits.
DIGIT = 0.001


class Drawn(NamedTuple):
    """The landscape of a machine in one theme."""

    snapshot: Snapshot
    towers: list[dict[str, Any]]
    levels: list[str]


class Drawings:
    """Landscapes by machine and theme, each from one visit: the tests only read what was found."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Drawn] = {}

    def of(self, page: Page, machine: str, theme: Literal["light", "dark"] = "light") -> Drawn:
        if (machine, theme) not in self._known:
            snapshot = MACHINES[machine]()
            page.emulate_media(color_scheme=theme)
            with visiting(page, Site(snapshot), width=1440, height=900):
                self._known[machine, theme] = Drawn(snapshot, page.evaluate(TOWERS), page.evaluate(LEVELS))
        assert self._known[machine, theme].towers
        return self._known[machine, theme]


@pytest.fixture(scope="module")
def drawings() -> Drawings:
    return Drawings()


def strip_family(kind: str) -> str:
    return kind.removesuffix("-family")


def rgb(fill: str) -> tuple[int, ...]:
    return tuple(map(int, fill.removeprefix("rgb(").removesuffix(")").split(",")))


@pytest.mark.parametrize("machine", MACHINES)
def test_parts_add_up_to_their_pool_and_to_the_part_that_they_are_in(
    visited_page: Page, drawings: Drawings, machine: str
) -> None:
    drawn = drawings.of(visited_page, machine)
    sizes = {one.id: one.size_bytes for one in drawn.snapshot.pools}
    for tower in drawn.towers:
        boxes = tower["boxes"]
        columns = sorted({one["x"] for one in boxes})
        stack = [one for one in boxes if one["x"] == columns[0]]
        size = sizes[tower["pool"]]
        assert isinstance(size, int)
        assert sum(one["gib"] for one in stack) == pytest.approx(size / 2**30, abs=DIGIT * len(stack))
        for column, deeper in pairwise(columns):
            for parent in (one for one in boxes if one["x"] == column):
                inner = [
                    one
                    for one in boxes
                    if one["x"] == deeper
                    and one["top"] > parent["top"] - 0.15
                    and one["end"] < parent["end"] + 0.15
                    and one["gib"]
                ]
                if inner and sum(one["end"] - one["top"] for one in inner) > 0:
                    held = sum(one["gib"] for one in inner)
                    assert held == pytest.approx(parent["gib"], abs=DIGIT * len(inner)), parent["name"]


@pytest.mark.parametrize("machine", MACHINES)
def test_stack_has_one_order_and_one_colour_in_past_forecast_and_now(
    visited_page: Page, drawings: Drawings, machine: str
) -> None:
    """From the ground up. The past has fewer parts: what it does not know by kind is in the last of them."""
    for tower in drawings.of(visited_page, machine).towers:
        boxes = tower["boxes"]
        ground = min((one["x"] for one in boxes), default=0.0)
        stack = [strip_family(one["kind"]) for one in boxes if one["x"] == ground]
        # The layers of the past are drawn over each other, the highest first.
        past = [one["kind"] for one in reversed(tower["past"])]
        past = [kind for kind in past if kind in stack and not kind.startswith("level")]
        assert list(dict.fromkeys(past)) == [kind for kind in dict.fromkeys(stack) if kind in past]
        fills = {one["kind"]: one["fill"] for one in boxes}
        for one in (*tower["past"], *tower["ahead"]):
            assert one["fill"] == fills.get(one["kind"], one["fill"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("machine", MACHINES)
def test_colours_of_levels_are_levels_and_families_have_their_own(
    visited_page: Page, drawings: Drawings, machine: str, theme: Literal["light", "dark"]
) -> None:
    """GPU memory is green, memory of processes blue, and no part has a colour of a level."""
    _, towers, levels = drawings.of(visited_page, machine, theme)

    assert len(set(levels)) == len(levels)
    meanings: dict[str, set[str]] = {}
    for tower in towers:
        for one in (*tower["boxes"], *tower["past"], *tower["ahead"]):
            kind = one["kind"].split(" ")[0]
            if kind.startswith("level") or not one["fill"].startswith("rgb("):
                continue
            assert one["fill"] not in levels, kind
            plain = strip_family(kind)
            family = "gpu" if plain == "devices" or plain.startswith("engine") else ALIKE.get(plain, plain)
            meanings.setdefault(one["fill"], set()).add(family)
            red, green, blue = rgb(one["fill"])
            if family == "gpu":
                assert green > max(red, blue), kind
            if family == "anonymous":
                assert blue > max(red, green), kind
    assert {fill: families for fill, families in meanings.items() if len(families) > 1} == {}
