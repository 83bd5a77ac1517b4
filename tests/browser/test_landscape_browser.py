"""The landscape of the overview in a real browser: lengths, words and lines at every width, keys, looking back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from memwatch.core.snapshot import Snapshot
from memwatchd.settings.schema import DEMOS
from support.axe import faults_in_both_themes
from support.browsing import SharedBrowser, opened
from support.daemon_process import running_daemon
from support.demo_frames import moments_of
from support.live_page import box, evaluate_at, resize, showing, visiting, wait_for_ticks
from support.sample_mig import eight_by_seven
from support.sample_site import Site
from support.sample_snapshots import SAMPLES, critical_gb10, discrete_gpu, hostile_names, unknown_figures

WIDTHS = (1440, 1000, 320)
SHOWN: Mapping[str, Snapshot] = {
    "critical_gb10": critical_gb10(),
    "discrete_gpu": discrete_gpu(),
    "eight_by_seven": eight_by_seven(),
    "unknown_figures": unknown_figures(),
    "hostile_names": hostile_names(),
}
OTHERS = [name for name in SAMPLES if name not in SHOWN]

# Visible boxes with their bytes: height of towers, width of what lies on its side. Loupes state their factor.
LENGTHS = """() => {
  const isSeen = (one) => one.getBoundingClientRect().width > 0;
  const isDivided = (one) => one.closest(".tower").querySelector(".tower-head [aria-hidden]:not(.shape)");
  return [...document.querySelectorAll("[data-gib]")].filter(isSeen).map((one) => {
    const lies = one.closest(".band") !== null;
    const side = lies ? "width" : "height";
    return {
      gib: Number(one.dataset.gib),
      length: Number(one.getAttribute(side)),
      drawn: one.getBoundingClientRect()[side],
      pool: one.closest("article").id,
      group: lies ? "band" : one.closest("[data-factor]") ? "loupe" : isDivided(one) ? "divided" : "tower",
    };
  });
}"""

# Visible words of pictures that lie beyond their picture or the card, on each other, or on a threshold.
WRONG_WORDS = """() => {
  const wrong = [];
  const card = document.getElementById("landscape").getBoundingClientRect();
  const isSeen = (one) => one.textContent.trim() && one.getBoundingClientRect().width > 0;
  for (const svg of document.querySelectorAll(".tower-row > svg:not(.axis), .loupe, .band svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const words = [...svg.querySelectorAll("text")].filter(isSeen);
    const boxes = words.map((one) => [one.textContent, one.getBoundingClientRect()]);
    const isPast = svg.matches(".past");
    const [left, right] = isPast ? [card.left, card.right] : [frame.left, frame.right];
    boxes.forEach(([text, box], number) => {
      const isBeside = box.left < left - 1 || box.right > right + 1;
      if (isBeside || box.top < frame.top - 3 || box.bottom > frame.bottom + 3) wrong.push(`beyond: ${text}`);
      for (const [other, place] of boxes.slice(number + 1)) {
        const wide = Math.min(box.right, place.right) - Math.max(box.left, place.left);
        const high = Math.min(box.bottom, place.bottom) - Math.max(box.top, place.top);
        if (wide > 1 && high > 4) wrong.push(`${text} / ${other}`);
      }
    });
    for (const line of svg.querySelectorAll(".threshold")) {
      const { top } = line.getBoundingClientRect();
      for (const [text, box] of boxes) {
        if (top > box.top + 2 && top < box.bottom - 2) wrong.push(`line through ${text}`);
      }
    }
  }
  return wrong;
}"""

# Boxes of parts that leave their whole: the box before them that is less deep.
OUTSIDE = """() => [...document.querySelectorAll(".tower-row > svg:not(.past, .axis)")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll("rect[data-gib]:not(.b-leased, [class*=b-level])")].map((one) => {
    const [x, y, height] = ["x", "y", "height"].map((name) => Number(one.getAttribute(name)));
    return { words: one.textContent, x, y, end: y + height };
  });
  return boxes.filter((one, number) => {
    const whole = boxes.slice(0, number).reverse().find((other) => other.x < one.x - 0.5);
    return whole && (one.y < whole.y - 0.2 || one.end > whole.end + 0.2);
  }).map((one) => one.words);
})"""

# Places of the title and the ranges without what the next tick brings back.
WITHOUT_THEN = """() => {
  document.querySelector(".landscape-then")?.remove();
  return [".landscape-head h2", ".landscape-spans"]
    .map((one) => document.querySelector(one).getBoundingClientRect().toJSON());
}"""


def check_lengths(found: list[dict[str, Any]]) -> None:
    """Check that boxes of one group have one number of pixels per GiB, to a pixel."""
    for group in ("tower", "divided", "loupe", "band"):
        mine = [one for one in found if one["group"] == group and one["gib"]]
        if group in ("loupe", "divided"):
            pools = {one["pool"] for one in mine}
            groups = [[one for one in mine if one["pool"] == pool] for pool in pools]
        else:
            groups = [mine] if mine else []
        for several in groups:
            largest = max(several, key=lambda one: one["gib"])
            factor = largest["length"] / largest["gib"]
            assert all(abs(one["length"] - one["gib"] * factor) <= 1 for one in several)
            assert all(abs(one["drawn"] - one["length"]) <= 2 for one in several)  # with its outline


def check_pictures(page: Page) -> None:
    """Check the picture of a page that is open at all widths."""
    for width in WIDTHS:
        resize(page, width)
        check_lengths(page.evaluate(LENGTHS))
        assert page.evaluate(WRONG_WORDS) == [], width
        assert page.evaluate(OUTSIDE) == [], width
        assert page.evaluate("document.querySelector('#landscape').scrollWidth") <= width


@pytest.mark.parametrize("name", [*SHOWN, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_lengths_are_bytes_and_words_stand_apart(visited_page: Page, name: str) -> None:
    snapshot = SHOWN[name] if name in SHOWN else SAMPLES[name]()
    with visiting(visited_page, Site(snapshot)):
        check_pictures(visited_page)


@pytest.mark.long
@pytest.mark.parametrize("demo", DEMOS)
def test_demos_are_drawn_to_scale(visited_page: Page, demo: str) -> None:
    """At the fullest moment, which has the longest figures."""
    with visiting(visited_page, Site(moments_of(demo).fullest)):
        check_pictures(visited_page)


@pytest.mark.parametrize("name", ["critical_gb10", "eight_by_seven"])
def test_landscape_has_no_accessibility_faults(visited_page: Page, name: str) -> None:
    with visiting(visited_page, Site(SHOWN[name]), width=1440, height=900):
        assert faults_in_both_themes(visited_page) == []


def test_segments_are_links_from_the_ground_up(visited_page: Page) -> None:
    with visiting(visited_page, Site(critical_gb10()), width=1440, height=900):
        links = visited_page.locator(".now-wide a")
        names = [one.text_content() or "" for one in links.all()]
        targets = [one.get_attribute("href") for one in links.all()]

    assert names[0].startswith("CUDA Pool: ")
    assert names[1].startswith("vllm: 87.0 GiB")
    assert targets[:2] == ["devices", "processes/20311"]


def test_moment_under_the_pointer_is_shown_until_the_pointer_leaves(browser: SharedBrowser) -> None:
    """The arrow keys keep a moment, and Escape returns to now."""
    with showing(browser, Site(critical_gb10()), viewport={"width": 1440, "height": 900}) as page:
        title = page.locator(".now-wide .now-title").first
        expect(title).to_contain_text("Now, ")
        place = page.locator("svg.past").first.bounding_box()
        assert place is not None
        page.mouse.move(place["x"] + place["width"] * 0.5, place["y"] + 200)
        expect(title).to_contain_text(re.compile(r"^\d\d:\d\d:\d\d, .* ago · Esc = now$"))
        expect(page.locator("svg.past .cursor").first).to_have_attribute("visibility", "visible")
        page.mouse.move(10, 10)
        expect(title).to_contain_text("Now, ")

        page.keyboard.press("ArrowLeft")
        expect(title).to_contain_text("Esc = now")
        page.keyboard.press("Escape")
        expect(title).to_contain_text("Now, ")


@pytest.mark.parametrize("width", [390, 820])
def test_touch_on_the_past_returns_by_a_button(browser: SharedBrowser, width: int) -> None:
    """A touch screen has no Escape. The time that is shown stands beside the button. The picture stays in place."""
    options: dict[str, Any] = {"viewport": {"width": width, "height": 1600}, "has_touch": True, "is_mobile": True}
    with showing(browser, Site(critical_gb10()), **options) as page:
        place = page.locator("svg.past").first
        before = place.bounding_box()
        assert before is not None
        page.touchscreen.tap(before["x"] + before["width"] / 2, before["y"] + 200)
        back = page.locator("#return")
        expect(back).to_be_visible()
        expect(page.locator(".look-back-time")).to_contain_text(re.compile(r"^\d\d:\d\d:\d\d, .* ago$"))
        assert place.bounding_box() == before
        back.tap()
        expect(back).to_have_count(0)


def test_use_three_minutes_ago_is_in_words_at_any_width(visited_page: Page) -> None:
    with visiting(visited_page, Site(critical_gb10()), height=900):
        for width in (320, 390, 1280, 1440):
            resize(visited_page, width)
            expect(visited_page.locator(".landscape-then")).to_be_visible()
            expect(visited_page.locator(".landscape-then")).to_contain_text("3 min ago")


def test_use_of_many_gpus_three_minutes_ago_is_in_one_line_of_the_first_screen(visited_page: Page) -> None:
    """Beside the title, with the use of all together where there is room."""
    with visiting(visited_page, Site(moments_of("h100x8-mig").fullest), height=900):
        then, head = visited_page.locator(".landscape-then"), visited_page.locator(".landscape-head")
        expect(then).to_contain_text(re.compile(r"^3 min ago VRAM \d \d+\.\d%"))
        for width in (1440, 1280, 390):
            resize(visited_page, width)
            place, around = box(then), box(head)

            assert place["y"] + place["height"] <= 900, width
            assert place["height"] <= 24, width
            assert visited_page.locator(".then-all").is_visible() is (width >= 1280)
            assert width < 1280 or around["height"] <= 30, width


def test_title_keeps_its_line_on_a_phone_in_the_first_minutes(visited_page: Page) -> None:
    """Without the use of three minutes ago, the ranges would fit beside it and take its width."""
    with visiting(visited_page, Site(critical_gb10())):
        found = evaluate_at(visited_page, (320, 390), WITHOUT_THEN)

    for width, (title, ranges) in found.items():
        assert title["width"] > width / 3
        assert ranges["y"] >= title["y"] + title["height"] - 1, width


def test_head_of_several_pools_is_one_line(visited_page: Page) -> None:
    """At 1280 px, with the longest title of the demos."""
    with visiting(visited_page, Site(moments_of("strix-halo").first), width=1280, height=900):
        head = box(visited_page.locator(".landscape-head"))
        height = visited_page.evaluate("document.documentElement.scrollHeight")

    assert head["height"] <= 30
    assert height <= 900


def test_parts_that_do_not_change_stay_on_the_page(browser: SharedBrowser, tmp_path: Path) -> None:
    """The stream of a daemon sends them empty. The past is one of them within its step, the events are another."""
    with (
        running_daemon(tmp_path, "--demo", "dgx-spark", "--at", "60s") as daemon,
        opened(browser, daemon.url) as page,
    ):
        wait_for_ticks(page, 4)

        expect(page.locator("#events tbody tr")).not_to_have_count(0)
        expect(page.locator("svg.past path")).not_to_have_count(0)
        expect(page.locator("[data-same]")).to_have_count(0)


def test_range_redraws_the_past_and_stays_live(browser: SharedBrowser) -> None:
    with showing(browser, Site(critical_gb10())) as page:
        page.locator(".landscape-spans a", has_text="1 h").click()
        expect(page.locator(".landscape-spans a[aria-current]")).to_have_text("1 h")
        seq = page.evaluate("JSON.parse(document.getElementById('latest').textContent).seq")
        page.wait_for_function(f"() => JSON.parse(document.getElementById('latest').textContent).seq > {seq} + 1")

        expect(page.locator(".landscape-spans a[aria-current]")).to_have_text("1 h")
