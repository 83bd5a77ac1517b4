"""Tells receivers what is to be told, keeps what must survive a restart, and answers for all of it."""

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
# Part of the time to stop in that belongs to receivers; the rest is the disk's.
RECEIVERS_PART = 0.75


class TooMany(Exception):
    """There are as many silences as there may be."""


class Alerting:
    """Everything about alerts that is not a rule. `recovered` counts files that had to be begun anew."""

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
        """Take up alerts and silences where an earlier daemon left them. Before the first tick."""
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
            log.warning("the state of alerts cannot be read and begins anew: %s", error)

    def start(self) -> None:
        self.outbox.start()
        self._unstarted = [one for one in self.receivers if not one.start()]

    def use(self, receivers: Sequence[Receiver]) -> None:
        """From now on these are told. Who is not among them stops after the attempt under way; what waits for a
        name that is gone is dropped, and what waits for another of the same name is that one's."""
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
        """Nobody is to have what waits for a receiver of that name."""
        lost = self.outbox.forget(name)
        level = logging.WARNING if lost else logging.INFO
        log.log(level, "no longer a receiver as it was: %s; messages dropped: %d", name, lost)

    def tell(self, snapshot: Snapshot, notices: tuple[Notice, ...]) -> None:
        """After every tick: put what is new on its way, together with the state that it follows from.

        A simulated machine gets nobody out of bed, and leaves no state for a real one.
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
        """Send every receiver a message that says that nothing is wrong; the names of those who are told."""
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
        """Tell nobody of such alerts for so long. Raises TooMany."""
        now = time.time()
        if len(self.silences()) >= SILENCES_MOST:
            raise TooMany
        made = Silence(f"sil_{secrets.token_hex(6)}", now + seconds, now, event, target, comment, made_by)
        self._use_silences((*self.silences(), made))
        return made

    def end_silence(self, silence_id: str) -> bool:
        """False where there is none of that id."""
        left = tuple(one for one in self.silences() if one.id != silence_id)
        found = len(left) < len(self.silences())
        self._use_silences(left)
        return found

    def close(self, timeout: float = 2.0) -> None:
        """Stop within `timeout` seconds; what is not delivered stays in the outbox."""
        close_all(self.receivers, timeout * RECEIVERS_PART)
        self.outbox.close(timeout * (1 - RECEIVERS_PART))
        for receiver in self.receivers:
            if receiver.pending():
                fate = "kept for the next start" if self.outbox.durable else "lost"
                log.warning("%s: messages not delivered: %d, %s", receiver.channel.title, receiver.pending(), fate)

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
        """Alerts as bytes, the same as long as nothing about them and no clock has moved."""
        watches, moment = self._monitor.watches, self._monitor.ticked
        asleep = moment.asleep_seconds
        if self._written is None or self._written[0] is not watches or self._written[1] != asleep:
            self._written = watches, asleep, watches_to_bytes(watches, moment, snapshot.boot_id)
        return self._written[2]

    def _missed(
        self, snapshot: Snapshot, notices: Sequence[Notice], new: Sequence[Receiver]
    ) -> list[tuple[Box, Draft]]:
        """What fires already and these receivers have never been told, as they are new or want to hear of more.

        Who was told by an earlier daemon has that in its box.
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
        """Whether a silence holds back what those who are new have missed: they are told at its end."""
        watches, unix = self._monitor.watches, snapshot.unix
        return len(standing(watches, self._monitor.silences, unix)) < len(standing(watches, (), unix))

    def _drafts(self, notice: Notice, snapshot: Snapshot, wanting: Sequence[Receiver]) -> list[tuple[Box, Draft]]:
        """The notice as each sort of receiver takes it, made once for each sort."""
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
    """What its alert is called in the outbox."""
    return cut(notice.alert, 300)


def kind_of(notice: Notice) -> Kind:
    if notice.fact:
        return Kind.FACT
    return Kind.FIRING if notice.firing else Kind.RESOLVED


def notice_of_test() -> Notice:
    """A message to see whether messages arrive."""
    return Notice(
        id=new_notice_id(),
        event="test",
        unix=time.time(),
        target="test",
        level=None,
        previous=None,
        reasons=(Reason("test", "a test message: nothing is wrong"),),
        firing=True,
        rule="test",
        severity="info",
        fact=True,
    )
