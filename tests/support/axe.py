"""Accessibility checks of a page with axe-core."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

# Evaluated through the browser's developer tools: the page's policy blocks scripts of other origins.
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
RUN = "rules => axe.run(document, {resultTypes: ['violations'], ...(rules.length ? {runOnly: rules} : {})})"


def faults(page: Page, *rules: str) -> list[str]:
    """Return serious and critical violations, one line for each place; limited to `rules` if given."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate(RUN, list(rules))
    return [
        f"{violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
