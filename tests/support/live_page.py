"""Waiting for ticks in an open page."""

from __future__ import annotations

from playwright.sync_api import Page

LIVE = 'document.querySelector("#latest").textContent'


def wait_for_ticks(page: Page, ticks: int = 2) -> None:
    for _ in range(ticks):
        page.wait_for_function(f"before => {LIVE} !== before", arg=page.evaluate(LIVE))
