"""Test that test notifications, however many are requested, displace no alert."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from pathlib import Path

import pytest

from support.alert_machine import AlertMachine, quick_config, request_test, wait_for_deliveries
from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving

FLOOD = 1100


def flood(daemon: RunningDaemon) -> Counter[int]:
    """Request test notifications over one connection and count the answers by status."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    statuses: Counter[int] = Counter()
    for _ in range(FLOOD):
        connection.request("POST", "/api/v1/alerts/test")
        with connection.getresponse() as response:
            response.read()
            statuses[response.status] += 1
    connection.close()
    return statuses


def accepted_events(site: Site) -> list[str]:
    """Return the events that were answered with 2xx."""
    bodies = {delivery.headers["webhook-id"]: json.loads(delivery.body) for delivery in site.deliveries}
    return [bodies[message_id]["event"] for message_id in site.accepted]


@pytest.mark.long
def test_critical_alert_survives_a_flood_of_test_notifications(tmp_path: Path) -> None:
    """The receiver fails while an alert fires and 1,100 tests are requested: firing and resolved arrive."""
    machine = AlertMachine.of(tmp_path)
    with (
        receiving(500) as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site)) as daemon,
    ):
        machine.fill()
        wait_for_deliveries(site, 1)
        statuses = flood(daemon)
        pending = daemon.get("/api/v1/receivers").json[0]["pending"]
        site.answers[:] = [(200, {})]
        # After a flood of more than 35 s, on a busy machine, the next attempt is two minutes later.
        wait_until(lambda: "pressure.critical" in accepted_events(site), seconds=180.0)
        machine.empty()
        wait_until(lambda: "pressure.resolved" in accepted_events(site), describe=lambda: accepted_events(site))

    assert sum(statuses.values()) == FLOOD
    assert set(statuses) == {200, 429}
    assert pending <= 2
    assert Counter(accepted_events(site))["test"] <= statuses[200]


def test_second_test_notification_within_five_seconds_is_refused(tmp_path: Path) -> None:
    """The refusal is problem+json with Retry-After."""
    with receiving(200) as site, running_daemon(tmp_path, config=quick_config(site)) as daemon:
        first, second = (request_test(daemon) for _ in range(2))
        described = daemon.get("/openapi.json").json["paths"]["/api/v1/alerts/test"]["post"]["responses"]
        wait_for_deliveries(site, 1)

    assert first.json == {"receivers": ["site0"]}
    assert (second.status, second.headers["retry-after"]) == (429, "5")
    assert second.headers["content-type"] == "application/problem+json"
    assert second.json["detail"] == "rate limit: one test notification per 5 s; retry in 5 s."
    assert "429" in described
