"""/patterns shows every component in every state, by what the pages themselves use, to whoever asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from memwatch.model import Absent
from memwatch.render.words import ABSENT_WORDS
from memwatch.snapshot import CollectorState
from memwatch_web.pages.renderer import Pages
from support.daemon_process import running_daemon
from support.html_reader import Reader


@pytest.fixture(scope="module")
def page() -> Reader:
    return Reader(Pages().patterns())


def classes(page: Reader) -> set[str]:
    return {word for value in page.values("class") for word in value.split()}


def test_it_is_a_sound_page(page: Reader) -> None:
    """Every tag closes, no id is there twice, nothing is inline."""
    ids = page.values("id")

    assert page.open == []
    assert len(ids) == len(set(ids))
    assert page.values("style") == []
    assert [tag for tag, _ in page.tags].count("h1") == 1


@pytest.mark.parametrize("level", ["low", "medium", "high", "critical", "unknown"])
def test_every_level_is_there(page: Reader, level: str) -> None:
    """As a badge, as a verdict, and on the icon of a tab."""
    shown = [set(value.split()) for value in page.values("class")]

    assert {"badge", f"level-{level}"} in shown
    assert {"verdict", f"level-{level}"} in shown
    assert f"static/icon-{level}.svg" in page.values("src")


@pytest.mark.parametrize("state", get_args(CollectorState))
def test_every_state_of_a_collector_is_there(page: Reader, state: str) -> None:
    """Each with its own shape and word."""
    assert f"state-{state}" in classes(page)
    assert f"is {state} {state}" in page.text


@pytest.mark.parametrize("state", ["lost", "needs reset", "missing"])
def test_every_state_of_a_device_is_there(page: Reader, state: str) -> None:
    """A GPU that is gone looks unlike one that is well."""
    assert f"NVIDIA GPU, {state}" in page.text


@pytest.mark.parametrize("reason", list(Absent))
def test_every_reason_of_absence_is_there(page: Reader, reason: Absent) -> None:
    """What stands where a figure should be."""
    assert f"— {ABSENT_WORDS[reason]}" in page.text


@pytest.mark.parametrize(
    "words",
    [
        "SIMULATED",
        "no answer for 12 s",
        "GPU carve-out not judged by itself",
        "trainer.service ⊂ ml.slice",
        "critical: 96.4 % used; full in 40 s",
        "3.0 – 5.0 GiB",
        "Suspected leaks",
        "firing, silenced",
        "nothing more is sent to it until its settings change or memwatchd restarts",
        "Nothing fires, and nothing is about to.",
    ],
)
def test_the_other_states_are_there(page: Reader, words: str) -> None:
    """Made-up figures, silence, shares in shares, bounds, and what alerts can be."""
    assert words in page.text


def test_it_is_served_to_whoever_asked_for_it(tmp_path: Path) -> None:
    """404 and how to have it, until the configuration says so; a reload is enough."""
    with running_daemon(tmp_path) as daemon:
        refused = daemon.get("/patterns")
        (tmp_path / "memwatchd.toml").write_text("[web]\npatterns = true\n")
        daemon.process.send_signal(1)
        daemon.wait_for_log("web.patterns: false → true")
        served = daemon.get("/patterns")

    assert refused.status == 404
    assert "patterns = true under [web]" in refused.json["detail"]
    assert served.status == 200
    assert "Patterns" in served.text
