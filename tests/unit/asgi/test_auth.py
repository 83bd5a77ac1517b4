"""Authentication by token and password."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch_web.asgi.auth import Basic, Bearer, Passwords, compare, dummy_hash, is_token, parse_authorization
from memwatch_web.asgi.login import Login, PasswordHash, parse_token
from memwatch_web.asgi.threads import MAX_WAITING, QueueFullError

USERS = {"ada": PasswordHash("$2b$10$hash of ada"), "bob": PasswordHash("$2b$10$hash of bob")}


class Comparer:
    """Fake bcrypt: a password is right if the hash ends with it. Records its calls."""

    def __init__(self) -> None:
        self.compared: list[tuple[bytes, bytes]] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.compared.append((password, hashed))
        return hashed.endswith(b" of " + password)


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


def judged(passwords: Passwords, *shown: Basic, users: Mapping[str, PasswordHash] = USERS) -> list[bool]:
    async def judge() -> list[bool]:
        return [await passwords.is_right(one, users) for one in shown]

    return asyncio.run(judge())


def test_authorization_header_is_parsed() -> None:
    """The scheme in any case; a password may contain colons."""
    assert parse_authorization(b"bearer  abc ") == Bearer(b"abc")
    assert parse_authorization(basic("ada", "a:b")) == Basic("ada", b"a:b")
    assert parse_authorization(basic("token", "a:b")) == Bearer(b"a:b")


@given(st.binary(max_size=300))
def test_any_authorization_header_is_parsed_or_none(field: bytes) -> None:
    """Malformed headers raise no error."""
    for value in (field, b"Basic " + field, b"Basic " + base64.b64encode(field), b"Bearer " + field):
        found = parse_authorization(value)
        assert found is None or isinstance(found, Bearer | Basic)


def test_oversized_authorization_header_is_refused() -> None:
    """More than 2 KiB are not decoded."""
    assert parse_authorization(basic("ada", "x" * 3000)) is None


def test_token_must_match_exactly() -> None:
    """No prefix, no suffix, no other case."""
    token = parse_token("  0123456789abcdef\n")

    assert is_token(token, Bearer(b"0123456789abcdef"))
    for wrong in (b"", b"0123456789abcde", b"0123456789abcdeff", b"0123456789ABCDEF", b"\xff"):
        assert not is_token(token, Bearer(wrong))


@pytest.mark.parametrize("text", ["", "short", "with a space in it!", "x" * 2000, "ümlaut-ümlaut-ümlaut"])
def test_weak_token_is_refused_without_repeating_it(text: str) -> None:
    """Too short, too long, or not valid in a header."""
    with pytest.raises(ValueError, match="is not a token") as caught:
        parse_token(text)

    assert not text or text not in str(caught.value)


def test_correct_password_is_compared_once() -> None:
    """The second request uses the cache. Another password is compared again."""
    comparer = Comparer()
    passwords = Passwords(comparer)

    found = judged(
        passwords, Basic("ada", b"ada"), Basic("ada", b"ada"), Basic("ada", b"bob"), Basic("bob", b"bob")
    )

    assert found == [True, True, False, True]
    assert len(comparer.compared) == 3


def test_cache_is_keyed_by_user_password_and_hash() -> None:
    """The boundary between user and password counts. A changed hash invalidates the old password."""
    passwords = Passwords(Comparer())
    assert judged(passwords, Basic("ada", b"ada")) == [True]

    changed = {name: PasswordHash(f"$2b$10$ of {name}x") for name in ("ada", "ad", "adaa")}

    assert judged(passwords, Basic("ada", b"ada"), users=changed) == [False]
    assert judged(passwords, Basic("ad", b"aada"), Basic("adaa", b"da"), users=changed) == [False, False]


def test_unknown_user_costs_as_much_as_a_known_one() -> None:
    """Timing reveals no user names, also if the hashes have different costs. Another user's password is refused."""
    users = {**USERS, "low": PasswordHash("$2b$08$hash of low"), "high": PasswordHash("$2b$12$hash of high")}
    rounds = []
    for user in ("eve", "ada", "low", "high"):
        comparer = Comparer()
        assert judged(Passwords(comparer), Basic(user, b"wrong"), users=users) == [False]
        rounds.append(sum(1 << int(hashed.split(b"$")[2]) for _, hashed in comparer.compared))

    assert judged(Passwords(Comparer()), Basic("eve", b"ada"), Basic("eve", b"x")) == [False, False]
    assert rounds == [1 << 12] * 4


def test_dummy_hash_is_compared_at_its_cost() -> None:
    """bcrypt accepts it as a hash, and no password matches."""
    times = []
    for cost in (4, 10):
        began = time.process_time()
        assert not compare(b"wrong", dummy_hash(cost))
        times.append(time.process_time() - began)

    assert times[1] > 8 * times[0]


def test_password_checks_beyond_the_queue_are_refused() -> None:
    """A cached user does not wait."""
    passwords = Passwords(Comparer())

    async def storm() -> list[object]:
        await passwords.is_right(Basic("bob", b"bob"), USERS)
        tries = [passwords.is_right(Basic("ada", b"%d" % number), USERS) for number in range(3 * MAX_WAITING)]
        return await asyncio.gather(*tries, passwords.is_right(Basic("bob", b"bob"), USERS), return_exceptions=True)

    *tried, known = asyncio.run(storm())

    assert sum(isinstance(one, QueueFullError) for one in tried) == 2 * MAX_WAITING
    assert known is True


def test_hashes_of_other_programs_are_compatible() -> None:
    """$2y$ from htpasswd, $2b$ from bcrypt. Longer passwords are truncated to 72 bytes, as in Go."""
    hashed = bcrypt.hashpw(b"p" * 72, bcrypt.gensalt(4))

    for prefix in (b"$2b$", b"$2y$", b"$2a$"):
        assert compare(b"p" * 72, prefix + hashed[4:])
        assert compare(b"p" * 100, prefix + hashed[4:])
        assert not compare(b"p" * 71, prefix + hashed[4:])
    assert not compare(b"p\0", hashed)


def test_repr_contains_no_secret() -> None:
    login = Login(parse_token("0123456789abcdef"), {"ada": PasswordHash("$2y$10$secret")})

    shown = f"{login!r} {login.token} {login.users['ada']} {Basic('ada', b'secret')!r} {Bearer(b'secret')!r}"

    assert "secret" not in shown
    assert "0123456789abcdef" not in shown
