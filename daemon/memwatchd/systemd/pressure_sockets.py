"""Sockets for $MEMORY_PRESSURE_WATCH (systemd.io/PRESSURE): a client connects, and each byte is a notification.

pressure.sock takes a target and a level; pressure-ram-high.sock and the like have them in their names. Slow clients
lose notifications: nothing is queued for them.

A connection is not closed while its client is well-behaved: libsystemd 257 takes the end of the connection for a
notification, and calls the client's handler without a pause (95,000 times a second). So systemd keeps connections
while memwatchd restarts, no client has to go for another one, and a request that cannot be read is only logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from memwatch.core.budget import Budget
from memwatch.core.linux.accounts import Accounts
from memwatch.core.listing import some_of
from memwatch.core.model import RAM
from memwatch.core.runtime.worker import FailureLog
from memwatch.core.snapshot import Level, Snapshot
from memwatchd.sockets import Listener, Peer, listen_on_file, read_peer

# Requests of clients of the pressure sockets, and the times of notifications. Pure functions.

DEFAULT_TARGET, DEFAULT_LEVEL = RAM, Level.HIGH
LEVELS = (Level.MEDIUM, Level.HIGH, Level.CRITICAL)
MAX_REQUEST_BYTES = 128
# While a level lasts. The kernel repeats its notification after each window of 2 s (psi.rst); emptying the cache of
# a CUDA allocator costs more than malloc_trim.
REPEAT_SECONDS = 10.0
_REQUEST = re.compile(rb"([A-Za-z0-9._-]{1,100})[ \t]+(medium|high|critical)[\n\0]?")
# systemd sets $MEMORY_PRESSURE_WRITE to a threshold of the kernel, also if the unit sets another path.
_KERNEL_THRESHOLD = re.compile(rb"(?:some|full) \d{1,12} \d{1,12}[\n\0]?")
_ENDS = (b"\n", b"\0")


# Name of a connection that systemd keeps: its number, target, level, and if the socket's name had these.
_STORED = re.compile(r"pressure (\d{1,18}) ([A-Za-z0-9._-]{1,100}) (medium|high|critical) (named|common)")


class RequestError(ValueError):
    """A request that cannot be read. The message says what to write."""


class Subscription(Struct, frozen=True):
    """A target of `Snapshot.pressure`, and the level from which on to notify."""

    target: str = DEFAULT_TARGET
    level: Level = DEFAULT_LEVEL


def parse_request(data: bytes) -> Subscription | None:
    """Parse what a client has written so far: "ram high". Return None while the request is incomplete.

    A threshold of the kernel stands for the default. Raises RequestError.
    """
    if found := _REQUEST.fullmatch(data):
        return Subscription(found[1].decode(), Level[found[2].decode().upper()])
    if _KERNEL_THRESHOLD.fullmatch(data):
        return Subscription()
    if data.endswith(_ENDS) or len(data) > MAX_REQUEST_BYTES:
        raise RequestError(
            "it is not TARGET LEVEL with level medium, high or critical; "
            'set MEMORY_PRESSURE_WRITE to the base64 of a line such as "ram high"'
        )
    return None


def stored_name(number: int, subscription: Subscription, is_fixed: bool) -> str:
    """Return the FDNAME= of a connection, from which another process can go on. It has no colon (sd_notify(3))."""
    kind = "named" if is_fixed else "common"
    return f"pressure {number} {subscription.target} {subscription.level.word} {kind}"


def parse_stored_name(name: str) -> tuple[int, Subscription, bool] | None:
    """Parse the name of a kept connection. None for another one."""
    found = _STORED.fullmatch(name)
    if found is None:
        return None
    return int(found[1]), Subscription(found[2], Level[found[3].upper()]), found[4] == "named"


class Notifications:
    """Decides when a client is notified: at each higher level from its own on, and again while that lasts."""

    __slots__ = ("_at", "_level", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._level: Level | None = None
        self._at = 0.0

    def is_due(self, level: Level, now: float) -> bool:
        """Return True if the client is to be notified now. `now`: monotonic time."""
        if level < self.subscription.level:
            self._level = None
            return False
        if self._level is not None and level <= self._level and now - self._at < REPEAT_SECONDS:
            self._level = level
            return False
        self._level, self._at = level, now
        return True


log = logging.getLogger(__name__)

COMMON = "pressure.sock"
# Any user may connect. The levels are no secret: /proc/meminfo is readable by all.
ANY_USER = 0o666
MAX_POOLS = 64
READ_BYTES, MAX_RECEIVED_BYTES = 512, 4096
# Connections that systemd is asked to keep in a second. Each is a message on the socket of the watchdog, whose own
# messages are lost if it is full.
KEEP_SECONDS, MAX_KEPT_AT_ONCE = 1.0, 64
POOL_ID = re.compile(r"[A-Za-z0-9._-]{1,60}")


class Store(Protocol):
    """Keeps copies of connections while memwatchd restarts, if `can_store`."""

    @property
    def can_store(self) -> bool: ...

    def store(self, name: str, descriptor: int) -> None: ...

    def remove_stored(self, name: str) -> None: ...


class Client:
    """A connection, with the bytes received so far. `is_fixed`: the socket's name has the subscription.

    `kept_as`: name of the copy that systemd keeps, empty without one.
    """

    __slots__ = ("connection", "is_fixed", "kept_as", "notifications", "number", "peer", "received", "total")

    def __init__(
        self, number: int, connection: socket.socket, subscription: Subscription, is_fixed: bool, kept_as: str = ""
    ) -> None:
        self.number, self.connection, self.is_fixed, self.kept_as = number, connection, is_fixed, kept_as
        self.notifications = Notifications(subscription)
        self.peer = read_peer(connection) or Peer()
        self.received = b""
        self.total = 0


class PressureSockets:
    """All sockets with their clients. Use it in the event loop's thread; only `on_tick` is called in another."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, folder: Path, store: Store, budget: Budget, accounts: Accounts
    ) -> None:
        self._loop, self._folder, self._store = loop, folder, store
        self._budget, self._accounts = budget, accounts
        self._number = 0
        self._listeners: dict[Path, Listener] = {}
        self._clients: dict[int, Client] = {}
        self._pools: frozenset[str] = frozenset()
        self._targets: tuple[str, ...] = ()
        self._failures = FailureLog()
        self._to_keep: dict[int, Client] = {}
        self._keeping: asyncio.TimerHandle | None = None

    def open(self, snapshot: Snapshot | None) -> None:
        """Open the common socket, and those of the pools that are known. Raises OSError."""
        self._listen(COMMON, Subscription(), is_fixed=False)
        if snapshot is not None:
            self._open_for(snapshot)

    def resume(self, name: str, connection: socket.socket) -> bool:
        """Go on with a connection that systemd kept. Return False if the name is not that of one."""
        found = parse_stored_name(name)
        if found is None:
            return False
        number, subscription, is_fixed = found
        self._number = max(self._number, number)
        connection.setblocking(False)
        client = Client(number, connection, subscription, is_fixed, name)
        if self._has_place(client):
            self._watch(client)
        else:
            self._store.remove_stored(name)
        return True

    def close(self) -> None:
        """Close all sockets. Connections that systemd keeps stay open for their clients."""
        self._keep_due(len(self._to_keep))
        if self._keeping is not None:
            self._keeping.cancel()
        for client in list(self._clients.values()):
            self._loop.remove_reader(client.connection)
            client.connection.close()
        self._clients.clear()
        self._budget.clear()
        for path, listener in self._listeners.items():
            listener.close()
            path.unlink(missing_ok=True)
        self._listeners.clear()

    def on_tick(self, snapshot: Snapshot) -> None:
        """Notify the clients of a tick. Without a client and a new pool this costs a comparison."""
        if (self._clients or not self._pools.issuperset(pool_ids(snapshot))) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        if not self._listeners:  # closed since
            return
        try:
            self._open_for(snapshot)
        except OSError as error:
            if self._failures.admits(str(error)):
                log.warning("cannot open pressure sockets for new pools: %s", error)
        levels = {one.target: one.level for one in snapshot.pressure}
        for client in list(self._clients.values()):
            target = client.notifications.subscription.target
            level = levels.get(target)
            if level is not None and client.notifications.is_due(level, snapshot.monotonic):
                self._send(client, f"{target} {level.word}\n".encode())

    def _open_for(self, snapshot: Snapshot) -> None:
        self._targets = tuple(one.target for one in snapshot.pressure)
        new = [pool for pool in pool_ids(snapshot) if pool not in self._pools]
        room = max(0, MAX_POOLS - len(self._pools))
        if new[room:]:
            log.warning("no pressure sockets for %s: %d pools have some", some_of(new[room:], 8), MAX_POOLS)
        for pool in new[:room]:
            for level in LEVELS:
                self._listen(f"pressure-{pool}-{level.word}.sock", Subscription(pool, level), is_fixed=True)
        self._pools = self._pools.union(new)

    def _listen(self, name: str, subscription: Subscription, is_fixed: bool) -> None:
        path = self._folder / name
        if path not in self._listeners:
            add = partial(self._add, subscription=subscription, is_fixed=is_fixed)
            self._listeners[path] = Listener(self._loop, listen_on_file(path, ANY_USER), add)

    def _add(self, connection: socket.socket, subscription: Subscription, is_fixed: bool) -> None:
        self._number += 1
        client = Client(self._number, connection, subscription, is_fixed)
        if self._has_place(client):
            self._watch(client)
            self._keep(client)

    def _has_place(self, client: Client) -> bool:
        """Count a client. Close the connection of one whose account has its share, of root that of its oldest."""
        account = self._accounts.of_now(client.peer.uid)
        verdict = self._budget.admit(client.number, account)
        for gone in [one for one in self._clients.values() if one.number == verdict.gone]:
            self._drop(gone)
        if verdict.is_admitted:
            return True
        client.connection.close()
        if self._failures.admits(f"limit of {account.name}"):
            log.warning("pressure sockets: %s; more are closed", self._budget.describe(account))
        return False

    def _watch(self, client: Client) -> None:
        self._clients[client.connection.fileno()] = client
        self._loop.add_reader(client.connection, self._read, client)

    def _keep(self, client: Client) -> None:
        """Have systemd keep the connection soon, under a name with its current subscription."""
        if not self._store.can_store:
            return
        self._to_keep[client.number] = client
        if self._keeping is None:
            self._keeping = self._loop.call_later(KEEP_SECONDS, self._keep_some)

    def _keep_some(self) -> None:
        self._keeping = None
        self._keep_due(MAX_KEPT_AT_ONCE)
        if self._to_keep:
            self._keeping = self._loop.call_later(KEEP_SECONDS, self._keep_some)

    def _keep_due(self, most: int) -> None:
        for number in list(self._to_keep)[:most]:
            client = self._to_keep.pop(number)
            if client.kept_as:
                self._store.remove_stored(client.kept_as)
            client.kept_as = stored_name(client.number, client.notifications.subscription, client.is_fixed)
            self._store.store(client.kept_as, client.connection.fileno())

    def _read(self, client: Client) -> None:
        try:
            data = client.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.total += len(data)
        if not data or client.total > MAX_RECEIVED_BYTES:
            self._drop(client)
        elif not client.is_fixed:
            self._subscribe(client, data)

    def _subscribe(self, client: Client, data: bytes) -> None:
        client.received += data
        try:
            wanted = parse_request(client.received)
        except RequestError as error:
            if self._failures.admits(f"request of {client.peer.uid}"):
                log.warning("pressure.sock: the request of process %s is ignored: %s", client.peer.pid, error)
            client.received = b""
            return
        if wanted is None:
            return
        client.received = b""
        client.notifications = Notifications(wanted)
        self._keep(client)
        if wanted.target not in self._targets and self._failures.admits(f"target of {client.peer.uid}"):
            log.warning(
                "pressure.sock: process %s waits for %s, which is not a target now; targets are %s",
                client.peer.pid,
                wanted.target,
                ", ".join(self._targets),
            )

    def _send(self, client: Client, data: bytes) -> None:
        try:
            client.connection.send(data)
        except BlockingIOError:
            return  # it has unread notifications
        except OSError:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        self._budget.release(client.number)
        self._to_keep.pop(client.number, None)
        self._loop.remove_reader(client.connection)
        client.connection.close()
        if client.kept_as:
            self._store.remove_stored(client.kept_as)


def pool_ids(snapshot: Snapshot) -> Iterable[str]:
    """Return the pools whose ids can be part of a file's name."""
    return [pool.id for pool in snapshot.pools if POOL_ID.fullmatch(pool.id)]
