"""An answer that is kept for who asks the same again hangs on everything that it was made of."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

from memwatch.clock import SystemClock
from memwatch.monitor.loop import Identity, Monitor, Rules
from memwatch.monitor.sampler import Sampler
from memwatch_web.asgi.access import Gate
from memwatch_web.asgi.auth import Login, Token
from memwatch_web.asgi.options import FaceOptions
from memwatch_web.asgi.problems import problem_response
from memwatch_web.metrics.endpoint import Scrapes
from memwatch_web.metrics.families import Exporter
from memwatch_web.metrics.fast_path import Shortcut

FIELDS = ((b"host", b"localhost"), (b"accept", b"*/*"))
LOGIN = FaceOptions(login=Login(Token(b"digest")))
PEER = object()


class Door:
    """A shortcut with all that stands behind it; `options` may be exchanged, as a reload does."""

    def __init__(self, options: FaceOptions | None = None, own_name: Callable[[], str] = lambda: "host") -> None:
        self.options = options or FaceOptions()
        self.monitor = Monitor(Sampler([], SystemClock()), SystemClock(), Rules(), Identity("host", "boot"))
        self.monitor.tick()
        dates: list[tuple[bytes, bytes]] = [(b"date", b"")]
        gate = Gate(problem_response(404, "nothing."), lambda: self.options, dates, own_name=own_name)
        self.ask = Shortcut(gate, Scrapes(self.monitor, Exporter("1", dict, tuple, lambda: 0)), dates)


def early_in_a_second() -> None:
    """So that what follows at once is in the same one."""
    while time.time() % 1 > 0.5:
        time.sleep(0.01)


def test_the_same_fields_have_the_same_answer() -> None:
    """Also where they are no longer the same objects."""
    door = Door()
    early_in_a_second()

    first, second = door.ask(FIELDS, None), door.ask(tuple(map(tuple, map(list, FIELDS))), None)  # type: ignore[arg-type]

    assert first is not None
    assert first.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert first is second


def test_a_tick_ends_it_within_the_second() -> None:
    """What was true before the last tick is told to nobody."""
    door = Door()
    early_in_a_second()

    before = door.ask(FIELDS, None)
    door.monitor.tick()

    assert before != door.ask(FIELDS, None)


def test_a_second_ends_it_without_a_tick() -> None:
    """The date is that of the answer."""
    door = Door()
    early_in_a_second()

    before = door.ask(FIELDS, None)
    time.sleep(1)
    after = door.ask(FIELDS, None)

    assert before is not None
    assert after is not None
    assert before[:100] != after[:100]
    assert before.partition(b"\r\n\r\n")[2] == after.partition(b"\r\n\r\n")[2]


def test_a_reload_ends_it_at_once() -> None:
    """A login that is asked for from now on is asked of those who were let in before, too, and a name that is not
    this machine's any more has no answer."""
    door = Door(FaceOptions(hosts=("board",)))
    named = ((b"host", b"board"),)
    early_in_a_second()

    before = door.ask(FIELDS, None), door.ask(named, None)
    door.options = FaceOptions()
    without_name = door.ask(FIELDS, None), door.ask(named, None)
    door.options = LOGIN
    with_login = door.ask(FIELDS, None), door.ask(named, None)

    assert None not in before
    assert (without_name[0] is None, without_name[1]) == (False, None)
    assert with_login == (None, None)


def test_what_a_peer_is_told_is_told_to_nobody_else() -> None:
    """The kernel vouches for one who asks over the socket file, not for the next one with the same fields."""
    door = Door(LOGIN)
    early_in_a_second()

    answers = [door.ask(FIELDS, peer) for peer in (PEER, None, PEER)]

    assert [answer is None for answer in answers] == [False, True, False]


def test_who_invents_fields_takes_no_memory() -> None:
    """10,000 askers, each with a field of its own of 1 kB, in one tick."""
    door = Door()
    door.ask(FIELDS, None)
    tracemalloc.start()

    answers = [door.ask((*FIELDS, (b"x-number", b"%01000d" % number)), None) for number in range(10_000)]
    answered = len(answers) - answers.count(None)
    del answers
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert answered == 10_000
    assert kept < 500_000


def test_a_new_name_of_the_machine_is_known_within_a_second() -> None:
    """An administrator renames it: who asks by the new name is answered, who asks by the old one no longer is."""
    called = ["spark-1"]
    door = Door(own_name=lambda: called[-1])
    names = {name: ((b"host", name.encode()),) for name in ("spark-1", "spark-2")}

    def answered() -> dict[str, bool]:
        return {name: door.ask(fields, None) is not None for name, fields in names.items()}

    before = answered()
    called.append("Spark-2")
    time.sleep(1.0)

    assert before == {"spark-1": True, "spark-2": False}
    assert answered() == {"spark-1": False, "spark-2": True}
