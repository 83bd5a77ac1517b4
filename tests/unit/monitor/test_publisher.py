"""The latest snapshot has the silences in force: at once, and until they end by boot time."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.silences import Silence
from memwatch_monitor.feature import Features
from memwatch_monitor.loop import Publisher
from support.sample_snapshots import critical_gb10

NOW = Moment(500.0, 1000.0, 1_700_000_000.0)
MADE = Silence("sil_1", NOW.wall + 60.0, NOW.wall, NOW.boottime + 60.0)


def later(seconds: float, set_by: float = 0.0) -> Moment:
    return Moment(NOW.monotonic + seconds, NOW.boottime + seconds, NOW.wall + seconds + set_by)


def published(publisher: Publisher) -> tuple[Silence, ...]:
    assert publisher.latest is not None
    return publisher.latest.silences


def test_silence_is_visible_before_the_next_tick_and_gone_when_it_is_ended() -> None:
    publisher, snapshot = Publisher(Features()), critical_gb10()
    publisher.use_silences((), NOW)
    publisher.publish(snapshot, NOW)

    publisher.use_silences((MADE,), NOW)
    made = published(publisher)
    publisher.use_silences((), NOW)

    assert made == (MADE,)
    assert published(publisher) == ()


def test_tick_that_began_before_the_silence_publishes_it() -> None:
    publisher, snapshot = Publisher(Features()), replace(critical_gb10(), silences=())
    publisher.use_silences((MADE,), later(0.5))

    assert publisher.publish(snapshot, NOW).silences == (MADE,)


def test_silence_ends_by_boot_time_and_its_display_follows_the_wall_clock() -> None:
    publisher, snapshot = Publisher(Features()), critical_gb10()
    publisher.use_silences((MADE,), NOW)

    moved = publisher.publish(snapshot, later(59.0, set_by=3600.0)).silences
    ended = publisher.publish(snapshot, later(60.0, set_by=-3600.0)).silences

    assert [one.until_unix for one in moved] == [MADE.until_unix + 3600.0]
    assert ended == ()
