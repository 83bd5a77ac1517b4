"""The witness of movement that all pages of these tests have."""

from __future__ import annotations

import pytest

from support.browsing import SharedBrowser, wait_for_frames

PAGE = "data:text/html,<main><p>one</p><p>two</p></main><footer><span>three</span><a>four</a></footer>"


@pytest.mark.parametrize(("place", "is_seen"), [("main", True), ("footer", False)])
def test_movement_is_seen_except_within_the_foot(browser: SharedBrowser, place: str, is_seen: bool) -> None:
    page = browser.new_page()
    page.goto(PAGE)
    wait_for_frames(page)
    insert = "(place) => document.querySelector(place).insertAdjacentHTML('afterbegin', '<h1>late</h1>')"
    page.evaluate(insert, place)
    wait_for_frames(page)

    assert (page.evaluate("window.moved") > 0) is is_seen
