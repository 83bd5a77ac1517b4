"""Webhooks: what they say, how they are signed, and that they arrive, over real sockets."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook

from memwatch.model import Absent, Process
from memwatch.notify.webhook_payload import BODY_LIMIT_BYTES, body_of, endpoint_of, secret_of, sign
from memwatch.snapshot import Reason
from support.sample_snapshots import calm_workstation, container_with_limit, critical_gb10
from support.waiting import wait_until
from support.webhook_receiver import receiving
from support.webhook_samples import SECRET, notice, receiver, told


def test_body_says_what_happened_where_and_who_did_it() -> None:
    """The body has the alert, the target's figures in bytes, the five largest processes, and where to look."""
    snapshot = critical_gb10()

    said = json.loads(body_of(notice(), snapshot, "https://spark/memory"))

    assert list(said) == [
        "schema", "id", "event", "time", "unix", "host", "target", "rule", "severity", "started", "repeated",
        "level", "previous", "reasons", "values", "top", "dashboard_url",
    ]  # fmt: skip
    assert (said["schema"], said["id"], said["event"]) == (1, "msg_1", "pressure.critical")
    assert (said["time"], said["unix"]) == ("2026-11-21T10:22:33.250Z", 1_795_256_553.25)
    assert (said["host"], said["target"]) == ("spark-1", "ram")
    assert (said["level"], said["previous"]) == ("critical", "high")
    assert said["reasons"] == [{"signal": "util", "text": "96.2% used"}]
    assert said["values"]["size_bytes"] == snapshot.pools[0].size_bytes
    assert said["values"]["ratio"] == snapshot.pools[0].judged_ratio
    assert set(said["top"][0]) == {"pid", "name", "user", "unit", "container", "footprint_bytes"} | (
        {"absent"} & set(said["top"][0])
    )
    footprints = [process["footprint_bytes"] for process in said["top"]]
    assert len(footprints) <= 5
    assert footprints == sorted(footprints, reverse=True)
    assert said["dashboard_url"] == "https://spark/memory"


def test_share_is_told_with_what_it_is_inside_of() -> None:
    """An alert about a limit has the limit and the relation, and absent figures have their reason."""
    snapshot = container_with_limit()

    values = json.loads(body_of(notice(target="cgroup"), snapshot, None))["values"]

    assert values["relation"] == "This container ⊂ System RAM"
    assert values["limit_bytes"] == 4 << 30
    assert "absent" not in values
    gone = json.loads(body_of(notice(target="gpu7"), snapshot, None))["values"]
    assert gone == {
        "used_bytes": None,
        "ratio": None,
        "absent": dict.fromkeys(("used_bytes", "ratio"), "not_available"),
    }


@given(
    st.lists(st.text(st.characters(exclude_categories=()), max_size=300), min_size=1, max_size=20),
    st.lists(st.text(st.characters(exclude_categories=()), max_size=2000), max_size=30),
)
def test_body_stays_small_whatever_processes_are_called(names: list[str], reasons: list[str]) -> None:
    """Names are anybody's to choose; the body is valid JSON of at most 20 kB, with its id untouched."""
    long = [name * 40 for name in names]
    processes = tuple(
        Process(pid, 0.0, name, pid, pid, "rss", user=name, unit=name, container=name)
        for pid, name in enumerate(long, start=1)
    )
    snapshot = replace(calm_workstation(), processes=processes)
    alert = replace(notice(), reasons=tuple(Reason("util", reason * 10) for reason in reasons))

    body = body_of(alert, snapshot, "https://example.com/" + "x" * 1900)

    assert len(body) <= BODY_LIMIT_BYTES
    assert json.loads(body)["id"] == "msg_1"


def test_processes_of_unknown_size_are_not_ranked() -> None:
    """A process whose footprint is not known is not in the list as if it were the smallest."""
    unknown = Process(7, 0.0, "hidden", Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, "rss")
    known = Process(8, 0.0, "known", 5, 5, "rss")

    said = json.loads(body_of(notice(), replace(calm_workstation(), processes=(unknown, known)), None))

    assert [process["name"] for process in said["top"]] == ["known"]


def test_signature_is_what_standard_webhooks_verifies() -> None:
    """The reference library of Standard Webhooks accepts headers and body, and no other body."""
    with receiving(200) as site, receiver(site.url) as made:
        told(made, notice())
        wait_until(lambda: len(site.deliveries) == 1)

    delivery = site.deliveries[0]
    assert Webhook(SECRET).verify(delivery.body, delivery.headers) == json.loads(delivery.body)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET).verify(delivery.body + b" ", delivery.headers)


def test_both_keys_sign_while_one_is_replaced() -> None:
    """With two secrets there are two signatures, and a receiver that knows either is content."""
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    now = int(time.time())
    signature = sign(secret_of(f"{SECRET} {other}"), "msg_1", now, b"{}")

    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
    for secret in (SECRET, other):
        assert Webhook(secret).verify(b"{}", headers) == {}


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_c2hvcnQ=", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3", "whsec_!!!", SECRET + "="]
)
def test_secret_that_is_none_is_refused_without_being_named(text: str) -> None:
    """A weak or miswritten secret never gets as far as signing, and the error does not repeat it."""
    with pytest.raises(ValueError, match=r"is (empty|not whsec_)") as caught:
        secret_of(text)

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
def test_url_is_taken_apart(url: str, origin: str, host_header: str, path: str) -> None:
    """Origin, Host header and path of a URL are what HTTP wants, and the path stays out of repr."""
    endpoint = endpoint_of(url)

    assert (endpoint.origin, endpoint.host_header, endpoint.path) == (origin, host_header, path)
    assert repr(endpoint) == f"Endpoint(scheme={endpoint.scheme!r}, host={endpoint.host!r}, port={endpoint.port})"


@given(st.text() | st.from_regex(r"\Ahttps?://[!-~]*\Z"))
def test_any_url_is_an_endpoint_or_refused(url: str) -> None:
    """No text makes the URL parser raise anything but ValueError."""
    try:
        endpoint = endpoint_of(url)
    except ValueError:
        return

    assert 1 <= endpoint.port <= 65_535
    assert endpoint.scheme in ("http", "https")
