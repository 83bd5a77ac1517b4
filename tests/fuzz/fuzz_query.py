"""Every path of the application with any query string or body: a right status, and JSON without NaN."""

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
TURNS = 400


def check(data: bytes) -> None:
    """The first byte chooses the path; the rest is the query of a GET and the body of a POST."""
    here = site()
    number, rest = (data[0] if data else 0), data[1:]
    paths = [("GET", path) for path in GETS] + [("POST", path) for path in POSTS]
    method, path = paths[number % len(paths)]
    status, body = here.loop.run_until_complete(answer_of(method, f"/api/v1/{path}", rest))
    complaints, here.complaints.found[:] = here.complaints.found[:], []
    assert not complaints, complaints
    assert status in RIGHT, status
    said = json.loads(body, parse_constant=refuse)
    assert status == 200 or isinstance(said["detail"], str), body


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


async def answer_of(method: str, path: str, rest: bytes) -> tuple[int, bytes]:
    sent: list[Any] = []
    received = [{"type": "http.request", "body": rest if method == "POST" else b"", "more_body": False}]

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
        "query_string": rest if method == "GET" else b"",
        "root_path": "",
        "scheme": "http",
        "headers": fields,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 6360),
    }
    await asyncio.wait_for(site().app(scope, receive, send), 5)
    body = b"".join(message.get("body", b"") for message in sent)
    return int(sent[0]["status"]), body
