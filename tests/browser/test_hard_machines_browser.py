"""Every page of machines that are hard to draw, at the width of a small phone and of a desktop."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page

from memwatch.planning.request import write_shape
from memwatch_web.pages.fit_page import EXAMPLES
from memwatch_web.pages.template_environment import PATHS
from support.browsing import collecting_complaints, wait_for_frames
from support.hard_machines import HARD_MACHINES
from support.live_page import resize, wait_for_ticks
from support.sample_site import Site, served

FIT = "/fit?" + urlencode({**write_shape(dict(EXAMPLES)["Llama 3 70B"]), "context": "131072", "batch_size": "8"})
PAGES = {
    **PATHS,
    "units": "/processes?by=unit",
    "users": "/processes?by=user",
    "fit": FIT,
    "last-words": "/last-words",
}
WIDTHS = (320, 390, 1440)
# Each page in every run of the tests, of a machine that it is hard for.
OFTEN = {
    ("sixty_four_instances", "overview"),
    ("hostile_everywhere", "overview"),
    ("hostile_everywhere", "processes"),
    ("hostile_everywhere", "devices"),
    ("no_figures", "devices"),
    ("sixty_four_instances", "fit"),
    ("hostile_everywhere", "last-words"),
}
# Words that reach beyond the window, or beyond the bottom of a box that hides them. A name that a machine gives may
# be of any length: it ends with an ellipsis, and its title has the whole of it.
CUT = """() => {
  const isNamed = (one) => {
    let at = one;
    while (at && getComputedStyle(at).textOverflow !== "ellipsis") at = at.parentElement;
    return at && one.closest("[title]");
  };
  const hasWords = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const scrolls = (one) => one.closest(".scroll, .unseen, .why-text, svg, details:not([open])");
  return [...document.querySelectorAll("main *, header *")]
    .filter((one) => one.checkVisibility() && hasWords(one) && !scrolls(one))
    .filter((one) => {
      const { right, width } = one.getBoundingClientRect();
      const isHidden = getComputedStyle(one).overflowX === "hidden" && one.scrollWidth > one.clientWidth + 1;
      return width > 1 && (right > innerWidth + 1 || isHidden) && !isNamed(one);
    })
    .map((one) => `${one.localName}.${one.className}: ${one.textContent.trim().slice(0, 60)}`);
}"""


@pytest.mark.parametrize(
    ("name", "page_name"),
    [
        pytest.param(name, page, marks=() if (name, page) in OFTEN else pytest.mark.long)
        for name in HARD_MACHINES
        for page in PAGES
    ],
)
def test_page_of_a_hard_machine_fits_every_width(visited_page: Page, name: str, page_name: str) -> None:
    """No error, no sideways scroll and no cut word."""
    wide: dict[int, int] = {}
    cut: dict[int, list[str]] = {}
    with (
        served(Site(HARD_MACHINES[name](), interval_seconds=1.0)) as address,
        collecting_complaints(visited_page, address) as complaints,
    ):
        visited_page.goto(address + PAGES[page_name])
        if visited_page.locator("#latest").count():
            wait_for_ticks(visited_page, 1)
        wait_for_frames(visited_page)
        for width in WIDTHS:
            resize(visited_page, width)
            wide[width] = visited_page.evaluate("document.documentElement.scrollWidth")
            cut[width] = visited_page.evaluate(CUT)
        visited_page.goto("about:blank")

    assert complaints == []
    assert wide == {width: width for width in WIDTHS}
    assert cut == {width: [] for width in WIDTHS}
