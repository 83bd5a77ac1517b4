"""tinyproxy, a proxy in use, in front of another one that resolves the names."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from support.bound_process import start_bound
from support.http_proxy import ProxySite
from support.waiting import MAX_WAIT_SECONDS, wait_until

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
