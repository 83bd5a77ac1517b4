"""Test the queue of one receiver: pending messages after any sequence of attempts."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwatch_monitor.notify.queue import DeliveredState, Kind, Message, Outcome, Queue


def queued(number: int, firing: bool, target: str = "ram") -> Message:
    return Message(number, f"msg_{number}", target, Kind.FIRING if firing else Kind.RESOLVED, b"%d" % number)


def message(number: int, kind: Kind, alert: str = "") -> Message:
    return Message(number, f"msg_{number}", alert or f"{kind.value} {number}", kind, b"%d" % number)


def waiting_ids(queue: Queue) -> list[str]:
    return [entry.id for entry in queue.all()[0]]


def test_full_queue_drops_the_oldest_events() -> None:
    """The queue is bounded: with 1000 one-off events queued, one more drops the oldest."""
    queue = Queue()

    outcomes = [outcome for number in range(1002) for outcome in queue.add(message(number, Kind.FACT))]

    oldest = queue.first_due(now=1.0)
    assert outcomes == [Outcome.GAVE_UP] * 2
    assert len(queue) == 1000
    assert oldest is not None
    assert oldest.id == "msg_2"


def test_full_queue_drops_tests_then_events_then_outdated_messages() -> None:
    """The newest message about each alert stays, even if the queue exceeds its limit."""
    queue = Queue(max_messages=5)
    restored = [
        message(0, Kind.FIRING, "outdated"),
        message(1, Kind.RESOLVED, "outdated"),
        message(2, Kind.FACT),
        message(3, Kind.FIRING, "last word"),
        message(4, Kind.TEST),
    ]
    queue.restore(restored, ())
    dropped = []

    for number in range(5, 9):
        before = set(waiting_ids(queue))
        assert queue.add(message(number, Kind.FIRING)).count(Outcome.GAVE_UP) <= 1
        dropped.append(before.difference(waiting_ids(queue)))

    assert dropped == [{"msg_4"}, {"msg_2"}, {"msg_0"}, set()]
    assert waiting_ids(queue) == ["msg_1", "msg_3", "msg_5", "msg_6", "msg_7", "msg_8"]


def test_full_queue_of_alerts_keeps_the_newest_event_only() -> None:
    """Alerts that fill the queue leave room for one one-off event."""
    queue = Queue(max_messages=2)
    for number in range(3):
        queue.add(message(number, Kind.FIRING))

    outcomes = [queue.add(message(number, Kind.FACT)) for number in (3, 4)]

    assert outcomes == [[], [Outcome.GAVE_UP]]
    assert waiting_ids(queue) == ["msg_0", "msg_1", "msg_2", "msg_4"]


def test_second_test_is_superseded_and_makes_the_first_due() -> None:
    """A test that waits for its next attempt is sent at once when an operator tests again."""
    queue = Queue()
    first, second = message(1, Kind.TEST), message(2, Kind.TEST)
    queue.add(first)
    first.due, second.due = 3600.0, 20.0

    outcomes = queue.add(second)

    assert (outcomes, waiting_ids(queue), first.due) == ([Outcome.SUPERSEDED], ["msg_1"], 20.0)


def test_events_are_sent_each_time() -> None:
    """Two OOM kills are two messages, and neither supersedes the other."""
    queue = Queue()
    for number in (1, 2):
        queue.add(Message(number, f"msg_{number}", f"kernel.oom_kill kernel msg_{number}", Kind.FACT, b"{}"))

    first = queue.first_due(now=1.0)
    assert first is not None
    queue.mark_delivered(first)

    assert (len(queue), queue.all()[1]) == (1, {})


def test_repeated_notice_supersedes_an_undelivered_one() -> None:
    """A reminder of an undelivered alert adds nothing."""
    queue = Queue()
    queue.add(queued(1, True))

    outcomes = queue.add(queued(2, True))

    assert (outcomes, len(queue)) == ([Outcome.SUPERSEDED], 1)


def test_new_reasons_of_an_undelivered_alert_are_sent_after_it() -> None:
    """A receiver that fails for a while gets both: the second says what the first does not."""
    queue, received = Queue(), []
    queue.add(queued(1, True))

    outcomes = queue.add(Message(2, "msg_2", "ram", Kind.FIRING, b"{}", changed=True))
    while (entry := queue.first_due(now=1.0)) is not None:
        received.append(entry.id)
        queue.mark_delivered(entry)

    assert (outcomes, received) == ([], ["msg_1", "msg_2"])


def test_new_reasons_are_dropped_with_an_undelivered_alert_that_resolved() -> None:
    queue = Queue()
    queue.add(queued(1, True))
    queue.add(Message(2, "msg_2", "ram", Kind.FIRING, b"{}", changed=True))

    assert queue.add(queued(3, False)) == [Outcome.SUPERSEDED] * 3
    assert len(queue) == 0


class Listener:
    """Receiver of a queue; steps start and end its attempts."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.received: list[tuple[str, bool]] = []
        self.firing = False
        self._number = 0
        self._under_way: Message | None = None

    def turn(self) -> None:
        """Begin or end the alert."""
        self.firing, self._number = not self.firing, self._number + 1
        self.queue.add(queued(self._number, self.firing))

    def start(self) -> None:
        self._under_way = self._under_way or self.queue.first_due(now=1.0)
        if self._under_way:
            self._under_way.in_flight = True

    def end(self, how: str) -> None:
        """End the attempt: it arrives, is lost, or breaks off after its delivery."""
        self.start()
        entry, self._under_way = self._under_way, None
        if entry is None:
            return
        if how != "lost" and self.received[-1:] != [(entry.id, entry.firing)]:
            self.received.append((entry.id, entry.firing))
        if how == "arrives":
            self.queue.mark_delivered(entry)
        else:
            self.queue.mark_failed(entry, may_have_arrived=how == "breaks off")


@given(st.lists(st.sampled_from(["turn", "start", "arrives", "lost", "breaks off"]), min_size=4, max_size=30))
@settings(max_examples=300)
@example(["turn", "start", "turn", "lost"])
def test_firing_and_resolve_alternate_in_any_sequence(steps: list[str]) -> None:
    """After any attempts a receiver never got the same state twice in a row, and ends with the true one."""
    listener = Listener(Queue())

    for step in steps:
        getattr(listener, step, lambda how=step: listener.end(how))()
    while len(listener.queue):
        listener.end("arrives")

    firings = [firing for _, firing in listener.received]
    assert firings == [index % 2 == 0 for index in range(len(firings))]
    assert (firings or [False])[-1] == listener.firing


class Site:
    """Receiver of many alerts, one-off events and tests; it knows the last state it got of each alert.

    The disk has each new message at once, and the results of attempts when they are written.
    """

    def __init__(self, max_messages: int) -> None:
        self.queue = Queue(max_messages)
        self.attempted: Message | None = None
        self._max_messages = max_messages
        self._disk: tuple[list[Message], dict[str, DeliveredState]] = [], {}
        self.true_states: dict[str, bool] = {}
        self.known_states: dict[str, bool] = {}
        self.in_flight: Message | None = None
        self._number = 0

    def put(self, kind: Kind, alert: str = "") -> None:
        self._number += 1
        self.attempted = self.in_flight  # that of an attempt which ended makes room
        self.queue.add(message(self._number, kind, alert))
        self.write()

    def write(self) -> None:
        messages, delivered = self.queue.all()
        self._disk = [copy(entry) for entry in messages], delivered

    def crash(self) -> None:
        """Restart from the disk. An attempt under way may have arrived."""
        messages, delivered = self._disk
        for entry in messages:
            entry.in_flight = False
        self.queue, self.in_flight = Queue(self._max_messages), None
        self.queue.restore(messages, delivered.items())
        self.write()

    def turn(self, alert: str) -> None:
        """Begin or end an alert."""
        firing = self.true_states[alert] = not self.true_states.get(alert, False)
        self.put(Kind.FIRING if firing else Kind.RESOLVED, alert)

    def start(self) -> None:
        self.in_flight = self.in_flight or self.queue.first_due(now=1.0)
        self.attempted = self.attempted or self.in_flight
        if self.in_flight:
            self.in_flight.in_flight = True

    def end(self, how: str) -> None:
        """End the attempt: it arrives, is lost, or breaks off after its delivery, also for a reload or an error."""
        self.start()
        entry, self.in_flight = self.in_flight, None
        if entry is None:
            return
        if how != "lost" and entry.alert in self.true_states:
            self.known_states[entry.alert] = entry.firing
        if how == "arrives":
            self.queue.mark_delivered(entry)
        elif how == "reload":
            self.queue.mark_interrupted(entry)
        elif how == "error":
            self.queue.recover()
        else:
            self.queue.mark_failed(entry, may_have_arrived=how == "breaks off")

    def step(self, step: str) -> None:
        name, _, alert = step.partition(" ")
        if name == "turn":
            self.turn(alert)
        elif name in ("fact", "test"):
            self.put(Kind(name))
        elif name in ("start", "write", "crash"):
            getattr(self, name)()
        else:
            self.end(step)


ALERTS = ("a", "b", "c")
STEPS = (*(f"turn {alert}" for alert in ALERTS), "fact", "test", "start", "write", "crash")
STEPS += ("arrives", "lost", "breaks off", "reload", "error")


@pytest.mark.process
@given(st.integers(1, 4), st.lists(st.sampled_from(STEPS), min_size=4, max_size=40))
@settings(max_examples=500)
@example(1, ["turn a", "lost", "fact", "fact", "turn a", "turn a"])
@example(1, ["turn a", "arrives", "turn a", "turn b", "turn a", "test", "fact"])
@example(1, ["fact", "start", "turn a", "turn b", "turn c", "fact", "lost"])
@example(4, ["turn a", "arrives", "crash", "turn a"])
@example(4, ["turn a", "reload", "turn a"])
@example(4, ["turn a", "error", "turn a"])
def test_full_queue_never_loses_the_last_state_of_an_alert(max_messages: int, steps: list[str]) -> None:
    """Whatever is dropped, and wherever the daemon crashes, a receiver ends with the true state of every alert."""
    site = Site(max_messages)

    for step in steps:
        site.step(step)
        bound = max(max_messages, len(ALERTS) + 1) + (site.attempted is not None)
        assert len(site.queue) <= bound
        assert sum(entry.kind is Kind.TEST for entry in site.queue.all()[0]) <= 1
    while len(site.queue):
        site.end("arrives")

    firing = {alert for alert, state in site.true_states.items() if state}
    assert {alert for alert, state in site.known_states.items() if state} == firing


def test_resolve_of_a_delivered_firing_is_sent_after_an_earlier_loss() -> None:
    """A lost earlier notice does not hold back the resolve of a delivered firing."""
    queue = Queue()
    lost, delivered = queued(1, False), queued(4, True)
    for entry in (lost, queued(2, True), queued(3, False)):
        queue.add(entry)
    queue.give_up(lost)
    queue.add(delivered)
    queue.mark_delivered(delivered)

    outcomes = queue.add(queued(5, False))

    assert (outcomes, len(queue)) == ([], 1)


def test_end_of_a_notification_that_perhaps_arrived_is_sent_beside_the_end_before() -> None:
    """After a crash, all four arrived, and nothing of it was saved. The receiver drops the end that it has got."""
    queue = Queue()
    first = Message(1, "msg_1", "ram", Kind.RESOLVED, b"1")
    second = Message(2, "msg_2", "ram", Kind.FIRING, b"2")
    queue.restore([first, second], [("ram", DeliveredState(True, b"0"))])

    queue.add(Message(3, "msg_3", "ram", Kind.RESOLVED, b"3"))

    assert waiting_ids(queue) == ["msg_1", "msg_3"]


def test_end_of_a_notification_that_was_not_sent_is_left_out() -> None:
    queue = Queue()
    queue.restore([Message(1, "msg_1", "ram", Kind.RESOLVED, b"1")], [("ram", DeliveredState(True, b"0"))])
    queue.add(Message(2, "msg_2", "ram", Kind.FIRING, b"2"))

    queue.add(Message(3, "msg_3", "ram", Kind.RESOLVED, b"3"))

    assert waiting_ids(queue) == ["msg_1"]
