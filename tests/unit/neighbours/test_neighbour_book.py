"""States of neighbours, who notifies about a silent one, and the sentence of its last ticks."""

from __future__ import annotations

import random

import msgspec
import pytest

from memwatch.core.model import Absent
from memwatch.core.snapshot import NeighbourStatus
from memwatch_monitor.neighbours.book import HOLD_SECONDS, NeighbourBook
from memwatch_monitor.neighbours.machines import list_machines
from memwatch_monitor.neighbours.neighbour import HOUR_BYTES, RECENT_BYTES, Failure, Neighbour, TickRing
from memwatch_monitor.neighbours.tick import HolderTick, PoolTick, Tick, tell_last_words
from support.fakes import FakeClock

UNKNOWN = Absent.NOT_AVAILABLE
GIB = 1 << 30


def tick(
    unix: float = 1000.0,
    host: str = "b",
    run: str = "run-b",
    available: int = 100 * GIB,
    level: str = "low",
    sees: dict[str, str] | None = None,
    interval: float = 1.0,
) -> Tick:
    pool = PoolTick("ram", "System RAM", 128 * GIB, 128 * GIB - available, available)
    return msgspec.convert(
        {
            "schema": 1,
            "run": run,
            "host": host,
            "unix": unix,
            "interval": interval,
            "level": level,
            "sentence": f"System RAM is {level}",
            "pools": [msgspec.to_builtins(pool)],
            "holders": [msgspec.to_builtins(HolderTick("vllm", 96 * GIB))],
            "sees": sees or {},
        },
        Tick,
    )


class Watch:
    """A book with a clock, and ticks sent to it."""

    def __init__(self, *names: str, host: str = "a") -> None:
        self.clock = FakeClock()
        self.book = NeighbourBook(host, self.clock)
        self.book.use([(name, f"http://{name}") for name in names])
        self.book.on_read()

    def send(self, name: str, one: Tick) -> None:
        self.book.take_tick(name, msgspec.json.encode(one))

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.book.on_read()

    def status(self, name: str = "b", notified: tuple[str, ...] = ()) -> NeighbourStatus:
        return next(one for one in self.book.statuses(notified) if one.name == name)


def test_neighbour_is_up_while_ticks_arrive_and_silent_after_ten_seconds() -> None:
    watch = Watch("b")
    assert watch.status().state == "starting"
    watch.send("b", tick())
    watch.wait(9.5)
    assert (watch.status().state, watch.status().late) == ("up", True)
    watch.wait(1.0)

    found = watch.status()
    assert (found.state, found.notifies, found.last_tick_unix) == ("silent", True, 1000.0)
    watch.send("b", tick(1011.0))
    assert watch.status().state == "up"


def test_slow_interval_of_a_neighbour_extends_the_time() -> None:
    watch = Watch("b")
    watch.send("b", tick(interval=20.0))
    watch.wait(99.0)

    assert (watch.status().state, watch.status().late) == ("up", True)


def test_machine_that_never_answered_is_silent() -> None:
    watch = Watch("b")
    watch.book.on_failure("b", Failure("down", "no connection within 5 s"))
    watch.wait(299.0)
    found = watch.status()
    assert (found.state, found.text) == ("starting", "no answer yet (no connection within 5 s)")
    watch.wait(2.0)

    found = watch.status()
    assert (found.state, found.text) == ("silent", "no answer for 5 min 1 s (no connection within 5 s)")
    assert found.last_tick_unix is Absent.NOT_AVAILABLE


def test_stream_that_ended_in_order_is_no_silence() -> None:
    watch = Watch("b")
    watch.send("b", tick())
    watch.book.on_failure("b", Failure("ended", "its stream ended"))
    assert watch.status().state == "up"
    watch.wait(3.0)
    watch.book.on_failure("b", Failure("down", "connection refused"))
    watch.wait(60.0)

    assert (watch.status().state, watch.status().notifies) == ("stopped", False)


def test_goodbye_of_a_machine_mutes_its_silence_for_a_day() -> None:
    watch = Watch("b")
    watch.send("b", tick(1_700_000_000.0))
    watch.book.on_failure("b", Failure("ended", "its stream ended"))
    watch.wait(86_400.0)
    assert (watch.status().state, watch.status().notifies) == ("stopped", False)
    watch.wait(1.0)

    found = watch.status()
    assert (found.state, found.notifies) == ("silent", True)
    assert found.text.startswith("memwatchd was stopped at 22:13:20 UTC, and has not come back for 1 d")


def test_machine_that_is_silent_after_its_return_is_not_muted_by_its_old_goodbye() -> None:
    watch = Watch("b")
    watch.send("b", tick())
    watch.book.on_failure("b", Failure("ended", "its stream ended"))
    watch.wait(60.0)
    watch.send("b", tick())
    watch.book.on_failure("b", Failure("down", "connection refused"))
    watch.wait(11.0)

    assert (watch.status().state, watch.status().notifies) == ("silent", True)


def test_refused_stream_is_no_silence() -> None:
    watch = Watch("b")
    watch.book.on_failure("b", Failure("refused", "it answers 401: check the token or the certificate"))
    watch.wait(60.0)

    assert (watch.status().state, watch.status().notifies) == ("refused", False)


def test_silence_that_this_process_slept_through_is_none() -> None:
    watch = Watch("b")
    watch.send("b", tick())
    watch.clock.now += 300.0

    assert watch.status().state == "up"
    watch.book.on_read()
    assert watch.status().state == "silent"


def test_third_machine_that_receives_it_points_to_the_network() -> None:
    watch = Watch("b", "c")
    watch.send("b", tick())
    watch.wait(11.0)
    watch.send("c", tick(1011.0, "c", "run-c", sees={"run-b": "up"}))

    found = watch.status()
    assert (found.state, found.notifies) == ("unreachable", False)
    assert found.text.startswith(
        "c reports that it still receives it: check the network between this machine and b"
    )


@pytest.mark.parametrize("word", ["up", "silent", "late", "unreachable", "stopped", "refused"])
@pytest.mark.parametrize("liar", ["", "c", "z"])
def test_word_of_another_machine_delays_the_notification_by_thirty_seconds_at_most(word: str, liar: str) -> None:
    """A liar mutes no silence, whatever it reports and however it is named."""
    watch = Watch("b", "c")
    watch.send("b", tick())
    watch.wait(10.0)
    for _ in range(int(HOLD_SECONDS)):
        watch.wait(1.0)
        watch.send("c", tick(1011.0, liar, "run-c", sees={"run-b": word}))
    watch.wait(0.5)

    assert watch.status().notifies


def test_word_about_a_machine_that_sends_is_no_silence() -> None:
    watch = Watch("b", "c")
    for _ in range(100):
        watch.send("b", tick())
        watch.send("c", tick(1011.0, "c", "run-c", sees={"run-b": "silent"}))
        assert (watch.status().state, watch.status().notifies) == ("up", False)
        watch.wait(1.0)


@pytest.mark.parametrize("seen", ["late", "silent"])
def test_third_machine_that_misses_ticks_is_no_evidence(seen: str) -> None:
    watch = Watch("b", "c")
    watch.send("b", tick())
    watch.wait(11.0)
    watch.send("c", tick(1011.0, "c", "run-c", sees={"run-b": seen}))

    assert (watch.status().state, watch.status().notifies) == ("silent", True)


def test_first_machine_by_name_notifies_and_the_others_wait() -> None:
    watch = Watch("b", "c", host="d")
    watch.send("b", tick())
    watch.wait(11.0)
    for passed in (0.0, HOLD_SECONDS - 2.0):
        watch.wait(passed)
        watch.send("c", tick(1011.0, "c", "run-c", sees={"run-b": "silent"}))
        assert not watch.status().notifies
    watch.wait(3.0)
    watch.send("c", tick(1011.0, "c", "run-c", sees={"run-b": "silent"}))

    assert watch.status().notifies


def test_own_notification_lasts_until_the_machine_is_back() -> None:
    """The word of a machine that comes later does not resolve the alert."""
    watch = Watch("b", "c")
    watch.send("b", tick())
    watch.wait(11.0)
    watch.send("c", tick(1011.0, "", "run-c", sees={"run-b": "up"}))

    assert watch.status(notified=("b",)).notifies
    assert not watch.status().notifies


def test_last_words_name_time_memory_holder_and_fall() -> None:
    watch = Watch("b")
    for second in range(12):
        watch.send("b", tick(1_700_000_000.0 + second, available=40 * GIB - second * 3 * GIB))
        watch.wait(1.0)
    watch.wait(11.0)

    text = "heartbeat stopped at 22:13:31 UTC, 7.0 GiB left in System RAM, vllm 96.0 GiB, falling 3.0 GiB/s"
    assert watch.status().text == text


def test_steady_machine_is_not_said_to_fall() -> None:
    watch = Watch("b")
    for second in range(5):
        watch.send("b", tick(1000.0 + second))
    watch.wait(11.0)

    assert "falling" not in watch.status().text


def test_clock_that_differs_is_shown_and_changes_no_state() -> None:
    watch = Watch("b")
    ahead = watch.clock.wall() + 300.0
    watch.send("b", tick(ahead))
    (view,) = watch.book.views(watch.book.statuses())

    assert view.status.state == "up"
    assert view.clock_offset_seconds == pytest.approx(300.0)
    watch.wait(11.0)
    assert watch.status().last_tick_unix == pytest.approx(ahead, abs=0.001)


def test_machines_that_need_an_operator_come_first() -> None:
    """A silent machine may be dead, a critical one is not yet. One that was never heard is not urgent."""
    watch = Watch("low", "high", "full", "dead", "refused", "new")
    watch.send("dead", tick(host="dead"))
    watch.wait(11.0)
    watch.send("full", tick(host="full", level="critical"))
    watch.send("low", tick(host="low"))
    watch.send("high", tick(host="high", level="high"))
    watch.book.on_failure("refused", Failure("refused", "it answers 401"))
    own = tick(host="self", level="medium")

    found = list_machines(own, watch.book.views(watch.book.statuses()))

    assert [one.name for one in found] == ["dead", "full", "high", "refused", "self", "new", "low"]


def test_reload_keeps_the_past_of_an_unchanged_neighbour() -> None:
    watch = Watch("b", "c")
    watch.send("b", tick())
    watch.book.use([("b", "http://b"), ("d", "http://d")])

    past = watch.book.past("b")
    assert past is not None
    assert len(past.recent) == 1
    assert watch.book.past("c") is None


def test_past_has_every_tick_of_two_minutes_and_an_hour_at_ten_seconds() -> None:
    watch = Watch("b")
    for second in range(4000):
        watch.send("b", tick(1000.0 + second))
        watch.clock.now += 1.0
    past = watch.book.past("b")

    assert past is not None
    assert [one.unix for one in past.recent] == [4879.0 + second for second in range(121)]
    steps = [later.unix - earlier.unix for earlier, later in zip(past.hour, past.hour[1:], strict=False)]
    assert set(steps) == {10.0}
    assert past.hour[-1].unix - past.hour[0].unix >= 3590.0


def test_ticks_that_do_not_compress_stay_within_the_limit() -> None:
    """A neighbour that sends as much as it may, with a clock that goes back."""
    one, noise = Neighbour("b", "http://b", 0.0), random.Random(7)
    printable = bytes(ord("#") + code % (ord("[") - ord("#")) for code in range(256))
    for number in range(3000):
        text = noise.randbytes(3000).translate(printable).decode()
        data = msgspec.json.encode({**msgspec.to_builtins(tick(1e6 - number)), "more": text})
        one.on_tick(data, float(number), 0.0)

    assert one.size_bytes <= RECENT_BYTES + HOUR_BYTES


def test_ring_returns_what_was_added() -> None:
    ring = TickRing(1e9, 1 << 20)
    added = [b"%d" % number for number in range(100)]
    for number, data in enumerate(added):
        ring.add(float(number), data)

    assert ring.ticks() == added


def test_fall_is_that_of_the_last_ten_seconds() -> None:
    """Two minutes of rest before a fall of 4 GiB/s for ten seconds do not make it look slow."""
    ticks = [tick(1000.0 + second, available=60 * GIB) for second in range(120)]
    ticks += [tick(1120.0 + second, available=60 * GIB - second * 4 * GIB) for second in range(11)]

    found = tell_last_words(ticks)

    assert found is not None
    assert found.falling_bytes_per_second == 4 * GIB


@pytest.mark.parametrize(("age", "pace"), [(10.0, GIB), (11.0, None)])
def test_tick_of_more_than_ten_seconds_ago_is_not_compared(age: float, pace: int | None) -> None:
    """Two ticks: the older one counts up to the limit."""
    ticks = [tick(1000.0, available=40 * GIB), tick(1000.0 + age, available=40 * GIB - int(age) * GIB)]

    found = tell_last_words(ticks)

    assert found is not None
    assert found.falling_bytes_per_second == pace


@pytest.mark.parametrize(("lost", "is_told"), [(128, False), (132, True)])
def test_fall_of_less_than_a_thousandth_a_second_is_rest(lost: int, is_told: bool) -> None:
    """128 GiB: 131 MiB a second are a thousandth."""
    ticks = [tick(1000.0, available=40 * GIB), tick(1001.0, available=40 * GIB - (lost << 20))]

    found = tell_last_words(ticks)

    assert found is not None
    assert ("falling" in found.sentence) is is_told


def with_gpu(unix: float, ram: int | None, gpu: int | None) -> Tick:
    """Return a tick with this much of two pools available, None for an unknown figure."""
    pools = (
        PoolTick("ram", "System RAM", 128 * GIB, available=ram),
        PoolTick("gpu0", "gpu0 VRAM", 24 * GIB, available=gpu),
    )
    return msgspec.structs.replace(tick(unix), pools=pools)


def test_fall_is_that_of_the_pool_with_the_least_left() -> None:
    """A GPU that is filled beside it falls faster, and a GPU that is freed rises."""
    for change in (-2 * GIB, 0, 2 * GIB):
        ticks = [with_gpu(1000.0 + second, (10 - second) * GIB, 20 * GIB + second * change) for second in range(3)]

        found = tell_last_words(ticks)

        assert found is not None
        assert found.falling_bytes_per_second == GIB
        assert "8.0 GiB left in System RAM" in found.sentence


def test_last_words_name_a_process_with_its_memory_in_the_pool() -> None:
    """Its footprint may be larger than the pool. A tick that is about another pool names none."""
    holders = (HolderTick("python3", 100 * GIB, there=20 * GIB),)
    last = msgspec.structs.replace(with_gpu(1000.0, 60 * GIB, 4 * GIB), holders=holders, worst="gpu0")

    said = [tell_last_words([one]) for one in (last, msgspec.structs.replace(last, worst="ram"))]

    assert [one.sentence.split(", ")[1:] for one in said if one] == [
        ["4.0 GiB left in gpu0 VRAM", "python3 20.0 GiB"],
        ["4.0 GiB left in gpu0 VRAM"],
    ]


def test_ticks_without_the_figure_of_the_pool_do_not_count() -> None:
    """Its collector failed for some seconds: the fall is that between the known figures."""
    left = (None, 10 * GIB, None, 4 * GIB)
    ticks = [with_gpu(1000.0 + 3 * second, ram, 20 * GIB) for second, ram in enumerate(left)]

    found = tell_last_words(ticks)

    assert found is not None
    assert found.falling_bytes_per_second == GIB


@pytest.mark.parametrize(
    ("offset", "shown"),
    [(0.0, UNKNOWN), (1.75, UNKNOWN), (2.0, 2.0), (2.25, 2.25), (-1.75, UNKNOWN), (-2.0, -2.0), (-2.25, -2.25)],
)
def test_difference_of_clocks_from_two_seconds_on_is_shown(offset: float, shown: float | Absent) -> None:
    """A smaller one may be the time that the tick took to arrive."""
    one = Neighbour("b", "http://b", 0.0)
    assert one.known_clock_offset_seconds is UNKNOWN

    one.on_tick(msgspec.json.encode(tick(5000.0 + offset)), 1.0, 5000.0)

    assert one.known_clock_offset_seconds == shown
