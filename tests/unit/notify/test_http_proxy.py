"""Notifications through an HTTP proxy: tunnels, forwarding, logins, and the reasons of failures."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch_monitor.notify.http_post import (
    Proxy,
    is_forbidden,
    is_on_this_machine,
    parse_address,
    parse_endpoint,
    parse_proxy,
)
from support.certificates import self_signed
from support.http_proxy import BODY, LOGIN, port_of, post_to, proxying, trusting
from support.webhook_receiver import dripping, garbage, raw_receiver, receiving, silent

NAME = "hooks.example.org"


@pytest.mark.process
def test_https_goes_through_a_tunnel(tmp_path: Path) -> None:
    """The proxy sees host and port only. It resolves the name, which this machine cannot."""
    certificate = self_signed(tmp_path, NAME)
    with receiving(200, certificate=certificate) as site, proxying({NAME: port_of(site.url)}, True) as proxy:
        done = post_to(f"https://{NAME}/hook?token=1", parse_proxy(proxy.url(LOGIN)), trusting(certificate))

    assert (done.status, done.failure) == (200, "answered 200 through the proxy " + proxy.url())
    assert [(one.method, one.target) for one in proxy.requests] == [("CONNECT", f"{NAME}:443")]
    assert proxy.requests[0].headers["host"] == f"{NAME}:443"
    (delivery,) = site.deliveries
    assert (delivery.path, delivery.body, delivery.headers["host"]) == ("/hook?token=1", BODY, NAME)
    assert "proxy-authorization" not in delivery.headers


@pytest.mark.process
def test_http_is_forwarded() -> None:
    with receiving(204) as site, proxying({NAME: port_of(site.url)}, True) as proxy:
        done = post_to(f"http://{NAME}:8080/hook?token=1", parse_proxy(proxy.url(LOGIN)))

    assert done.status == 204
    assert [(one.method, one.target) for one in proxy.requests] == [("POST", f"http://{NAME}:8080/hook?token=1")]
    (delivery,) = site.deliveries
    assert (delivery.path, delivery.body) == ("/hook?token=1", BODY)
    assert delivery.headers["host"] == f"{NAME}:8080"
    assert "proxy-authorization" not in delivery.headers


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_refused_login_is_no_answer_of_the_receiver(scheme: str) -> None:
    """The message may be sent again: it has not arrived."""
    with proxying({}, needs_login=True) as proxy:
        tls = ssl.create_default_context() if scheme == "https" else None
        done = post_to(f"{scheme}://{NAME}/", parse_proxy(proxy.url("user:secret-1@")), tls)

    assert (done.status, done.may_have_arrived) == (None, False)
    assert done.failure.startswith(f"the proxy {proxy.url()}")
    assert done.failure.endswith("answered 407, it refuses the user or password; correct them in proxy")


@pytest.mark.process
def test_refused_tunnel_names_status_and_target() -> None:
    with proxying({}) as proxy:
        done = post_to(f"https://{NAME}/secret", parse_proxy(proxy.url()), ssl.create_default_context())

    assert (done.status, done.may_have_arrived) == (None, False)
    assert done.failure == (
        f"the proxy {proxy.url()}: answered 502 to CONNECT {NAME}:443; it may not allow or reach this receiver"
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("talk", "words"),
    [
        (garbage, "the response is not HTTP"),
        (silent, "no connection within 0.3 s"),
        (dripping, "no connection within"),
    ],
    ids=["garbage", "silent", "dripping"],
)
def test_broken_proxy_ends_the_attempt_with_its_cause(talk: Callable[[socket.socket], None], words: str) -> None:
    with raw_receiver(talk) as url:
        done = post_to(f"https://{NAME}/", parse_proxy(url), ssl.create_default_context(), seconds=0.3)

    assert done.failure == f"the proxy {url.rstrip('/')}: {words}" + (" 0.3 s" if talk is dripping else "")
    assert not done.may_have_arrived


@pytest.mark.process
@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        (Proxy("127.0.0.1", 1), "the proxy http://127.0.0.1:1: connection refused"),
        (Proxy(f"{'a' * 64}.example", 3128), f"the name {'a' * 64}.example does not resolve"),
        (Proxy("169.254.169.254", 3128), "169.254.169.254 is a link-local or metadata address"),
    ],
    ids=["dead", "no name", "metadata"],
)
def test_unreachable_proxy_is_reported(proxy: Proxy, words: str) -> None:
    assert words in post_to(f"http://{NAME}/", proxy).failure


@pytest.mark.process
def test_certificate_is_that_of_the_receiver(tmp_path: Path) -> None:
    """A proxy that answers with its own certificate gets nothing."""
    certificate = self_signed(tmp_path, "proxy.example.org")
    with receiving(200, certificate=certificate) as site, proxying({NAME: port_of(site.url)}) as proxy:
        done = post_to(f"https://{NAME}/", parse_proxy(proxy.url()), trusting(certificate))

    assert done.failure.startswith("TLS certificate verification failed: ")
    assert site.deliveries == []


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_this_machine_is_reached_directly(host: str) -> None:
    """A proxy elsewhere would connect to itself."""
    assert is_on_this_machine(parse_endpoint(f"http://{host}:80/"))


@pytest.mark.process
def test_receiver_on_this_machine_gets_no_proxy() -> None:
    with receiving(200) as site, proxying({}) as proxy:
        done = post_to(site.url, parse_proxy(proxy.url()))

    assert (done.status, proxy.requests) == (200, [])


@pytest.mark.process
@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "169.254.169.254.", "0xa9fea9fe", "2852039166", "169.254.43518", "0251.0376.0251.0376",
     "[::ffff:169.254.169.254]", "[fd00:ec2::254]"],
)  # fmt: skip
def test_proxy_is_not_asked_for_forbidden_addresses(host: str) -> None:
    """Proxies resolve every notation of an address."""
    with proxying({}) as proxy:
        done = post_to(f"http://{host}/latest", parse_proxy(proxy.url()))

    assert "is a link-local or metadata address; allow_link_local = true permits it" in done.failure
    assert proxy.requests == []


@given(st.integers(0, 2**32 - 1))
def test_every_notation_denotes_the_same_address(number: int) -> None:
    plain = socket.inet_ntoa(number.to_bytes(4, "big"))
    octal = ".".join(f"0{part:o}" for part in number.to_bytes(4, "big"))

    assert {parse_address(text) for text in (plain, f"{plain}.", str(number), hex(number), octal)} == {plain}
    assert is_forbidden(plain) == is_forbidden(str(parse_address(hex(number))))


@given(
    st.text(max_size=60),
    st.sampled_from(["http://{}:s3cretw0rd@{}", "http://s3cretw0rd{}{}", "http://{}:s3cretw0rd/{}@b:1"]),
)
def test_errors_and_text_of_a_proxy_contain_no_secret(text: str, form: str) -> None:
    shown = ""
    try:
        found = parse_proxy(form.format(text, text))
        shown = f"{found!r}" if found.authorization else ""
    except ValueError as error:
        shown = str(error)

    assert "s3cretw0rd" not in shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://proxy.example.org:3128", "is not http://HOST:PORT"),
        ("socks5://proxy.example.org:1080", "is not http://HOST:PORT"),
        ("http://proxy.example.org", "is not http://HOST:PORT"),
        ("http://proxy.example.org:0", "is not http://HOST:PORT"),
        ("http://user:pass/word@proxy.example.org:1", "is not http://HOST:PORT"),
        ("proxy.example.org:3128", "is not http://HOST:PORT"),
        ("http://proxy.example.org:3128/pac", "has a path"),
        ("http://proxy.example.org:3128?a", "has a path"),
        ("http://pröxy:1", "is not made of 1 to 2000 printable ASCII characters"),
    ],
)
def test_unusable_url_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_proxy(url)


def test_login_is_hidden() -> None:
    proxy = parse_proxy("http://user:secret-1@[2001:db8::1]:3128/")

    assert str(proxy) == "http://[2001:db8::1]:3128"
    assert "secret" not in repr(proxy)
    assert proxy.headers == {"Proxy-Authorization": "Basic dXNlcjpzZWNyZXQtMQ=="}
