"""Chat, mail and pagers through the Apprise library, which the extra `notify` installs."""

from __future__ import annotations

import importlib
import json
import logging
import re
import threading
import warnings
from typing import Any

from memwatch.core.snapshot import Snapshot
from memwatch.monitor.alerts.state import Notification
from memwatch.monitor.notify.channel import Reminder
from memwatch.monitor.notify.http_post import PostResult
from memwatch.monitor.notify.message_text import build_text, build_title
from memwatch.monitor.notify.sender import Sender
from memwatch.monitor.render.json import to_bytes

INSTALL = "pip install apprise"
TYPES = {"critical": "failure", "warning": "warning", "info": "info"}
# HTTP status in the log messages of Apprise's plug-ins; the rest of a message may contain secrets.
STATUS = re.compile(r"\berror=([1-5][0-9]{2})\b")


class MissingExtraError(Exception):
    """Apprise is not installed."""


class AppriseChannel:
    """One service by its Apprise URL. Apprise opens its own connections; it verifies TLS, follows no redirects."""

    kind = "apprise"
    reminder: Reminder | None = None

    def __init__(self, name: str, service: Any) -> None:  # noqa: ANN401  Apprise's own
        self.title: str = f"apprise {name} ({service.service_name})"
        self._service = service
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

    def abort(self) -> None:
        """Do nothing: Apprise cannot be interrupted. Its timeouts of 4 s end an attempt."""


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
