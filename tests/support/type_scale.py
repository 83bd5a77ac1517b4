"""The sizes and weights of type that a page may have."""

from __future__ import annotations

from playwright.sync_api import Page

SIZES, WEIGHTS = {"11px", "13px", "16px", "22px", "40px"}, {"400", "600", "700"}
# Of the elements of the content that have words of their own and are shown.
USED = """() => {
  const words = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const seen = [...document.querySelectorAll("#live *")].filter((one) => words(one) && one.checkVisibility());
  const of = (name) => [...new Set(seen.map((one) => getComputedStyle(one)[name]))];
  return [of("fontSize"), of("fontWeight")];
}"""


def wrong_type(page: Page) -> set[str]:
    """Return the sizes and weights in the content of a page that are not in the scale."""
    sizes, weights = page.evaluate(USED)
    assert sizes
    return (set(sizes) - SIZES) | (set(weights) - WEIGHTS)
