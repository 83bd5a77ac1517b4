"""Figures read as people say them, rounding never turns something into nothing, and what is absent says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch import units
from memwatch.model import Absent
from memwatch.render import words as wording
from memwatch.snapshot import Level, Pressure, Reason


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (13_314_398_208, "12.4 GiB"),
        (1024**3 - 1, "1.0 GiB"),
        (1024**4, "1.0 TiB"),
        (2 * 1024**4 + 512 * 1024**3, "2.5 TiB"),
        (5 * 1024**7, "5120.0 EiB"),
    ],
)
def test_bytes_read_in_binary_units_with_one_decimal(count: int, text: str) -> None:
    """12.4 GiB, and never 1024.0 of a unit that has a next one."""
    assert wording.size(count) == text


@given(st.integers(min_value=1024, max_value=1024**6))
def test_a_size_keeps_three_digits_and_its_value(count: int) -> None:
    """What a size says is within half of its last digit of what it is."""
    number, unit = wording.size(count).split()

    unit_bytes = 1024 ** (1 + units.BINARY_UNITS.index(unit))

    assert float(number) < 1024
    assert abs(float(number) - count / unit_bytes) <= 0.0501


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0.0, "0.0 %"),
        (0.0001, "< 0.1 %"),
        (0.003, "0.3 %"),
        (0.9641, "96.4 %"),
        (0.99999, "99.9 %"),
        (1.0, "100.0 %"),
        (1.25, "125.0 %"),
    ],
)
def test_a_ratio_never_rounds_to_nothing_or_to_all(part: float, text: str) -> None:
    """0 % means zero and 100 % means full."""
    assert wording.ratio(part) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (0.000035, "35 µs"),
        (0.0017, "1.7 ms"),
        (0.042, "42 ms"),
        (0.4, "0.4 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
        (3600.0, "1 h"),
        (273_600.0, "3 d 4 h"),
    ],
)
def test_durations_use_two_units_at_most(seconds: float, text: str) -> None:
    """3 min 20 s is exact enough to act on."""
    assert wording.duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e9))
def test_any_duration_has_words(seconds: float) -> None:
    """No length of time breaks the page, and none is shown as sixty of something."""
    text = wording.duration(seconds)

    assert text.split()[1] in {"µs", "ms", "s", "min", "h", "d"}
    assert not text.startswith(("60 s", "60 min", "24 h"))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Absent.NOT_SUPPORTED, "— not supported"),
        (Absent.NOT_PERMITTED, "— not permitted"),
        (Absent.NOT_AVAILABLE, "— not available"),
        (Absent.STALE, "— stale"),
        (Absent.INCONSISTENT, "— contradictory"),
    ],
)
def test_what_is_absent_is_a_dash_and_its_reason(reason: Absent, text: str) -> None:
    """Unknown is never shown as a number, in whatever unit."""
    assert {say(reason) for say in (wording.size, wording.ratio, wording.duration, wording.age)} == {text}
    assert wording.exact(reason).endswith(".")


def test_every_reason_has_its_words() -> None:
    """A new reason cannot reach the page without a sentence."""
    assert set(wording.ABSENT_WORDS) == set(wording.ABSENT_SENTENCES) == set(Absent)


def test_exact_bytes_have_thousands_apart() -> None:
    """Whoever wants every byte can read it."""
    assert wording.exact(13_314_398_208) == "13,314,398,208 bytes"


def test_ages_say_ago() -> None:
    """A reading of this moment is now, any other has its age."""
    assert wording.age(0.0) == "now"
    assert wording.age(12.4) == "12 s ago"


def test_a_verdict_gives_its_reasons() -> None:
    """Level first, then why, joined as one sentence."""
    reasons = (Reason("util", "96.4 % used"), Reason("ttf", "full in 40 s at the current rate"))
    pressure = Pressure("ram", Level.CRITICAL, Level.CRITICAL, 0.964, reasons, seconds_to_full=40.0)

    text = wording.verdict("System RAM", pressure)

    assert text == "System RAM is critical: 96.4 % used; full in 40 s at the current rate"


def test_the_time_to_full_is_told_once() -> None:
    """Where no reason speaks of the end, the figure does."""
    pressure = Pressure("ram", Level.HIGH, Level.HIGH, 0.87, seconds_to_full=150.0)

    assert wording.reasons(pressure) == "87.0 % used; full in about 2 min 30 s at the current rate"


def test_low_is_said_calmly() -> None:
    """A target with nothing to say for itself says its use."""
    assert wording.verdict("System RAM", Pressure("ram", Level.LOW, Level.LOW, 0.396)) == (
        "System RAM is calm: 39.6 % used"
    )


def test_stalls_are_a_sentence() -> None:
    """Pressure stall information reads without knowing what it is called."""
    assert wording.waited(0.003, "10 s") == "tasks waited for memory 0.3 % of the last 10 s"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "process", "0 processes"), (1, "process", "1 process"), (4711, "time", "4,711 times")],
)
def test_counts_agree_with_their_noun(number: int, noun: str, text: str) -> None:
    """One process, two processes."""
    assert wording.count(number, noun) == text


def test_instants_are_utc() -> None:
    """The same moment for people and for machines."""
    assert wording.clock(1_795_256_553.25) == "10:22:33 UTC"
    assert wording.timestamp(1_795_256_553.25) == "2026-11-21T10:22:33Z"


def test_names_cannot_turn_a_line_around() -> None:
    """Control and direction characters of a chosen name become visible."""
    assert wording.printable("ok\u202egnp.exe\x1b[31m") == "ok\\u202egnp.exe\\u001b[31m"
    assert wording.printable("Jörg’s ☕ 進程") == "Jörg’s ☕ 進程"


def test_glued_sentences_are_escaped_first() -> None:
    """Keeping a number with its unit opens no door."""
    text = wording.glued("<b>96.4 % used; < 0.1 % of 12.4 GiB")

    assert str(text) == (
        '&lt;b&gt;<span class="figure">96.4 %</span> used; '
        '<span class="figure">&lt; 0.1 %</span> of <span class="figure">12.4 GiB</span>'
    )


def test_words_that_are_not_known_pass_through() -> None:
    """A kind or an architecture that a later collector invents is shown as it is named."""
    assert wording.content("page_tables") == "page tables"
    assert wording.content_sentence("page_tables") == ""
    assert wording.architecture("quantum") == "quantum"
    assert wording.basis("pss") == "pss"
