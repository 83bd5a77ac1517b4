"""Check of the credentials of a request, with a limit on failures by origin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from msgspec import Struct
from starlette.types import Scope

from memwatch_web.asgi.auth import Basic, Bearer, Login, Passwords, is_token, parse_authorization
from memwatch_web.asgi.bounded_thread import QueueFullError
from memwatch_web.asgi.caller import CallerLookup, is_from_here
from memwatch_web.asgi.failed_logins import LOG_SECONDS, FailedLogins
from memwatch_web.asgi.sse import CLIENT

# Name for display of clients with the token.
TOKEN_HOLDER = "bearer token"  # noqa: S105  a name


class LoginRefusal(Struct, frozen=True):
    """Status, detail and headers of a refused login."""

    status: int
    sentence: str
    headers: dict[str, str]


class LoginCheck:
    """Check of tokens and passwords.

    After MAX_FAILURES failures of one origin its passwords are refused unchecked, right ones as well: otherwise the
    response would tell which guess is right. Right tokens are always accepted, so that other programs at the same
    address cannot lock out a scraper: a token has at least 16 characters and cannot be guessed. Local clients are
    told apart by their user id.
    """

    def __init__(self, failures: FailedLogins, callers: CallerLookup) -> None:
        self._failures = failures
        self._callers = callers
        self._passwords = Passwords()
        self._timer: asyncio.TimerHandle | None = None

    async def check(self, scope: Scope, login: Login) -> str | LoginRefusal:
        """Return the user for display, or a refusal."""
        fields = [value for name, value in scope["headers"] if name == b"authorization"]
        if not fields:
            return unauthorized(login, "no credentials were sent")
        if has_right_token(scope["headers"], login):
            return TOKEN_HOLDER
        shown = parse_authorization(fields[0]) if len(fields) == 1 else None
        if isinstance(shown, Basic) and login.users:
            return await self._check_password(shown, scope, login)
        reason = "wrong token" if isinstance(shown, Bearer) else "unsupported credentials"
        return self._refuse(await self._origin(scope), reason, login)

    async def _check_password(self, shown: Basic, scope: Scope, login: Login) -> str | LoginRefusal:
        is_known = self._failures.has_failed_from(client_of(scope))
        origin = await self._origin(scope) if is_known else None
        if origin is not None and self._failures.wait_seconds(origin):
            return self._refuse(origin, "not checked", login)
        try:
            if await self._passwords.is_right(shown, login.users):
                return f"user {shown.user}"
        except QueueFullError:
            busy = "too many password checks in progress: retry in 5 s."
            return LoginRefusal(503, busy, {"retry-after": "5"})
        return self._refuse(origin or await self._origin(scope), "wrong user or password", login)

    def _refuse(self, origin: str, reason: str, login: Login) -> LoginRefusal:
        wait = self._failures.wait_seconds(origin)
        self._failures.add(origin, reason)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOG_SECONDS, self._log_counts)
        if not wait:
            return unauthorized(login, "the credentials are wrong")
        sentence = (
            f"too many failed logins from {origin}: retry in {wait} s, use the right token or the socket file."
        )
        return LoginRefusal(429, sentence, {"retry-after": str(wait)})

    def _log_counts(self) -> None:
        again = self._failures.log_counts()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOG_SECONDS, self._log_counts) if again else None

    async def _origin(self, scope: Scope) -> str:
        """Return the client that the limit on connections counts; over loopback with its user."""
        client = client_of(scope)
        if not is_from_here(scope.get("client")):
            return client
        try:
            uid = await self._callers.uid(scope)
        except QueueFullError:
            return client
        return client if uid is None else f"{client} (uid {uid})"


def has_right_token(fields: Iterable[tuple[bytes, bytes]], login: Login) -> bool:
    """Check that a request carries the token and no other credentials."""
    sent = [value for name, value in fields if name == b"authorization"]
    shown = parse_authorization(sent[0]) if len(sent) == 1 else None
    return isinstance(shown, Bearer) and login.token is not None and is_token(login.token, shown)


def client_of(scope: Scope) -> str:
    return str(scope.get(CLIENT, "unknown"))


def unauthorized(login: Login, why: str) -> LoginRefusal:
    sentence = (
        f"login required: {why}. Send a token or a user's password, as set under [web.auth]. "
        "memwatch reads a token from MEMWATCH_TOKEN."
    )
    return LoginRefusal(401, sentence, {"www-authenticate": login.challenge})
