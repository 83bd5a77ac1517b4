"""The thread that follows all neighbours, with reconnects, and restarts its loop if that fails."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from memwatch.core.linux.key_owner import TOKEN, KeyOwner, KeyOwners, KeyUse
from memwatch.core.reading.machine import Additions
from memwatch.core.runtime.worker import Backoff, ThreadState, Worker
from memwatch_monitor.feature import Feature
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatchd.neighbours.connection import Link
from memwatchd.settings.endpoints import Peer

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 15.0
CHECK_SECONDS = 1.0
RESTART_SECONDS = 1.0

# One that hangs must not delay the others.
MAX_THREADS = 2


class Follower(Feature):
    """Follows peers and writes what they send to the book. It has no thread before the first peer.

    `owners`: to whom tokens may be sent at addresses of this machine; `create_peers` reads settings; `firing`: the
    neighbours whose alert of this machine is firing.
    """

    name = "neighbours"

    def __init__(
        self,
        book: NeighbourBook,
        owners: KeyOwners,
        peers: Iterable[Peer] = (),
        create_peers: Callable[[Any], Iterable[Peer]] = tuple,
        firing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._book, self._create_peers, self._firing = book, create_peers, firing
        self._owners = owners
        self.peers: tuple[Peer, ...] = tuple(peers)
        self._worker = Worker(self._run, "neighbours")
        self._links: dict[str, Link] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._stop = threading.Event()

    def start(self) -> None:
        self.use(self.peers)

    def use(self, peers: Iterable[Peer]) -> None:
        """Follow these peers from now on. Connections of unchanged peers stay open. Thread-safe."""
        self.peers = tuple(peers)
        self._book.use([(peer.name, peer.url) for peer in self.peers])
        if self.peers:
            self._worker.begin()
        self._wake()

    def on_additions(self, additions: Additions) -> Additions:
        return replace(additions, neighbours=self._book.statuses(self._firing())) if self.peers else additions

    def prepare_reload(self, new: Any) -> Callable[[], object] | None:  # noqa: ANN401  as in Feature
        if new.live.neighbours == new.before.neighbours:
            return None
        return partial(self.use, tuple(self._create_peers(new.live.neighbours)))

    def thread_states(self) -> dict[str, ThreadState]:
        """Return the state of the thread, if there is one."""
        if not self.peers:
            return {}
        self._worker.begin()
        return {"neighbours": self._worker.state()}

    def close(self) -> None:
        self._stop.set()
        self._wake()
        self._worker.join(1.0)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # closed meanwhile: a new loop reads the peers at its start
                log.debug("the loop of the neighbours was closed")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._run_loop()
            except Exception as error:  # noqa: PERF203  the thread must go on
                log.debug("traceback of the failed loop", exc_info=True)
                log.error("following neighbours failed, restarting: %s", str(error) or type(error).__name__)
                self._stop.wait(RESTART_SECONDS)

    def _run_loop(self) -> None:
        loop = ResolvingLoop()
        self._loop, self._changed = loop, asyncio.Event()
        try:
            loop.run_until_complete(self._follow_all())
        finally:
            self._loop = None
            loop.close()

    async def _follow_all(self) -> None:
        tasks: dict[str, tuple[Peer, asyncio.Task[None]]] = {}
        self._links = {}
        while not self._stop.is_set():
            self._changed.clear()
            wanted = {peer.name: peer for peer in self.peers}
            for name, (peer, task) in list(tasks.items()):
                if wanted.get(name) != peer:
                    task.cancel()
                    del tasks[name]
                    self._links.pop(name, None)
            for name in wanted.keys() - tasks.keys():
                tasks[name] = wanted[name], asyncio.ensure_future(self._follow(wanted[name]))
            await self._watch([task for _, task in tasks.values()])
        for _, task in tasks.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks.values()), return_exceptions=True)

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """Return when peers change. Raise what ends a task."""
        while not self._changed.is_set():
            self._book.on_read()
            for link in self._links.values():
                link.check()
            for task in tasks:
                if task.done():
                    task.result()
            try:
                await asyncio.wait_for(self._changed.wait(), CHECK_SECONDS)
            except asyncio.TimeoutError:
                continue

    async def _follow(self, peer: Peer) -> None:
        """Follow one peer for ever."""
        loop, backoff = asyncio.get_running_loop(), Backoff(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        owner = self._owner_for(peer)
        while True:
            link = Link(
                peer,
                lambda data: self._book.take_tick(peer.name, data),
                lambda: self._book.is_late(peer.name),
                owner,
            )
            self._links[peer.name] = link
            self._book.on_failure(peer.name, await link.follow())
            if link.has_ticks:
                backoff.reset()
            backoff.failed(loop.time())
            # Jitter: machines that lost the same neighbour do not return at the same instant.
            await asyncio.sleep(backoff.seconds_left(loop.time()) * random.uniform(0.5, 1.0))  # noqa: S311

    def _owner_for(self, peer: Peer) -> KeyOwner | None:
        """Return the owner of the token, None without one."""
        if peer.authorization is None:
            return None
        use = KeyUse(f"Neighbour {peer.name}", peer.url, TOKEN, "[[neighbours]]")
        return self._owners.owner(use, peer.user)


class ResolvingLoop(asyncio.SelectorEventLoop):
    """Event loop that resolves names in its own threads, which start with the first name."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0

    async def getaddrinfo(self, host: Any, port: Any, **hints: int) -> Any:  # noqa: ANN401
        answer: asyncio.Future[Any] = self.create_future()

        def resolve() -> None:
            if answer.cancelled():
                return
            try:
                found, error = socket.getaddrinfo(host, port, **hints), None
            except (OSError, UnicodeError) as failure:
                found, error = [], failure
            self._deliver(answer, found, error)

        self._asked.put(resolve)
        if self._threads < MAX_THREADS:
            threading.Thread(target=self._work, name="resolve", daemon=True).start()
            self._threads += 1
        return await answer

    def close(self) -> None:
        for _ in range(self._threads):
            self._asked.put(None)
        super().close()

    def _work(self) -> None:
        while (resolve := self._asked.get()) is not None:
            resolve()

    def _deliver(self, answer: asyncio.Future[Any], found: Any, error: Exception | None) -> None:  # noqa: ANN401
        def set_answer() -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)

        try:
            self.call_soon_threadsafe(set_answer)
        except RuntimeError:
            log.debug("a name was resolved after the loop was closed")
