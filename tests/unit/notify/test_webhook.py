"""Test the contents of webhooks, their signatures, and their delivery over real sockets."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook

from memwatch.core.model import Absent, Process
from memwatch.core.snapshot import Level, Reason
from memwatch_monitor.notify.alertmanager import alert_json
from memwatch_monitor.notify.channel import Sender, build_text, build_title
from memwatch_monitor.notify.http_post import parse_endpoint
from memwatch_monitor.notify.webhook import MAX_BODY_BYTES, TEXT_LENGTHS, build_body, parse_secret, sign
from memwatchd.settings.keys import MAX_LABELS, MAX_VALUE_LENGTH
from support.sample_snapshots import calm_workstation, container_with_limit, critical_gb10
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import SECRET, notice, put_notices, receiver


def test_body_has_alert_target_and_largest_processes() -> None:
    """The body has the alert, the target's values in bytes, the five largest processes, and the dashboard's URL."""
    snapshot = critical_gb10()

    body = json.loads(build_body(notice(), snapshot, Sender("https://spark/memory", labels={"cluster": "west"})))

    assert list(body) == [
        "schema", "id", "event", "time", "unix", "host", "target", "rule", "severity", "started", "repeated",
        "level", "level_now", "previous", "reasons", "new_reasons", "values", "top", "left_out", "labels",
        "dashboard_url", "runbook_url", "incident_url",
    ]  # fmt: skip
    assert (body["schema"], body["id"], body["event"]) == (1, "msg_1", "pressure.critical")
    assert (body["time"], body["unix"]) == ("2026-11-21T10:22:33.250Z", 1_795_256_553.25)
    assert (body["host"], body["target"]) == ("spark-1", "ram")
    assert (body["level"], body["level_now"], body["previous"]) == ("critical", "critical", "high")
    assert body["reasons"] == [{"signal": "util", "text": "96.2% used"}]
    assert body["values"]["size_bytes"] == snapshot.pools[0].size_bytes
    assert body["values"]["ratio"] == snapshot.pools[0].judged_ratio
    assert set(body["top"][0]) == {"pid", "name", "user", "unit", "container", "footprint_bytes"} | (
        {"absent"} & set(body["top"][0])
    )
    footprints = [process["footprint_bytes"] for process in body["top"]]
    assert len(footprints) <= 5
    assert footprints == sorted(footprints, reverse=True)
    assert body["left_out"] == {"reasons": 0, "new_reasons": 0, "top": max(0, len(snapshot.processes) - 5)}
    assert body["dashboard_url"] == "https://spark/memory"
    assert body["runbook_url"] == "https://spark/memory/runbooks#memorycritical"
    assert body["incident_url"] is None
    assert body["labels"] == {"cluster": "west"}


def test_message_about_an_alert_that_only_still_fires_says_so() -> None:
    """Its level is the alert's, as its event says; the level now is another field."""
    held = replace(notice(), level_now=Level.LOW, repeated=True)
    snapshot = calm_workstation()

    body = json.loads(build_body(held, snapshot, Sender()))
    alert = alert_json(held, snapshot, Sender())

    assert (body["event"], body["level"], body["level_now"]) == ("pressure.critical", "critical", "low")
    title = "workbench: still firing: memory was critical, now OK (System RAM)"
    assert (build_title(held, snapshot), alert["annotations"]["summary"]) == (title, title)
    first, figures, *_ = build_text(held, snapshot, None).splitlines()
    assert first == "was critical: 96.2% used"
    assert figures.startswith("System RAM: 39.6% used")


def test_body_has_the_new_reasons_of_a_firing_alert() -> None:
    """Empty for the first notification of an alert and for reminders."""
    news = replace(notice(), new_reasons=(Reason("floor", "\x1b" * 1000, Level.CRITICAL),))

    first, changed = (json.loads(build_body(one, critical_gb10(), Sender())) for one in (notice(), news))

    assert (first["event"], first["new_reasons"]) == (changed["event"], [])
    assert changed["new_reasons"][0]["signal"] == "floor"
    assert len(changed["new_reasons"][0]["text"]) <= TEXT_LENGTHS[0]


def test_messages_link_to_the_incident_of_the_alert() -> None:
    """The webhook has the link as a field, Alertmanager as an annotation, which is no part of the identity."""
    snapshot, sender = critical_gb10(), Sender("https://spark/memory", incident="20261121T102233Z")
    without = alert_json(notice(), snapshot, replace(sender, incident=None))

    body, alert = json.loads(build_body(notice(), snapshot, sender)), alert_json(notice(), snapshot, sender)

    link = "https://spark/memory/incidents/20261121T102233Z"
    assert body["incident_url"] == alert["annotations"]["incident_url"] == link
    assert alert["labels"] == without["labels"]
    assert "incident_url" not in without["annotations"]


def test_alert_of_a_share_has_its_relation_and_limit() -> None:
    """An alert about a limit has the limit and the relation, and absent values have their reason."""
    snapshot = container_with_limit()

    values = json.loads(build_body(notice(target="cgroup"), snapshot, Sender()))["values"]

    assert values["relation"] == "This container ⊂ System RAM"
    assert values["limit_bytes"] == 4 << 30
    assert "absent" not in values
    gone = json.loads(build_body(notice(target="gpu7"), snapshot, Sender()))["values"]
    assert gone == {
        "used_bytes": None,
        "ratio": None,
        "absent": dict.fromkeys(("used_bytes", "ratio"), "not_available"),
    }


@given(
    st.lists(st.text(st.characters(exclude_categories=()), max_size=300), min_size=1, max_size=20),
    st.lists(st.text(st.characters(exclude_categories=()), max_size=2000), max_size=30),
)
def test_body_is_bounded_for_any_names(names: list[str], reasons: list[str]) -> None:
    """Process names are arbitrary; the body is valid JSON of at most 20 kB, with its id unchanged."""
    long = [name * 40 for name in names]
    processes = tuple(
        Process(pid, 0.0, name, pid, pid, "rss", user=name, unit=name, container=name)
        for pid, name in enumerate(long, start=1)
    )
    snapshot = replace(calm_workstation(), processes=processes)
    why = tuple(Reason("util", reason * 10) for reason in reasons)
    alert = replace(notice(), reasons=why, new_reasons=why)

    labels = {f"{number:0{64}}": "\U0001f525" * MAX_VALUE_LENGTH for number in range(MAX_LABELS)}
    body = build_body(alert, snapshot, Sender("https://example.com/" + "x" * 1900, labels=labels))

    assert len(body) <= MAX_BODY_BYTES
    assert json.loads(body)["id"] == "msg_1"


def test_processes_of_unknown_size_are_not_ranked() -> None:
    """A process of unknown footprint is left out instead of ranked as the smallest."""
    unknown = Process(7, 0.0, "hidden", Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, "rss")
    known = Process(8, 0.0, "known", 5, 5, "rss")

    body = json.loads(build_body(notice(), replace(calm_workstation(), processes=(unknown, known)), Sender()))

    assert [process["name"] for process in body["top"]] == ["known"]


@pytest.mark.process
def test_signature_is_verified_by_standard_webhooks() -> None:
    """The reference library of Standard Webhooks accepts headers and body, and rejects another body."""
    with receiving(200) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: len(site.deliveries) == 1)

    delivery = site.deliveries[0]
    assert Webhook(SECRET).verify(delivery.body, delivery.headers) == json.loads(delivery.body)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET).verify(delivery.body + b" ", delivery.headers)


def test_two_secrets_give_two_signatures() -> None:
    """During a rotation of secrets there are two signatures, and either secret verifies."""
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    now = int(time.time())
    signature = sign(parse_secret(f"{SECRET} {other}"), "msg_1", now, b"{}")

    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
    for secret in (SECRET, other):
        assert Webhook(secret).verify(b"{}", headers) == {}


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_c2hvcnQ=", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3", "whsec_!!!", SECRET + "="]
)
def test_invalid_secret_is_rejected_without_being_quoted(text: str) -> None:
    """A weak or malformed secret never signs anything, and the error does not repeat it."""
    with pytest.raises(ValueError, match=r"is (empty|not whsec_)") as caught:
        parse_secret(text)

    assert text in ("", "whsec_") or text not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "origin", "host_header", "path"),
    [
        ("http://example.com", "http://example.com:80", "example.com", "/"),
        ("https://Example.com/a?b#c", "https://example.com:443", "example.com", "/a?b"),
        ("https://example.com:80/", "https://example.com:80", "example.com:80", "/"),
        ("http://[::1]:8080/x", "http://[::1]:8080", "[::1]:8080", "/x"),
    ],
)
def test_url_is_split_for_http(url: str, origin: str, host_header: str, path: str) -> None:
    """Origin, Host header and path of a URL are in the form of HTTP, and the path stays out of repr."""
    endpoint = parse_endpoint(url)

    assert (endpoint.origin, endpoint.host_header, endpoint.path) == (origin, host_header, path)
    assert repr(endpoint) == f"Endpoint(scheme={endpoint.scheme!r}, host={endpoint.host!r}, port={endpoint.port})"


@given(st.text() | st.from_regex(r"\Ahttps?://[!-~]*\Z"))
def test_arbitrary_url_is_parsed_or_rejected(url: str) -> None:
    """The URL parser raises nothing except ValueError."""
    try:
        endpoint = parse_endpoint(url)
    except ValueError:
        return

    assert 1 <= endpoint.port <= 65_535
    assert endpoint.scheme in ("http", "https")
