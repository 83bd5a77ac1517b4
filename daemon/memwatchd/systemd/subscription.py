"""Requests of clients of the pressure sockets, and the times of notifications. Pure functions."""

from __future__ import annotations

import re

from msgspec import Struct

from memwatch.core.snapshot import Level

DEFAULT_TARGET, DEFAULT_LEVEL = "ram", Level.HIGH
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
