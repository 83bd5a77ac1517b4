"""The status and the type of the pages in a real browser: nothing is cut, nothing moves with the level."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from memwatch.core.model import Absent
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Level, Reason, Snapshot
from memwatch_web.pages.template_environment import PATHS
from support.live_page import resize, visiting
from support.sample_mig import eight_by_seven
from support.sample_parts import GIB
from support.sample_site import Site, served
from support.sample_snapshots import critical_gb10, mig_server
from support.shared_daemons import SharedDaemons

SIZES, WEIGHTS = {"11px", "13px", "16px", "22px", "40px"}, {"400", "600", "700"}
MAX_EMPTY = 60  # pixels of a card below its last row, beside a longer one
PAGES = (*(path[1:] for path in PATHS.values()), "fit", "incidents", "runbooks", "processes?by=container")

# Sizes and weights of all elements that have text, those of fields and choices included.
TYPE = """() => [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() &&
  ([...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
    || one.matches("input, select")))
  .map((one) => { const style = getComputedStyle(one);
    return [style.fontSize, style.fontWeight, `${one.localName}.${one.getAttribute("class") ?? ""}`]; })"""
# Elements of the state that show less than their text, or reach beyond the window.
CUT = """() => [...document.querySelectorAll(".state-block *")].filter((one) => one.checkVisibility()
  && !one.closest("svg, .why-text") && (one.getBoundingClientRect().right > innerWidth + 1
    || (getComputedStyle(one).overflowX === "hidden" && one.scrollWidth > one.clientWidth)))
  .map((one) => one.textContent.trim().slice(0, 60))"""
# The boxes of what to do and of who is told, which a sample does not have, and the lines of its receivers.
TOLD_BESIDE = """() => {
  const told = document.querySelector(".do-told");
  told.innerHTML = '<span>Alerts go to: <b>operations-webhook, chat</b></span> <button>Silence 1 h</button>';
  const boxes = [document.querySelector(".do-steps"), told].map((one) => one.getBoundingClientRect().toJSON());
  return [...boxes, told.querySelector("b").getClientRects().length]; }"""
BOTTOMS = """() => [...document.querySelectorAll(".pair > .card")].map((card) => {
  const rows = card.querySelectorAll("tbody tr");
  return card.getBoundingClientRect().bottom - rows[rows.length - 1].getBoundingClientRect().bottom; })"""


def at(level: Level, ratio: float) -> Snapshot:
    base = critical_gb10()
    left = {"seconds_to_full": 90.0} if level >= Level.HIGH else {}
    verdict = replace(base.pressure[0], level=level, base_level=level, ratio=ratio, size_bytes=120 * GIB, **left)
    return replace(base, pressure=(verdict,))


def silenced() -> Snapshot:
    made = Silence("sil_1", critical_gb10().unix + 86_400, 0.0, 86_400.0, made_by="root (uid 0)")
    return replace(LEVELS[-1], silences=(made,))


def recovering() -> Snapshot:
    """Return a machine after a kill, with the longest reason."""
    reasons = (
        Reason("oom_kill", "20 s ago: OOM killer: killed train.py (51210), 418.9 GiB anonymous"),
        Reason(
            "psi", "30 s ago: some tasks stalled on memory for 39% of the last 10 s, although memory is available"
        ),
    )
    base = at(Level.CRITICAL, 0.112)
    verdict = replace(
        base.pressure[0],
        base_level=Level.LOW,
        reasons=reasons,
        seconds_to_full=Absent.NOT_AVAILABLE,
        clears_in_seconds=31.0,
        clears_to=Level.LOW,
    )
    return replace(base, pressure=(verdict,))


WIDTHS = (320, 390, 900, 1100, 1280, 1440)
LEVELS = [at(Level.LOW, 0.4), at(Level.MEDIUM, 0.66), at(Level.HIGH, 0.85), at(Level.CRITICAL, 0.988)]


@pytest.mark.parametrize("demo", ["dgx-spark", "h100x8-mig", "macbook"])
def test_pages_have_five_sizes_and_three_weights_of_type(
    visited_page: Page, shared_daemons: SharedDaemons, demo: str
) -> None:
    """And scroll sideways at no width from 320 px on."""
    found, wide = {}, {}
    url = shared_daemons.demo(demo).url
    visited_page.set_viewport_size({"width": 320, "height": 800})
    for path in PAGES:
        visited_page.goto(f"{url}/{path}")
        found[path] = [one for one in visited_page.evaluate(TYPE) if one[0] not in SIZES or one[1] not in WEIGHTS]
        wide[path] = visited_page.evaluate("document.documentElement.scrollWidth")
    visited_page.goto("about:blank")

    assert [(path, wrong) for path, wrong in found.items() if wrong] == []
    assert wide == dict.fromkeys(PAGES, 320)


def test_patterns_have_five_sizes_and_three_weights_of_type(visited_page: Page) -> None:
    """Every component in every state, with the page of alerts that has receivers."""
    with served(Site(mig_server())) as address:
        visited_page.set_viewport_size({"width": 320, "height": 800})
        for path in ("/patterns", "/alerts"):
            visited_page.goto(address + path)
            found = visited_page.evaluate(TYPE)
            assert [one for one in found if one[0] not in SIZES or one[1] not in WEIGHTS] == []
            assert visited_page.evaluate("document.documentElement.scrollWidth") == 320
        visited_page.goto("about:blank")


@pytest.mark.parametrize("sample", [silenced, eight_by_seven])
def test_nothing_of_the_state_is_cut(visited_page: Page, sample: Callable[[], Snapshot]) -> None:
    """Also not with both steps, both ends of the headroom and a silence, the longest of all."""
    cut, wide = {}, {}
    with visiting(visited_page, Site(sample()), height=900):
        for width in WIDTHS:
            resize(visited_page, width)
            cut[width] = visited_page.evaluate(CUT)
            wide[width] = visited_page.evaluate("document.documentElement.scrollWidth")

    assert cut == {width: [] for width in WIDTHS}
    assert wide == {width: width for width in WIDTHS}


@pytest.mark.parametrize("width", [320, 390, 600])
def test_reasons_of_a_recovery_widen_no_phone(visited_page: Page, width: int) -> None:
    """A reason is one line that is cut: it is whole behind "?"."""
    with visiting(visited_page, Site(recovering()), width=width, height=900):
        assert "Recovering" in visited_page.locator(".status-level").inner_text()
        assert visited_page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1280, 1440])
def test_who_is_told_is_one_line_beside_the_reasons_of_a_recovery(visited_page: Page, width: int) -> None:
    """A kill brings reasons, which are cut: they made "Alerts go to" two lines, and all below it moved."""
    with visiting(visited_page, Site(recovering()), width=width, height=900):
        steps, told, lines = visited_page.evaluate(TOLD_BESIDE)

    assert lines == 1
    assert told["height"] <= 32
    assert steps["right"] <= told["x"]


def test_growing_process_is_one_line_beside_the_reason_of_no_forecast(visited_page: Page) -> None:
    """At 320 pixels "no process" was two."""
    medium = LEVELS[1]
    verdict = replace(medium.pressure[0], seconds_to_full=Absent.NOT_AVAILABLE)
    with visiting(visited_page, Site(replace(medium, pressure=(verdict,))), width=320, height=900):
        assert "no forecast" in visited_page.locator(".status-deadline").inner_text()
        height = visited_page.evaluate(
            'document.querySelector(".status-who .status-value").getBoundingClientRect().height'
        )

    assert height < 30


def test_state_has_one_height_at_every_level(visited_page: Page) -> None:
    heights: dict[int, list[float]] = {390: [], 1280: [], 1440: []}
    for snapshot in LEVELS:
        with visiting(visited_page, Site(snapshot), height=900):
            for width, found in heights.items():
                resize(visited_page, width)
                block = visited_page.locator(".state-block").bounding_box()
                assert block is not None
                found.append(round(block["height"]))

    assert {width: len(set(found)) for width, found in heights.items()} == dict.fromkeys(heights, 1), heights


def test_cards_at_the_bottom_end_together(visited_page: Page) -> None:
    with visiting(visited_page, Site(critical_gb10()), width=1440, height=900):
        below = visited_page.evaluate(BOTTOMS)

    assert len(below) == 2
    assert max(below) <= MAX_EMPTY
