"""Callers that want to change something: user, name for display, and permission."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from memwatch.core.budget import Account, Rank
from memwatch.core.http import is_loopback
from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.tcp_peer import TcpEnd, find_peer_uids
from memwatch_web.asgi.threads import BoundedThread, QueueFullError

if TYPE_CHECKING:
    from starlette.types import Scope

# Scope key: the client of a connection, such as its network address. Clients share the streams.
CLIENT = "memwatch.cli"
# Scope key: send the response headers only.
HEAD_ONLY = "memwatch.head_only"
# Scope key: the local process at the other end of a unix socket, as reported by the kernel. Access is controlled by
# the mode of the socket file.
PEER = "memwatch.peer"
# Scope key: the authenticated user, for display.
USER = "memwatch.who"
# Scope key: the Caller of a request that changes something.
CALLER = "memwatch.caller"
ROOT = 0
# Clients of many pages come back at once after a restart. A request beyond it gets 503 with Retry-After: with an
# account that others share, one user would take their places.
MAX_LOOKUPS = 1024
# All addresses of the loopback network: a local user can connect from any of them.
LOOPBACK = "loopback"
IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"
# Headers of a reverse proxy on this machine: the client is then another process or machine.
FORWARDED = frozenset(
    {
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
    }
)
FORWARDED_PREFIX = b"x-forwarded"

Connection = tuple[TcpEnd, TcpEnd]
FindUids = Callable[[Sequence[Connection]], "Sequence[int | None]"]


class Caller(Struct, frozen=True):
    """`words`: name for display. `uid`: None if unknown, or if the login decides. `is_operator`: may change all."""

    words: str
    uid: int | None = None
    is_operator: bool = False


class PeerLookups:
    """Users of connections. All that wait are one lookup of 5 to 46 ms, so that no user keeps others waiting.

    For one event loop.
    """

    def __init__(self, find_uids: FindUids) -> None:
        self._find_uids = find_uids
        self._thread = BoundedThread("peers")
        self._waiting: list[tuple[Connection, asyncio.Future[int | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def find(self, connection: Connection) -> int | None:
        """Return the user id of a client. Raises QueueFullError."""
        if len(self._waiting) >= MAX_LOOKUPS:
            raise QueueFullError
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((connection, future))
        if self._task is None:
            self._task = asyncio.create_task(self._find_all())
        return await future

    async def _find_all(self) -> None:
        batch: list[tuple[Connection, asyncio.Future[int | None]]] = []
        try:
            while self._waiting:
                batch, self._waiting = [one for one in self._waiting if not one[1].done()], []
                found = await self._thread.run(self._find_uids, [connection for connection, _ in batch])
                for (_, future), uid in zip(batch, found, strict=True):
                    if not future.done():  # its client may have left
                        future.set_result(uid)
        except (QueueFullError, OSError, MemoryError):
            for _, future in (*batch, *self._waiting):
                if not future.done():
                    future.set_exception(QueueFullError())
        finally:
            for _, future in (*batch, *self._waiting):
                future.cancel()  # does nothing to those that are done
            self._waiting, self._task = [], None


class CallerLookup:
    """Lookup of callers. `user_name` returns the name of a user id, or the id as text."""

    def __init__(
        self,
        find_uids: FindUids = find_peer_uids,
        user_name: Callable[[int], str] = str,
        accounts: Accounts | None = None,
    ) -> None:
        self._accounts = accounts or Accounts(Path("/"))
        self._user_name = user_name
        self._operators = frozenset({ROOT, os.geteuid()})
        self._lookups = PeerLookups(find_uids)

    async def identify(self, scope: Scope, by_certificate: bool) -> Caller:
        """Return the caller. `by_certificate`: TLS has checked it. Raises QueueFullError."""
        is_forwarded = has_forwarding_header([name for name, _ in scope["headers"]])
        peer = scope.get(PEER)
        if peer is not None:
            return Caller(self.describe_user(peer.uid), peer.uid, is_operator=not is_forwarded)
        if USER in scope:
            return Caller(scope[USER], is_operator=True)
        if by_certificate:
            return Caller("client certificate", is_operator=True)
        uid = None if is_forwarded else await self.uid(scope)
        return Caller(self.describe_user(uid), uid, is_operator=uid in self._operators)

    async def account(self, scope: Scope) -> Account:
        """Return the account of a client that reads: its user on this machine, else its network address.

        Behind a proxy of this machine it is the address that the proxy names, if the proxy runs as root or as a
        service: any user can send the header. Raises QueueFullError.
        """
        peer = scope.get(PEER)
        uid = peer.uid if peer else await self.uid(scope)
        account = Account(scope.get(CLIENT, "")) if uid is None else self._accounts.of_now(uid)
        if has_forwarding_header([name for name, _ in scope["headers"]]):
            address = read_forwarded_address(scope["headers"]) if account.rank > Rank.USER else None
            return Account(address or f"clients of {account.name}") if account.rank > Rank.USER else account
        # The socket file is the operators' door.
        return account.as_operator() if peer or uid in self._operators else account

    async def uid(self, scope: Scope) -> int | None:
        """Return the user id of a local TCP client from the kernel. Raises QueueFullError.

        A client of this machine connects to an address that is not loopback from the same address.
        """
        client, server = scope.get("client"), scope.get("server")
        if not client or not server or not server[1]:
            return None
        if not is_from_here(client) and client[0] != server[0]:
            return None
        return await self._lookups.find((TcpEnd(*client[:2]), TcpEnd(*server[:2])))

    def describe_user(self, uid: int | None) -> str:
        if uid is None:
            return "unknown user"
        name = self._user_name(uid)
        return f"uid {uid}" if name == str(uid) else f"{name} (uid {uid})"


def has_forwarding_header(names: Collection[bytes]) -> bool:
    """Return True if a proxy has marked the request. Names are in lower case."""
    return not FORWARDED.isdisjoint(names) or any(name.startswith(FORWARDED_PREFIX) for name in names)


def read_forwarded_address(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the client that a proxy has named: the last address, which is the one that it saw itself."""
    found = None
    for name, value in headers:
        if name in (b"x-forwarded-for", b"x-real-ip"):
            last = value.decode("latin-1").rpartition(",")[2].strip()
            with suppress(ValueError):
                found = name_address(str(ipaddress.ip_address(last)))
            if name == b"x-forwarded-for" and found:
                return found
    return found


def name_address(host: str) -> str:
    """Return the client at an address: the IPv4 address, the IPv6 /64, or loopback.

    A /64 is what one host or household gets from its network. It can use every address in it.
    """
    if host.startswith("127."):
        return LOOPBACK
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(IPV4_IN_IPV6):
        return name_address(socket.inet_ntop(socket.AF_INET, packed[12:]))
    if packed == b"\x00" * 15 + b"\x01":
        return LOOPBACK
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"


def caller_of(scope: Scope) -> Caller:
    """Return the caller that the access middleware has identified."""
    caller: Caller = scope[CALLER]
    return caller


def is_from_here(client: Sequence[object] | None) -> bool:
    """Check that a request comes from this machine: over a unix socket or from a loopback address."""
    return not client or not client[0] or is_loopback(str(client[0]))
