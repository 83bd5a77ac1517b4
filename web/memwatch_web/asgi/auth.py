"""Authentication by bearer token or by user and password (bcrypt hashes, as in exporter-toolkit)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from memwatch_web.asgi.bounded_thread import BoundedThread

MAX_REMEMBERED = 100
MAX_BCRYPT_BYTES = 72  # bcrypt ignores the rest; the library from 5.0 on raises instead of truncating
MAX_FIELD_BYTES = 2048
# Browsers only ask for a user and a password: with this user the password is the token.
TOKEN_USER = "token"  # noqa: S105  a name

Compare = Callable[[bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token, stored as its digest only."""

    digest: bytes = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A bcrypt hash."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"

    @property
    def cost(self) -> int:
        """Return the binary logarithm of its rounds: 10 in "$2y$10$…"."""
        return int(self.text.split("$")[2])


@dataclass(frozen=True, slots=True)
class Bearer:
    """Credentials: a token."""

    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Basic:
    """Credentials: a user and a password."""

    user: str
    password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials accepted over TCP. Without a token and users, no login is required.

    `by_certificate`: TLS accepts clients with a valid certificate only.
    """

    token: Token | None = None
    users: Mapping[str, PasswordHash] = field(default_factory=lambda: MappingProxyType({}))
    by_certificate: bool = False

    @property
    def is_required(self) -> bool:
        return self.token is not None or bool(self.users)

    @property
    def challenge(self) -> str:
        """Return the WWW-Authenticate header. Browsers show a login dialog for Basic only."""
        basic = 'Basic realm="memwatchd", charset="UTF-8"' if self.is_required else ""
        bearer = 'Bearer realm="memwatchd"' if self.token else ""
        return ", ".join(filter(None, (basic, bearer)))


def parse_token(text: str) -> Token:
    """Parse a token from a file or a variable. Raises ValueError without repeating the token."""
    text = text.strip()
    if not 16 <= len(text) <= 1024 or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("is not a token of 16 to 1024 printable ASCII characters without spaces")
    return Token(hashlib.sha256(text.encode()).digest())


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
