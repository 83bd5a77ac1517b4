"""Notifications to receivers, silences, and persistence of both and of the alerts' state."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from memwatch.alerts.persistence import (
    BadState,
    silences_from_bytes,
    silences_to_bytes,
    watches_from_bytes,
    watches_to_bytes,
)
from memwatch.alerts.rules import Condition
from memwatch.alerts.silences import SILENCES_MOST, Silence, in_force
from memwatch.alerts.state import Key, Notice, Watch, notice_of, standing
from memwatch.monitor.loop import Monitor, new_notice_id
from memwatch.notify.outbox.outbox import Box, Draft, Outbox, OutboxFigures
from memwatch.notify.outbox.queue import Kind
from memwatch.notify.receiver import Receiver, close_all
from memwatch.notify.webhook_payload import cut
from memwatch.snapshot import Reason, Snapshot

log = logging.getLogger(__name__)

WATCHES, SILENCES = "watches", "silences"
# Fraction of the shutdown time given to receivers; the rest is for the disk.
RECEIVERS_PART = 0.75


class TooMany(Exception):
    """The limit of silences is reached."""


class Alerting:
    """Manager of receivers, outbox and silences. `recovered`: number of damaged files that were replaced."""

    def __init__(
        self,
        monitor: Monitor,
        outbox: Outbox,
        receivers: Sequence[Receiver] = (),
        dashboard_url: Callable[[], str | None] = lambda: None,
        recovered: int = 0,
    ) -> None:
        self.receivers = tuple(receivers)
        self.outbox = outbox
        self.recovered = recovered
        self._monitor = monitor
        self.dashboard_url = dashboard_url
        self._new = deque(self.receivers)
        self._unstarted: list[Receiver] = []
        self._written: tuple[Mapping[Key, Watch], float, bytes] | None = None

    def restore(self) -> None:
        """Restore persisted alerts and silences. Call before the first tick."""
        moment, values = self._monitor.moment(), self.outbox.values
        if self._monitor.identity.simulated:
            return
        try:
            if WATCHES in values:
                found = watches_from_bytes(values[WATCHES], moment, self._monitor.identity.boot_id)
                rules = self._monitor.rules.alerts.events
                self._monitor.watches = {key: watch for key, watch in found.items() if key[0] in rules}
            if SILENCES in values:
                self._monitor.silences = silences_from_bytes(values[SILENCES], moment.wall)
        except BadState as error:
            log.warning("the saved state of alerts cannot be read and is discarded: %s", error)

    def start(self) -> None:
        self.outbox.start()
        self._unstarted = [one for one in self.receivers if not one.start()]

    def use(self, receivers: Sequence[Receiver]) -> None:
        """Replace the receivers.

        A removed receiver stops after its current attempt. Notifications queued for a removed name are dropped;
        those for a name that is still configured go to its new receiver.
        """
        gone = [one for one in self.receivers if one not in receivers]
        new = [one for one in receivers if one not in self.receivers]
        self.receivers = tuple(receivers)
        for one in gone:
            one.stop_soon()
        for name in {one.name for one in gone}.difference(one.name for one in receivers):
            self.drop(name)
        self._unstarted = [one for one in (*self._unstarted, *new) if one in self.receivers and not one.start()]
        self._new.extend(new)

    def drop(self, name: str) -> None:
        """Drop the notifications queued for a receiver."""
        lost = self.outbox.forget(name)
        level = logging.WARNING if lost else logging.INFO
        log.log(level, "receiver removed or changed: %s; notifications dropped: %d", name, lost)

    def tell(self, snapshot: Snapshot, notices: tuple[Notice, ...]) -> None:
        """Queue new notifications and save the alerts' state, in one transaction. Call after every tick.

        A simulated machine sends no notifications and saves no state.
        """
        if snapshot.simulated:
            return
        if self._unstarted:
            self._unstarted = [one for one in self._unstarted if not one.start()]
        try:
            self._tell(snapshot, notices)
        except MemoryError:
            self._monitor.self_usage.give_up_spare()
            self._tell(snapshot, notices)

    def test(self) -> list[str]:
        """Send a test notification to every receiver and return the receivers' names."""
        snapshot = self._monitor.latest
        if snapshot is not None:
            drafts = self._drafts(notice_of_test(), snapshot, self.receivers)
            self.outbox.put(drafts, {})
        return [receiver.name for receiver in self.receivers]

    def outbox_figures(self) -> OutboxFigures:
        return OutboxFigures(self.outbox.durable, self.outbox.errors, self.recovered)

    def silences(self) -> tuple[Silence, ...]:
        return in_force(self._monitor.silences, time.time())

    def silence(
        self, seconds: float, event: str | None, target: str | None, comment: str, made_by: str = ""
    ) -> Silence:
        """Mute notifications of matching alerts for `seconds`. Raises TooMany."""
        now = time.time()
        if len(self.silences()) >= SILENCES_MOST:
            raise TooMany
        made = Silence(f"sil_{secrets.token_hex(6)}", now + seconds, now, event, target, comment, made_by)
        self._use_silences((*self.silences(), made))
        return made

    def end_silence(self, silence_id: str) -> bool:
        """End a silence. Returns False if there is none with that id."""
        left = tuple(one for one in self.silences() if one.id != silence_id)
        found = len(left) < len(self.silences())
        self._use_silences(left)
        return found

    def close(self, timeout: float = 2.0) -> None:
        """Stop within `timeout` seconds. Undelivered notifications stay in the outbox."""
        close_all(self.receivers, timeout * RECEIVERS_PART)
        self.outbox.close(timeout * (1 - RECEIVERS_PART))
        for receiver in self.receivers:
            if receiver.pending():
                fate = "kept for the next start" if self.outbox.durable else "lost"
                title, pending = receiver.channel.title, receiver.pending()
                log.warning("%s: notifications not delivered: %d, %s", title, pending, fate)

    def _tell(self, snapshot: Snapshot, notices: tuple[Notice, ...]) -> None:
        new = list(self._new)
        drafts = self._missed(snapshot, notices, new) if new else []
        for notice in notices:
            wanting = [one for one in self.receivers if one.subscription.wants(notice)]
            drafts += self._drafts(notice, snapshot, wanting)
        state = self._state(snapshot)
        if drafts or self.outbox.values.get(WATCHES) != state:
            self.outbox.put(drafts, {WATCHES: state}, urgent=bool(drafts))
        for _ in new:
            self._new.popleft()
        if new and self._keeps_quiet(snapshot):
            self._new.extend(new)

    def _state(self, snapshot: Snapshot) -> bytes:
        """Serialize the alerts. The bytes are cached until an alert changes or the machine was suspended."""
        watches, moment = self._monitor.watches, self._monitor.ticked
        asleep = moment.asleep_seconds
        if self._written is None or self._written[0] is not watches or self._written[1] != asleep:
            self._written = watches, asleep, watches_to_bytes(watches, moment, snapshot.boot_id)
        return self._written[2]

    def _missed(
        self, snapshot: Snapshot, notices: Sequence[Notice], new: Sequence[Receiver]
    ) -> list[tuple[Box, Draft]]:
        """Build notifications of firing alerts for receivers that are new or subscribe to more than before.

        Alerts that a receiver got from an earlier run of the daemon are recorded in its box and left out.
        """
        drafts = []
        levels = {one.target: one.level for one in snapshot.pressure}
        fresh = {notice.alert for notice in notices if not notice.repeated}
        for (rule, target), watch in standing(self._monitor.watches, self._monitor.silences, snapshot.unix):
            level = levels.get(target) if rule.startswith("pressure.") else None
            notice = notice_of(watch, Condition(rule, target, True, level=level), snapshot.unix, new_notice_id())
            wanting = [one for one in new if one.subscription.wants(notice) and not one.knows_of(alert_of(notice))]
            if notice.alert not in fresh:
                drafts += self._drafts(notice, snapshot, [one for one in wanting if one in self.receivers])
        return drafts

    def _keeps_quiet(self, snapshot: Snapshot) -> bool:
        """Return True while a silence mutes alerts that new receivers have not been sent."""
        watches, unix = self._monitor.watches, snapshot.unix
        return len(standing(watches, self._monitor.silences, unix)) < len(standing(watches, (), unix))

    def _drafts(self, notice: Notice, snapshot: Snapshot, wanting: Sequence[Receiver]) -> list[tuple[Box, Draft]]:
        """Render the notification for these receivers, once per kind of channel."""
        bodies: dict[str, bytes] = {}
        drafts = []
        for receiver in wanting:
            channel = receiver.channel
            if channel.kind not in bodies:
                bodies[channel.kind] = channel.body(notice, snapshot, self.dashboard_url())
            drafts.append((receiver.box, Draft(notice.id, alert_of(notice), kind_of(notice), bodies[channel.kind])))
        return drafts

    def _use_silences(self, silences: tuple[Silence, ...]) -> None:
        self._monitor.silences = silences
        self.outbox.put((), {SILENCES: silences_to_bytes(silences)})


def alert_of(notice: Notice) -> str:
    """Return the key of the notification's alert in the outbox."""
    return cut(notice.alert, 300)


def kind_of(notice: Notice) -> Kind:
    if notice.fact:
        return Kind.FACT
    return Kind.FIRING if notice.firing else Kind.RESOLVED


def notice_of_test() -> Notice:
    """Build a test notification."""
    return Notice(
        id=new_notice_id(),
        event="test",
        unix=time.time(),
        target="test",
        level=None,
        previous=None,
        reasons=(Reason("test", "This is a test notification."),),
        firing=True,
        rule="test",
        severity="info",
        fact=True,
    )
