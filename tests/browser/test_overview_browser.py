"""The overview in a real browser: the state, many GPUs, layout shift. Its picture: test_landscape_browser.py."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, Route, expect

from memwatch.core.events import Event
from memwatch.core.snapshot import Level, Snapshot
from memwatch_web.pages.picture import FORMS, THEMES, PictureQuery, build_picture
from memwatch_web.pages.renderer import Pages
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from memwatchd.settings.schema import DEMOS
from support.axe import faults
from support.browsing import SharedBrowser, opened, wait_for_frames
from support.daemon_process import running_daemon
from support.demo_frames import moments_of
from support.live_page import box, evaluate_at, resize, showing, visiting, wait_for_ticks
from support.sample_mig import eight_by_seven
from support.sample_parts import GIB
from support.sample_past import END, past_of
from support.sample_site import Site
from support.sample_snapshots import calm_workstation, critical_gb10, discrete_gpu, mig_server, unknown_figures

MAX_SHIFT = 0.05

# The right edge of the text of an element, which may be wider than its box.
TEXT_EDGE = """selector => {
  const range = document.createRange();
  range.selectNodeContents(document.querySelector(selector));
  return range.getBoundingClientRect().right;
}"""


def test_limit_has_its_own_scale(visited_page: Page) -> None:
    """A cgroup at 75% of its limit fills 75% of its meter, wherever its bytes are."""
    page = visited_page
    with visiting(page, Site(mig_server())):
        meter, used = (box(page.locator(f"#share-slice {one}")) for one in (".meter", ".meter-used"))

    assert used["width"] == pytest.approx(0.75 * meter["width"], abs=1)


@pytest.mark.parametrize("sample", [critical_gb10, discrete_gpu, mig_server], ids=lambda one: one.__name__)
def test_largest_holder_is_in_the_first_screen(visited_page: Page, sample: object) -> None:
    """At 1440 × 900, where the overview is one screen."""
    page = visited_page
    with visiting(page, Site(sample()), width=1440, height=900):  # type: ignore[operator]
        row = box(page.locator(".who-table tbody tr").first)
        name = page.locator(".who-table tbody th a").first.inner_text()

    assert row["y"] + row["height"] <= 900
    assert name == sample().processes[0].name  # type: ignore[operator]


# Elements with a percentage or an amount of memory that show less than their text.
CUT_FIGURES = r"""(which) => [...document.querySelectorAll(which)].filter((one) =>
  /\d\s?([KMGT]i)?(B|%)|~\d/.test(one.innerText ?? "") && getComputedStyle(one).overflowX === "hidden"
  && one.scrollWidth > one.clientWidth && one.clientWidth > 1).map((one) => one.innerText)"""


@pytest.mark.parametrize("demo", DEMOS)
def test_overview_of_each_demo_is_one_screen(visited_page: Page, demo: str) -> None:
    """At 1440 × 900 with the foot of the page: at its begin, its fullest moment and its end. No figure is cut."""
    heights: list[int] = []
    cut: list[str] = []
    for frame in moments_of(demo):
        with visiting(visited_page, Site(frame), width=1440, height=900):
            heights.append(visited_page.evaluate("document.documentElement.scrollHeight"))
            cut += visited_page.evaluate(CUT_FIGURES, "#who *")

    assert (heights, cut) == ([900] * 3, [])


# Of each question: where its answer stands, and the words of it.
QUESTIONS = {
    "what is full": (".status-where", r"^System RAM$"),
    "how bad": (".status-level", r"CRITICAL"),
    "since when": (".status-level", r"for \d+ s"),
    "when is it over": (".status-line", r"Full in (~\d+ s|seconds)|forecast[^:]*: \w+"),
    "who grows": (".status-who a", r"^train\.py$"),
    "by how much": (".status-who", r"\+\d+\.\d [MG]iB/s"),
    "what to do": (".do-steps", r"stop train\.py.*or vLLM at 0\.\d\d"),
    "what that frees": (".do-steps", r"frees \d+\.\d GiB.*frees \d+\.\d GiB"),
    "who is told": (".do-told", r"Alerts go to: no receiver yet"),
    "what is inside the CUDA Pool": (".now-wide", r"CUDA Pool.*vLLM.*weights"),
    "what of it is free to take back": (".now-wide", r"KV cache reserved\s*\d+\.\d GiB\s*empty: can be freed"),
    "what was it three minutes ago": (".landscape-then", r"^3 min ago \d+\.\d%$"),
}
# The answers that are whole on the screen, once the level is critical.
ANSWERS = r"""(questions) => {
  if (!document.querySelector(".state-block.level-critical")) return false;
  const words = (one) => one.tagName === "svg"
    ? [...one.querySelectorAll("text")].map((text) => text.textContent).join(" ") : one.innerText;
  const isWhole = ({ top, left, right, bottom, width }) =>
    width && top >= 0 && left >= 0 && right <= innerWidth && bottom <= innerHeight;
  const found = Object.entries(questions).map(([question, [selector, pattern]]) => {
    const seen = [...document.querySelectorAll(selector)].filter((one) => isWhole(one.getBoundingClientRect()));
    const said = seen.map((one) => words(one).replace(/\s+/g, " ").trim());
    return [question, said.some((one) => new RegExp(pattern).test(one)) ? "" : said.join(" | ") || "not shown"];
  });
  return Object.fromEntries(found);
}"""


def test_twelve_questions_are_answered_on_the_first_screen(browser: SharedBrowser, tmp_path: Path) -> None:
    """Of the DGX Spark at critical, at 1440 × 900, without a click and without scrolling."""
    with (
        running_daemon(tmp_path, "--demo", "dgx-spark", "--at", "275s") as daemon,
        opened(browser, daemon.url, viewport={"width": 1440, "height": 900}) as page,
    ):
        answers = page.wait_for_function(ANSWERS, arg=QUESTIONS).json_value()
        height = page.evaluate("document.documentElement.scrollHeight")

    assert answers == dict.fromkeys(QUESTIONS, "")
    assert height <= 900


def test_texts_of_many_gpus_stay_in_their_columns(visited_page: Page) -> None:
    """The headline covers no figure, and the table of the pools above OK ends in its card."""
    page = visited_page
    with visiting(page, Site(eight_by_seven()), height=900):
        for width in (1100, 1280, 1440):
            resize(page, width)
            headline = page.evaluate(TEXT_EDGE, ".status-headline")
            figure, card = box(page.locator(".status-figure").first), box(page.locator("#who"))
            table = box(page.locator(".firing-table"))

            assert headline < figure["x"], width
            assert table["x"] + table["width"] < card["x"] + card["width"], width


@pytest.mark.parametrize("demo", DEMOS)
def test_phone_has_room_for_every_figure_of_a_demo(visited_page: Page, demo: str) -> None:
    """At the moment with the most memory in use, which has the longest figures. Nothing scrolls sideways."""
    with visiting(visited_page, Site(moments_of(demo).fullest), width=390, height=844):
        wide = visited_page.evaluate("document.documentElement.scrollWidth")
        cut = visited_page.evaluate(CUT_FIGURES, "main *")

    assert (wide, cut) == (390, [])


def test_eight_gpus_are_usable_on_a_phone(visited_page: Page) -> None:
    page = visited_page
    with visiting(page, Site(eight_by_seven()), width=390, height=844):
        wide = page.evaluate("document.documentElement.scrollWidth")
        cells = [box(one) for one in page.locator(".gpu-cell").all()]
        wrong = faults(page)

    assert wide <= 390
    assert max(one["y"] + one["height"] for one in cells) <= 2 * 844
    assert wrong == []


@pytest.mark.parametrize("width", [1280, 390])
def test_updates_do_not_shift_the_layout(browser: SharedBrowser, width: int) -> None:
    """Use, level, reasons and growth change with each sample. Nothing below moves."""
    site = Site(critical_gb10())
    with showing(browser, site, viewport={"width": width, "height": 800}) as page:
        wait_for_ticks(page, 2)
        wait_for_frames(page)
        page.evaluate("window.moved = 0")
        for step in range(6):
            site.snapshot = changed(critical_gb10(), step)
            wait_for_ticks(page, 2)
        wait_for_frames(page)
        moved = page.evaluate("window.moved")

    assert moved <= MAX_SHIFT


def changed(snapshot: Snapshot, step: int) -> Snapshot:
    ram, verdict = snapshot.pools[0], snapshot.pressure[0]
    used = (90 + 4 * step) * GIB
    contents = tuple(
        replace(part, size_bytes=part.size_bytes + ram.used_bytes - used) if part.kind == "page_cache" else part
        for part in ram.contents
        if isinstance(ram.used_bytes, int)
    )
    contents = tuple(
        replace(part, size_bytes=part.size_bytes - ram.used_bytes + used) if part.kind == "unattributed" else part
        for part in contents
        if isinstance(ram.used_bytes, int)
    )
    pool = replace(ram, used_bytes=used, available_bytes=ram.size_bytes - used, contents=contents)
    level = (Level.HIGH, Level.CRITICAL)[step % 2]
    judged = replace(verdict, level=level, ratio=used / ram.size_bytes, reasons=verdict.reasons[: 1 + step % 3])
    return replace(snapshot, pools=(pool,), pressure=(judged,))


def test_back_undoes_a_zoom(browser: SharedBrowser) -> None:
    with showing(browser, Site(calm_workstation())) as page:
        page.goto(page.url + "history?range=1h")
        page.locator("[data-chart] svg.past").first.wait_for()
        before = page.url
        page.locator("#past-closer").click()
        page.wait_for_url(re.compile("from="))
        page.go_back()

        page.wait_for_url(before)
        expect(page.locator("#past-range-1h")).to_have_attribute("aria-current", "true")
        expect(page.locator("#past-reset")).to_have_count(0)


# Pairs of texts of a picture of which one lies on the other by more than a pixel, and texts beyond its edge.
COLLISIONS = """() => {
  const texts = [...document.querySelectorAll("svg > text")].filter((one) => one.textContent.trim());
  const boxes = texts.map((one) => [one.textContent, one.getBBox(), document.querySelector("svg").viewBox.baseVal]);
  const wrong = [];
  boxes.forEach(([words, box, view], number) => {
    if (box.x < 0 || box.x + box.width > view.width || box.y + box.height > view.height) wrong.push(words);
    for (const [others, other] of boxes.slice(number + 1)) {
      const wide = Math.min(box.x + box.width, other.x + other.width) - Math.max(box.x, other.x);
      const high = Math.min(box.y + box.height, other.y + other.height) - Math.max(box.y, other.y);
      if (wide > 1 && high > 4) wrong.push(`${words} / ${others}`);
    }
  });
  return wrong;
}"""


@pytest.mark.parametrize("size", FORMS)
@pytest.mark.parametrize("demo", DEMOS)
def test_words_of_a_picture_lie_apart(visited_page: Page, demo: str, size: str) -> None:
    """At the fullest moment of each demo, with the fonts of the browser."""
    shown = replace(moments_of(demo).fullest, unix=END)
    card = build_picture(Pages(), shown, past_of(shown), PictureQuery(None, FORMS[size], THEMES["dark"]))

    visited_page.set_content(Pages().card(card).decode())

    assert visited_page.evaluate(COLLISIONS) == []


def test_stream_has_the_form_that_fits_the_page(browser: SharedBrowser, tmp_path: Path) -> None:
    """A page that becomes narrow asks for the narrow tower, which is then up to date."""
    with (
        running_daemon(tmp_path, "--demo", "dgx-spark", "--speed", "1") as daemon,
        opened(browser, daemon.url) as page,
    ):
        wait_for_ticks(page)
        seen = page.locator("#now-wide-ram .now-title").text_content()
        expect(page.locator("#now-wide-ram .now-title")).not_to_have_text(seen or "")
        old = page.locator("#now-narrow-ram").evaluate("(one) => one.outerHTML")
        with page.expect_request("**/live?page=overview&form=narrow"):
            page.set_viewport_size({"width": 390, "height": 844})
        expect(page.locator("#now-narrow-ram")).to_be_visible()
        page.wait_for_function("(old) => document.getElementById('now-narrow-ram').outerHTML !== old", arg=old)
        with page.expect_request("**/live?page=overview&form=wide"):
            page.set_viewport_size({"width": 1440, "height": 900})


def test_window_that_is_resized_while_the_stream_connects_gets_its_form(browser: SharedBrowser) -> None:
    """As a phone that is turned: nothing else tells the server of the form."""
    held: list[Route] = []
    with showing(browser, Site(critical_gb10())) as page:
        wait_for_ticks(page)
        page.route("**/live?*form=narrow", lambda route: held.append(route))
        with page.expect_request("**/live?*form=narrow"):
            page.set_viewport_size({"width": 390, "height": 844})
        with page.expect_request("**/live?*form=wide"):
            page.set_viewport_size({"width": 1440, "height": 900})
            wait_for_frames(page)
            held[0].continue_()


CUT = """selector => [...document.querySelectorAll(selector)]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


@pytest.mark.parametrize(
    "demo",
    [
        "dgx-spark",
        "strix-halo",
        *(pytest.param(one, marks=pytest.mark.long) for one in DEMOS if one[:3] not in ("dgx", "str")),
    ],
)
def test_table_of_holders_cuts_no_name_and_no_figure(visited_page: Page, demo: str) -> None:
    """A PID without room beside its name is left out, and a range of bytes takes two lines on a phone."""
    frame = next(islice(read_frames(path_of(demo)), 280, None))
    with visiting(visited_page, Site(frame), height=900):
        cells = ".who-name a, .who-table td.number, .who-table summary"
        cut = evaluate_at(visited_page, (320, 390, 1280, 1440), CUT, cells)

    assert cut == {320: [], 390: [], 1280: [], 1440: []}


def test_service_of_a_holder_has_the_room_that_footprints_leave(visited_page: Page) -> None:
    """It was "app-firefox.sco…" beside 90 free pixels."""
    frame = next(islice(read_frames(path_of("rtx4090")), 280, None))
    with visiting(visited_page, Site(frame), height=900):
        cut = evaluate_at(visited_page, (1440, 1920), CUT, ".who-table .who-owner")

    assert cut == {1440: [], 1920: []}


def test_rows_of_instances_have_whole_names(visited_page: Page) -> None:
    """The end of "GPU 2 · MIG 12" tells it from "GPU 2 · MIG 11"."""
    with visiting(visited_page, Site(eight_by_seven()), height=900):
        cut = evaluate_at(visited_page, (390, 1440), CUT, ".firing-place")

    assert cut == {390: [], 1440: []}


@pytest.mark.parametrize("sample", [unknown_figures, critical_gb10], ids=lambda one: one.__name__)
def test_reasons_open_within_a_phone(visited_page: Page, sample: Callable[[], Snapshot]) -> None:
    """The sign is at another place in each state."""
    with visiting(visited_page, Site(sample()), width=390, height=844):
        for sign in visited_page.locator("details.why > summary").all():
            sign.click()
        wide = evaluate_at(visited_page, (390, 320), "document.documentElement.scrollWidth")

    assert wide == {390: 390, 320: 320}


def test_page_without_new_figures_keeps_its_height(visited_page: Page) -> None:
    with visiting(visited_page, Site(critical_gb10()), width=1440, height=900):
        before = box(visited_page.locator("#landscape"))
        visited_page.evaluate("document.body.classList.add('stale')")

        assert box(visited_page.locator("#landscape")) == before


CUT_CELLS = """() => [...document.querySelector(".events-table tbody tr").cells]
  .filter((cell) => cell.scrollWidth > cell.clientWidth).length"""


@pytest.mark.parametrize("age", [600.0, 3600.0, 86_400.0, 7 * 86_400.0])
def test_words_of_a_kill_are_whole_at_any_age(visited_page: Page, age: float) -> None:
    """Its time is a time of day, and a date after half a day."""
    at = time.time() - age
    kill = Event(1, at, "oom_kill", "OOM killer: killed train.py (51210), 39.9 GiB anonymous", "ram")
    with visiting(visited_page, Site(critical_gb10(), events=(kill,)), width=390, height=900):
        words = visited_page.locator(".events-table tbody tr .event-text").inner_text().strip()
        cut = evaluate_at(visited_page, (390, 330, 320), CUT_CELLS)

    assert words == "OOM kill: train.py, 39.9 GiB anonymous"
    assert cut == {390: 0, 330: 0, 320: 0}


@pytest.mark.parametrize("width", [390, 320])
def test_table_of_pools_above_ok_is_within_its_card_on_a_phone(visited_page: Page, width: int) -> None:
    """With "GPU 7 · MIG 2", a long time and a long name it reached 8 pixels over the words of the card."""
    frame = next(islice(read_frames(path_of("h100x8-mig")), 280, None))
    worse = tuple(
        replace(one, seconds_to_full=150.0) if one.level > Level.LOW and "mig" not in one.target else one
        for one in frame.pressure
    )
    with visiting(visited_page, Site(replace(frame, pressure=worse)), width=width):
        head, table = (visited_page.locator(f".firing {one}").bounding_box() for one in (".card-head", "table"))

    assert head is not None
    assert table is not None
    assert table["x"] + table["width"] <= head["x"] + head["width"] + 0.5


@pytest.mark.parametrize("width", [1920, 1600, 1440, 1280])
def test_step_on_many_gpus_and_who_is_told_are_beside_each_other(visited_page: Page, width: int) -> None:
    """With the memory of one GPU and of all, the link to the runbook lay over "Alerts go to:"."""
    frame = next(islice(read_frames(path_of("h100x8-mig")), 260, None))
    with visiting(visited_page, Site(frame), width=width):
        last, told = (box(visited_page.locator(one)) for one in (".do-steps > li:last-child", ".do-told"))

    assert last["x"] + last["width"] <= told["x"] or last["y"] + last["height"] <= told["y"]
