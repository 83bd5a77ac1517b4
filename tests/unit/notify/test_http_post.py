"""Test one delivery attempt: allowed addresses, bounded reading, deadlines, and the reasons of failures."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch_monitor.notify.http_post import is_forbidden, retry_after_seconds
from support.certificates import expired, self_signed
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Endless, dripping, garbage, raw_receiver, receiving
from support.webhook_samples import ids, notice, put_notices, receiver


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("120", 120), (" 5 ", 5), ("-5", 0), ("soon", 0), ("1e3", 0), ("9999999999", 86_400), ("9" * 50, 0),
     ("Thu, 01 Jan 1970 00:00:30 GMT", 20), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
     ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400)],
)  # fmt: skip
def test_retry_after_is_bounded_to_a_day(header: str | None, seconds: float) -> None:
    """Seconds and dates are parsed, invalid values are ignored, and a wait ends after one day."""
    assert retry_after_seconds(header, wall=10.0) == seconds


@given(st.text())
def test_arbitrary_retry_after_is_parsed(header: str) -> None:
    """No header makes its parser raise."""
    assert 0 <= retry_after_seconds(header, wall=1.8e9) <= 86_400


@pytest.mark.process
def test_redirect_is_a_failure_and_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver cannot direct requests to another server or to a metadata service."""
    with receiving(200) as other:
        places = (other.url, "http://169.254.169.254/latest/meta-data", "file:///etc/passwd")
        answers = [(status, {"Location": place}) for status in (301, 302, 307, 308) for place in places]
        with receiving(*answers, 200) as site, receiver(site.url, schedule=(0.0, *[0.01] * 12)) as made:
            put_notices(made, notice())
            wait_until(lambda: made.counts()["delivered"] == 1)

            assert made.counts()["retry"] == 12

    assert other.deliveries == []
    assert "answered 302, a redirect, which is not followed" in caplog.text
    assert "169.254" not in caplog.text


@pytest.mark.process
def test_dripping_answer_ends_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that arrives byte by byte does not extend the attempt."""
    with raw_receiver(dripping) as url, receiver(url, timeout_seconds=0.5) as made:
        started = time.monotonic()
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] == 1)

        assert time.monotonic() - started >= 0.5

    assert "no response within 0.5 s" in caplog.text


@pytest.mark.process
def test_endless_answer_is_read_in_part() -> None:
    """Of a body of 2 GB at most 64 kB are read; the status 200 before it counts."""
    endless = Endless()
    with raw_receiver(endless) as url, receiver(url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

    assert endless.sent_bytes < 32_000_000  # buffered by the kernel


@pytest.mark.process
def test_answer_that_is_not_http_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """The failure names a wrong protocol, such as SMTP, and the log does not quote the answer."""
    with raw_receiver(garbage) as url, receiver(url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert "the response is not HTTP" in caplog.text


@pytest.mark.process
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/", "connection refused"),
        (f"http://{'a' * 64}.example/", "does not resolve"),
        ("http://169.254.169.254/latest", "169.254.169.254 is a link-local or metadata address"),
        ("http://0xa9fea9fe/latest", "is at 169.254.169.254, a link-local or metadata address"),
        ("http://[::ffff:169.254.169.254]/latest", "a link-local or metadata address"),
        ("http://[fd00:ec2::254]/latest", "fd00:ec2::254 is a link-local or metadata address"),
    ],
)
def test_failed_connection_logs_its_cause(url: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each cause of a failed connection has its own text, and none contains the path."""
    with receiver(url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1 and words in caplog.text)

    assert "latest" not in caplog.text


@pytest.mark.parametrize(
    ("address", "forbidden"),
    [("169.254.169.254", True), ("fe80::1", True), ("fe80::1%eth0", True), ("fd00:ec2::254", True),
     ("::ffff:169.254.1.1", True), ("64:ff9b::a9fe:a9fe", True), ("2002:a9fe:a9fe::", True),
     ("100.100.100.200", True), ("168.63.129.16", True), ("::ffff:168.63.129.16", True), ("fd00:42::42", True),
     ("127.0.0.1", False), ("10.0.0.1", False), ("192.168.1.1", False), ("::1", False), ("64:ff9b::808:808", False),
     ("2001:db8::1", False), ("fd00::1", False)],
)  # fmt: skip
def test_forbidden_addresses_are_recognized_in_every_encoding(address: str, forbidden: bool) -> None:
    """Link-local and metadata addresses are recognized inside IPv6 encodings; private networks are allowed."""
    assert is_forbidden(address) is forbidden


@pytest.mark.process
def test_link_local_can_be_permitted(caplog: pytest.LogCaptureFixture) -> None:
    """With allow_link_local the address is tried, and a failure there is an ordinary one."""
    with receiver("http://169.254.77.77:9/", allow_link_local=True, timeout_seconds=0.2) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert "metadata" not in caplog.text
    assert "webhook ops (http://169.254.77.77:9): " in caplog.text


@pytest.mark.process
def test_self_signed_certificate_is_rejected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that cannot prove its identity gets nothing, and the log gives the reason."""
    certificate = self_signed(tmp_path)
    with receiving(200, certificate=certificate) as site, receiver(site.url) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert site.deliveries == []
    assert "TLS certificate verification failed: self-signed certificate" in caplog.text
    assert "token" not in caplog.text


@pytest.mark.process
def test_trusted_certificate_is_accepted_for_its_name_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over TLS a notice is delivered only where certificate and host name match."""
    right, wrong = self_signed(tmp_path, "localhost"), self_signed(tmp_path, "elsewhere")
    trusting = ssl.create_default_context(cadata=right.read_text() + wrong.read_text())

    with receiving(200, certificate=right) as site, receiver(site.url, tls=trusting) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)
    with receiving(200, certificate=wrong) as elsewhere, receiver(elsewhere.url, tls=trusting) as made:
        put_notices(made, notice())
        wait_until(lambda: "Hostname mismatch, certificate is not valid for 'localhost'" in caplog.text)

    assert ids(site) == ["msg_1"]
    assert elsewhere.deliveries == []


@pytest.mark.process
def test_plain_text_behind_https_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    """https never falls back to http."""
    with receiving(200) as site, receiver(site.url.replace("http:", "https:")) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert site.deliveries == []
    assert "TLS failed" in caplog.text


@pytest.mark.process
def test_expired_certificate_is_rejected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A trusted certificate is rejected after its expiry."""
    certificate = expired(tmp_path)
    trusting = ssl.create_default_context(cadata=certificate.read_text())
    with receiving(200, certificate=certificate) as site, receiver(site.url, tls=trusting) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["retry"] >= 1)

    assert site.deliveries == []
    assert "TLS certificate verification failed: certificate has expired" in caplog.text


@pytest.mark.process
def test_hanging_name_server_delays_its_own_receiver_only() -> None:
    """While one name is not resolved another receiver gets its notice; the first gets it once, later."""
    answered = threading.Event()

    def resolve(*name: Any, **how: Any) -> Any:
        answered.wait(MAX_WAIT_SECONDS)
        return socket.getaddrinfo(*name, **how)

    with (
        receiving(200) as first,
        receiving(200) as second,
        receiver(first.url, resolve=resolve) as stuck,
        receiver(second.url) as quick,
    ):
        put_notices(stuck, notice())
        put_notices(quick, notice())
        wait_until(lambda: quick.counts()["delivered"] == 1)
        waited = stuck.pending()
        answered.set()
        wait_until(lambda: stuck.counts()["delivered"] == 1)

    assert waited == 1
    assert ids(first) == ids(second) == ["msg_1"]


@pytest.mark.process
def test_clock_jumps_delay_no_attempt() -> None:
    """Between attempts the clock jumps to 1970 and to 2100: attempts are made when due, and signatures verify."""
    walls = (time.time(), 10.0, 4.1e9, 4.1e9)
    with receiving(500, 500, 200) as site, receiver(site.url, wall=lambda: walls[len(site.deliveries)]) as made:
        put_notices(made, notice())
        wait_until(lambda: made.counts()["delivered"] == 1)

    assert len({delivery.body for delivery in site.deliveries}) == 1
    assert [int(delivery.headers["webhook-timestamp"]) for delivery in site.deliveries[1:]] == [10, 4_100_000_000]


@pytest.mark.process
def test_flapping_receiver_gets_every_message_once() -> None:
    """Every other request fails in a different way; ten messages arrive once each, in order."""
    flaps = [answer for status in (500, 429, 502, 404, 503) for answer in (status, 200)] * 2
    with receiving(*flaps, 200) as site, receiver(site.url, schedule=(0.0, *[0.02] * 10)) as made:
        for number in range(10):
            put_notices(made, notice(number, firing=number % 2 == 0))
            wait_until(lambda wanted=number + 1: made.counts()["delivered"] == wanted)  # type: ignore[misc]

        wait_until(lambda: len(site.accepted) >= 10)  # noted after the answer was sent

    assert site.accepted == [f"msg_{number}" for number in range(10)]
