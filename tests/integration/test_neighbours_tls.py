"""Neighbours over TLS: authority, certificates of both ends, token, and the reason on the page if one is wrong."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support.certificates import Certificate, authority, signed_by, tls_config
from support.daemon_process import RunningDaemon, running_daemon
from support.html_reader import Reader
from support.neighbours import folder, neighbours, serving, wait_for_state

TOKEN, WRONG_TOKEN = "a-token-of-sixteen", "another-of-sixteen"
VERIFICATION = "TLS certificate verification failed: "


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return write_token(tmp_path / "token", TOKEN)


def write_token(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def closed(server: Certificate, ca: Certificate, token: Path) -> str:
    """Return settings that ask clients for a certificate and a token."""
    return f"[web.auth]\nbearer_token = 'file:{token}'\n{tls_config(server, ca)}\n"


def https(daemon: RunningDaemon) -> str:
    return f"https://localhost:{daemon.port}"


@contextmanager
def alerting_server(server: Certificate, ca: Certificate) -> Iterator[str]:
    """Yield the URL of a server that sends the alert of a failed handshake, which asyncio does not."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca.cert))
    context.load_cert_chain(server.cert, server.key)
    context.verify_mode = ssl.CERT_REQUIRED

    def shake(connection: socket.socket) -> None:
        with suppress(OSError):
            context.wrap_socket(connection, server_side=True).recv(1)

    with serving(shake, reads=False) as url:
        yield url.replace("http://127.0.0.1", "https://localhost")


def wait_for_text(daemon: RunningDaemon, name: str, words: str) -> str:
    return str(daemon.wait_for(f"/api/v1/machines/{name}", lambda found: words in found["text"])["text"])


def test_pair_with_certificates_and_token_is_up_on_both(tmp_path: Path, token: Path) -> None:
    """Each asks for a certificate of one authority and for a token, and has both for the other."""
    ca = authority(tmp_path)
    context, login = ca.context_of_client(signed_by(ca, "client")), {"Authorization": f"Bearer {TOKEN}"}
    certificates = {name: signed_by(ca, name) for name in ("spark", "ember")}
    folders = {name: folder(tmp_path, f"{name}-files") for name in certificates}
    configs = {name: closed(one, ca, token) for name, one in certificates.items()}
    with ExitStack() as stack:
        daemons = {
            name: stack.enter_context(
                running_daemon(folders[name], "--demo", "rtx4090", config=configs[name], tls=context)
            )
            for name in certificates
        }
        for name, other in (("spark", "ember"), ("ember", "spark")):
            keys = {
                "ca_file": str(ca.cert),
                "cert_file": str(certificates[name].cert),
                "key_file": str(certificates[name].key),
                "token": f"file:{token}",
            }
            added = neighbours({other: https(daemons[other])}, **keys)
            (folders[name] / "memwatchd.toml").write_text(configs[name] + added)
            daemons[name].process.send_signal(signal.SIGHUP)
            daemons[name].wait_for_log(f"neighbours.{other}.name: not set → ")
        for name, other in (("spark", "ember"), ("ember", "spark")):
            wait_for_state(daemons[name], other, "up", headers=login)
        refused = daemons["spark"].get("/api/v1/machines")
        logs = "".join(daemon.read_log() for daemon in daemons.values())

    assert refused.status == 401
    assert TOKEN not in logs


def test_wrong_certificate_or_token_is_named_on_the_page(tmp_path: Path, token: Path) -> None:
    """One thing is wrong for each neighbour. The good one, of the same machine, is up."""
    ca, foreign = authority(tmp_path), authority(folder(tmp_path, "foreign"), "foreign-ca")
    client, stranger = signed_by(ca, "client"), signed_by(foreign, "stranger")
    wrong_token = write_token(tmp_path / "wrong", WRONG_TOKEN)
    good = {
        "ca_file": str(ca.cert),
        "cert_file": str(client.cert),
        "key_file": str(client.key),
        "token": f"file:{token}",
    }
    no_certificate = {name: good[name] for name in ("ca_file", "token")}
    strange = {"cert_file": str(stranger.cert), "key_file": str(stranger.key)}
    context = ca.context_of_client(client)
    with ExitStack() as stack:

        def start(name: str, config: str) -> RunningDaemon:
            return stack.enter_context(running_daemon(folder(tmp_path, name), config=config, tls=context))

        right = start("right", closed(signed_by(ca, "server"), ca, token))
        other_name = signed_by(ca, "other", "DNS:other.example,IP:127.0.0.1")
        misnamed = start("misnamed", closed(other_name, ca, token))
        alerting = stack.enter_context(alerting_server(signed_by(ca, "alerting"), ca))
        plain = stack.enter_context(running_daemon(folder(tmp_path, "plain")))
        cases = {
            "good": (https(right), good, ""),
            "ca": (
                https(right),
                good | {"ca_file": str(foreign.cert)},
                VERIFICATION,
            ),
            "name": (https(misnamed), good, f"{VERIFICATION}hostname mismatch"),
            "none": (alerting, no_certificate, "it asks for a client certificate: set cert_file"),
            "stranger": (alerting, good | strange, "it does not accept the client certificate"),
            "closed": (https(right), no_certificate, ""),
            "token": (https(right), good | {"token": f"file:{wrong_token}"}, "it answers 401: check the token"),
            "plain": (https(plain), good, "it does not answer in TLS: use http"),
        }
        config = "".join(neighbours({name: url}, **keys) for name, (url, keys, _) in cases.items())
        daemon = stack.enter_context(running_daemon(folder(tmp_path, "a"), config=config))
        wait_for_state(daemon, "good", "up")
        texts = {
            name: wait_for_state(daemon, name, "refused")["text"] for name, (_, _, why) in cases.items() if why
        }
        closed_text = wait_for_text(daemon, "closed", "handshake")
        page = daemon.get("/machines").text
        log = daemon.read_log()

    assert texts["ca"].endswith("; check ca_file")
    assert texts["name"].endswith("; use a name of its certificate in url")
    assert closed_text.endswith("if it asks for a client certificate, check cert_file)")
    for name, (_, _, why) in cases.items():
        assert not why or texts[name].lower().startswith(why.lower()), name
    assert Reader(page.encode()).open == []
    assert "; check ca_file" in page
    assert TOKEN not in page + log
    assert WRONG_TOKEN not in page + log
