"""The requests of one round to one server, sent in a thread that may hang: looking up a name has no deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from memwatch.core.engines.command import Command
from memwatch.core.engines.kinds import EngineKind
from memwatch.core.engines.requests import Answers, Request
from memwatch.core.http import GetError, GetTimeoutError

log: logging.Logger = logging.getLogger(__name__)

# Share of one server in a round, for all of its requests. The servers are asked at once, so a round takes as long.
SHARE_SECONDS = 2.0
NOT_IN_TIME = f"no complete answer within {SHARE_SECONDS:g} s"
OVERDUE = f"{NOT_IN_TIME}, the lookup of its name included"
NO_THREAD = "no thread could be started to ask it"
# An exchange that ends at the deadline reports that itself.
GRACE_SECONDS = 0.25
# Answers of a server that wants a key, or another one.
NOT_ALLOWED = frozenset({401, 403})

# vLLM prints 60 to 300 kB of metrics. An answer to a request that is sent once a minute is kept until the next one.
MAX_ANSWER_BYTES = 1 << 20
MAX_KEPT_BYTES = 512 << 10

# Return the answer to a path, of at most that many bytes, within a deadline. Raises GetError.
Fetch = Callable[[str, int, float], bytes]


class Exchange:
    """One round with one server. Only `run` sends; its results are valid when `is_done`.

    `bodies` are the answers by path, with those of earlier rounds to requests that are sent once a minute.
    `refused`: paths of this round that want a key.
    """

    def __init__(
        self,
        kind: EngineKind,
        fetch: Fetch,
        earlier: Mapping[str, bytes],
        command: Command,
        inner: Command,
        asks_rare: bool,
        deadline: float,
        known_paths: dict[str, str] | None = None,
    ) -> None:
        """`deadline`: of all requests, in seconds of `time.monotonic`. `known_paths`: of each `A|B`, the path that
        was answered in earlier rounds; the round changes it."""
        self.bodies: dict[str, bytes] = dict(earlier)
        self.failure: GetError | None = None
        self.has_asked_rare: bool = False
        self.refused: set[str] = set()  # paths that want a key
        self.is_done: bool = False
        self._deadline = deadline
        self._kind, self._fetch = kind, fetch
        self._answers = Answers(self.bodies, command, inner)
        self._asks_rare = asks_rare
        self._known_paths = {} if known_paths is None else known_paths

    def run(self) -> None:
        try:
            self._request()
        except Exception:
            log.exception("Defect while a model server was asked")
            self.bodies.clear()
        finally:
            self.is_done = True

    def refuse(self) -> None:
        """End the round without a request, as no thread can start."""
        self.bodies.clear()
        self.failure = GetError(NO_THREAD)
        self.is_done = True

    def _request(self) -> None:
        """Send the requests. After the first without any answer, the others are not sent.

        A busy server may take too long for a rare path only: the figures of the round stay, and earlier answers.
        """
        frequent = self._kind.requests_of("every 5 s")
        for one in frequent:
            self.bodies.pop(one.path, None)
        if not self._ask_all(frequent):
            self.bodies.clear()
            return
        if not self._asks_rare:
            return
        has_figures = any(one.path in self.bodies for one in frequent)
        if not self._ask_all(self._kind.requests_of("once a minute")) and not has_figures:
            self.bodies.clear()
        self.has_asked_rare = bool(self.bodies)

    def _ask_all(self, requests: Sequence[Request]) -> bool:
        """Return False if a path has no answer at all. A refusal replaces an earlier answer.

        A request that would change the server is not sent; an earlier answer to it stays.
        """
        for one in requests:
            if not one.allows(self._answers):
                continue
            body = self._first(one, MAX_ANSWER_BYTES if one.asked == "every 5 s" else MAX_KEPT_BYTES)
            if body is not None:
                self.bodies[one.path] = body
            elif self.failure is not None and not self.failure.status:
                return False
            else:
                self.bodies.pop(one.path, None)
                if self.failure is not None and self.failure.status in NOT_ALLOWED:
                    self.refused.add(one.path)
        return True

    def _first(self, request: Request, max_bytes: int) -> bytes | None:
        """Return the first answer of `A|B` that is understood, else the first one. Without one, keep the failure.

        The path that had it is asked first until the next rare requests: each other one is an error in the log of
        the server.
        """
        paths, odd = request.path.split("|"), None
        paths.sort(key=lambda path: path != self._known_paths.get(request.path))
        for path in paths:
            try:
                body = self._fetch(path, max_bytes, self._deadline)
            except GetTimeoutError:
                self.failure = GetTimeoutError(NOT_IN_TIME)
            except GetError as failure:
                self.failure = failure
            else:
                if request.is_answered_by(body):
                    self._known_paths[request.path] = path
                    return body
                odd = body if odd is None else odd
                continue
            if not self.failure.status:  # not even a refusal: the next path would wait as long
                break
        return odd


def run_all(bounded: Sequence[Exchange], unbounded: Sequence[Exchange], deadline: float) -> None:
    """Send the requests to all servers at once. Return when all have ended, or soon after the deadline.

    `unbounded`: those whose address has a name, the lookup of which may take minutes. One of the others is sent by
    this thread, so that a machine with one server needs no second one.
    """
    ended = threading.Semaphore(0)
    started = [_start(one, ended) for one in (*unbounded, *bounded[1:])]
    for one in bounded[:1]:
        one.run()
    for _ in range(started.count(True)):
        if not ended.acquire(timeout=max(0.0, deadline + GRACE_SECONDS - time.monotonic())):
            return


def _start(exchange: Exchange, ended: threading.Semaphore) -> bool:
    def work() -> None:
        exchange.run()
        ended.release()

    try:
        threading.Thread(target=work, name="ask-engine", daemon=True).start()
    except (RuntimeError, MemoryError):
        exchange.refuse()
        return False
    return True
