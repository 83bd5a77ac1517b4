"""Authentication: bearer tokens, users with passwords (bcrypt hashes, as in exporter-toolkit), failed logins."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from memwatch_web.asgi.caller import CLIENT, CallerLookup, is_from_here
from memwatch_web.asgi.login import TOKEN_USER, Login, PasswordHash, Token
from memwatch_web.asgi.threads import BoundedThread, QueueFullError

if TYPE_CHECKING:
    from starlette.types import Scope

log = logging.getLogger(__name__)

MAX_REMEMBERED = 100
MAX_BCRYPT_BYTES = 72  # bcrypt ignores the rest; the library from 5.0 on raises instead of truncating
MAX_FIELD_BYTES = 2048
Compare = Callable[[bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Bearer:
    """Credentials: a token."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Basic:
    """Credentials: a user and a password."""

    user: str
    password: bytes = field(repr=False)


def parse_authorization(field_value: bytes) -> Bearer | Basic | None:
    """Parse an Authorization header. Return None for other schemes and for malformed values.

    With Basic, the password of TOKEN_USER is the token.
    """
    if len(field_value) > MAX_FIELD_BYTES:
        return None
    scheme, _, rest = field_value.partition(b" ")
    if scheme.lower() == b"bearer" and rest.strip():
        return Bearer(rest.strip())
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
        if colon and user == TOKEN_USER.encode():
            return Bearer(password)
        return Basic(user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def is_token(token: Token, shown: Bearer) -> bool:
    """Compare a token in constant time."""
    return hmac.compare_digest(token.digest, hashlib.sha256(shown.token).digest())


def compare(password: bytes, hashed: bytes) -> bool:
    """Compare a password with a bcrypt hash."""
    import bcrypt

    try:
        return bcrypt.checkpw(password[:MAX_BCRYPT_BYTES], hashed)
    except ValueError:  # a NUL in the password
        return False


def dummy_hash(cost: int) -> bytes:
    """Return a hash of this cost that no password has: comparing with it only takes time."""
    return b"$2b$%02d$" % cost + b"." * 53


class Passwords:
    """Password checks in a separate thread, with a cache of correct passwords.

    At the usual cost of 10 a check takes 0.05 to 0.4 s.

    The cache holds keyed digests of user, password and hash, each prefixed with its length, so that different
    credentials cannot collide (exporter-toolkit's CVE-2022-46146). A changed hash invalidates the old password.
    """

    def __init__(self, compare: Compare = compare) -> None:
        self._compare = compare
        self._key = os.urandom(32)
        self._right: set[bytes] = set()
        self._thread = BoundedThread("passwords")

    async def is_right(self, shown: Basic, users: Mapping[str, PasswordHash]) -> bool:
        """Check a password. Unknown users take as long as known ones. Raises QueueFullError."""
        if not users:
            return False
        known = users.get(shown.user)
        digest = self._digest(shown, known.text.encode()) if known else b""
        if digest in self._right:
            return True
        most = max(one.cost for one in users.values())
        if not await self._thread.run(self._is_match, shown.password, known, most):
            return False
        if len(self._right) >= MAX_REMEMBERED:
            self._right.clear()
        self._right.add(digest)
        return True

    def _is_match(self, password: bytes, known: PasswordHash | None, most: int) -> bool:
        """Compare a password. Every failure takes the time of one comparison at the cost `most`.

        The cost is a power of two: a comparison at c, then at c, c + 1, … most - 1, takes as long as one at `most`.
        """
        if known is None:
            self._compare(password, dummy_hash(most))
            return False
        if self._compare(password, known.text.encode()):
            return True
        for cost in range(known.cost, most):
            self._compare(password, dummy_hash(cost))
        return False

    def _digest(self, shown: Basic, hashed: bytes) -> bytes:
        parts = (shown.user.encode(), shown.password, hashed)
        return hmac.new(
            self._key, b"".join(b"%d:%s" % (len(part), part) for part in parts), hashlib.sha256
        ).digest()


# Failures of one origin before its passwords are refused unchecked; one more is allowed every 6 s.
MAX_FAILURES, WINDOW_SECONDS = 10, 60.0
LOG_SECONDS = 60.0
MAX_ORIGINS = 1024


class FailureCount(Struct):
    """Failures of one origin. `level` falls by MAX_FAILURES in WINDOW_SECONDS. `unlogged`: since the last line."""

    level: float
    at: float
    logged_at: float
    unlogged: int = 0


class FailedLogins:
    """Table of the latest origins of failed logins. Not thread-safe: for the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self._clock = clock
        self._origins: dict[str, FailureCount] = {}

    def add(self, origin: str, reason: str) -> None:
        """Count a failure. The first one of an origin is logged at once, later ones by `log_counts`.

        Failures of an origin that has to wait do not prolong its wait: other users may share its address.
        """
        self.total += 1
        now = self._clock()
        count = self._origins.get(origin)
        if count is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins.pop(next(iter(self._origins)))
            self._origins[origin] = FailureCount(1.0, now, now)
            log.warning("failed login from %s: %s", origin, reason)
            return
        if not self.wait_seconds(origin):
            count.level, count.at = self._level(count, now) + 1, now
        count.unlogged += 1

    def wait_seconds(self, origin: str) -> int:
        """Return the time until an origin may try again, 0 if it may now."""
        count = self._origins.get(origin)
        level = 0.0 if count is None else self._level(count, self._clock())
        return (
            math.ceil((level - MAX_FAILURES + 1) * WINDOW_SECONDS / MAX_FAILURES) if level > MAX_FAILURES - 1 else 0
        )

    def has_failed_from(self, client: str) -> bool:
        """Return True if the table has an origin of this client."""
        return any(origin.partition(" ")[0] == client for origin in self._origins)

    def log_counts(self) -> bool:
        """Log the failures since the last line of each origin. Return False if the table is empty."""
        now = self._clock()
        for origin, count in list(self._origins.items()):
            if now - count.logged_at < LOG_SECONDS:
                continue
            if count.unlogged:
                log.warning("%d more failed logins from %s in the last minute", count.unlogged, origin)
            elif not self._level(count, now):
                del self._origins[origin]
            count.logged_at, count.unlogged = now, 0
        return bool(self._origins)

    @staticmethod
    def _level(count: FailureCount, now: float) -> float:
        return max(0.0, count.level - (now - count.at) * MAX_FAILURES / WINDOW_SECONDS)


# Name for display of clients with the token.
TOKEN_HOLDER = "bearer token"  # noqa: S105  a name


class LoginRefusal(Struct, frozen=True):
    """Status, detail and headers of a refused login. For a page: its sentence, and logins as HTML."""

    status: int
    detail: str
    headers: dict[str, str]
    sentence: str = ""
    logins: tuple[str, ...] = ()


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
            return unauthorized(login, "no credentials were sent", "This page needs a login.")
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
            return unauthorized(login, "the credentials are wrong", "The user or the password is wrong.")
        detail = f"too many failed logins from {origin}: retry in {wait} s, use the right token or the socket file."
        return LoginRefusal(429, detail, {"retry-after": str(wait)}, f"Passwords are checked again in {wait} s.")

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


def unauthorized(login: Login, why: str, sentence: str) -> LoginRefusal:
    """Return a refusal with a challenge. The challenge has browsers ask for a user and a password."""
    detail = (
        f"login required: {why}. Send a token or a user's password, as set under [web.auth]. "
        "memwatch reads a token from MEMWATCH_TOKEN."
    )
    return LoginRefusal(401, detail, {"www-authenticate": login.challenge}, sentence, tuple(login.ways))
