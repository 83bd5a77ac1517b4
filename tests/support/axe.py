"""Accessibility checks of a page with axe-core."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

from support.browsing import wait_for_frames

# Evaluated through the browser's developer tools: the page's policy blocks scripts of other origins.
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# A colour on its way to another is in no stylesheet. After a change of theme, links of Swagger UI need 0.15 s.
WITHOUT_TRANSITIONS = (
    "() => {"
    "  const still = new CSSStyleSheet();"
    "  still.replaceSync('*, ::before, ::after { transition: none !important }');"
    "  document.adoptedStyleSheets.push(still);"
    "}"
)
RUN = "rules => axe.run(document, {resultTypes: ['violations'], ...(rules.length ? {runOnly: rules} : {})})"


def faults(page: Page, *rules: str) -> list[str]:
    """Return serious and critical violations, one line for each place; limited to `rules` if given.

    Pages follow a change of theme from the next frame on, by a script. The page has no transitions from then on.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
        page.evaluate(WITHOUT_TRANSITIONS)
    wait_for_frames(page)
    found: dict[str, Any] = page.evaluate(RUN, list(rules))
    return [
        f"{violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def faults_in_both_themes(page: Page) -> list[str]:
    """Return the faults of a light page, and the contrasts of its dark theme, which differs by colours only."""
    page.emulate_media(color_scheme="light")
    light = faults(page)
    page.emulate_media(color_scheme="dark")
    return [*light, *(f"dark: {one}" for one in faults(page, "color-contrast"))]
