"""Channels, which deliver notifications to one receiver, and the words of those that take plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from memwatch.core.listing import first_of
from memwatch.core.model import Absent, Process, known_or
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render.words import ratio, size
from memwatch_monitor.alerts.notification import GROUPED, Notification, describe_news
from memwatch_monitor.alerts.rules import WORDS, runbook_anchor
from memwatch_monitor.notify.http_post import PostResult


class Reminder(Struct, frozen=True):
    """Repeats all firing alerts every `seconds` in one call, for receivers that expire alerts."""

    seconds: float
    send: Callable[[Sequence[bytes]], PostResult]


class Channel(Protocol):
    """Delivery to one receiver. `send` is called by one thread only.

    `kind`: name of the kind of channel. `title`: its name in logs, without secrets. `reminder`: None if sending a
    notification once is enough. A channel allocates all it needs when it is created.
    """

    kind: str
    title: str
    reminder: Reminder | None

    def prepare(self) -> None:
        """Load everything needed to send. Called once, in the sending thread, before the first notification."""
        ...

    def body(self, notification: Notification, snapshot: Snapshot, sender: Sender) -> bytes:
        """Render the body to send, the same in every attempt."""
        ...

    def send(self, message_id: str, body: bytes) -> PostResult:
        """Make one attempt. Never raises, and ends by its own timeout."""
        ...

    def abort(self) -> None:
        """End the current attempt, from another thread."""
        ...


JOB = "memwatchd"


class Sender(Struct, frozen=True):
    """Identity of the sending daemon.

    `url`: address of its pages, None if other machines cannot reach them. `instance` and `job`: the labels that
    Prometheus gives its metrics; without an instance the host name is used. `is_instance_set`: by the operator.
    `labels`: those of [labels]. `incident`: the incident of the alert that is sent, if there is one.
    """

    url: str | None = None
    instance: str = ""
    is_instance_set: bool = False
    job: str = JOB
    labels: Mapping[str, str] = field(default_factory=dict)
    incident: str | None = None

    @property
    def incident_url(self) -> str | None:
        """Return the URL of the incident, None without one or without an address."""
        return f"{self.url}/incidents/{self.incident}" if self.url and self.incident else None

    def runbook_url(self, rule: str, target: str) -> str | None:
        """Return the URL of the runbook for an alert, None without an address."""
        anchor = runbook_anchor(rule, target)
        return f"{self.url}/runbooks#{anchor}" if self.url and anchor else None


# Reasons and processes of one message.
MAX_REASONS = 16
TOP_PROCESSES = 5


def select_top(processes: tuple[Process, ...]) -> list[Process]:
    """Return the processes with the largest known footprint."""
    known_ones = [process for process in processes if not isinstance(process.footprint_low_bytes, Absent)]
    return sorted(known_ones, key=_footprint, reverse=True)[:TOP_PROCESSES]


def _footprint(process: Process) -> int:
    return known_or(process.footprint_low_bytes, 0)


def cut(text: str, length: int) -> str:
    """Cut to `length` characters and replace those that UTF-8 cannot encode."""
    return text[:length].encode("utf-8", "replace").decode()


TEXT_LENGTH = 200


def build_title(notification: Notification, snapshot: Snapshot) -> str:
    """Render the title, one line: "spark-1: memory is critical (System RAM)", with new reasons at the end.

    Of events that keep coming, with their number. Of an alert that only still fires:
    "spark-1: memory was critical, now OK (System RAM)".
    """
    where = snapshot.labels.get(notification.target, notification.target)
    words = WORDS.get(notification.rule, "test notification")
    if notification.has_eased and notification.level_now is not None:
        words = f"{words.replace(' is ', ' was ', 1)}, now {notification.level_now.label}"
    more = "".join(f": {one.text}" for one in notification.reasons[:1] if one.signal == GROUPED)
    state = "" if notification.firing else "resolved: "
    again = "still firing: " if notification.repeated else ""
    return _clean(
        f"{snapshot.host}: {state}{again}{words} ({where}){more}{describe_news(notification.new_reasons)}"
    )


def build_text(notification: Notification, snapshot: Snapshot, sender: Sender | None) -> str:
    """Render the text, one line each: reasons of the alert's level, usage now, largest processes.

    With a `sender` also its labels, and the links to its dashboard and to the runbook.
    """
    then = f"was {notification.level.label}: " if notification.has_eased and notification.level is not None else ""
    ordered = sorted(notification.reasons, key=lambda one: one.signal != "ttf")  # the time left is first
    lines = [*first_of([f"{then}{reason.text}" for reason in ordered], MAX_REASONS, "reasons")]
    lines += [_figures(notification, snapshot), _holders(snapshot), *(_labels(sender) if sender else ())]
    lines = [_clean(line) for line in lines if line]
    runbook = sender.runbook_url(notification.rule, notification.target) if sender else None
    links = [runbook and f"Runbook: {runbook}", sender.url if sender else None]
    return "\n".join([*lines, *(link for link in links if link)])


def _labels(sender: Sender) -> list[str]:
    return [f"{name}: {value}" for name, value in sender.labels.items()]


def _figures(notification: Notification, snapshot: Snapshot) -> str:
    verdict = next((one for one in snapshot.pressure if one.target == notification.target), None)
    pool = next((one for one in snapshot.pools if one.id == notification.target), None)
    if verdict is None or pool is None or isinstance(pool.available_bytes, Absent):
        return f"{notification.target}: {ratio(verdict.ratio)} used" if verdict is not None else ""
    return f"{pool.label}: {ratio(verdict.ratio)} used, {size(pool.available_bytes)} available"


def _holders(snapshot: Snapshot) -> str:
    named = [
        f"{process.title} ({process.pid}) {size(process.footprint_bytes)}"
        for process in select_top(snapshot.processes)
        if not isinstance(process.footprint_bytes, Absent)
    ]
    return f"largest processes: {', '.join(named)}" if named else ""


def _clean(text: str) -> str:
    return cut(text, TEXT_LENGTH)
