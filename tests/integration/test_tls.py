"""TLS listeners: versions, timeouts, client certificates and certificate renewal."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import pytest

from support.certificates import Certificate, authority, signed_by, tls_config
from support.daemon_process import get, running_daemon
from support.waiting import MAX_WAIT_SECONDS


def test_tls_listener_does_not_serve_plain_http(tmp_path: Path) -> None:
    """A client that verifies the certificate gets a response. Unix sockets stay without TLS."""
    ca = authority(tmp_path)
    listen = ("--listen", f"unix:{tmp_path}/socket")
    with running_daemon(tmp_path, *listen, config=tls_config(signed_by(ca)), tls=ca.context_of_client()) as daemon:
        assert daemon.get("/api/v1/pools").json[0]["id"] == "ram"
        assert daemon.get("/metrics", Host="evil.example").status == 400
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/" not in connection.recv(100)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "socket"))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        log = daemon.read_log()

    assert f"https://127.0.0.1:{daemon.port}" in log
    assert "Traceback" not in log


def test_tls_1_1_is_rejected(tmp_path: Path) -> None:
    """TLS 1.1 has known vulnerabilities. A client without a newer version gets an alert."""
    ca = authority(tmp_path)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with running_daemon(tmp_path, config=tls_config(signed_by(ca)), tls=ca.context_of_client()) as daemon:
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as connection,
            pytest.raises(ssl.SSLError, match=r"(?i)version|unsupported|EOF"),
        ):
            old.wrap_socket(connection)


def test_idle_handshakes_and_requests_time_out(tmp_path: Path) -> None:
    """Neither an idle handshake nor half a request is kept longer than ten seconds."""
    ca = authority(tmp_path)
    with (
        running_daemon(tmp_path, config=tls_config(signed_by(ca)), tls=ca.context_of_client()) as daemon,
        socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as silent,
        socket.create_connection(("127.0.0.1", daemon.port), timeout=MAX_WAIT_SECONDS) as opened,
        ca.context_of_client().wrap_socket(opened, server_hostname="localhost") as shaken,
    ):
        shaken.sendall(b"GET /healthz HTTP/1.1\r\nX: ")

        assert rest_of(silent) == b""
        assert rest_of(shaken).startswith(b"HTTP/1.1 408 ")


def rest_of(connection: socket.socket) -> bytes:
    """Return the data until the peer closes. Raises TimeoutError if it does not."""
    received = b""
    while True:
        try:
            part = connection.recv(4096)
        except TimeoutError:
            raise
        except OSError:
            return received
        if not part:
            return received
        received += part


def test_error_response_arrives_complete(tmp_path: Path) -> None:
    """An oversized request head gets 431, although a TLS connection cannot be half closed."""
    ca = authority(tmp_path)
    context = ca.context_of_client()
    with running_daemon(tmp_path, config=tls_config(signed_by(ca)), tls=context) as daemon:
        answer = get(daemon.port, "/metrics", {"X": "a" * 20_000}, tls=context)

    assert answer.status == 431
    assert "the maximum is 16384" in answer.json["detail"]


def test_only_clients_with_a_trusted_certificate_are_accepted(tmp_path: Path) -> None:
    """They have full access. Without a certificate, or with that of another authority, there is no response."""
    ca = authority(tmp_path)
    (tmp_path / "other").mkdir()
    untrusted = signed_by(authority(tmp_path / "other", "other"), "untrusted")
    known = ca.context_of_client(signed_by(ca, "client"))
    with running_daemon(tmp_path, config=tls_config(signed_by(ca), ca), tls=known) as daemon:
        assert daemon.get("/api/v1/snapshot").status == 200
        assert get(daemon.port, "/api/v1/release?seconds=1", method="POST", tls=known).status == 200
        for presented in (None, untrusted):
            with pytest.raises(OSError, match=r"(?i)alert|eof|reset|closed"):
                get(daemon.port, "/healthz", tls=ca.context_of_client(presented))
        log = daemon.read_log()
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_renewed_certificate_is_used_after_a_reload(tmp_path: Path) -> None:
    """Renewal overwrites the same files. `systemctl reload` is sufficient."""
    ca = authority(tmp_path)
    server = signed_by(ca)
    with running_daemon(tmp_path, config=tls_config(server), tls=ca.context_of_client()) as daemon:
        renewed = signed_by(ca, "renewed")
        server.cert.write_bytes(renewed.cert.read_bytes())
        server.key.write_bytes(renewed.key.read_bytes())
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("settings reloaded")

        shown = ssl.get_server_certificate(("127.0.0.1", daemon.port))
    assert shown == renewed.cert.read_text()


def test_certificate_in_another_file_is_used_after_a_reload(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    with running_daemon(tmp_path, config=tls_config(signed_by(ca)), tls=ca.context_of_client()) as daemon:
        renewed = signed_by(ca, "renewed")
        (tmp_path / "memwatchd.toml").write_text(tls_config(renewed))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for_log("web.tls.key_file")

        shown = ssl.get_server_certificate(("127.0.0.1", daemon.port))
        log = daemon.read_log()
    assert shown == renewed.cert.read_text()
    assert "at the next start" not in log


def test_key_of_another_certificate_is_rejected(tmp_path: Path) -> None:
    """At startup, with the name of the setting."""
    ca = authority(tmp_path)
    swapped = Certificate(ca.cert, signed_by(ca).key)
    words = r"web.tls.key_file: cannot be used with its certificate: key values mismatch"
    with pytest.raises(AssertionError, match=words) as caught, running_daemon(tmp_path, config=tls_config(swapped)):
        pass

    assert "Traceback" not in str(caught.value)
