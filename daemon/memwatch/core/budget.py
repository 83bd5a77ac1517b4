"""Budgets: how many things of one kind an account may hold, and which one goes when there are too many.

An account has at most a share of a kind, all users together have three quarters, and the rest is kept for system
accounts and operators. Root takes no place of others and is never refused: it has as many places as all others
together, and beyond them its own smallest goes. When something must go, the account with the most gives its
smallest. `KINDS` has all limits: the section [budgets] of the settings is made of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Literal, NamedTuple, TypeVar

# Part of a kind that users have together. The rest is for system accounts and operators.
USERS = 3 / 4
# Refusals count as recent for this long, by the minute. Accounts beyond MAX_NAMES in a minute are added up.
RECENT_SECONDS, STEP_SECONDS, MAX_NAMES = 3600.0, 60.0, 100
OTHER_ACCOUNTS = "other accounts"
# A thing that asks again is counted once. Of more than this, the first ones are counted again.
MAX_KNOWN = 1000

Key = Hashable
K = TypeVar("K", bound=Hashable)


class Rank(IntEnum):
    """`SYSTEM`: an account of a service, or an operator."""

    USER = 0
    SYSTEM = 1
    ROOT = 2


class Account(NamedTuple):
    """A user with the subordinate ids, a container with a user namespace, or a peer's address.

    The name identifies it: one user has the same places over TCP and as an operator over the socket file.
    """

    name: str
    rank: Rank = Rank.USER

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self.name == other.name

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.name)

    def as_operator(self) -> Account:
        """Return the account with the rights of an operator."""
        return self._replace(rank=max(self.rank, Rank.SYSTEM))


ROOT = Account("root", Rank.ROOT)
UNKNOWN = Account("unknown users")


class Kind(NamedTuple):
    """A kind of thing with its limit. `share`: the part that one account may have. `about` follows "Maximum number
    of", `refused` a number of those that were refused or had to go.

    `gives`: an account with at least two more than a new one gives its smallest.
    `replaces`: the smallest of an account at its share, or of all, goes for a new one that is larger, or for any.
    `rotates`: one that goes for the next of its account is no refusal.
    """

    name: str
    most: int
    share: float
    about: str
    refused: str
    gives: bool = True
    replaces: Literal["none", "smaller", "any"] = "none"
    rotates: bool = False


# The maximum of event streams is `max_streams` under [web].
EVENT_STREAMS = Kind(
    "event_streams",
    64,
    USERS,
    "open pages and other event streams",
    "event streams were refused or ended within the last hour: one account had too many",
)
KINDS: Mapping[str, Kind] = {
    one.name: one
    for one in (
        Kind(
            "engines",
            24,
            USERS,
            "model servers that are found and asked for their figures",
            "model servers are not followed: there are too many",
        ),
        Kind(
            "leases",
            64,
            1 / 4,
            "leases",
            "leases were refused or ended within the last hour: one account had too many",
        ),
        Kind(
            "pressure_clients",
            512,
            1 / 8,
            "clients of the pressure sockets",
            "clients of the pressure sockets were refused within the last hour: one account had too many",
            gives=False,  # libsystemd 257 uses a whole CPU after the end of a connection
        ),
        Kind(
            "incidents",
            24,
            1 / 2,
            "incidents that are followed at the same time",
            "incidents are not followed: larger ones last, or one account had too many within the last hour",
            replaces="smaller",
        ),
        Kind(
            "incidents_kept",
            100,
            USERS,
            "incidents that are kept",
            "incidents were dropped within the last hour: larger ones are kept",
            replaces="any",
        ),
        Kind(
            "last_words",
            100,
            1 / 2,
            "ends of processes that are kept until a log line or a counter explains them",
            "ends of processes were dropped unexplained within the last hour: one account had too many",
            replaces="smaller",
        ),
        Kind(
            "marks",
            500,
            USERS,
            "marks and events about leases that are kept",
            "marks were dropped within the last hour: one account set too many",
            replaces="any",
            rotates=True,
        ),
        Kind(
            "reports",
            256,
            USERS,
            "processes with allocator reports",
            "allocator reports were refused or dropped within the last hour: one account had too many",
        ),
        Kind(
            "machines_found",
            96,
            1 / 24,
            "machines found by mDNS",
            "machines were found by mDNS and are not shown",
        ),
    )
}


def describe_share(kind: Kind) -> str:
    """Return the share of one account in words."""
    words = {
        USERS: "three quarters",
        1 / 2: "half",
        1 / 4: "a quarter",
        1 / 8: "an eighth",
        1 / 24: "1 of 24",
    }
    return words[kind.share]


class Held(NamedTuple):
    """A thing that an account holds. `size`: bytes killed, bytes held, or the like; 0 if all are equal."""

    account: Account
    size: int = 0


class Verdict(NamedTuple):
    """Answer to a new thing. `gone`: the one that has to go for it."""

    is_admitted: bool
    gone: Key | None = None


REFUSED = Verdict(False)


def share_of(kind: Kind, most: int, account: Account) -> int:
    """Return how many things an account may hold. One is always possible."""
    return most if account.rank is Rank.ROOT else max(1, math.ceil(most * kind.share))


def users_part(most: int) -> int:
    """Return how many things all users may hold together."""
    return max(1, math.floor(most * USERS))


def decide(held: Mapping[Key, Held], new: Held, kind: Kind, most: int) -> Verdict:
    """Decide about a new thing. Pure. `held`: in the order of their beginning; among equals the oldest goes."""
    rank, own = new.account.rank, [key for key, one in held.items() if one.account.name == new.account.name]
    if rank is Rank.ROOT:
        return Verdict(True, _smallest(held, own) if len(own) >= most else None)
    if len(own) >= share_of(kind, most, new.account):
        return _replace(held, own, new, kind)
    users = [key for key, one in held.items() if one.account.rank is Rank.USER]
    counted = [key for key, one in held.items() if one.account.rank is not Rank.ROOT]
    if rank is Rank.USER and len(users) >= users_part(most):
        crowd = users
    elif len(counted) >= most:
        crowd = counted
    else:
        return Verdict(True)
    if kind.gives:
        name, count = Counter(held[key].account.name for key in crowd).most_common(1)[0]
        if count >= len(own) + 2:  # with one more, two accounts would take it from each other in turn
            return Verdict(True, _smallest(held, [key for key in crowd if held[key].account.name == name]))
    return _replace(held, own or crowd, new, kind)  # a flood displaces no single thing of another


def next_to_go(held: Mapping[K, Held]) -> K:
    """Return the thing that goes first: the smallest of the account with the most, among equals of the lowest rank.

    Accounts with fewer things than others lose none, so root's records without a kill displace no kill.
    """
    counts = Counter(one.account.name for one in held.values())
    most = max(counts.values())
    last = [key for key, one in held.items() if counts[one.account.name] == most]
    lowest = min(held[key].account.rank for key in last)
    return _smallest(held, [key for key in last if held[key].account.rank is lowest])


def share_out(things: Mapping[K, Held], most: int, first: int = 1) -> list[K]:
    """Return at most that many things: the largest of each account in turn, `first` of one in each turn."""
    numbers: Counter[str] = Counter()
    order = []
    for key, one in sorted(things.items(), key=lambda item: -item[1].size):
        order.append((numbers[one.account.name] // first, -one.account.rank if first == 1 else 0, -one.size, key))
        numbers[one.account.name] += 1
    return [key for *_, key in sorted(order, key=lambda one: one[:3])[:most]]


def _replace(held: Mapping[Key, Held], crowd: Collection[Key], new: Held, kind: Kind) -> Verdict:
    if kind.replaces == "none":
        return REFUSED
    smallest = _smallest(held, crowd)
    return Verdict(True, smallest) if kind.replaces == "any" or held[smallest].size < new.size else REFUSED


def _smallest(held: Mapping[K, Held], keys: Iterable[K]) -> K:
    return min(keys, key=lambda key: held[key].size)


class Budget:
    """The things of one kind that are held, by key, and the number of those refused. Thread-safe.

    `refused`: since the start, those that had to go included. A thing that asks again is counted once an hour.
    """

    def __init__(
        self, kind: Kind, most: int | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.kind: Kind = kind
        self.most: int = kind.most if most is None else most
        self.refused: int = 0
        self._held: dict[Key, Held] = {}
        self._recent: deque[tuple[float, Counter[str]]] = deque()
        self._recent_count = 0
        # Read by each tick without the lock: `count_recent` looks closer.
        self.has_refused: bool = False
        self._known: dict[tuple[Key, Account], float] = {}
        self._monotonic = monotonic
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Number of things that are held."""
        return len(self._held)

    def __iter__(self) -> Iterator[Key]:
        with self._lock:
            return iter(list(self._held))

    def count(self, account: Account) -> int:
        """Return how many things an account holds."""
        with self._lock:
            return sum(one.account.name == account.name for one in self._held.values())

    def share(self, account: Account) -> int:
        """Return how many things an account may hold."""
        return share_of(self.kind, self.most, account)

    def admits(self, account: Account, size: int = 0) -> bool:
        """Return True if a new thing would be admitted now."""
        with self._lock:
            return decide(self._held, Held(account, size), self.kind, self.most).is_admitted

    def admit(self, key: Key, account: Account, size: int = 0) -> Verdict:
        """Add a thing if the budget allows it. One with a known key is replaced. A refusal is counted."""
        new = Held(account, size)
        with self._lock:
            if key in self._held:
                self._held[key] = new
                return Verdict(True)
            verdict = decide(self._held, new, self.kind, self.most)
            if verdict.gone is not None:
                gone = self._held.pop(verdict.gone)
                if not self.kind.rotates or gone != new:
                    self._count(verdict.gone, gone.account)
            if verdict.is_admitted:
                self._held[key] = new
            else:
                self._count(key, account)
            return verdict

    def drop_next(self) -> Key:
        """Remove the thing that goes first, and return its key."""
        with self._lock:
            key = next_to_go(self._held)
            self._count(key, self._held.pop(key).account)
            return key

    def resize(self, key: Key, size: int) -> None:
        """Set the size of a thing that has grown."""
        with self._lock:
            if key in self._held:
                self._held[key] = self._held[key]._replace(size=size)

    def release(self, key: Key) -> None:
        """Remove a thing that has ended."""
        with self._lock:
            self._held.pop(key, None)

    def in_turn(self) -> list[Key]:
        """Return all things: the newest or largest of each account, then the next of each."""
        with self._lock:
            return share_out(dict(reversed(self._held.items())), len(self._held))

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def refuse(self, key: Key, account: Account) -> None:
        """Count a refusal that was decided before."""
        with self._lock:
            self._count(key, account)

    def reset_counts(self) -> None:
        """Forget all refusals."""
        with self._lock:
            self.refused = self._recent_count = 0
            self.has_refused = False
            self._recent.clear()
            self._known.clear()

    def recent(self) -> Counter[str]:
        """Return the refusals of the last hour by the name of the account."""
        with self._lock:
            self._forget()
            return sum((names for _, names in self._recent), Counter())

    def count_recent(self) -> int:
        """Return the number of refusals of the last hour. Each tick asks for it while there are any."""
        with self._lock:
            self._forget()
            self.has_refused = self._recent_count > 0
            return self._recent_count

    def describe(self, account: Account) -> str:
        """Return a sentence about the refusal of an account."""
        own, most = self.count(account), self.most
        if own >= self.share(account):
            return f"{account.name} has {own} of {most} {self.kind.about}, its share"
        return f"{self.held} of {most} {self.kind.about} are in use, as many as all users may have"

    def _count(self, key: Key, account: Account) -> None:
        now = self._forget()
        if (key, account) in self._known:
            return
        self._known[key, account] = now
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self.refused += 1
        self._recent_count += 1
        self.has_refused = True
        if not self._recent or now - self._recent[-1][0] >= STEP_SECONDS:
            self._recent.append((now, Counter()))
        names = self._recent[-1][1]
        is_listed = account.name in names or len(names) < MAX_NAMES
        names[account.name if is_listed else OTHER_ACCOUNTS] += 1

    def _forget(self) -> float:
        """Forget what is older than an hour. Return the time."""
        now = self._monotonic()
        while self._recent and self._recent[0][0] < now - RECENT_SECONDS:
            self._recent_count -= sum(self._recent.popleft()[1].values())
        while self._known and next(iter(self._known.values())) < now - RECENT_SECONDS:
            del self._known[next(iter(self._known))]
        return now


class Budgets:
    """The budgets of a daemon, by the name of their kind."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.by_kind: dict[str, Budget] = {
            name: Budget(kind, monotonic=monotonic)
            for name, kind in {**KINDS, EVENT_STREAMS.name: EVENT_STREAMS}.items()
        }

    def __getitem__(self, kind: str) -> Budget:
        return self.by_kind[kind]

    def left_out(self) -> dict[str, int]:
        """Return the number of refusals of the last hour by kind. Model servers are listed by what is so now."""
        found: dict[str, int] = {}
        for name, one in self.by_kind.items():
            if one.has_refused and name != "engines" and (count := one.count_recent()):
                found[name] = count
        return found

    def use(self, limits: Mapping[str, int]) -> None:
        """Use these limits from now on. What is held stays."""
        for name, most in limits.items():
            self.by_kind[name].most = most
