"""Sizes of models, read in a thread: a model's files may be on a disk that hangs, or take seconds to parse.

One model is read at a time, first for the account that caused the least work. An account with too much of it waits:
a server that starts again and again, or reports another model each minute, must not occupy a core.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable

from memwatch.core.engines.records import ModelQuery, ModelSizes

log: logging.Logger = logging.getLogger(__name__)

# A reading takes 0.3 s, of 200 files on a network drive 2 s. In the long run an account gets a twentieth of the
# time.
MAX_BUSY_SECONDS = 10.0
BUSY_RATIO = 0.05
MAX_WAITING = 32
MAX_WAITING_OF_ACCOUNT = 16
MAX_DONE = 64


class ModelReader:
    """Reads the sizes that are asked for. `read` takes as long as it takes, and raises nothing."""

    def __init__(
        self, read: Callable[[ModelQuery], ModelSizes], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._monotonic = read, monotonic
        self._waiting: dict[ModelQuery, Hashable] = {}
        self._done: dict[ModelQuery, ModelSizes] = {}
        self._busy: dict[Hashable, tuple[float, float]] = {}
        self._has_new = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def size(self, query: ModelQuery, account: Hashable) -> ModelSizes | None:
        """Return the sizes of a model, None if they are not read yet: ask again. Each result is returned once."""
        with self._changed:
            if query in self._done:
                return self._done.pop(query)
            if query not in self._waiting and self._may_wait(account):
                self._waiting[query] = account
                self._has_new = True
            if self._waiting and self._thread is None:
                self._start()
            return None

    def wait(self, deadline: float) -> None:
        """Wait until nothing is left to read, or until the deadline in seconds of `time.monotonic`.

        Once for each model: one that takes long must not delay round after round.
        """
        with self._changed:
            has_new, self._has_new = self._has_new, False
            if not has_new:
                return
            self._changed.wait_for(lambda: not self._waiting, max(0.0, deadline - time.monotonic()))

    def _may_wait(self, account: Hashable) -> bool:
        of_account = sum(one == account for one in self._waiting.values())
        has_room = len(self._waiting) < MAX_WAITING and of_account < MAX_WAITING_OF_ACCOUNT
        return has_room and self._busy_seconds(account) < MAX_BUSY_SECONDS

    def _busy_seconds(self, account: Hashable) -> float:
        """Return the time that was spent for an account, less what it has got since."""
        seconds, at = self._busy.get(account, (0.0, 0.0))
        return max(0.0, seconds - (self._monotonic() - at) * BUSY_RATIO)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="read-models", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # the next call tries again
            return
        self._thread = thread

    def _run(self) -> None:
        while (query := self._next()) is not None:
            began = self._monotonic()
            try:
                sizes = self._read(query)
            except Exception:
                log.exception("Defect while a model was read")
                sizes = ModelSizes()
            self._finish(query, sizes, began)

    def _next(self) -> ModelQuery | None:
        """Return the model to read now. Without one, the thread ends."""
        with self._changed:
            if not self._waiting:
                self._thread = None
                return None
            return min(self._waiting, key=lambda one: self._busy_seconds(self._waiting[one]))

    def _finish(self, query: ModelQuery, sizes: ModelSizes, began: float) -> None:
        with self._changed:
            account = self._waiting.pop(query)
            now = self._monotonic()
            self._busy[account] = (self._busy_seconds(account) + now - began, now)
            self._busy = {one: spent for one, spent in self._busy.items() if self._busy_seconds(one)}
            self._done[query] = sizes
            if len(self._done) > MAX_DONE:  # those of servers that ended
                del self._done[next(iter(self._done))]
            self._changed.notify_all()
