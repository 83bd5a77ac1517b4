"""Notifications through tinyproxy, a proxy in use, in front of another one that resolves the names."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from memwatch_monitor.notify.http_post import parse_proxy
from support.bound_process import start_bound
from support.certificates import self_signed
from support.http_proxy import ProxySite, port_of, post_to, proxying, trusting
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import receiving

pytestmark = pytest.mark.process

NAME = "hooks.example.org"
NEEDED_PROGRAMS = ("tinyproxy",)

# As in a URL. Its configuration file takes letters and digits.
PLAIN_LOGIN = "memwatchd:letters@"


@contextlib.contextmanager
def tinyproxy(folder: Path, upstream: ProxySite) -> Iterator[str]:
    """Run tinyproxy, which needs the login PLAIN_LOGIN and sends everything to `upstream`. Yield HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "tinyproxy.conf"
    config.write_text(
        f'Port {port}\nListen 127.0.0.1\nTimeout 10\nMaxClients 10\nLogFile "{folder}/tinyproxy.log"\n'
        f"BasicAuth {PLAIN_LOGIN.removesuffix('@').replace(':', ' ')}\nUpstream http 127.0.0.1:{upstream.port}\n"
    )
    process = start_bound(["tinyproxy", "-d", "-c", config])
    try:
        wait_until(lambda: accepts(port))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(MAX_WAIT_SECONDS)


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False


def test_tinyproxy_accepts_both_ways_and_its_refusals_are_reported(tmp_path: Path) -> None:
    """The behaviour of a program in use: its CONNECT, its forwarding, its 407."""
    certificate = self_signed(tmp_path, NAME)
    with (
        receiving(200, certificate=certificate) as secure,
        receiving(200) as plain,
        proxying({NAME: port_of(secure.url), "plain.example.org": port_of(plain.url)}) as upstream,
        tinyproxy(tmp_path, upstream) as address,
    ):
        right, wrong, none = (parse_proxy(f"http://{login}{address}") for login in (PLAIN_LOGIN, "a:b@", ""))
        tls = trusting(certificate)
        done = [post_to(f"https://{NAME}/", right, tls), post_to("http://plain.example.org/", right)]
        refused = [post_to(f"https://{NAME}/", one, tls).failure for one in (wrong, none)]
        refused += [post_to("http://plain.example.org/", one).failure for one in (wrong, none)]

    assert [one.status for one in done] == [200, 200]
    assert (len(secure.deliveries), len(plain.deliveries)) == (1, 1)
    assert all(f"the proxy http://{address}" in failure for failure in refused)
    # To a wrong login it answers 401, which a receiver may answer as well.
    assert "answered 401, it refuses the user or password" in refused[0]
    assert refused[2] == f"answered 401 through the proxy http://{address}"
    assert ["answered 407, it needs a login" in failure for failure in refused[1::2]] == [True, True]
    assert (tmp_path / "tinyproxy.log").exists()
