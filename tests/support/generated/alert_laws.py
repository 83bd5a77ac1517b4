"""Laws of alerts, which hold in every history: docs/explanation/alerts.md has them in words.

`Laws` follows a run with its own records of the readings. It knows the settings and the limits, and nothing of the
state machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.silences import Silence, is_silenced
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch_monitor.alerts.notification import Key, Notification
from memwatch_monitor.alerts.rules import FAILED_SECONDS, STARTING_SECONDS, URGENT, AlertRules
from memwatch_monitor.alerts.state import (
    CHANGE_SECONDS,
    GONE_SECONDS,
    MAX_GROUP_SECONDS,
    NEW_SECONDS,
    PENDING_GONE_SECONDS,
)
from memwatch_monitor.neighbours.book import HOLD_SECONDS
from memwatch_monitor.neighbours.neighbour import FIRST_SECONDS, MAX_STOPPED_SECONDS, SILENT_SECONDS
from memwatch_monitor.notify.queue import MAX_WAITING
from support.generated.alert_history import (
    CAN_BE_GONE,
    CLAIMS,
    COLLECTORS,
    EVENTS,
    LIAR,
    MIG,
    SIGNALS,
    SILENT,
    TARGETS,
    Act,
    Mood,
    Plan,
    Run,
    Told,
)
from support.generated.message_laws import complaints_about_message

LEVELS = {"pressure.critical": Level.CRITICAL, "pressure.high": Level.HIGH}
KILLED: Key = ("kernel.oom_kill", "kernel")
NEIGHBOUR: Key = ("neighbour.silent", SILENT)


class Record(Struct):
    """Readings and notifications of one alert so far. Times are monotonic seconds.

    `true_since`: first of the readings since which the condition has been true; a source that hangs does not end
    it. `is_unseen`: there is no reading now, because the source does not answer. `may_fire`: sooner than it has to.
    `outstanding`: its firing was notified, and its end was not. `said`, `untold`: signals with their levels.
    `fired`: times of its firing notifications. `episode`: ids of those since it fires. `began_at`: start of firing,
    notified or not. `ended_at`: its last end. `returned`: it fired again within `again_seconds` of its last end.
    """

    true_since: float | None = None
    false_since: float | None = None
    seen_at: float | None = None
    wait: float = 0.0
    urgent: bool = False
    is_unseen: bool = False
    may_fire: bool = False
    firing: bool = False
    outstanding: bool = False
    said: dict[str, int] = field(default_factory=dict)
    untold: dict[str, int] = field(default_factory=dict)
    notified_at: float | None = None
    fired: list[float] = field(default_factory=list)
    episode: list[str] = field(default_factory=list)
    began_at: float = 0.0
    ended_at: float | None = None
    returned: bool = False

    def on_reading(self, true: bool, at: float) -> None:
        self.seen_at = at
        if true:
            self.true_since = at if self.true_since is None else self.true_since
            self.false_since = None
        else:
            self.false_since = at if self.false_since is None else self.false_since
            self.true_since = None

    def on_missing(self, at: float) -> None:
        """Take a tick without a reading. A pending alert ends if its target is gone for a minute."""
        is_gone = self.seen_at is not None and at - self.seen_at >= PENDING_GONE_SECONDS
        if is_gone and not self.is_unseen and not self.firing:
            self.true_since = None

    def on_reasons(self, reasons: Iterable[Reason], least: Level) -> None:
        """Note the reasons that support the level of a notified alert, and that no notification had."""
        for one in reasons:
            level = level_of(one)
            if self.outstanding and level >= least and level > self.said.get(one.signal, -1):
                self.untold[one.signal] = max(level, self.untold.get(one.signal, -1))

    def on_sent(self, reasons: Iterable[Reason], at: float) -> None:
        for one in reasons:
            self.said[one.signal] = max(level_of(one), self.said.get(one.signal, -1))
        self.untold = {name: level for name, level in self.untold.items() if level > self.said.get(name, -1)}
        self.outstanding, self.notified_at = True, at

    def on_change(self, at: float, again_seconds: float) -> None:
        """Take a start or an end. A silence holds back the notification of an alert, and not its start."""
        self.firing = not self.firing
        if self.firing:
            self.began_at = at
            self.returned = self.ended_at is not None and at - self.ended_at < again_seconds
        else:
            self.ended_at = at

    def is_over(self, at: float, rules: AlertRules) -> bool:
        """Return True if the condition has been false, and the alert has fired, for the documented times."""
        if self.false_since is None or at - self.began_at < rules.keep_firing_seconds:
            return False
        clear_seconds = max(rules.resolve_seconds, rules.again_seconds if self.returned else 0.0)
        return at - self.false_since >= clear_seconds

    def is_current(self, at: float) -> bool:
        return self.seen_at == at or self.is_unseen

    def is_due(self, at: float, again_seconds: float) -> bool:
        """Return True if the alert has to fire, unless it does."""
        if self.true_since is None or not self.is_current(at) or at - self.true_since < self.wait:
            return False
        return self.urgent or self.notified_at is None or at - self.notified_at >= again_seconds

    def is_news_due(self, at: float) -> bool:
        if not self.untold or self.true_since is None or not self.is_current(at) or self.notified_at is None:
            return False
        return self.outstanding and at - self.notified_at >= CHANGE_SECONDS


class Laws:
    """Records of a run, and the sentences of laws that it breaks."""

    def __init__(self, rules: AlertRules, moment: Moment, is_queue_small: bool = False) -> None:
        self.rules = rules
        self.is_queue_small = is_queue_small
        self.records: dict[Key, Record] = {(rule, target): Record() for rule in LEVELS for target in TARGETS}
        self.records |= {("collector.failed", name): Record(wait=FAILED_SECONDS) for name in COLLECTORS}
        self.records[NEIGHBOUR] = Record(urgent=True)
        # Their notifications come in pairs; the other laws need a record of their readings.
        self.others: dict[Key, Record] = {("collector.failing", name): Record() for name in COLLECTORS}
        self.others["neighbour.silent", LIAR] = Record()
        self.all = self.records | self.others
        self.high: dict[str, Level] = {}
        self.heard_at: dict[str, float] = {}
        self.heard_run: int | None = None
        self.heard_claim, self.claimed_run = "", 0
        self.started_at = moment.monotonic
        self.kills: list[str] = []
        self.killed_at: float | None = None
        # Notifications of kills that keep coming, and the times of the latest ones.
        self.kill_rounds = 0
        self.kill_times: list[float] = []
        # Ids of notifications that have to arrive, and the ends of alerts: key, ids of the firing ones, own id.
        self.owed: set[str] = set()
        self.owed_kills: set[str] = set()
        self.ends: list[tuple[Key, list[str], str]] = []

    def on_restart(self, moment: Moment, is_reboot: bool) -> None:
        """Take a start of the daemon. A reboot ends all waits: the timers start over."""
        self.heard_at, self.heard_run, self.started_at = {}, None, moment.monotonic
        for record in self.all.values():
            record.seen_at = moment.monotonic if record.firing or record.true_since is not None else None
            if is_reboot:
                record.true_since = record.false_since = None
                record.fired, record.began_at, record.ended_at = [], moment.monotonic, None
                record.notified_at = moment.monotonic if record.outstanding else None
        if is_reboot:
            self.high, self.killed_at, self.kill_times = {}, None, []

    def on_reload(self, rules: AlertRules) -> None:
        """Take a reload. Alerts of a rule that no receiver subscribes to any more are over, without a message."""
        self.rules = rules
        self.kill_times = []
        self.ends = [one for one in self.ends if one[0][0] in rules.events]
        for key, record in self.all.items():
            record.fired = record.fired[-1:]
            if key[0] not in rules.events:
                self._forget(record)
        if KILLED[0] not in rules.events:
            self.kills, self.killed_at, self.kill_rounds = [], None, 0
            self.owed -= self.owed_kills

    def _forget(self, record: Record) -> None:
        self.owed.difference_update(record.episode)
        record.true_since = record.false_since = record.seen_at = record.notified_at = record.ended_at = None
        record.firing = record.outstanding = False
        record.fired, record.episode = [], []
        record.said, record.untold = {}, {}

    def on_tick(self, told: Told, run: Run) -> Iterator[str]:
        """Take a tick, and yield one sentence for each law that it breaks."""
        self._observe_levels(told)
        self._observe_collectors(told)
        self._observe_neighbour(told, run)
        sent: dict[Key, list[Notification]] = {}
        for one in told.notifications:
            sent.setdefault((one.rule, one.target), []).append(one)
            yield from complaints_about_message(one, told.snapshot)
        yield from self._check_kills(told, sent.pop(KILLED, []))
        for key in [key for key in sent if key[0] not in self.rules.events]:
            yield f"off: {key} is notified although no receiver wants its rule"
        for key, record in self.records.items():
            is_firing = key in told.firing
            if key[0] not in self.rules.events:
                if is_firing:
                    yield f"off: {key} fires although no receiver wants its rule"
                self._forget(record)
            elif is_firing or record.firing or record.true_since is not None:  # no law is about another one
                yield from self._check_firing(key, record, is_firing, told)
                yield from self._check_due_notification(key, record, is_firing, sent.get(key, []), told)
        for key, notifications in sent.items():
            yield from self._check_notifications(key, self.all[key], notifications, told)
        for key, record in self.all.items():
            if record.firing != (key in told.firing):
                record.on_change(told.at, self.rules.again_seconds)

    def at_end(self, run: Run) -> Iterator[str]:
        """Check the deliveries, after the receiver has worked again for long enough."""
        arrived = set(run.arrived)
        if lost := self.owed - arrived:
            yield f"delivery: {len(lost)} notifications never arrive at a receiver that works again"
        for _, episode, end in self.ends:
            if arrived.intersection(episode) and end not in arrived:
                yield "delivery: a receiver got an alert and never its end"

    def _observe_levels(self, told: Told) -> None:
        verdicts = {one.target: one for one in told.snapshot.pressure}
        has_waited = told.at - self.started_at >= STARTING_SECONDS
        waiting = ("failing", "stalled", "starting") if has_waited else ("failing", "stalled")
        broken = {one.name for one in told.snapshot.collectors if one.state in waiting}
        for rule, level in LEVELS.items():
            for target, (_, collector) in TARGETS.items():
                record, verdict = self.records[rule, target], verdicts.get(target)
                record.is_unseen = verdict is None and collector in broken
                if verdict is None:
                    record.on_missing(told.at)
                    continue
                is_true = verdict.level >= level
                record.on_reading(is_true, told.at)
                if is_true:
                    record.urgent, record.wait = is_urgent(verdict), self.rules.pending_for(verdict)
                    record.on_reasons(verdict.reasons, level)

    def _observe_collectors(self, told: Told) -> None:
        """Take the level of the memory that a collector read last."""
        levels = {one.target: one.level for one in told.snapshot.pressure}
        for status in told.snapshot.collectors:
            record = self.records["collector.failed", status.name]
            if status.state == "ok":
                mine = [target for target, (_, name) in TARGETS.items() if name == status.name]
                self.high[status.name] = max((levels.get(one, Level.LOW) for one in mine), default=Level.LOW)
                record.on_reading(False, told.at)
            else:
                was_high = self.high.get(status.name, Level.LOW) >= Level.HIGH
                if record.firing or was_high:
                    record.on_reading(True, told.at)

    def _observe_neighbour(self, told: Told, run: Run) -> None:
        """Judge by own ticks and the goodbye of the machine. The word of the other one may delay by 30 s."""
        record, at = self.records[NEIGHBOUR], told.at
        for name, is_up in ((SILENT, run.world.is_up), (LIAR, run.world.is_liar_up)):
            if is_up:
                self.heard_at[name] = at
        if run.world.is_up:
            self.heard_run = run.world.run
        if run.world.is_liar_up:
            self.heard_claim, self.claimed_run = run.world.claim, run.world.claim_run
        heard, other = self.heard_at.get(SILENT), self.heard_at.get(LIAR)
        age = at - (self.started_at if heard is None else heard)
        limit = FIRST_SECONDS if heard is None else SILENT_SECONDS
        is_muted = run.knows_goodbye and age <= MAX_STOPPED_SECONDS
        # The last word of a machine that still sends. One about an earlier run of the silent machine is none.
        has_word = bool(self.heard_claim) and other is not None and at - other <= SILENT_SECONDS
        has_word = has_word and self.claimed_run == self.heard_run
        record.may_fire = age > limit and not is_muted
        record.is_unseen = not record.may_fire and not is_muted and heard is None
        if not record.may_fire and not record.is_unseen:
            record.on_reading(False, at)
        elif record.may_fire and age - limit >= (HOLD_SECONDS if has_word else 0.0):
            record.on_reading(True, at)
        elif record.may_fire:
            record.false_since = None

    def _check_firing(self, key: Key, record: Record, is_firing: bool, told: Told) -> Iterator[str]:
        is_due = record.is_due(told.at, self.rules.again_seconds)
        if is_due and not is_firing:
            yield f"due: {key} has been true for its time and does not fire"
        if is_firing and not record.firing and not is_due and not record.may_fire:
            yield f"early: {key} fires before its time or without a reading"
        if record.firing and not is_firing:
            yield from self._check_end(key, record, told.at)
            record.true_since = None
        if is_firing and record.firing and record.seen_at == told.at and record.is_over(told.at, self.rules):
            yield f"end: {key} has been over for long and still fires"

    def _check_end(self, key: Key, record: Record, at: float) -> Iterator[str]:
        """An alert ends by better readings for its time, or without its target while its collector answers."""
        is_gone = record.seen_at is None or at - record.seen_at >= GONE_SECONDS
        if record.is_unseen or (record.false_since is None and not is_gone):
            yield f"lost: {key} ends without a reading that is better"
        elif not is_gone and not record.is_over(at, self.rules):
            yield f"end: {key} has not been over for its time and ends"

    @staticmethod
    def _check_due_notification(
        key: Key, record: Record, is_firing: bool, sent: list[Notification], told: Told
    ) -> Iterator[str]:
        if not is_firing or is_silenced(told.silences, *key) or any(one.firing for one in sent):
            return
        if not record.outstanding:
            yield f"due: {key} fires, and no notification is sent"
        elif record.is_news_due(told.at):
            yield f"news: {key} has the new reasons {record.untold}, and no notification is sent"

    def _check_notifications(self, key: Key, record: Record, sent: list[Notification], told: Told) -> Iterator[str]:
        if len(sent) > 1:
            yield f"pair: {key} has {len(sent)} notifications at once"
        for one in sent:
            if not one.firing:
                yield from self._check_resolved(key, record, one)
                continue
            if is_silenced(told.silences, *key):
                yield f"silence: {key} is notified while it is silenced"
            if record.outstanding:
                yield from self._check_more(key, record, one, told.at)
            else:
                yield from self._check_first(key, record, one, told.at)
            record.on_sent((*one.reasons, *one.new_reasons), told.at)
            if self.is_queue_small and not one.repeated:  # a full queue keeps the newest message of each alert
                self.owed.difference_update(record.episode)
                self.ends = [end for end in self.ends if end[0] != key]
            record.episode.append(one.id)
            if not one.repeated:
                self.owed.add(one.id)

    def _check_first(self, key: Key, record: Record, one: Notification, at: float) -> Iterator[str]:
        """Check the first notification since an alert fires."""
        if len(record.fired) >= 2 and at - record.fired[-2] < self.rules.again_seconds:
            yield f"flapping: {key} fires a third time within {at - record.fired[-2]:.0f} s"
        record.fired.append(at)
        record.episode, record.said, record.untold = [], {}, {}
        if key[0] in LEVELS and record.is_unseen and not record.firing:
            word = f"{LEVELS[key[0]].word} before {TARGETS[key[1]][1]} stopped answering"
            if not any(word in why.text for why in one.reasons):
                yield f"source: {key} does not say {word!r}: {one.reasons}"

    def _check_more(self, key: Key, record: Record, one: Notification, at: float) -> Iterator[str]:
        """Check a further notification of a firing alert: new reasons, or a reminder."""
        passed = at - (record.notified_at or 0.0)
        if one.new_reasons:
            if passed < CHANGE_SECONDS:
                yield f"flapping: {key} has new reasons {passed} s after its last notification"
            if key in self.records and any(why.signal not in record.untold for why in one.new_reasons):
                yield f"news: {key} calls reasons new that are not: {one.new_reasons}"
        elif not one.repeated:
            yield f"pair: {key} fires twice without an end"
        elif passed < self.rules.repeat_seconds:
            yield f"flapping: {key} is repeated after {passed} s"

    def _check_resolved(self, key: Key, record: Record, one: Notification) -> Iterator[str]:
        if not record.outstanding:
            yield f"pair: {key} ends without a notification that it fired"
        record.outstanding, record.said, record.untold = False, {}, {}
        self.owed.difference_update(record.episode)
        self.ends.append((key, record.episode, one.id))
        record.episode = []

    def _check_kills(self, told: Told, sent: list[Notification]) -> Iterator[str]:
        """Each kill is named, or counted, in the next notification that is due: at growing intervals in a loop."""
        passed = math.inf if self.killed_at is None else told.at - self.killed_at
        if KILLED[0] not in self.rules.events:
            return
        if told.events and not self.kills and passed >= NEW_SECONDS:
            self.kill_rounds = 0
        self.kills += [event.text for event in told.events]
        is_rested = passed >= self._kill_wait()
        for one in sent:
            if not is_rested:
                yield "flapping: kills are notified sooner than they have to be"
            yield from self._check_kill_texts(one, passed)
            yield from self._check_kill_rate(told.at)
            if not self.is_queue_small:  # a full queue drops events
                self.owed.add(one.id)
                self.owed_kills.add(one.id)
            self.killed_at, self.kill_rounds, self.kills = told.at, self.kill_rounds + 1, []
        if is_rested and self.kills:
            if not is_silenced(told.silences, *KILLED):
                yield "kills: a notification is due and not sent"
            self.kills = []

    def _kill_wait(self) -> float:
        """Return the time between two notifications of kills that keep coming: it doubles, up to 30 min."""
        again = self.rules.again_seconds
        return min(again * 2.0 ** max(0, self.kill_rounds - 1), max(again, MAX_GROUP_SECONDS))

    def _check_kill_texts(self, one: Notification, passed: float) -> Iterator[str]:
        texts = {why.text for why in one.reasons}
        left = [text for text in self.kills if text not in texts]
        if left and not any(f"{len(left)} earlier event" in text for text in texts):
            yield f"kills: {len(left)} of {len(self.kills)} are neither named nor counted"
        count = f"{len(self.kills)} more event"
        is_more = self.kill_rounds > 0 and not math.isinf(passed)
        if is_more and not any(text.startswith(count) for text in texts):
            yield f"kills: no reason says {count!r}: {texts}"

    def _check_kill_rate(self, at: float) -> Iterator[str]:
        """A loop, however it is timed, is notified four times an hour at most."""
        self.kill_times = [*(time for time in self.kill_times if at - time < 3600.0), at]
        if self.rules.again_seconds >= AlertRules().again_seconds and len(self.kill_times) > 4:
            yield f"flapping: kills are notified {len(self.kill_times)} times in an hour"


def level_of(reason: Reason) -> int:
    return int(reason.level if reason.level is not None else Level.LOW)


def is_urgent(verdict: Pressure) -> bool:
    return verdict.kind != "vram" and any(one.signal in URGENT for one in verdict.reasons)


def check_history(plan: Plan) -> None:
    """Play a history. Raise AssertionError, with a sentence, if a law does not hold."""
    for complaint in complaints_about(plan):
        raise AssertionError(complaint)


def complaints_about(plan: Plan, run: Run | None = None) -> Iterator[str]:
    """Play a history, and yield one sentence for each law that it breaks. `run`: a changed daemon."""
    run = run or Run(plan)
    laws = Laws(plan.rules, run.moment(), plan.queue_size < MAX_WAITING)
    yield from laws.on_tick(run.tick(), run)
    for step in plan.steps:
        apply(run, laws, step.act)
        for pause in step.pauses:
            pass_time(run, pause)
            yield from laws.on_tick(run.tick(), run)
    run.world.receiver, run.silences = 0, ()
    for _ in range(3):
        pass_time(run, 2.0)
        yield from laws.on_tick(run.tick(), run)
    yield from laws.at_end(run)


def pass_time(run: Run, seconds: float) -> None:
    """Let time pass. A kill loop kills once a minute: a long pause has many kills."""
    run.clock.now += seconds
    if run.world.kill_loop:
        for _ in range(min(40, max(1, int(seconds // 60)))):
            run.add_kill()


def apply(run: Run, laws: Laws, act: Act) -> None:
    """Apply one change."""
    if act.name in TARGETS:
        run.world.moods[act.name] = Mood(Level(act.number), SIGNALS[act.other])
    elif act.name == "restart":
        restart(run, laws, act.number)
    elif act.name == "reload":
        run.reload(RELOADS[act.number](run.rules))
        laws.on_reload(run.rules)
    elif act.name in CHANGES:
        CHANGES[act.name](run, act)


def restart(run: Run, laws: Laws, form: int) -> None:
    """Restart: in order, within a tick before it is written (sent or not), or with the whole machine."""
    if form in (1, 2):
        run.clock.now += 1.0
        run.tick(is_written=False, is_sent=form == 2)
    if form == 3:
        run.reboot()
    run.start()
    laws.on_restart(run.moment(), form == 3)


def _hang(run: Run, act: Act) -> None:
    run.world.hung.add(COLLECTORS[act.number])
    run.world.is_stuck = act.other >= 4


def _die(run: Run, goodbye: bool) -> None:
    if run.world.is_up:
        run.world.is_up, run.world.goodbye = False, goodbye


def _return(run: Run, _: Act) -> None:
    """Start the machine again, as another run."""
    if not run.world.is_up:
        run.world.run += 1
    run.world.is_up, run.world.goodbye, run.world.is_liar_up = True, False, True


def _claim(run: Run, act: Act) -> None:
    run.world.claim, run.world.claim_run = CLAIMS[act.other], run.world.run


def _silence(run: Run, act: Act) -> None:
    until = run.clock.boottime() + (10.0, 200.0, 5000.0, 0.0)[act.number]
    target = (None, "ram", "gpu0", "kernel", SILENT, "nvml")[act.other]
    event = "pressure.critical" if act.number == 1 else None
    run.silences = (*run.silences[-2:], Silence("sil", 0.0, 0.0, until, event, target))


def _unsilence(run: Run, act: Act) -> None:
    """End all silences, or the first one."""
    run.silences = () if act.number else run.silences[1:]


def _toggled(name: str) -> Callable[[AlertRules], AlertRules]:
    return lambda rules: replace(rules, events=rules.events ^ {name})


# Reloads of the settings: other times, and rules that receivers subscribe to.
RELOADS: tuple[Callable[[AlertRules], AlertRules], ...] = (
    lambda rules: replace(rules, pending_seconds=20.0 if rules.pending_seconds < 20 else 0.0),
    lambda rules: replace(rules, again_seconds=0.0 if rules.again_seconds else 300.0),
    lambda rules: replace(rules, repeat_seconds=0.0 if rules.repeat_seconds else 600.0),
    lambda rules: replace(rules, events=EVENTS),
    _toggled("pressure.critical"),
    _toggled("kernel.oom_kill"),
)
CLOCK_STEPS = (3600.0, -3600.0, -0.5, 86_400.0 * 400, -86_400.0 * 400, 20.0)


def _set_clock(run: Run, act: Act) -> None:
    run.clock.wall_offset += CLOCK_STEPS[act.number]


def _sleep(run: Run, act: Act) -> None:
    """Suspend the machine: the clock since boot goes on, the monotonic one does not."""
    run.clock.slept += (30.0, 400.0, 7200.0, 200_000.0)[act.number]


def _split(run: Run, _: Act) -> None:
    """Replace an instance of MIG by one with another id."""
    first, second = MIG if MIG[1] in run.world.gone else MIG[::-1]
    run.world.gone = run.world.gone - {second} | {first}
    run.world.moods[second] = run.world.moods[first]


def _receiver(run: Run, act: Act) -> None:
    run.world.receiver = act.number


def _kill_loop(run: Run, _: Act) -> None:
    run.world.kill_loop = not run.world.kill_loop


def _gone(run: Run, act: Act) -> None:
    name = CAN_BE_GONE[act.other % len(CAN_BE_GONE)]
    run.world.gone = run.world.gone | {name} if act.number else run.world.gone - {name}


def _liar_dies(run: Run, _: Act) -> None:
    run.world.is_liar_up = False


CHANGES: Mapping[str, Callable[[Run, Act], None]] = {
    "hang": _hang,
    "answer": lambda run, act: run.world.hung.discard(COLLECTORS[act.number]),
    "kill": lambda run, _: run.add_kill(),
    "kill_loop": _kill_loop,
    "receiver": _receiver,
    "silence": _silence,
    "unsilence": _unsilence,
    "clock": _set_clock,
    "sleep": _sleep,
    "split": _split,
    "die": lambda run, _: _die(run, goodbye=False),
    "return": _return,
    "goodbye": lambda run, _: _die(run, goodbye=True),
    "claim": _claim,
    "liar_dies": _liar_dies,
    "gone": _gone,
}
