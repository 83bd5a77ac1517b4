"""What is still to be told to a receiver, whatever became of the attempts."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from memwatch.notify.outbox.queue import Kind, Message, Outcome, Queue


def waiting(number: int, firing: bool, target: str = "ram") -> Message:
    return Message(number, f"msg_{number}", target, Kind.FIRING if firing else Kind.RESOLVED, b"{}")


def test_full_queue_lets_go_of_the_oldest() -> None:
    """The queue is bounded: with 1000 notices in it, one more costs the oldest."""
    queue = Queue()

    outcomes = [
        outcome for number in range(1002) for outcome in queue.add(waiting(number, True, f"target{number}"))
    ]

    oldest = queue.first_due(now=1.0)
    assert outcomes == [Outcome.GAVE_UP] * 2
    assert len(queue) == 1000
    assert oldest is not None
    assert oldest.id == "msg_2"


def test_full_queue_lets_go_of_resolves_first() -> None:
    """That something fires is worth more than that something is over."""
    queue = Queue(most=3)
    for number, firing in enumerate((True, False, True)):
        queue.add(waiting(number, firing, f"target{number}"))

    outcomes = queue.add(waiting(3, True, "target3"))

    assert outcomes == [Outcome.GAVE_UP]
    assert [message.id for message in queue.all()[0]] == ["msg_0", "msg_2", "msg_3"]


def test_what_cannot_end_is_told_each_time() -> None:
    """Two kills of the kernel are two messages, and neither is made pointless by the other."""
    queue = Queue()
    for number in (1, 2):
        queue.add(Message(number, f"msg_{number}", f"kernel.oom_kill kernel msg_{number}", Kind.FACT, b"{}"))

    first = queue.first_due(now=1.0)
    assert first is not None
    queue.delivered(first)

    assert (len(queue), queue.all()[1]) == (1, {})


def test_told_again_while_the_first_waits_is_told_once() -> None:
    """A reminder of an alert nobody could be told of yet says nothing new."""
    queue = Queue()
    queue.add(waiting(1, True))

    outcomes = queue.add(waiting(2, True))

    assert (outcomes, len(queue)) == ([Outcome.SUPERSEDED], 1)


class Listener:
    """A receiver that hears what a queue lets through; attempts start and end when they are told to."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.heard: list[tuple[str, bool]] = []
        self.firing = False
        self._number = 0
        self._under_way: Message | None = None

    def turn(self) -> None:
        """The alert begins, or ends."""
        self.firing, self._number = not self.firing, self._number + 1
        self.queue.add(waiting(self._number, self.firing))

    def start(self) -> None:
        self._under_way = self._under_way or self.queue.first_due(now=1.0)
        if self._under_way:
            self._under_way.in_flight = True

    def end(self, how: str) -> None:
        """The attempt arrives, is lost on the way, or breaks off after it was heard."""
        self.start()
        entry, self._under_way = self._under_way, None
        if entry is None:
            return
        if how != "lost" and self.heard[-1:] != [(entry.id, entry.firing)]:
            self.heard.append((entry.id, entry.firing))
        if how == "arrives":
            self.queue.delivered(entry)
        else:
            self.queue.failed(entry, may_have_heard=how == "breaks off")


@given(st.lists(st.sampled_from(["turn", "start", "arrives", "lost", "breaks off"]), min_size=4, max_size=30))
@settings(max_examples=300)
@example(["turn", "start", "turn", "lost"])
def test_whatever_happens_firing_and_resolve_take_turns(steps: list[str]) -> None:
    """However attempts end, a receiver never hears the same twice in a row, and in the end knows the truth."""
    listener = Listener()

    for step in steps:
        getattr(listener, step, lambda how=step: listener.end(how))()
    while len(listener.queue):
        listener.end("arrives")

    told_firing = [firing for _, firing in listener.heard]
    assert told_firing == [index % 2 == 0 for index in range(len(told_firing))]
    assert (told_firing or [False])[-1] == listener.firing


def test_delivered_firing_gets_its_resolve_after_an_earlier_one_was_lost() -> None:
    """What became of earlier notices does not keep back the resolve of a firing that was delivered."""
    queue = Queue()
    lost, delivered = waiting(1, False), waiting(4, True)
    for entry in (lost, waiting(2, True), waiting(3, False)):
        queue.add(entry)
    queue.give_up(lost)
    queue.add(delivered)
    queue.delivered(delivered)

    outcomes = queue.add(waiting(5, False))

    assert (outcomes, len(queue)) == ([], 1)
