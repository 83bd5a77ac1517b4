"""Webhooks: what they say, how they are signed, and that they arrive, over real sockets."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from memwatch.alerts import Notice
from memwatch.model import Absent, Process
from memwatch.snapshot import Level, Reason
from memwatch_web.webhook_delivery import SCHEDULE, Receiver, notify
from memwatch_web.webhook_post import is_forbidden, retry_after_seconds
from memwatch_web.webhook_queue import Outcome, Queue, Waiting
from memwatch_web.webhooks import BODY_LIMIT_BYTES, body_of, endpoint_of, secret_of, sign
from sample_snapshots import calm_workstation, container_with_limit, critical_gb10
from webhook_site import (
    Endless,
    Site,
    dripping,
    garbage,
    receiving,
    self_signed,
    silent,
    talking,
    wait_until,
)

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
QUICK = (0.0, 0.05, 0.05, 0.05, 0.05)


def notice(number: int = 1, firing: bool = True, target: str = "ram") -> Notice:
    return Notice(
        id=f"msg_{number}",
        event="pressure.critical" if firing else "pressure.resolved",
        unix=1_795_256_553.25,
        target=target,
        level=Level.CRITICAL if firing else Level.LOW,
        previous=Level.HIGH if firing else Level.CRITICAL,
        reasons=(Reason("util", "96.2 % used"),),
        firing=firing,
    )


@contextmanager
def receiver(url: str, **options: Any) -> Iterator[Receiver]:
    made = Receiver(
        "ops", endpoint_of(url), secret_of(SECRET), **{"schedule": QUICK, "timeout_seconds": 2.0, **options}
    )
    made.start()
    try:
        yield made
    finally:
        made.close()


def told(made: Receiver, *notices: Notice) -> None:
    for one in notices:
        notify([made], one, critical_gb10())


def ids(site: Site) -> list[str]:
    return [delivery.headers["webhook-id"] for delivery in site.deliveries]


# What it says


def test_body_says_what_happened_where_and_who_did_it() -> None:
    """The body has the alert, the target's figures in bytes, the five largest processes, and where to look."""
    snapshot = critical_gb10()

    said = json.loads(body_of(notice(), snapshot, "https://spark/memory"))

    assert list(said) == [
        "schema", "id", "event", "time", "unix", "host", "target", "level", "previous", "reasons", "values", "top",
        "dashboard_url",
    ]  # fmt: skip
    assert (said["schema"], said["id"], said["event"]) == (1, "msg_1", "pressure.critical")
    assert (said["time"], said["unix"]) == ("2026-11-21T10:22:33.250Z", 1_795_256_553.25)
    assert (said["host"], said["target"]) == ("spark-1", "ram")
    assert (said["level"], said["previous"]) == ("critical", "high")
    assert said["reasons"] == [{"signal": "util", "text": "96.2 % used"}]
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


# How it is signed


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


# That it arrives


def test_notice_is_posted_once_to_path_and_query() -> None:
    """A delivered notice is counted, nothing is pending, and nothing is sent twice."""
    with receiving(204) as site, receiver(site.url) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
        time.sleep(0.1)

        assert made.pending() == 0

    assert [delivery.path for delivery in site.deliveries] == ["/hook/token?key=value"]
    assert site.deliveries[0].headers["content-type"] == "application/json"
    assert site.deliveries[0].headers["user-agent"].startswith("memwatchd/")


def test_retries_keep_id_and_body_and_change_the_timestamp() -> None:
    """Every attempt has the id and the bytes of the first, and a timestamp and signature of its own."""
    seconds = itertools.count(int(time.time()))
    with receiving(500, 502, 404, 200) as site, receiver(site.url, wall=lambda: next(seconds)) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.counts()["retry"] == 3
        assert made.pending() == 0

    assert ids(site) == ["msg_1"] * 4
    assert len({delivery.body for delivery in site.deliveries}) == 1
    assert len({delivery.headers["webhook-timestamp"] for delivery in site.deliveries}) == 4
    for delivery in site.deliveries:
        Webhook(SECRET).verify(delivery.body, delivery.headers)


def test_schedule_lasts_a_day() -> None:
    """The pauses are the documented ones, and the last attempt is within 24 hours of the first."""
    assert SCHEDULE[:8] == (0, 5, 30, 120, 300, 900, 1800, 3600)
    assert set(SCHEDULE[7:]) == {3600.0}
    assert 23 * 3600 < sum(SCHEDULE) <= 24 * 3600


def test_last_failure_is_given_up_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """When the schedule is at its end the notice is counted as given up, not forgotten."""
    with receiving(500) as site, receiver(site.url, schedule=(0.0, 0.02, 0.02)) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["gave_up"] == 1)

        assert (len(site.deliveries), made.pending()) == (3, 0)

    assert "answered 500; gave up after 3 attempts" in caplog.text


@pytest.mark.parametrize(("status", "as_date"), [(429, False), (503, True)])
def test_retry_after_is_honoured(status: int, as_date: bool) -> None:
    """A receiver that asks for time gets it, in seconds or as a date, for all of its notices."""
    wanted = formatdate(time.time() + 3, usegmt=True) if as_date else "1"
    with receiving((status, {"Retry-After": wanted}), 200) as site, receiver(site.url) as made:
        told(made, notice(1))
        wait_until(lambda: len(site.deliveries) == 1)
        told(made, notice(2, target="vram0"))
        wait_until(lambda: made.counts()["delivered"] == 2)

    assert site.deliveries[1].at - site.deliveries[0].at >= 0.95
    assert ids(site) == ["msg_1", "msg_1", "msg_2"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("120", 120), (" 5 ", 5), ("-5", 0), ("soon", 0), ("1e3", 0), ("9999999999", 86_400), ("9" * 50, 0),
     ("Thu, 01 Jan 1970 00:00:30 GMT", 20), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
     ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400)],
)  # fmt: skip
def test_retry_after_is_between_nothing_and_a_day(header: str | None, seconds: float) -> None:
    """Seconds and dates are understood, nonsense is ignored, and nobody can silence us for longer than a day."""
    assert retry_after_seconds(header, wall=10.0) == seconds


@given(st.text())
def test_any_retry_after_is_read(header: str) -> None:
    """No header makes its parser raise."""
    assert 0 <= retry_after_seconds(header, wall=1.8e9) <= 86_400


def test_gone_disables_the_receiver_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """After 410 nothing is sent any more; what waits and what comes is counted as disabled."""
    with receiving(410) as site, receiver(site.url) as made:
        told(made, notice(1), notice(2, target="vram0"))
        wait_until(lambda: made.disabled)
        told(made, notice(3))
        time.sleep(0.1)

        assert made.counts()["disabled"] == 3
        assert made.pending() == 0

    assert ids(site) == ["msg_1"]
    assert "answered 410, gone; nothing more is sent to it" in caplog.text


def test_redirect_is_a_failure_and_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    """Neither another server nor a metadata service is asked because a receiver says so."""
    with receiving(200) as other:
        places = (other.url, "http://169.254.169.254/latest/meta-data", "file:///etc/passwd")
        answers = [(status, {"Location": place}) for status in (301, 302, 307, 308) for place in places]
        with receiving(*answers, 200) as site, receiver(site.url, schedule=(0.0, *[0.01] * 12)) as made:
            told(made, notice())
            wait_until(lambda: made.counts()["delivered"] == 1)

            assert made.counts()["retry"] == 12

    assert other.deliveries == []
    assert "answered 302, a redirect, which is not followed" in caplog.text
    assert "169.254" not in caplog.text


def test_silent_receiver_delays_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """While one endpoint never answers, another has its notice at once; the silent one times out."""
    with (
        talking(silent) as url,
        receiving(200) as site,
        receiver(url, timeout_seconds=1.0) as stuck,
        receiver(site.url) as quick,
    ):
        notify([stuck, quick], notice(), critical_gb10())
        wait_until(lambda: quick.counts()["delivered"] == 1, seconds=2.0)
        stuck_meanwhile = (stuck.pending(), stuck.counts()["retry"])
        wait_until(lambda: stuck.counts()["retry"] == 1)

    assert stuck_meanwhile == (1, 0)
    assert "no answer within 1 s" in caplog.text


def test_dripping_answer_ends_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that comes a byte at a time does not outlast the time of an attempt."""
    with talking(dripping) as url, receiver(url, timeout_seconds=0.5) as made:
        started = time.monotonic()
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] == 1)

        assert 0.5 <= time.monotonic() - started < 2.5

    assert "no answer within 0.5 s" in caplog.text


def test_endless_answer_is_not_read_to_its_end() -> None:
    """A body of 2 GB costs 64 kB of reading; the 200 before it counts."""
    endless = Endless()
    with talking(endless) as url, receiver(url) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

    assert endless.sent_bytes < 32_000_000  # what the kernel buffered on the way


def test_answer_that_is_not_http_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A mail server at the wrong port is named as such, and its words are not believed."""
    with talking(garbage) as url, receiver(url) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert "what came back is not an HTTP answer" in caplog.text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/", "connection refused"),
        (f"http://{'a' * 64}.example/", "does not resolve"),
        ("http://169.254.169.254/latest", "is at 169.254.169.254, a link-local or metadata address"),
        ("http://0xa9fea9fe/latest", "is at 169.254.169.254, a link-local or metadata address"),
        ("http://[::ffff:169.254.169.254]/latest", "a link-local or metadata address"),
        ("http://[fd00:ec2::254]/latest", "is at fd00:ec2::254, a link-local or metadata address"),
    ],
)
def test_failure_to_connect_says_why(url: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each way of not getting through has its own words, and none of them has the path."""
    with receiver(url) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert words in caplog.text
    assert "latest" not in caplog.text


@pytest.mark.parametrize(
    ("address", "forbidden"),
    [("169.254.169.254", True), ("fe80::1", True), ("fe80::1%eth0", True), ("fd00:ec2::254", True),
     ("::ffff:169.254.1.1", True), ("64:ff9b::a9fe:a9fe", True), ("2002:a9fe:a9fe::", True),
     ("100.100.100.200", True),
     ("127.0.0.1", False), ("10.0.0.1", False), ("192.168.1.1", False), ("::1", False), ("64:ff9b::808:808", False),
     ("2001:db8::1", False), ("fd00::1", False)],
)  # fmt: skip
def test_forbidden_addresses_are_known_in_every_disguise(address: str, forbidden: bool) -> None:
    """Link-local and metadata addresses are seen through IPv6 wrappings; private networks are allowed."""
    assert is_forbidden(address) is forbidden


def test_link_local_can_be_permitted(caplog: pytest.LogCaptureFixture) -> None:
    """With allow_link_local the address is tried; where nobody is there the failure is an ordinary one."""
    with receiver("http://169.254.77.77:9/", allow_link_local=True, timeout_seconds=0.2) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert "metadata" not in caplog.text
    assert "webhook ops (http://169.254.77.77:9): " in caplog.text


def test_self_signed_certificate_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that cannot prove who it is gets nothing, and the log says why."""
    certificate = self_signed(tmp_path)
    with receiving(200, certificate=certificate) as site, receiver(site.url) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert site.deliveries == []
    assert "its TLS certificate was refused: self-signed certificate" in caplog.text
    assert "token" not in caplog.text


def test_trusted_certificate_is_accepted_for_its_name_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over TLS the notice arrives where certificate and name fit, and nowhere else."""
    right, wrong = self_signed(tmp_path, "localhost"), self_signed(tmp_path, "elsewhere")
    trusting = ssl.create_default_context(cadata=right.read_text() + wrong.read_text())

    with receiving(200, certificate=right) as site, receiver(site.url, tls=trusting) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
    with receiving(200, certificate=wrong) as elsewhere, receiver(elsewhere.url, tls=trusting) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert ids(site) == ["msg_1"]
    assert elsewhere.deliveries == []
    assert "Hostname mismatch, certificate is not valid for 'localhost'" in caplog.text


def test_plain_text_behind_https_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """There is no way back from https to http."""
    with receiving(200) as site, receiver(site.url.replace("http:", "https:")) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert site.deliveries == []
    assert "TLS failed" in caplog.text


def test_same_failure_is_logged_once_and_the_recovery_too(caplog: pytest.LogCaptureFixture) -> None:
    """Four equal failures are one line; a different one is another; delivery again is said."""
    caplog.set_level(logging.INFO)
    with receiving(500, 500, 500, 502, 200) as site, receiver(site.url) as made:
        told(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

    assert [message.split("): ")[1].split(";")[0] for message in caplog.messages] == [
        "answered 500",
        "answered 502",
        "delivers again",
    ]


def test_log_never_shows_secret_path_or_query(caplog: pytest.LogCaptureFixture) -> None:
    """All a reader of the log learns of a receiver is its name, scheme, host and port."""
    caplog.set_level(logging.DEBUG)
    with receiving(500, (302, {"Location": "/token"}), 410) as site, receiver(site.url) as made:
        told(made, notice())
        wait_until(lambda: made.disabled)

    assert site.url.partition("/hook")[0] in caplog.text
    for hidden in ("token", "key=value", SECRET, SECRET.removeprefix("whsec_")):
        assert hidden not in caplog.text


# In which order


def test_resolve_follows_its_firing() -> None:
    """A resolve that comes while its firing is being delivered waits for it, and is delivered after it."""
    with receiving(200) as site, receiver(site.url) as made:
        site.may_answer.clear()
        told(made, notice(1))
        wait_until(lambda: len(site.deliveries) == 1)
        told(made, notice(2, firing=False))
        time.sleep(0.1)
        before = ids(site)
        site.may_answer.set()
        wait_until(lambda: made.counts()["delivered"] == 2)

    assert before == ["msg_1"]
    assert ids(site) == ["msg_1", "msg_2"]


def test_firing_nobody_heard_of_goes_with_its_resolve() -> None:
    """An alert that came and went while the receiver was unreachable is not told afterwards."""
    with receiver("http://127.0.0.1:1/", schedule=(0.0, 60.0)) as made:
        told(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        told(made, notice(2, firing=False))

        assert made.counts()["superseded"] == 2
        assert made.pending() == 0


def broken_off(connection: socket.socket) -> None:
    connection.close()


@pytest.mark.parametrize("status", [404, 500, 503])
def test_firing_that_was_refused_goes_with_its_resolve(status: int) -> None:
    """A receiver that answered no has not heard of the alert, and is not told of its end either."""
    with receiving(status) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        told(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        told(made, notice(2, firing=False))

        assert (made.counts()["superseded"], made.pending()) == (2, 0)

    assert ids(site) == ["msg_1"]


def test_firing_that_may_have_been_heard_gets_its_resolve() -> None:
    """Where a gateway lost the request the end is told, and not the beginning again."""
    with receiving(504, 200) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        told(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        told(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.counts()["superseded"] == 1

    assert ids(site) == ["msg_1", "msg_2"]


def test_request_that_was_taken_without_an_answer_may_have_been_heard() -> None:
    """A connection that breaks off after the request leaves the resolve to be told."""
    with talking(broken_off) as url, receiver(url, schedule=(0.0, 60.0)) as made:
        told(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        told(made, notice(2, firing=False))
        wait_until(lambda: made.counts()["retry"] == 2)

        assert (made.counts()["superseded"], made.pending()) == (1, 1)


def test_other_targets_do_not_wait() -> None:
    """One target's notice in its pause does not hold up another's."""
    with receiving(500, 200) as site, receiver(site.url, schedule=(0.0, 60.0)) as made:
        told(made, notice(1))
        wait_until(lambda: made.counts()["retry"] == 1)
        told(made, notice(2, target="vram0"))
        wait_until(lambda: made.counts()["delivered"] == 1)

        assert made.pending() == 1

    assert ids(site) == ["msg_1", "msg_2"]


def waiting(number: int, firing: bool, target: str = "ram") -> Waiting:
    return Waiting(f"msg_{number}", target, firing, b"{}", due=0.0)


def test_full_queue_lets_go_of_the_oldest() -> None:
    """The queue is bounded: with 1000 notices in it, one more costs the oldest."""
    queue = Queue()

    outcomes = [
        outcome for number in range(1002) for outcome in queue.add(waiting(number, True, f"target{number}"))
    ]

    oldest = queue.first_due(now=1.0)
    assert outcomes == [Outcome.GAVE_UP] * 2
    assert len(queue) == 1000
    assert oldest is not None
    assert oldest.id == "msg_2"


class Listener:
    """A receiver that hears what a queue lets through; attempts start and end when they are told to."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.heard: list[tuple[str, bool]] = []
        self.firing = False
        self._number = 0
        self._under_way: Waiting | None = None

    def turn(self) -> None:
        """The alert begins, or ends."""
        self.firing, self._number = not self.firing, self._number + 1
        self.queue.add(waiting(self._number, self.firing))

    def start(self) -> None:
        self._under_way = self._under_way or self.queue.first_due(now=1.0)
        if self._under_way:
            self._under_way.in_flight = True

    def end(self, how: str) -> None:
        """The attempt arrives, is lost on the way, or breaks off after it was heard."""
        self.start()
        entry, self._under_way = self._under_way, None
        if entry is None:
            return
        if how != "lost" and self.heard[-1:] != [(entry.id, entry.firing)]:
            self.heard.append((entry.id, entry.firing))
        if how == "arrives":
            self.queue.delivered(entry)
        else:
            self.queue.failed(entry, may_have_heard=how == "breaks off")


@given(st.lists(st.sampled_from(["turn", "start", "arrives", "lost", "breaks off"]), min_size=4, max_size=30))
@settings(max_examples=300)
@example(["turn", "start", "turn", "lost"])
def test_whatever_happens_firing_and_resolve_take_turns(steps: list[str]) -> None:
    """However attempts end, a receiver never hears the same twice in a row, and in the end knows the truth."""
    listener = Listener()

    for step in steps:
        getattr(listener, step, lambda how=step: listener.end(how))()
    while len(listener.queue):
        listener.end("arrives")

    told_firing = [firing for _, firing in listener.heard]
    assert told_firing == [index % 2 == 0 for index in range(len(told_firing))]
    assert (told_firing or [False])[-1] == listener.firing


def test_delivered_firing_gets_its_resolve_after_an_earlier_one_was_lost() -> None:
    """What became of earlier notices does not keep back the resolve of a firing that was delivered."""
    queue = Queue()
    lost, delivered = waiting(1, False), waiting(4, True)
    for entry in (lost, waiting(2, True), waiting(3, False)):
        queue.add(entry)
    queue.give_up(lost)
    queue.add(delivered)
    queue.delivered(delivered)

    outcomes = queue.add(waiting(5, False))

    assert (outcomes, len(queue)) == ([], 1)


# How it ends


def test_close_ends_an_attempt_under_way(caplog: pytest.LogCaptureFixture) -> None:
    """Stopping takes at most two seconds, also while an endpoint keeps us waiting; what is lost is said."""
    with talking(silent) as url:
        made = Receiver("ops", endpoint_of(url), secret_of(SECRET), timeout_seconds=60.0)
        made.start()
        told(made, notice())
        time.sleep(0.2)
        started = time.monotonic()

        made.close(timeout=2.0)

        assert time.monotonic() - started < 2.0
        assert f"webhook-{made.name}" not in {thread.name for thread in threading.enumerate()}
    assert "stopped; notices not delivered: 1" in caplog.text


def test_close_between_attempts_is_immediate() -> None:
    """A receiver that waits for its next attempt stops at once, and so does one that never started."""
    made = Receiver("ops", endpoint_of("http://127.0.0.1:1/"), secret_of(SECRET), schedule=(0.0, 3600.0))
    made.start()
    told(made, notice())
    wait_until(lambda: made.counts()["retry"] == 1)
    started = time.monotonic()

    made.close()
    Receiver("idle", endpoint_of("http://127.0.0.1:1/"), secret_of(SECRET)).close()

    assert time.monotonic() - started < 0.8


def test_attempt_under_way_may_finish_when_stopping() -> None:
    """An alert that is being delivered when memwatchd is stopped still arrives."""

    def thoughtful(connection: Any) -> None:
        time.sleep(0.4)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with talking(thoughtful) as url, receiver(url) as made:
        told(made, notice())
        time.sleep(0.1)

        made.close(timeout=2.0)

        assert made.counts()["delivered"] == 1
