"""Every path of the application with any query string or body: a valid status, and JSON without NaN."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from fuzz.site import RIGHT, site

GETS = (
    "history",
    "ticks",
    "events",
    "growth",
    "owners",
    "fit",
    "snapshot",
    "pressure",
    "processes/1/pss",
    "last-words",
)
POSTS = ("marks", "reports", "silences", "release", "alerts/test")
PATHS = (
    *(("GET", f"/api/v1/{name}") for name in GETS),
    *(("POST", f"/api/v1/{name}") for name in POSTS),
    ("GET", "/fit"),
    ("POST", "/fit"),
)
HTML = b"text/html; charset=utf-8"


def check(data: bytes) -> None:
    """Check one request: the first byte chooses the path, the first line is the query, the rest is a body."""
    here = site()
    here.complaints.found.clear()
    number, rest = (data[0] if data else 0), data[1:]
    method, path = PATHS[number % len(PATHS)]
    status, kind, body = here.loop.run_until_complete(answer_of(method, path, *rest.partition(b"\n")[::2]))
    assert not here.complaints.found, here.complaints.found
    assert status in RIGHT, status
    if b"json" in kind:
        answer = json.loads(body, parse_constant=reject)
        assert status == 200 or isinstance(answer["detail"], str), body
    else:
        assert (status, kind) in ((200, HTML), (422, HTML), (303, b""))


def reject(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


async def answer_of(method: str, path: str, query: bytes, body: bytes) -> tuple[int, bytes, bytes]:
    sent: list[Any] = []
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return received.pop() if received else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    fields = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "headers": fields,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 6360),
    }
    await asyncio.wait_for(site().app(scope, receive, send), 5)
    content = b"".join(message.get("body", b"") for message in sent)
    return int(sent[0]["status"]), dict(sent[0]["headers"]).get(b"content-type", b""), content
