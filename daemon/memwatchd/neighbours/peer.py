"""Address and credentials of a followed machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from memwatch import __version__

if TYPE_CHECKING:
    import ssl

STREAM = "/api/v1/stream?form=compact"


class Peer(Struct, frozen=True):
    """A machine to follow. `scheme` is http, https or unix; with unix, `host` is the path of a socket file.

    `prefix`: path of a reverse proxy. `authorization`: the header's value; it is never shown. `user`: to whom it is
    sent at an address of this machine, empty for the first one who was seen there.
    """

    name: str
    url: str
    scheme: str
    host: str
    port: int
    prefix: str = ""
    authorization: str | None = None
    tls: ssl.SSLContext | None = None
    user: str = ""

    def __repr__(self) -> str:
        return f"Peer({self.name!r}, {self.url!r})"

    def request(self) -> bytes:
        """Return the request for its stream."""
        host = "localhost" if self.scheme == "unix" else f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"GET {self.prefix}{STREAM} HTTP/1.1",
            f"Host: {host}" if self.scheme == "unix" else f"Host: {host}:{self.port}",
            f"User-Agent: memwatchd/{__version__}",
            "Accept: text/event-stream",
        ]
        if self.authorization is not None:
            lines.append(f"Authorization: {self.authorization}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")
