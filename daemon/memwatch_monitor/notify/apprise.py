"""Chat, mail and pagers through the Apprise library, which the extra `notify` installs."""

from __future__ import annotations

import importlib
import json
import logging
import re
import socket
import threading
import time
import warnings
from typing import Any

from memwatch.core.http import Admit, GetError
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import to_bytes
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.notify.channel import Reminder, Sender, build_text, build_title
from memwatch_monitor.notify.http_post import PostResult

INSTALL = "pip install apprise"
TYPES = {"critical": "failure", "warning": "warning", "info": "info"}
# HTTP status in the log messages of Apprise's plug-ins; the rest of a message may contain secrets.
# For all connections of an attempt. Apprise's own limit of 4 s is for each read: a byte now and then never ends.
ATTEMPT_SECONDS = 60.0
CHECK_SECONDS = 4.0
NOT_ENDED = "the last attempt has not ended: the service answers byte by byte; restart it"
STATUS = re.compile(r"\berror=([1-5][0-9]{2})\b")


class MissingExtraError(Exception):
    """Apprise is not installed."""


class AppriseChannel:
    """One service by its Apprise URL. Apprise opens its own connections; it verifies TLS, follows no redirects.

    `admit` is called before each attempt with a connection to the service, if that is at this machine.
    """

    kind = "apprise"
    reminder: Reminder | None = None

    def __init__(
        self,
        name: str,
        service: Any,  # noqa: ANN401  Apprise's own
        admit: Admit | None = None,
        seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self.title: str = f"apprise {name} ({service.service_name})"
        self._service = service
        self._admit, self._seconds = admit, seconds
        self._last = _Attempt()
        self._last.is_running = False
        self._words = AppriseLogHandler()
        logger = logging.getLogger("apprise")
        logger.propagate = False
        logger.addHandler(self._words)

    def prepare(self) -> None:
        """Do nothing: the plug-in is loaded when the service is created."""

    def body(self, notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
        kind = TYPES[notification.severity] if notification.firing else "success"
        text = build_text(notification, snapshot, sender)
        return to_bytes({"title": build_title(notification, snapshot), "text": text, "type": kind})

    def send(self, message_id: str, body: bytes) -> PostResult:  # noqa: ARG002  Apprise has no field for the id
        if self._last.is_running:
            return PostResult(None, NOT_ENDED)
        self._last = attempt = _Attempt()
        thread = threading.Thread(target=self._run, args=(attempt, body), name="apprise", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no further thread is allowed: without a deadline then
            self._run(attempt, body)
        late = PostResult(None, f"no complete answer within {self._seconds:g} s", may_have_arrived=True)
        return attempt.wait(self._seconds) or late

    def _run(self, attempt: _Attempt, body: bytes) -> None:
        try:
            attempt.finish(self._notify(body))
        finally:
            attempt.is_running = False

    def _notify(self, body: bytes) -> PostResult:
        if why := self._refusal():
            return PostResult(None, why)
        message = json.loads(body)
        self._words.listen()
        try:
            done = self._service.notify(body=message["text"], title=message["title"], notify_type=message["type"])
        except Exception as error:  # noqa: BLE001  a plug-in may raise anything; the next attempt must follow
            return PostResult(None, f"Apprise failed: {type(error).__name__}", may_have_arrived=True)
        if done:
            return PostResult(None, accepted=True)
        status = self._words.status
        return PostResult(status, f"answered {status}" if status else "Apprise reports a failed delivery")

    def _refusal(self) -> str:
        """Return why the URL is not for the listener at this machine, empty if it is, or if no process listens."""
        if self._admit is None:
            return ""
        port = self._service.port or (443 if self._service.secure else 80)
        try:
            with socket.create_connection((self._service.host, port), CHECK_SECONDS) as connected:
                self._admit(connected, time.monotonic() + CHECK_SECONDS)
        except GetError as error:
            return str(error)
        except OSError:  # Apprise fails as well
            pass
        return ""

    def abort(self) -> None:
        """Wait no longer for Apprise, which cannot be interrupted."""
        self._last.finish(PostResult(None, "memwatchd is stopping", may_have_arrived=True))


class _Attempt:
    """One call of Apprise in a thread. The first result counts."""

    def __init__(self) -> None:
        self.is_running: bool = True
        self._result: PostResult | None = None
        self._done = threading.Event()

    def finish(self, result: PostResult) -> None:
        self._result = self._result or result
        self._done.set()

    def wait(self, seconds: float) -> PostResult | None:
        self._done.wait(seconds)
        return self._result


class AppriseLogHandler(logging.Handler):
    """Log handler that keeps the HTTP status from Apprise's messages in one thread and drops the rest."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seen: tuple[int, int | None] = (0, None)

    def listen(self) -> None:
        """Reset, and match messages of the calling thread."""
        self._seen = (threading.get_ident(), None)

    @property
    def status(self) -> int | None:
        return self._seen[1]

    def emit(self, record: logging.LogRecord) -> None:
        found = STATUS.search(record.getMessage())
        if found and threading.get_ident() == self._seen[0]:
            self._seen = (self._seen[0], int(found[1]))


def load_service(url: str) -> Any:  # noqa: ANN401  Apprise's own
    """Return the service of an Apprise URL, None if the URL is invalid. Raises MissingExtraError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 2.2.0 imports imghdr if Python still has it
        try:
            apprise: Any = importlib.import_module("apprise")
        except ImportError:
            raise MissingExtraError from None
        logging.getLogger("apprise").propagate = False
        asset = apprise.AppriseAsset(app_id="memwatchd", async_mode=False, http_redirects=False)
        return apprise.Apprise.instantiate(url, asset=asset)
