"""Generated histories of alerts: readings, hung sources, kill loops, neighbours, restarts, receivers that fail,
silences that end early, settings that are reloaded, clocks that are set, machines that sleep.

A history is a plan of steps. `World` holds the facts of one moment; `Run` plays a plan through the product's rules,
state machine, neighbours, persistence and queues, on a virtual clock.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.events import Event
from memwatch.core.findings import stale_pool
from memwatch.core.model import Absent, Pool, PoolKind, Quality
from memwatch.core.silences import Silence, in_force
from memwatch.core.snapshot import CollectorStatus, Level, Pressure, Reason, Snapshot
from memwatch_monitor.alerts.notification import Key, Notification
from memwatch_monitor.alerts.persistence import decode_alert_states, encode_alert_states
from memwatch_monitor.alerts.rules import NEIGHBOUR_SILENT, AlertRules, collector_states, evaluate_rules
from memwatch_monitor.alerts.state import AlertState, step
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_monitor.neighbours.neighbour import Failure
from memwatch_monitor.neighbours.tick import SCHEMA, Tick
from memwatch_monitor.notify.manager import new_message
from memwatch_monitor.notify.queue import MAX_WAITING, DeliveredState, Message, Queue
from support.fakes import GIB, FakeClock
from support.generated.choices import Choices
from support.sample_snapshots import calm_workstation

# Targets of alerts, with their kind and the collector that reads them. MIG splits a GPU again: of two instances one
# exists at a time, and its memory is as full as that of the one before.
TARGETS = {
    "ram": ("system_ram", "meminfo"),
    "gpu0": ("vram", "nvml"),
    "gpu1": ("vram", "nvml"),
    "mig1": ("vram", "nvml"),
    "mig2": ("vram", "nvml"),
}
MIG = ("mig1", "mig2")
CAN_BE_GONE = ("gpu0", *MIG, "gpu1")
COLLECTORS = ("meminfo", "nvml")
SIGNALS = ("", "oom_kill", "floor", "psi_full", "psi", "ttf")
SIGNAL_LEVELS = {"psi": Level.MEDIUM}
SILENT, LIAR = "b", "c"
CLAIMS = ("up", "silent", "unreachable", "late", "stopped", "")
# Seconds between two ticks: mostly one, also pauses of the whole process, and more than a day.
PAUSES = (1.0, 1.0, 1.0, 2.0, 6.0, 20.0, 31.0, 61.0, 310.0, 4000.0)
LONG_PAUSE = 90_000.0
EVENTS = frozenset(
    {
        "pressure.critical",
        "pressure.high",
        "kernel.oom_kill",
        "neighbour.silent",
        "collector.failed",
        "collector.failing",
    }
)
# Attempts of a message in a history: fewer than the schedule of a receiver has.
MAX_ATTEMPTS = 25


class Act(Struct, frozen=True):
    """One change of the world. `number` chooses among the forms of it."""

    name: str = "nothing"
    number: int = 0
    other: int = 0


class Step(Struct, frozen=True):
    """A change, and the pauses before the ticks that follow it."""

    act: Act
    pauses: tuple[float, ...]


class Plan(Struct, frozen=True):
    """A whole history. `queue_size`: messages that the queue of the receiver has room for."""

    rules: AlertRules
    steps: tuple[Step, ...]
    queue_size: int = MAX_WAITING


# Names of acts, by how often they are drawn.
ACTS = (
    *["nothing"] * 2,
    *["ram"] * 6,
    *["gpu0"] * 4,
    "gpu1",
    *["mig1"] * 2,
    "split",
    *["hang"] * 4,
    *["answer"] * 3,
    *["kill"] * 2,
    "kill_loop",
    *["restart"] * 3,
    *["receiver"] * 3,
    *["silence"] * 2,
    "unsilence",
    *["reload"] * 2,
    "clock",
    "sleep",
    *["die"] * 2,
    *["return"] * 2,
    "goodbye",
    "crash",
    "wave",
    *["claim"] * 3,
    "liar_dies",
    "gone",
)
FORMS = {
    "ram": 4,
    "gpu0": 4,
    "gpu1": 4,
    "mig1": 4,
    "reload": 6,
    "clock": 6,
    "sleep": 4,
    "unsilence": 2,
    "hang": 2,
    "crash": 2,
    "answer": 2,
    "restart": 4,
    "receiver": 4,
    "silence": 4,
    "claim": 6,
    "gone": 2,
}


def draw_plan(choices: Choices) -> Plan:
    """Draw a history of up to 24 changes.

    A crash hangs a collector and restarts the daemon between two ticks. A wave is critical and calm three times.
    """
    rules = AlertRules(events=EVENTS, repeat_seconds=choices.pick((14_400.0, 0.0, 3600.0)))
    if choices.chance(25):
        rules = replace(rules, again_seconds=0.0, keep_firing_seconds=0.0, pending_seconds=0.0)
    steps = tuple(one for steps in choices.many(24, lambda _: _draw_steps(choices)) for one in steps)
    return Plan(rules, steps, choices.pick((MAX_WAITING, MAX_WAITING, MAX_WAITING, 1)))


def _draw_steps(choices: Choices) -> tuple[Step, ...]:
    name = choices.pick(ACTS)
    act = Act(name, choices.below(FORMS.get(name, 1)), choices.below(len(SIGNALS)))
    if name == "wave":
        return WAVE * 3
    pause = LONG_PAUSE if choices.chance(2) else choices.pick(PAUSES)
    pauses = (pause,) * (1 + choices.below(4))
    if name == "crash":
        return Step(Act("hang", act.number, act.other), ()), Step(Act("restart", act.number), pauses)
    return (Step(act, pauses),)


# As often as an alert that cannot wait may fire and resolve.
WAVE = (Step(Act("ram", 0, 2), (1.0,)), Step(Act("ram"), (1.0, 61.0, 61.0)))


class Mood(Struct, frozen=True):
    """Level of a target by use, and one more signal."""

    use: Level = Level.LOW
    signal: str = ""

    def reasons(self) -> tuple[Reason, ...]:
        found = [Reason("util", f"use is {self.use.word}", self.use)] if self.use else []
        if self.signal:
            level = SIGNAL_LEVELS.get(self.signal, Level.CRITICAL)
            found.append(Reason(self.signal, f"{self.signal} is {level.word}", level))
        return tuple(found)

    @property
    def level(self) -> Level:
        return max([why.level or Level.LOW for why in self.reasons()], default=Level.LOW)


@lru_cache
def verdict_of(target: str, mood: Mood) -> Pressure:
    return Pressure(target, mood.level, mood.use, 0.5, mood.reasons(), kind=TARGETS[target][0])


class World(Struct):
    """Facts that the product can see, and those of its receivers. Restarts do not change it.

    `is_stuck`: the first call of a hung collector never ends. `run`: number of the run of the silent machine;
    `claim` is about the one of number `claim_run`.
    """

    moods: dict[str, Mood] = field(default_factory=lambda: dict.fromkeys(TARGETS, Mood()))
    hung: set[str] = field(default_factory=set)
    is_stuck: bool = False
    gone: set[str] = field(default_factory=lambda: {MIG[1]})
    kill_loop: bool = False
    kills: int = 0
    is_up: bool = True
    goodbye: bool = False
    is_goodbye_sent: bool = False
    claim: str = ""
    run: int = 0
    claim_run: int = 0
    is_liar_up: bool = True
    receiver: int = 0


class Disk(Struct):
    """State that a crash leaves. `states` are encoded when they are read: most never are."""

    states: tuple[Mapping[Key, AlertState], Moment, str] | None = None
    messages: list[Message] = field(default_factory=list)
    delivered: list[tuple[str, DeliveredState]] = field(default_factory=list)


class Told(Struct, frozen=True):
    """Facts of one tick, for the laws. `firing`: alerts that fire after it."""

    at: float
    snapshot: Snapshot
    events: tuple[Event, ...]
    notifications: tuple[Notification, ...]
    silences: tuple[Silence, ...]
    firing: frozenset[Key]


class Run:
    """One daemon, with restarts, in a world."""

    def __init__(self, plan: Plan) -> None:
        self.rules, self._queue_size = plan.rules, plan.queue_size
        self.world = World()
        self.clock = FakeClock()
        self.arrived: list[str] = []
        self.silences: tuple[Silence, ...] = ()
        self._ids, self._seqs = count(1), count(1)
        self._disk, self._boot = Disk(), 1
        self._events: list[Event] = []
        self.knows_goodbye = False
        self.start()

    def start(self) -> None:
        """Start the daemon from what is on the disk."""
        self.book = NeighbourBook("a", self.clock)
        self.book.use([(SILENT, "http://b"), (LIAR, "http://c")])
        self.started_at = self.clock.now
        self.seen: set[str] = set()
        self.ticks = 0
        self.states: Mapping[Key, AlertState] = {}
        if self._disk.states is not None:
            data = encode_alert_states(*self._disk.states)
            self.states = decode_alert_states(data, self.moment(), f"boot{self._boot}")
        self.queue = Queue(self._queue_size)
        self.queue.restore([copy.copy(one) for one in self._disk.messages], self._disk.delivered)
        self.knows_goodbye = False

    def moment(self) -> Moment:
        return Moment(self.clock.monotonic(), self.clock.boottime(), self.clock.wall())

    def reboot(self) -> None:
        """Restart the machine: the clock since boot starts over."""
        self._boot += 1
        self.clock.wall_offset += self.clock.boottime() + 60.0
        self.clock.now, self.clock.slept = 20.0, 0.0
        self.silences = ()

    def reload(self, rules: AlertRules) -> None:
        """Use other settings from the next tick on. The queue keeps the alerts that its receiver still wants."""
        self.rules = rules
        self.queue.keep_only(lambda alert: alert.partition(" ")[0] in rules.events)

    def tick(self, is_written: bool = True, is_sent: bool = True) -> Told:
        """Run a tick. `is_written`: its changes reach the disk. `is_sent`: its notifications are attempted."""
        now = self.clock.monotonic()
        self._send_ticks()
        snapshot, events = self._snapshot(), tuple(self._events)
        self._events = []
        active = in_force(self.silences, self.clock.boottime())
        self.states, notifications = step(
            self.states,
            evaluate_rules(snapshot, events, self.rules),
            now,
            self.clock.wall(),
            self.rules,
            lambda: f"msg_{next(self._ids)}",
            active,
            collector_states(snapshot),
        )
        self._queue(notifications, now)
        if is_written:
            self._write()
        if is_sent:
            self.deliver()
        self.ticks += 1
        firing = frozenset(key for key, state in self.states.items() if state.firing)
        return Told(now, snapshot, events, notifications, active, firing)

    def add_kill(self) -> None:
        self.world.kills += 1
        text = f"kill {self.world.kills}"
        self._events.append(Event(self.world.kills, self.clock.wall(), "oom_kill", text))

    def deliver(self) -> None:
        """Attempt all messages that are due, as the receiver is now."""
        now, mode = self.clock.monotonic(), self.world.receiver
        while (entry := self.queue.first_due(now)) is not None:
            entry.in_flight, entry.due = True, now + 1.0
            if mode and entry.attempts >= MAX_ATTEMPTS:
                entry.in_flight = False
                continue
            if mode in (0, 2):
                self.arrived.append(entry.id)
            # 1: refused. 2: it arrives, and the answer is lost. 3: the connection breaks before it arrives.
            if mode == 0:
                self.queue.mark_delivered(entry)
            else:
                self.queue.mark_failed(entry, may_have_arrived=mode in (2, 3))

    def _queue(self, notifications: Sequence[Notification], now: float) -> None:
        for one in notifications:
            self.queue.add(to_message(one, next(self._seqs), now))

    def _write(self) -> None:
        self._disk.states = self.states, self.moment(), f"boot{self._boot}"
        messages, delivered = self.queue.all()
        self._disk.messages = [replace_flight(one) for one in messages]
        self._disk.delivered = list(delivered.items())

    def _send_ticks(self) -> None:
        world = self.world
        self.book.on_read()
        if world.is_up:
            self.book.take_tick(SILENT, encoded_tick(SILENT, world.run, "", 0))
            self.knows_goodbye = world.is_goodbye_sent = False
        elif world.goodbye and not world.is_goodbye_sent:
            self.book.on_failure(SILENT, Failure("ended", "its stream ended"))
            self.knows_goodbye = world.is_goodbye_sent = True
        else:
            self.book.on_failure(SILENT, Failure("down", "connection refused"))
        if world.is_liar_up:
            self.book.take_tick(LIAR, encoded_tick(LIAR, 0, world.claim, world.claim_run))

    def _snapshot(self) -> Snapshot:
        world = self.world
        for collector in COLLECTORS:
            if collector not in world.hung:
                self.seen.add(collector)
        base = base_snapshot(frozenset(world.hung), frozenset(self.seen), frozenset(world.gone))
        present = {pool.id for pool in base.pools if not isinstance(pool.available_bytes, Absent)}
        firing = [target for (rule, target), one in self.states.items() if rule == NEIGHBOUR_SILENT and one.firing]
        return replace(
            base,
            unix=self.clock.wall(),
            monotonic=self.clock.monotonic(),
            pressure=tuple(verdict_of(target, mood) for target, mood in world.moods.items() if target in present),
            collectors=tuple(self._status(one) for one in COLLECTORS),
            neighbours=self.book.statuses(firing),
        )

    def _status(self, collector: str) -> CollectorStatus:
        if collector not in self.world.hung:
            return CollectorStatus(collector, "ok")
        if collector in self.seen:
            return CollectorStatus(collector, "stalled", error=f"no response for {self.clock.now:.0f} s")
        if self.ticks == 0 or self.world.is_stuck:
            return CollectorStatus(collector, "starting")
        return CollectorStatus(collector, "failing", error="no answer from its helper process")


def to_message(notification: Notification, seq: int, now: float) -> Message:
    new = new_message(notification, b"")
    return Message(seq, new.id, new.alert, new.kind, new.body, queued_at=now, changed=new.changed)


def replace_flight(message: Message) -> Message:
    """Return a message as the disk has it: no attempt of it is under way."""
    kept = copy.copy(message)
    kept.in_flight, kept.due = False, 0.0
    return kept


@lru_cache
def encoded_tick(host: str, run: int, claim: str, claim_run: int) -> bytes:
    sees = {f"run-{SILENT}-{claim_run}": claim} if claim else {}
    fields = {"schema": SCHEMA, "run": f"run-{host}-{run}", "host": host, "unix": 1000.0, "interval": 1.0}
    words = {"level": "low", "sentence": "System RAM is OK"}
    return msgspec.json.encode(msgspec.convert({**fields, **words, "sees": sees}, Tick))


@lru_cache
def base_snapshot(hung: frozenset[str], seen: frozenset[str], gone: frozenset[str]) -> Snapshot:
    """Return the machine's pools: stale ones of a hung collector, none of one that never answered."""
    calm = calm_workstation()
    ram = replace(calm.pools[0], source="meminfo:MemAvailable")
    gpu = Pool("gpu0", PoolKind.VRAM, "VRAM", 80 * GIB, 40 * GIB, 40 * GIB, "nvml:memory_info_v2", Quality.MEASURED)
    pools = []
    for name, (_, collector) in TARGETS.items():
        pool = ram if name == "ram" else replace(gpu, id=name)
        if name in gone:
            continue
        if collector in seen:
            pools.append(stale_pool(pool) if collector in hung else pool)
    return replace(calm, pools=tuple(pools), pressure=(), processes=(), owners=(), nodes=())
