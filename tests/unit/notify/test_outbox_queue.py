"""Test the queue of one receiver: pending messages after any sequence of attempts."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwatch.notify.outbox.queue import Kind, Message, Outcome, Queue


def queued(number: int, firing: bool, target: str = "ram") -> Message:
    return Message(number, f"msg_{number}", target, Kind.FIRING if firing else Kind.RESOLVED, b"{}")


def test_full_queue_drops_the_oldest() -> None:
    """The queue is bounded: with 1000 notices queued, one more drops the oldest."""
    queue = Queue()

    outcomes = [outcome for number in range(1002) for outcome in queue.add(queued(number, True, f"target{number}"))]

    oldest = queue.first_due(now=1.0)
    assert outcomes == [Outcome.GAVE_UP] * 2
    assert len(queue) == 1000
    assert oldest is not None
    assert oldest.id == "msg_2"


def test_full_queue_drops_resolves_first() -> None:
    """A firing alert is more important than the end of one."""
    queue = Queue(max_messages=3)
    for number, firing in enumerate((True, False, True)):
        queue.add(queued(number, firing, f"target{number}"))

    outcomes = queue.add(queued(3, True, "target3"))

    assert outcomes == [Outcome.GAVE_UP]
    assert [message.id for message in queue.all()[0]] == ["msg_0", "msg_2", "msg_3"]


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


class Listener:
    """Receiver of a queue; steps start and end its attempts."""

    def __init__(self) -> None:
        self.queue = Queue()
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
    listener = Listener()

    for step in steps:
        getattr(listener, step, lambda how=step: listener.end(how))()
    while len(listener.queue):
        listener.end("arrives")

    firings = [firing for _, firing in listener.received]
    assert firings == [index % 2 == 0 for index in range(len(firings))]
    assert (firings or [False])[-1] == listener.firing


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
