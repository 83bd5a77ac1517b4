"""What axe-core finds wrong with a page for people who cannot see it, see it badly, or use no mouse."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

# Evaluated by the browser's own tools: the policy of the page lets no script of others in.
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
RUN = "rules => axe.run(document, {resultTypes: ['violations'], ...(rules.length ? {runOnly: rules} : {})})"


def faults(page: Page, *rules: str) -> list[str]:
    """Serious and critical violations, a line for each place; of these rules only, where any are given."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate(RUN, list(rules))
    return [
        f"{violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
