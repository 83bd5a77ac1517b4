"""The user to whom memwatchd sends an API key, a token or a login at an address of this machine."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from memwatch.core.http import Admit, GetError
from memwatch.core.linux.process_files import Passwd
from memwatch.core.linux.tcp_peer import (
    ELSEWHERE,
    HIDDEN,
    REMOTE,
    Connected,
    Find,
    describe_owner,
    find_owner,
    find_peer,
    is_user,
    wait_for_owner,
)

log: logging.Logger = logging.getLogger(__name__)

# The token of a neighbour, in its state.
TOKEN = "token"  # noqa: S105  a word
TOKEN_NOT_SENT = f"its {TOKEN} is not sent"

# Those that are seen first: 32 model servers, 30 neighbours, receivers, and as many that were configured before.
MAX_OWNERS = 128

NOT_USER = "user {found} listens there, not {user}; start the server, or {remedy}"
CHANGED = "user {found} listens there now, before it was {user}; start the server, or {remedy}"
NOT_VISIBLE = "the user who listens there is not visible in this container; run memwatchd outside of it"
IN_OTHER_NETWORK = "it listens in the network of a container, so that its user is not known; remove {setting}"


class KeyUse(Struct, frozen=True):
    """A secret and its receiver. `word`: the secret. `table`: its settings, where `setting` names the user.

    `title`: the receiver, for the log; empty for a sender that logs its failures itself. A command has options in
    place of a table.
    """

    title: str
    url: str
    word: str
    table: str
    setting: str = "user"

    @property
    def not_sent(self) -> str:
        return f"its {self.word} is not sent"

    def advise(self, user: str = "") -> str:
        """Return how to name the user."""
        if not self.table:
            return f"use {self.setting} {user}".rstrip()
        value = f' = "{user}"' if user else ""
        return f"set {self.setting}{value} under {self.table}"

    @property
    def id(self) -> str:
        return f"{self.table} {self.url}"


class KnownOwners:
    """The owner that was seen first for each secret. `keep` gets all of them after a new one. Thread-safe."""

    def __init__(
        self, owners: Mapping[str, int] | None = None, keep: Callable[[Mapping[str, int]], None] | None = None
    ) -> None:
        self._owners = dict(owners or {})
        self._keep = keep
        self._lock = threading.Lock()

    def first(self, use: KeyUse, owner: int) -> int:
        """Return the first owner of a secret: this one if there was none."""
        with self._lock:
            known = self._owners.get(use.id)
            if known is not None:
                return known
            for oldest in list(self._owners)[: len(self._owners) - MAX_OWNERS + 1]:
                del self._owners[oldest]
            self._owners[use.id] = owner
            if self._keep is not None:
                self._keep(dict(self._owners))
        return owner


class KeyOwner:
    """The owner of one secret: the configured `user`, a name or a number, else the first one who was seen."""

    def __init__(
        self,
        use: KeyUse,
        user: str,
        passwd: Passwd,
        known: KnownOwners,
        find: Find = find_peer,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._use, self._user = use, user
        self._passwd, self._known = passwd, known
        self._find, self._pause = find, pause
        self._logged = ""

    def admit(self, connected: socket.socket, deadline: float) -> None:
        """Raise GetError if the other end of a connection within this machine belongs to another user.

        Raises TimeoutError if no process has accepted the connection by the deadline.
        """
        self._check(wait_for_owner(connected, deadline, self._find, self._pause))

    def admits(self, connected: Connected) -> bool:
        """Return False until a process has accepted the connection. Raises GetError, and OSError after its end."""
        owner = find_owner(connected, self._find)
        if owner is not None:
            self._check(owner)
        return owner is not None

    def _check(self, owner: int) -> None:
        if owner == REMOTE:
            return
        why = self._refuse(owner)
        if self._use.title and why and why != self._logged:
            log.warning("%s: %s: %s", self._use.title, self._use.not_sent, why)
        elif self._use.title and self._logged and not why:
            log.info("%s: its %s is sent again", self._use.title, self._use.word)
        self._logged = why
        if why:
            raise GetError(f"{self._use.not_sent}: {why}")

    def _refuse(self, owner: int) -> str:
        """Return why the secret is not sent, empty if it is."""
        if owner == HIDDEN:
            return NOT_VISIBLE
        if self._user:
            if owner == ELSEWHERE:
                return IN_OTHER_NETWORK.format(setting=self._use.setting)
            if is_user(owner, self._user, self._passwd):
                return ""
            found = describe_owner(owner, self._passwd)
            return NOT_USER.format(found=found, user=self._user, remedy=self._use.advise(found))
        first = self._known.first(self._use, owner)
        if owner == first:
            return ""
        found, before = (describe_owner(one, self._passwd) for one in (owner, first))
        return CHANGED.format(found=found, user=before, remedy=self._use.advise())


class KeyOwners(Struct, frozen=True):
    """The owners of all secrets of one process: the accounts of this machine, and those who were seen first."""

    passwd: Passwd
    known: KnownOwners

    def owner(self, use: KeyUse, user: str | None) -> KeyOwner:
        """Return the owner of a secret. `user`: the configured one."""
        return KeyOwner(use, user or "", self.passwd, self.known)

    def admit(self, use: KeyUse, user: str | None) -> Admit:
        """Return the check of each connection before this secret is sent on it."""
        return self.owner(use, user).admit
