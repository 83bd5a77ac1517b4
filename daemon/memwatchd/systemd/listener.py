"""Accept connections in the event loop, without waiting for a client."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from memwatch.core.runtime.failure_log import FailureLog

log = logging.getLogger(__name__)

# Connections accepted per wake-up of the event loop, and the pause while there are no descriptors.
ACCEPT_AT_ONCE, PAUSE_SECONDS = 8, 1.0


class Listener:
    """A listening socket. `on_connection` owns each accepted connection, which does not block.

    While `is_full` returns True, clients wait in the backlog: their connection is open, and not served.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        on_connection: Callable[[socket.socket], None],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop, self._socket, self._on_connection, self._is_full = loop, listener, on_connection, is_full
        self._pause: asyncio.TimerHandle | None = None
        self._failures = FailureLog()
        listener.setblocking(False)
        loop.add_reader(listener, self._accept)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            if self._is_full():
                self._wait("too many connections are open")
                return
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors
                self._wait(error.strerror or str(error))
                return
            connection.setblocking(False)
            self._on_connection(connection)

    def _wait(self, why: str) -> None:
        """Accept nothing for a while: the socket would wake the event loop again at once."""
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
        if self._failures.admits(why):
            log.warning("clients of %s wait: %s", self._socket.getsockname(), why)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)
