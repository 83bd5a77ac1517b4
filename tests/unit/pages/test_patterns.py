"""Every component of the pages in every state."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import get_args

import pytest

from memwatch.core.model import Absent
from memwatch.core.snapshot import CollectorState
from memwatch.reporting.render.words import ABSENT_WORDS
from memwatchd.settings.load import load
from support.html_reader import Reader
from support.patterns_page import render_patterns


@pytest.fixture(scope="module")
def page() -> Reader:
    return Reader(render_patterns())


def classes(page: Reader) -> set[str]:
    return {word for value in page.values("class") for word in value.split()}


def test_page_has_valid_markup(page: Reader) -> None:
    """Tags are balanced, ids are unique, there are no inline styles."""
    ids = page.values("id")

    assert page.open == []
    assert len(ids) == len(set(ids))
    assert page.values("style") == []
    assert [tag for tag, _ in page.tags].count("h1") == 1


@pytest.mark.parametrize("level", ["low", "medium", "high", "critical", "unknown"])
def test_every_level_is_shown(page: Reader, level: str) -> None:
    """As a badge, a status line and a tab icon."""
    shown = [set(value.split()) for value in page.values("class")]

    assert {"badge", f"level-{level}"} in shown
    assert {"state-block", f"level-{level}"} in shown
    assert f"static/icon-{level}.svg" in page.values("src")


@pytest.mark.parametrize("state", get_args(CollectorState))
def test_every_collector_state_is_shown(page: Reader, state: str) -> None:
    assert f"state-{state}" in classes(page)
    assert f"is {state} {state}" in page.text


@pytest.mark.parametrize("state", ["lost", "needs reset", "missing"])
def test_every_device_state_is_shown(page: Reader, state: str) -> None:
    assert f"NVIDIA GPU, {state}" in page.text


def test_leases_are_shown_with_name_and_time_left(page: Reader) -> None:
    """As hatched parts of the bar, and in words."""
    assert {"b-leased", "hatch-leased", "swatch-leased"} <= classes(page)
    assert "leased to train.py (PID 4242), 1 min 20 s left" in page.text


@pytest.mark.parametrize("reason", list(Absent))
def test_every_absence_reason_is_shown(page: Reader, reason: Absent) -> None:
    assert f"— {ABSENT_WORDS[reason]}" in page.text


@pytest.mark.parametrize(
    "words",
    [
        "Simulated data",
        "No new data for 12 s",
        "GPU carve-out: no pressure level",
        "trainer.service ⊂ ml.slice",
        "Critical: 96.4% used; full in 40 s",
        "3.0 – 5.0 GiB",
        "Suspected leaks",
        "10:22:03 UTC, silenced",
        "Disabled until its configuration changes or memwatchd restarts.",
        "No active alerts.",
    ],
)
def test_other_states_are_shown(page: Reader, words: str) -> None:
    assert words in page.text


@pytest.mark.process  # Apprise, once loaded, asks for the addresses of this machine
def test_example_of_receivers_is_accepted_by_the_settings(tmp_path: Path) -> None:
    """With a secret in the named file, the example on the page of alerts needs no further key."""
    found = re.search(r'<pre class="example"><code>(.*?)</code></pre>', render_patterns().decode(), re.DOTALL)
    assert found
    secret, config = tmp_path / "webhook-secret", tmp_path / "memwatchd.toml"
    secret.write_text("whsec_" + "QUFB" * 8)
    secret.chmod(0o600)
    config.write_text(html.unescape(found[1]).replace("/etc/memwatchd/webhook-secret", str(secret)))

    alerts = load({"config": str(config)}, {}).alerts

    assert [one.name for one in alerts.receivers] == ["operators", "chat"]
