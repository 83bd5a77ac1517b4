"""Webhooks: body and signature (Standard Webhooks) of a notification and the snapshot at its time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from memwatch.core.model import Absent, Pool, Process, Share, Words
from memwatch.core.snapshot import Level, LevelWord, Reason, Snapshot
from memwatch.core.wire import Json, known, rfc3339, to_bytes
from memwatch.reporting.render.json import SCHEMA
from memwatch_monitor.alerts.notification import Notification
from memwatch_monitor.notify.channel import MAX_REASONS, TOP_PROCESSES, Reminder, Sender, cut, select_top
from memwatch_monitor.notify.http_post import Endpoint, Poster, PostResult, WallClock

# Standard Webhooks recommends that senders keep bodies small: "less than 20kb".
MAX_BODY_BYTES = 20_000

# Any user who can start a process controls its name. Names are cut at the first of these lengths that keeps the
# body under its limit. The last one does so even if every character needs six bytes.
TEXT_LENGTHS = (256, 64, 16)

SECRET_PREFIX = "whsec_"  # noqa: S105  the prefix of secrets, not a secret
SECRET_PATTERN = re.compile(SECRET_PREFIX + r"([A-Za-z0-9+/]+={0,2})", re.ASCII)
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64


@dataclass(frozen=True, slots=True)
class Secret:
    """The signing keys; more than one during key rotation."""

    keys: tuple[bytes, ...] = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


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


def top_json(process: Process, length: int) -> Json:
    return known(
        pid=process.pid,
        name=_cut_if_known(process.name, length),
        user=_cut_if_known(process.user, length),
        unit=_cut_if_known(process.unit, length),
        container=_cut_if_known(process.container, length),
        footprint_bytes=process.footprint_bytes,
    )


def _cut_if_known(text: Words | None, length: int) -> Words | None:
    return cut(text, length) if isinstance(text, str) else text


class WebhookChannel:
    """Webhook: a POST signed according to Standard Webhooks."""

    kind = "webhook"
    reminder: Reminder | None = None

    def __init__(
        self, name: str, endpoint: Endpoint, secret: Secret, poster: Poster, wall: WallClock = time.time
    ) -> None:
        self.title: str = f"webhook {name} ({endpoint.origin})"
        self._secret = secret
        self._poster = poster
        self._wall = wall

    def prepare(self) -> None:
        self._poster.prepare()

    def body(self, notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
        return build_body(notification, snapshot, sender)

    def send(self, message_id: str, body: bytes) -> PostResult:
        return self._poster.post(build_headers(self._secret, message_id, int(self._wall()), body), body)

    def abort(self) -> None:
        self._poster.abort()
