"""Test alerts as the API lists them."""

from __future__ import annotations

import pytest

from memwatch.notify.sender import Sender
from memwatch.notify.status import AlertRow, alert_json

ROW = AlertRow("ram", "pressure.critical", "critical", "firing", 1.0, False, ())


@pytest.mark.parametrize(
    ("address", "runbook"),
    [
        ("http://gpu1.example.org:6360", "http://gpu1.example.org:6360/runbooks#memorycritical"),
        (None, "/runbooks#memorycritical"),
    ],
)
def test_listed_alert_has_the_runbook_of_its_notifications(address: str | None, runbook: str) -> None:
    """Without an address of the pages it is a path of the daemon that was asked."""
    assert alert_json(ROW, Sender(url=address))["runbook"] == runbook


def test_listed_alert_about_gpu_memory_has_its_own_runbook() -> None:
    row = AlertRow("gpu0", "pressure.critical", "critical", "firing", 1.0, False, ())

    assert alert_json(row, Sender())["runbook"] == "/runbooks#gpumemorycritical"
