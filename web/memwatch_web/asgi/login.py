"""Logins that the settings accept: a bearer token, and users with bcrypt hashes. `auth` checks them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# Browsers only ask for a user and a password: with this user the password is the token.
TOKEN_USER = "token"  # noqa: S105  a name


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

    @property
    def ways(self) -> Iterator[str]:
        """Yield the users and passwords that a browser may send, described as HTML."""
        if self.users:
            yield "your user name and password, as set under <code>[web.auth.users]</code>"
        if self.token:
            yield (
                f"the user <code>{TOKEN_USER}</code>, and as password the token of <code>bearer_token</code> under "
                "<code>[web.auth]</code>"
            )


def parse_token(text: str) -> Token:
    """Parse a token from a file or a variable. Raises ValueError without repeating the token."""
    text = text.strip()
    if not 16 <= len(text) <= 1024 or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("is not a token of 16 to 1024 printable ASCII characters without spaces")
    return Token(hashlib.sha256(text.encode()).digest())
