"""Logins and URLs of receivers, proxies and brokers go to no other user who listens at their port of this machine.

Without root the other user is the same one, so that the secret is sent: the tests then show that it would be.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from memwatch.cli._mqtt_session import Broker, MqttSession
from memwatch.cli.home_assistant import Topics
from memwatch.cli.http import CommandError
from memwatch.core.http import GetError, get
from memwatch.core.linux.key_owner import KeyOwners, KeyUse, KnownOwners
from memwatch.core.linux.process_files import Passwd
from memwatch_monitor.notify.channel import Channel
from memwatch_monitor.notify.http_post import Endpoint, Poster, PostResult, Proxy, parse_endpoint
from memwatchd.otlp import DeadlineAdapter, PushFailedError, create_session
from memwatchd.settings.alerts import ProxyChoice, find_use
from support.alert_machine import request_test
from support.client_process import memwatch
from support.daemon_process import running_daemon
from support.free_ports import free_port
from support.http_proxy import LOGIN, proxying
from support.other_user import CAN_SWITCH, OTHER_UID, become_other, server_of_other
from support.settings_sample import SECRET, settings_from
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving

ME = str(os.geteuid())
PASSWORD = "a-password-of-tests"
# user:a-password-of-tests@ and Basic authentication of it.
ALERTMANAGER = """
[[alerts.alertmanagers]]
name = "am"
url = "http://127.0.0.1:{port}"
user = "memwatchd"
secret = "file:{folder}/password"
"""
WEBHOOK = f"""
[[alerts.webhooks]]
name = "ops"
url = "http://localhost:{{port}}/hooks/T0AAB12CD/xWcnJ3k2mZq8Q1vT5yHd0LrP"
secret = "{SECRET}"
"""
PROXIED = f"""
[alerts]
proxy = "http://{LOGIN}127.0.0.1:{{port}}"
[[alerts.webhooks]]
name = "ops"
url = "http://receiver.test/hook"
secret = "{SECRET}"
"""
APPRISE = """
[[alerts.apprise]]
name = "chat"
url = "json://memwatchd:a-password-of-tests@127.0.0.1:{port}/"
"""
Serve = Callable[[int], AbstractContextManager[object]]


@contextmanager
def receiver_at(port: int) -> Iterator[Site]:
    with receiving(port=port) as site:
        yield site


@contextmanager
def proxy_at(port: int) -> Iterator[object]:
    with receiving() as site, proxying({"receiver.test": int(site.url.rsplit(":", 1)[1].split("/")[0])}, port=port):
        yield site


def owners() -> KeyOwners:
    return KeyOwners(Passwd(Path("/nowhere")), KnownOwners())


def channel_of(folder: Path, config: str, port: int, known: KeyOwners) -> Channel:
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o600)
    settings = settings_from(folder, config.format(port=port, folder=folder))
    return settings.alerts.receivers[0].create_channel(known)


def send(channel: Channel) -> PostResult:
    """Send as the thread of a receiver does."""
    body = b'{"title": "t", "text": "t", "type": "info"}' if channel.kind == "apprise" else b"[{}]"
    return channel.send("id", body)


def read_now(sent: int) -> bytes:
    os.set_blocking(sent, False)
    try:
        return os.read(sent, 1 << 16)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(
    ("config", "serve", "table"),
    [
        (ALERTMANAGER, receiver_at, "[[alerts.alertmanagers]]"),
        (WEBHOOK, receiver_at, "[[alerts.webhooks]]"),
        (PROXIED, proxy_at, "[alerts]"),
        (APPRISE, receiver_at, "[[alerts.apprise]]"),
    ],
    ids=["alertmanager", "webhook", "proxy", "apprise"],
)
def test_secret_goes_to_the_first_user_only(tmp_path: Path, config: str, serve: Serve, table: str) -> None:
    """The server is down, and another user listens. When the server is back, it gets the message."""
    port = free_port()
    channel = channel_of(tmp_path, config, port, owners())
    with serve(port):
        assert send(channel).success
    with server_of_other(port) as sent:
        refused = send(channel)
        found = read_now(sent)
        os.close(sent)
    assert (found == b"") is CAN_SWITCH
    if CAN_SWITCH:
        assert f" is not sent: user {OTHER_UID} listens there now, before it was {ME}; " in refused.failure
        assert f"set listener_user under {table}" in refused.failure
    assert not refused.success
    with serve(port):
        assert send(channel).success


@pytest.mark.parametrize("config", [ALERTMANAGER, WEBHOOK, APPRISE], ids=["alertmanager", "webhook", "apprise"])
def test_configured_user_counts_before_the_first_one(tmp_path: Path, config: str) -> None:
    """Another user listens before memwatchd has ever reached the server."""
    port = free_port()
    channel = channel_of(tmp_path, f'{config}listener_user = "{ME}"\n', port, owners())
    with server_of_other(port) as sent:
        refused = send(channel)
        found = read_now(sent)
        os.close(sent)
    assert (found == b"") is CAN_SWITCH
    if CAN_SWITCH:
        assert (
            f"user {OTHER_UID} listens there, not {ME}; start the server, or set listener_user = "
            in refused.failure
        )
    with receiver_at(port) as site:
        assert send(channel).success
    assert site.deliveries


def test_configured_user_of_a_url_without_a_secret_is_checked(tmp_path: Path) -> None:
    """An operator who names the user wants no other one to swallow alerts."""
    config = WEBHOOK.replace("/hooks/T0AAB12CD/xWcnJ3k2mZq8Q1vT5yHd0LrP", "/hook")
    with receiving() as site:
        port = int(site.url.rsplit(":", 1)[1].split("/")[0])
        free = channel_of(tmp_path, config, port, owners())
        strict = channel_of(tmp_path, f'{config}listener_user = "{int(ME) + 1}"\n', port, owners())
        assert send(free).success
        assert "is not sent: user " in send(strict).failure
    assert len(site.deliveries) == 1


def test_url_without_a_secret_is_sent_to_any_user(tmp_path: Path) -> None:
    port = free_port()
    channel = channel_of(tmp_path, WEBHOOK.replace("/T0AAB12CD/xWcnJ3k2mZq8Q1vT5yHd0LrP", ""), port, owners())
    with receiver_at(port):
        assert send(channel).success
    with server_of_other(port) as sent:
        send(channel)
        assert b"POST /hooks HTTP/1.1" in read_now(sent)
        os.close(sent)


def test_proxy_without_a_login_gets_what_is_encrypted() -> None:
    """CONNECT has no secret, and the request inside is for the receiver's certificate."""
    endpoint = Endpoint("https", "receiver.test", 443, "/hooks/T0AAB12CD/xWcnJ3k2mZq8Q1vT5yHd0LrP")
    for proxy, scheme, word in (
        (Proxy("127.0.0.1", 3128), "https", ""),
        (Proxy("127.0.0.1", 3128), "http", "URL"),
        (Proxy("127.0.0.1", 3128, "Basic x"), "https", "login"),
    ):
        hop = Endpoint(scheme, endpoint.host, endpoint.port, endpoint.path)
        found = find_use(hop, ProxyChoice(proxy), "[[alerts.webhooks]]", "URL")
        assert (found.word, found.url) == (word, "http://127.0.0.1:3128")


def test_otlp_login_goes_to_the_first_user_only(tmp_path: Path) -> None:
    port = free_port()
    config = f'[otlp]\nendpoint = "http://127.0.0.1:{port}"\n[otlp.headers]\nauthorization = "Bearer {PASSWORD}"\n'
    settings = settings_from(tmp_path, config)
    assert settings.otlp.secret is not None
    adapter = DeadlineAdapter(lambda: pytest.fail("no https"), owners().admit(settings.otlp.secret, None))
    session = create_session(adapter)
    with receiver_at(port):
        assert session.post(settings.otlp.url, b"x", timeout=MAX_WAIT_SECONDS).ok
    with server_of_other(port) as sent:
        with pytest.raises(PushFailedError):
            session.post(settings.otlp.url, b"x", timeout=MAX_WAIT_SECONDS, headers={"authorization": PASSWORD})
        assert (read_now(sent) == b"") is CAN_SWITCH
        os.close(sent)
    if CAN_SWITCH:
        assert "its login is not sent: user " in adapter.failure
        assert "set user under [otlp]" in adapter.failure
    with receiver_at(port):
        assert session.post(settings.otlp.url, b"x", timeout=MAX_WAIT_SECONDS).ok


def test_squatter_at_the_other_address_of_localhost_is_passed_over() -> None:
    """Another user listens at ::1, the server at 127.0.0.1, and the name has both."""
    if not CAN_SWITCH:
        return
    port = free_port()
    resolved = [
        (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
    ]
    admit = owners().admit(KeyUse("", "x", "token", "[[engines]]"), ME)
    with receiver_at(port) as site, squatter_of_other("::1", port) as sent:
        poster = Poster(
            parse_endpoint(f"http://localhost:{port}/hook"),
            MAX_WAIT_SECONDS,
            False,
            None,
            time.time,
            resolve=lambda *_, **__: resolved,
            admit=admit,
        )
        assert poster.post({}, b"x").success
        with pytest.raises(GetError, match="501"):  # the receiver knows no GET, and was asked
            get(
                "localhost",
                port,
                "/",
                time.monotonic() + MAX_WAIT_SECONDS,
                100,
                "t",
                admit=admit,
                resolve=lambda *_, **__: resolved,
            )
        assert read_now(sent) == b""
    assert len(site.deliveries) == 1


@contextmanager
def squatter_of_other(host: str, port: int) -> Iterator[int]:
    """Listen at an IPv6 address as another user. Yield a pipe with all that clients send."""
    source, sink = os.pipe()
    listening = socket.create_server((host, port), family=socket.AF_INET6)
    child = os.fork()
    if child == 0:
        try:
            become_other()
            while True:
                accepted, _ = listening.accept()
                with accepted:
                    os.write(sink, accepted.recv(1 << 16))
        finally:
            os._exit(0)
    listening.close()
    os.close(sink)
    try:
        yield source
    finally:
        os.close(source)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_squatter_who_accepts_nothing_leaves_time_for_the_server() -> None:
    """The kernel has no user of a connection that waits in the backlog."""
    with receiving() as site, socket.create_server(("127.0.0.1", 0)) as hanging:
        port = int(site.url.rsplit(":", 1)[1].split("/")[0])
        resolved = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", hanging.getsockname()),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
        ]
        admit = owners().admit(KeyUse("", "x", "token", "[[engines]]"), ME)
        poster = Poster(
            parse_endpoint("http://localhost:1/hook"),
            5.0,  # the first address may have a part of it
            False,
            None,
            time.time,
            resolve=lambda *_, **__: resolved,
            admit=admit,
        )
        assert poster.post({}, b"x").success


def test_refused_alert_is_said_and_arrives_when_its_user_listens(tmp_path: Path) -> None:
    """Log, receivers, metric and doctor have the reason. After a reload with the right user nothing is lost."""
    with receiving() as site:
        port = int(site.url.rsplit(":", 1)[1].split("/")[0])
        config = (ALERTMANAGER + 'listener_user = "{user}"\n').replace("{folder}", str(tmp_path))
        (tmp_path / "password").write_text(PASSWORD)
        (tmp_path / "password").chmod(0o600)
        with running_daemon(tmp_path, config=config.format(port=port, user="account-of-am")) as daemon:
            assert request_test(daemon).json == {"receivers": ["am"]}
            daemon.wait_for_log("its login is not sent: user ")
            daemon.wait_for("/api/v1/receivers", lambda found: "is not sent" in found[0]["failure"])
            (row,) = daemon.get("/api/v1/receivers").json
            metrics = daemon.get("/metrics").text
            done = memwatch("--url", f"http://127.0.0.1:{daemon.port}", "doctor")
            assert site.deliveries == []
            (tmp_path / "memwatchd.toml").write_text(config.format(port=port, user=ME))
            daemon.process.send_signal(signal.SIGHUP)
            wait_until(lambda: bool(site.deliveries), describe=lambda: daemon.read_log())
    assert row["pending"] == 1
    assert 'memwatch_notifications_total{outcome="retry",receiver="am"} 1' in metrics
    assert "alertmanager am (http://127.0.0.1:" in done.stdout
    assert "its login is not sent: user " in done.stdout
    assert "start the server, or set listener_user = " in done.stdout
    assert site.deliveries[0].headers["authorization"].startswith("Basic ")


CONNACK = b"\x20\x02\x00\x00"


@contextmanager
def broker_at(port: int) -> Iterator[list[bytes]]:
    """Accept one login, and hold the connection."""
    logins: list[bytes] = []
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(MAX_WAIT_SECONDS)
        ended = threading.Event()

        def serve() -> None:
            accepted, _ = listening.accept()
            with accepted:
                logins.append(accepted.recv(1 << 12))
                accepted.sendall(CONNACK)
                ended.wait(MAX_WAIT_SECONDS)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield logins
        ended.set()
        thread.join()


def test_password_of_a_broker_goes_to_the_first_user_only(capsys: pytest.CaptureFixture[str]) -> None:
    """The library reconnects by itself. Only the broker gets the password again."""
    port = free_port()
    session = MqttSession(Broker("127.0.0.1", port, user="me", password=PASSWORD), Topics("host"))
    try:
        with broker_at(port) as logins:
            session.open()
            assert PASSWORD.encode() in logins[0]
        with server_of_other(port) as sent:
            if CAN_SWITCH:
                said = ""

                def read_said() -> bool:
                    nonlocal said
                    said += capsys.readouterr().err
                    return "is not sent" in said

                wait_until(read_said)
                assert f"user {OTHER_UID} listens there now, before it was root; " in said
                assert "start the server, or use --broker-user" in said
                assert read_now(sent) == b""
            else:
                wait_until(lambda: PASSWORD.encode() in read_now(sent))
            os.close(sent)
        with broker_at(port) as logins:
            wait_until(lambda: bool(logins))
            assert PASSWORD.encode() in logins[0]
    finally:
        session.close()


def test_broker_of_another_user_than_the_named_one_is_refused_at_once() -> None:
    port = free_port()
    session = MqttSession(
        Broker("127.0.0.1", port, user="me", password=PASSWORD, listener="account-of-the-broker"), Topics("host")
    )
    with broker_at(port) as logins:
        with pytest.raises(CommandError, match="its password is not sent: user "):
            session.open()
        wait_until(lambda: bool(logins))
    assert logins == [b""]
