"""Body and signature of webhooks. Pure functions of a notification and the snapshot at its time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from memwatch.core.model import Absent, Pool, Process, Share, Words
from memwatch.core.redaction import redact_text
from memwatch.core.snapshot import Level, LevelWord, Reason, Snapshot
from memwatch.core.wire import Json, known
from memwatch.monitor.alerts.state import Notification
from memwatch.monitor.notify.sender import Sender
from memwatch.monitor.render.json import SCHEMA, rfc3339, to_bytes

# Standard Webhooks recommends that senders keep bodies small: "less than 20kb".
MAX_BODY_BYTES = 20_000
TOP_PROCESSES = 5
# Any user who can start a process controls its name. Names are cut at the first of these lengths that keeps the
# body under its limit. The last one does so even if every character needs six bytes.
TEXT_LENGTHS = (256, 64, 16)
MAX_REASONS = 16

DEFAULT_PORTS = {"http": 80, "https": 443}
SECRET_PREFIX = "whsec_"  # noqa: S105  the prefix of secrets, not a secret
SECRET_PATTERN = re.compile(SECRET_PREFIX + r"([A-Za-z0-9+/]+={0,2})", re.ASCII)
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Parsed URL to post to. Path and query often contain a token, so only `origin` is displayed or logged."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self._bracketed}:{self.port}"

    @property
    def host_header(self) -> str:
        usual = self.port == DEFAULT_PORTS[self.scheme]
        return self._bracketed if usual else f"{self._bracketed}:{self.port}"

    @property
    def has_secret(self) -> bool:
        """Return True if path or query contain what would be hidden in a command line."""
        url = f"{self.origin}{self.path}"
        return redact_text(url) != url

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return self.origin


@dataclass(frozen=True, slots=True)
class Secret:
    """The signing keys; more than one during key rotation."""

    keys: tuple[bytes, ...] = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


@dataclass(frozen=True, slots=True)
class Password:
    """A password or token for authentication at a receiver."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"

    def authorization(self, user: str | None) -> str:
        """Return the Authorization header: Basic with a user (RFC 7617, in UTF-8), else Bearer (RFC 6750)."""
        if user is None:
            return f"Bearer {self.text}"
        return "Basic " + base64.b64encode(f"{user}:{self.text}".encode()).decode()


def parse_password(text: str) -> Password:
    """Parse the content of a file or an environment variable. Raises ValueError, which does not contain it."""
    text = text.rstrip("\r\n")
    if not 1 <= len(text) <= 2048 or not text.isascii() or not text.isprintable():
        raise ValueError("is not a password or a token of 1 to 2048 printable ASCII characters")
    return Password(text)


def parse_endpoint(url: str) -> Endpoint:
    """Parse a URL. Raises ValueError with a reason that contains no part of the URL."""
    if not re.fullmatch(r"[!-~]{1,2000}", url):
        raise ValueError("is not made of 1 to 2000 printable ASCII characters")
    parts = urlsplit(url)
    try:
        given = parts.port
    except ValueError:  # its message contains the text
        raise ValueError("has a port that is not a number from 1 to 65535") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError("does not begin with http:// or https:// and a host name")
    if "@" in parts.netloc:
        raise ValueError("contains a user name or password, which would appear in logs")
    port = given if given is not None else DEFAULT_PORTS[parts.scheme]
    if port == 0:
        raise ValueError("has port 0")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.scheme, parts.hostname, port, path)


def parse_secret(text: str) -> Secret:
    """Parse Standard Webhooks secrets separated by white space. Raises ValueError, which does not contain them."""
    keys = tuple(_parse_key(word) for word in text.split())
    if not keys:
        raise ValueError("is empty")
    return Secret(keys)


def _parse_key(word: str) -> bytes:
    # Matched against the pattern because before Python 3.11 b64decode accepts surplus padding.
    match = SECRET_PATTERN.fullmatch(word)
    key = base64.b64decode(match[1]) if match and len(match[1]) % 4 == 0 else b""
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ValueError(f"is not {SECRET_PREFIX} followed by the base64 of 24 to 64 bytes")
    return key


def sign(secret: Secret, notice_id: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` header: one `v1` signature per key."""
    message = b"%s.%d.%s" % (notice_id.encode(), timestamp, body)
    digests = [hmac.new(key, message, hashlib.sha256).digest() for key in secret.keys]
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def build_headers(secret: Secret, notice_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "webhook-id": notice_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, notice_id, timestamp, body),
    }


def build_body(notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
    """Render the JSON to send, at most 20 kB regardless of process names."""
    for length in TEXT_LENGTHS:
        body = to_bytes(body_json(notification, snapshot, sender, length))
        if len(body) <= MAX_BODY_BYTES:
            break
    return body


def body_json(notification: Notification, snapshot: Snapshot, sender: Sender, length: int) -> Json:
    """Render the body, with all external texts cut to `length` characters."""
    return {
        "schema": SCHEMA,
        "id": notification.id,
        "event": notification.event,
        "time": rfc3339(notification.unix),
        "unix": notification.unix,
        "host": cut(snapshot.host, length),
        "target": cut(notification.target, length),
        "rule": notification.rule,
        "severity": notification.severity,
        "started": rfc3339(notification.started_unix) if notification.started_unix else None,
        "repeated": notification.repeated,
        "level": _word(notification.level),
        "level_now": _word(notification.level_now),
        "previous": _word(notification.previous),
        "reasons": reasons_json(notification.reasons, length),
        "new_reasons": reasons_json(notification.new_reasons, length),
        "values": values_json(notification, snapshot, length),
        "top": [top_json(process, length) for process in select_top(snapshot.processes)],
        "left_out": count_left_out(notification, snapshot),
        "labels": dict(sender.labels),
        "dashboard_url": sender.url,
        "runbook_url": sender.runbook_url(notification.rule, notification.target),
        "incident_url": sender.incident_url,
    }


def _word(level: Level | None) -> LevelWord | None:
    return None if level is None else level.word


def reasons_json(reasons: Sequence[Reason], length: int) -> list[Json]:
    return [{"signal": why.signal, "text": cut(why.text, length)} for why in reasons[:MAX_REASONS]]


def count_left_out(notification: Notification, snapshot: Snapshot) -> Json:
    """Return the number of entries that each list of the body lacks."""
    known_ones = sum(not isinstance(process.footprint_low_bytes, Absent) for process in snapshot.processes)
    return {
        "reasons": max(0, len(notification.reasons) - MAX_REASONS),
        "new_reasons": max(0, len(notification.new_reasons) - MAX_REASONS),
        "top": max(0, known_ones - TOP_PROCESSES),
    }


def values_json(notification: Notification, snapshot: Snapshot, length: int) -> Json:
    """Render the values of the alert's target.

    Absent if its pool or share is gone. The machine's total for alerts about anything else.
    """
    for pool in snapshot.pools:
        if pool.id == notification.target:
            return pool_values(pool, length)
    for share in snapshot.shares:
        if share.id == notification.target:
            return share_values(share, cut(snapshot.relation(share), length), length)
    if not notification.rule.startswith("pressure."):
        total = snapshot.total
        return known(
            size_bytes=total.size_bytes, used_bytes=total.used_bytes, available_bytes=total.available_bytes
        )
    return known(used_bytes=Absent.NOT_AVAILABLE, ratio=Absent.NOT_AVAILABLE)


def pool_values(pool: Pool, length: int) -> Json:
    return known(
        kind=pool.kind.value,
        label=cut(pool.label, length),
        size_bytes=pool.size_bytes,
        used_bytes=pool.used_bytes,
        available_bytes=pool.available_bytes,
        free_bytes=pool.free_bytes,
        reserved_bytes=pool.reserved_bytes,
        unattributed_bytes=pool.unattributed_bytes,
        set_aside_bytes=pool.set_aside_bytes,
        ratio=pool.judged_ratio,
    )


def share_values(share: Share, relation: str, length: int) -> Json:
    return known(
        kind=share.kind.value,
        label=cut(share.label, length),
        relation=relation,
        used_bytes=share.used_bytes,
        limit_bytes=share.limit_bytes,
        ratio=share.judged_ratio,
    )


def select_top(processes: tuple[Process, ...]) -> list[Process]:
    """Return the processes with the largest known footprint."""
    known_ones = [process for process in processes if not isinstance(process.footprint_low_bytes, Absent)]
    return sorted(known_ones, key=_footprint, reverse=True)[:TOP_PROCESSES]


def _footprint(process: Process) -> int:
    return 0 if isinstance(process.footprint_low_bytes, Absent) else process.footprint_low_bytes


def top_json(process: Process, length: int) -> Json:
    return known(
        pid=process.pid,
        name=_cut_if_known(process.name, length),
        user=_cut_if_known(process.user, length),
        unit=_cut_if_known(process.unit, length),
        container=_cut_if_known(process.container, length),
        footprint_bytes=process.footprint_bytes,
    )


def cut(text: str, length: int) -> str:
    """Cut to `length` characters and replace those that UTF-8 cannot encode."""
    return text[:length].encode("utf-8", "replace").decode()


def _cut_if_known(text: Words | None, length: int) -> Words | None:
    return cut(text, length) if isinstance(text, str) else text
