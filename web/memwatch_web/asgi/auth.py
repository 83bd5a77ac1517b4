"""Who may ask: the holder of a token, or a user with a password (bcrypt hashes, as exporter-toolkit keeps them)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

# A comparison takes 0.05 to 0.4 s at the usual cost of 10. Whoever tries passwords waits for himself, and all
# who try wait in a short queue.
MOST_WAITING = 8
MOST_REMEMBERED = 100
BCRYPT_MOST_BYTES = 72  # what bcrypt looks at; the library from 5.0 on refuses more instead of cutting
LONGEST_FIELD_BYTES = 2048

Compare = Callable[[bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token; only its digest is kept."""

    digest: bytes = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """What bcrypt made of a password."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


@dataclass(frozen=True, slots=True)
class Bearer:
    """A request that shows a token."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Basic:
    """A request that names a user and a password."""

    user: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """Who may ask over TCP. Without a token and without users, everybody.

    `by_certificate`: TLS has let nobody in who had none.
    """

    token: Token | None = None
    users: Mapping[str, PasswordHash] = field(default_factory=lambda: MappingProxyType({}))
    by_certificate: bool = False

    @property
    def is_required(self) -> bool:
        return self.token is not None or bool(self.users)

    @property
    def challenge(self) -> str:
        """What WWW-Authenticate says; browsers show their dialogue for Basic only."""
        basic = 'Basic realm="memwatchd", charset="UTF-8"' if self.users else ""
        bearer = 'Bearer realm="memwatchd"' if self.token else ""
        return ", ".join(filter(None, (basic, bearer)))


def token_of(text: str) -> Token:
    """A token from what a file or a variable holds. Raises ValueError without naming it."""
    text = text.strip()
    if not 16 <= len(text) <= 1024 or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("is not a token of 16 to 1024 printable ASCII characters without spaces")
    return Token(hashlib.sha256(text.encode()).digest())


def parse_authorization(field_value: bytes) -> Bearer | Basic | None:
    """What an Authorization header says; None for what is neither Bearer nor Basic."""
    if len(field_value) > LONGEST_FIELD_BYTES:
        return None
    scheme, _, rest = field_value.partition(b" ")
    if scheme.lower() == b"bearer" and rest.strip():
        return Bearer(rest.strip())
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
        return Basic(user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def is_token(token: Token, shown: Bearer) -> bool:
    """In a time that tells nothing of either."""
    return hmac.compare_digest(token.digest, hashlib.sha256(shown.token).digest())


def compare(password: bytes, hashed: bytes) -> bool:
    """Whether bcrypt makes this hash of this password."""
    import bcrypt

    try:
        return bcrypt.checkpw(password[:BCRYPT_MOST_BYTES], hashed)
    except ValueError:  # a NUL in the password
        return False


class TooMany(Exception):
    """More passwords wait to be compared than one can be made to wait for."""


class Passwords:
    """Compares passwords in a thread of its own, begun when first needed, and remembers which were right.

    What is remembered is a keyed digest of user, password and hash, each with its length: two that differ cannot
    meet in it (exporter-toolkit's CVE-2022-46146), and a hash that is changed makes the old password unknown.
    """

    def __init__(self, compare: Compare = compare) -> None:
        self._compare = compare
        self._key = os.urandom(32)
        self._right: set[bytes] = set()
        self._waiting = 0
        self._thread: ThreadPoolExecutor | None = None

    async def is_right(self, shown: Basic, users: Mapping[str, PasswordHash]) -> bool:
        """Raises TooMany. A user who does not exist takes as long as one who does."""
        if not users:
            return False
        known = users.get(shown.user)
        hashed = (known or next(iter(users.values()))).text.encode()
        digest = self._digest(shown, hashed)
        if known is not None and digest in self._right:
            return True
        if not await self._compared(shown.password, hashed) or known is None:
            return False
        if len(self._right) >= MOST_REMEMBERED:
            self._right.clear()
        self._right.add(digest)
        return True

    async def _compared(self, password: bytes, hashed: bytes) -> bool:
        if self._waiting >= MOST_WAITING:
            raise TooMany
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "passwords")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._compare, password, hashed)
        finally:
            self._waiting -= 1

    def _digest(self, shown: Basic, hashed: bytes) -> bytes:
        parts = (shown.user.encode(), shown.password, hashed)
        return hmac.new(
            self._key, b"".join(b"%d:%s" % (len(part), part) for part in parts), hashlib.sha256
        ).digest()
