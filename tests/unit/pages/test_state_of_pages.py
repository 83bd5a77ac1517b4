"""The level and the silences in force are on every page. Pages that are not live have them as one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from memwatch.core.silences import Silence
from memwatch.core.snapshot import Snapshot
from memwatch_web.pages.fit_page import FitForm
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader
from support.sample_snapshots import calm_workstation, critical_gb10

NOON = 1_800_014_400.0
SILENCE = Silence("sil_1", NOON + 3600.0, NOON, 0.0, made_by="root (uid 0)")
PAGES: dict[str, Callable[[Pages, Snapshot], bytes]] = {
    "fit": lambda pages, now: pages.fit(now, FitForm({})),
    "incidents": lambda pages, _: pages.incidents([]),
    "runbooks": lambda pages, _: pages.runbooks(),
    "last-words": lambda pages, _: pages.last_words(None),
    "docs": lambda pages, _: pages.docs(),
}


def rendered(name: str, snapshot: Snapshot | None) -> Reader:
    return Reader(PAGES[name](Pages(current=lambda: snapshot), snapshot or calm_workstation()))


@pytest.mark.parametrize("name", PAGES)
def test_page_that_is_not_live_has_the_level_and_silences(name: str) -> None:
    page = rendered(name, replace(critical_gb10(), unix=NOON, silences=(SILENCE,)))

    assert page.values("aria-label").count("State of spark-1") == 1
    assert "System RAM is critical: full in ~40 s as of 12:00:00 " in page.text
    assert "Times in UTC" in page.text
    assert "silenced by root until 13:00 UTC: no one is notified" in page.text
    assert "alerts?end=sil_1" in page.values("action")
    assert page.open == []


@pytest.mark.parametrize("name", PAGES)
def test_state_is_a_sentence_while_all_is_well(name: str) -> None:
    page = rendered(name, calm_workstation())

    assert "System RAM is OK: 39.6% used as of" in page.text
    assert "silenced" not in page.values("class")


@pytest.mark.parametrize("name", [name for name in PAGES if name != "fit"])
def test_page_before_the_first_sample_has_no_state(name: str) -> None:
    assert "State of" not in " ".join(rendered(name, None).values("aria-label"))


def test_page_of_a_snapshot_has_its_state() -> None:
    """A snapshot of the next second stood above a picture of this one."""
    shown = calm_workstation()
    later = replace(critical_gb10(), unix=shown.unix + 1.0)
    page = Reader(Pages(current=lambda: later).fit(shown, FitForm({})))

    assert "System RAM is OK: 39.6% used as of" in page.text
    assert "critical:" not in page.text


@pytest.mark.parametrize("name", Pages.names)
def test_live_page_has_its_own_state(name: str) -> None:
    """Which changes with each sample: the overview's line, and the title of each."""
    snapshot = replace(critical_gb10(), silences=(SILENCE,))

    page = Reader(Pages(current=lambda: snapshot).page(name, snapshot))

    assert not any("state-now" in one for one in page.values("class"))


def test_refused_client_does_not_read_the_state() -> None:
    pages = Pages(current=lambda: replace(critical_gb10(), silences=(SILENCE,)))

    page = Reader(pages.refused("Log in", "No such user."))

    assert "silenced" not in page.text
    assert "State of" not in " ".join(page.values("aria-label"))
