"""Test that access control follows the permissions in the tables of routes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from memwatch_web.api.openapi import define, names_in
from memwatch_web.api_app import api_routes
from memwatch_web.asgi.access import AccessControl, WebOptions
from memwatch_web.asgi.caller import PEER, CallerLookup
from memwatch_web.asgi.login import Login, parse_token
from memwatch_web.asgi.routes import Route, is_for_programs
from memwatch_web.pages_app import PAGES
from memwatchd.sockets import Peer

ROUTES = (*api_routes(), *PAGES)
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"
# User ids of the process at the other end, as the kernel reports them. None: unknown.
ROOT, ALICE, UNKNOWN = 0, 54321, None
WITH_LOGIN = WebOptions(login=Login(parse_token("sixteen-letters-")))


async def let_in(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    """Fake application that answers 200."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status_of(
    route: Route,
    options: WebOptions,
    client: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    uid: int | None = UNKNOWN,
    peer: Peer | None = None,
) -> int:
    """Return the status of the access control's answer to a client."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: Scope = {
        "type": "http",
        "method": route.method,
        "path": route.path,
        "headers": [(b"host", b"127.0.0.1"), *headers],
        "client": (client, 1),
        "server": (HERE, 6360),
    }
    if peer is not None:
        scope[PEER] = peer
    callers = CallerLookup(lambda connections: [uid] * len(connections))
    asyncio.run(AccessControl(let_in, lambda: options, [(b"date", b"")], callers=callers)(scope, receive, send))
    return int(sent[0]["status"])


def statuses_of(route: Route) -> dict[str, int]:
    """Return the statuses of a route by caller."""
    bearer = ((b"authorization", b"Bearer sixteen-letters-"),)
    return {
        "root": status_of(route, WebOptions(), HERE, uid=ROOT),
        "user of the daemon": status_of(route, WebOptions(), HERE, uid=os.geteuid()),
        "other user": status_of(route, WebOptions(), HERE, uid=ALICE),
        "unknown user": status_of(route, WebOptions(), HERE, uid=UNKNOWN),
        "other machine": status_of(route, WebOptions(), ELSEWHERE),
        "socket file": status_of(route, WebOptions(), "", peer=Peer(1, ALICE, ALICE)),
        "without login": status_of(route, WITH_LOGIN, HERE),
        "with token": status_of(route, WITH_LOGIN, ELSEWHERE, bearer),
    }


def expected_of(who: str) -> dict[str, int]:
    """Return the statuses of a route with this entry in the table."""
    changes = who in ("program", "operator")
    return {
        "root": 200,
        "user of the daemon": 200,
        "other user": 403 if who == "operator" else 200,
        "unknown user": 403 if changes else 200,
        "other machine": 403 if changes else 200,
        "socket file": 200,
        "without login": 200 if who == "anyone" else 401,
        "with token": 200,
    }


def test_access_control_follows_the_table() -> None:
    found = {f"{route.method} {route.path}": (statuses_of(route), expected_of(route.who)) for route in ROUTES}

    assert len(found) == len(ROUTES)
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("header", [b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-real-ip", b"via"])
def test_requests_that_a_proxy_marks_change_nothing(header: bytes) -> None:
    """The proxy may run as root, and over the socket file as its group."""
    marked, peer = ((header, b"1"),), Peer(1, ALICE, ALICE)
    changing = [route for route in ROUTES if route.changes]

    assert changing
    assert [one.path for one in changing if status_of(one, WebOptions(), HERE, marked, uid=ROOT) != 403] == []
    assert [one.path for one in changing if status_of(one, WebOptions(), "", marked, peer=peer) != 403] == []


def test_only_operators_and_programs_may_change_state() -> None:
    changing = {route.path for route in ROUTES if route.changes}

    assert changing == {route.path for route in ROUTES if route.who in ("program", "operator")}
    programs = {route.path for route in ROUTES if route.who == "program"}
    assert {route.path for route in ROUTES if is_for_programs(route.path)} == programs


def test_method_and_path_of_routes_are_unique() -> None:
    places = [(route.method, route.path) for route in ROUTES]

    assert len(places) == len(set(places))


def test_every_answer_is_described() -> None:
    names = {name for route in api_routes() for name in names_in(route.answer)}

    assert names <= define(names).keys()
    assert all(route.answer for route in ROUTES)
