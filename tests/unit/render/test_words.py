"""Formatting of sizes, percentages, durations, levels and absent values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core import units
from memwatch.core.model import Absent
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch.core.units import GIB
from memwatch.reporting.render import words as wording
from support.sample_parts import process


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (13_314_398_208, "12.4 GiB"),
        (1024**3 - 1, "1.0 GiB"),
        (999_940 * 1024**3 // 1000, "999.9 GiB"),
        (10_005 * 1024**3 // 10, "1,000 GiB"),
        (1001 * 1024**2, "1,001 MiB"),
        (1024**4, "1,024 GiB"),
        (2_164_789_936_128, "2,016 GiB"),
        (10 * 1024**4, "10.0 TiB"),
        (5 * 1024**7, "5,120 EiB"),
    ],
)
def test_bytes_read_in_binary_units_with_one_decimal(count: int, text: str) -> None:
    """1024.0 is shown in the next unit; from GiB on at 10,240, so that compared sizes keep their unit."""
    assert wording.size(count) == text


@given(st.integers(min_value=1024, max_value=1024**6))
def test_size_is_rounded_to_half_of_its_last_digit(count: int) -> None:
    text, unit = wording.size(count).split()
    number = float(text.replace(",", ""))

    unit_bytes = 1024 ** (1 + units.BINARY_UNITS.index(unit))

    assert number < (10_240 if unit_bytes >= GIB else 1024)
    assert abs(number - count / unit_bytes) <= (0.0501 if "." in text else 0.501)


@pytest.mark.parametrize(
    ("certain", "most", "text"),
    [
        (14 * GIB, 44 * GIB, "can allocate 14.0 GiB at once, up to 44.0 GiB after reclaim"),
        (44 * GIB - (400 << 20), 44 * GIB, "can allocate 43.6 GiB now"),
        (100 << 20, 200 << 20, "can allocate 100.0 MiB at once, up to 200.0 MiB after reclaim"),
        (150 << 20, 200 << 20, "can allocate 150.0 MiB now"),
        (GIB, GIB, "can allocate 1.0 GiB now"),
        (Absent.NOT_AVAILABLE, GIB, "can allocate up to 1.0 GiB after reclaim"),
        (Absent.STALE, Absent.STALE, "headroom — stale"),
    ],
)
def test_headroom_has_two_bounds_where_they_differ_noticeably(
    certain: int | Absent, most: int | Absent, text: str
) -> None:
    """By more than 64 MiB and more than a percent."""
    assert wording.can_allocate(certain, most) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0.0, "0.0%"),
        (0.0001, "< 0.1%"),
        (0.003, "0.3%"),
        (0.9641, "96.4%"),
        (0.99999, "99.9%"),
        (1.0, "100.0%"),
        (1.25, "125.0%"),
    ],
)
def test_ratio_never_rounds_to_zero_or_to_100_percent(part: float, text: str) -> None:
    """0.0% means zero and 100.0% means full."""
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
    assert wording.duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e9))
def test_any_duration_is_formatted(seconds: float) -> None:
    """60 s, 60 min and 24 h are shown in the next unit."""
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
        (Absent.INCONSISTENT, "— inconsistent"),
    ],
)
def test_absent_value_is_a_dash_and_its_reason(reason: Absent, text: str) -> None:
    """Absent values are never shown as a number."""
    assert {format_(reason) for format_ in (wording.size, wording.ratio, wording.duration, wording.age)} == {text}
    assert wording.exact(reason).endswith(".")


def test_every_reason_has_a_word_and_a_sentence() -> None:
    assert set(wording.ABSENT_WORDS) == set(wording.ABSENT_SENTENCES) == set(Absent)


def test_exact_bytes_have_thousands_separators() -> None:
    assert wording.exact(13_314_398_208) == "13,314,398,208 bytes"


def test_age_is_now_or_ago() -> None:
    assert wording.age(0.0) == "now"
    assert wording.age(12.4) == "12 s ago"


def test_verdict_lists_its_reasons() -> None:
    reasons = (Reason("util", "96.4% used"), Reason("ttf", "full in 40 s at the current rate"))
    pressure = Pressure("ram", Level.CRITICAL, Level.CRITICAL, 0.964, reasons, seconds_to_full=40.0)

    text = wording.verdict("System RAM", pressure)

    assert text == "System RAM is critical: full in about 40 s at the current rate; 96.4% used"


def test_time_to_full_is_added_if_no_reason_has_it() -> None:
    pressure = Pressure("ram", Level.HIGH, Level.HIGH, 0.87, seconds_to_full=150.0)

    assert wording.reasons(pressure) == "full in about 2 min 30 s at the current rate; 87.0% used"


def test_low_level_is_shown_as_ok() -> None:
    """Without reasons the verdict shows the use."""
    assert wording.verdict("System RAM", Pressure("ram", Level.LOW, Level.LOW, 0.396)) == (
        "System RAM is OK: 39.6% used"
    )


def test_psi_is_formatted_as_a_sentence() -> None:
    assert wording.waited(0.003) == "tasks stalled on memory for 0.3% of the time (avg10)"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "process", "0 processes"), (1, "process", "1 process"), (4711, "time", "4,711 times")],
)
def test_count_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert wording.count(number, noun) == text


def test_instants_are_utc() -> None:
    assert wording.clock(1_795_256_553.25) == "10:22:33 UTC"
    assert wording.timestamp(1_795_256_553.25) == "2026-11-21T10:22:33Z"


def test_unknown_names_pass_through() -> None:
    """A kind or architecture of a newer version is shown under its own name."""
    assert wording.content("page_tables") == "page tables"
    assert wording.architecture("quantum") == "quantum"
    assert wording.basis("pss") == "pss"


@pytest.mark.parametrize(
    ("count", "text"),
    [(2016 << 30, "2,016 GiB"), (1 << 40, "1,024 GiB"), (12 << 40, "12.0 TiB"), (415 << 30, "415.0 GiB")],
)
def test_size_has_four_digits_between_one_and_ten_tebibytes(count: int, text: str) -> None:
    """One decimal of a TiB would hide 50 GiB of the figure that one allocates by."""
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (43 << 30, 80 << 30, "43.0"),
        (479 << 20, 80 << 30, "0.5"),
        (3 << 20, 80 << 30, "<0.1"),
        (0, 80 << 30, "0"),
        (1500 << 30, 12 << 40, "1.5"),
    ],
)
def test_size_within_has_the_unit_of_the_whole(part: int, whole: int, text: str) -> None:
    assert wording.size_within(part, whole) == text


@pytest.mark.parametrize(("seconds", "text"), [(7.9, "7 s"), (59.0, "59 s"), (200.4, "3 min 20 s")])
def test_elapsed_time_is_in_whole_seconds(seconds: float, text: str) -> None:
    assert wording.elapsed(seconds) == text


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ([], ""),
        (["rss", "rss"], "Footprint = RSS (shared pages count in each process)."),
        (["device"], "Footprint = at least GPU memory (the process is not visible from here)."),
        (["phys_footprint"], "Footprint = phys_footprint."),
        (
            ["rss + device", "rss"],
            "Footprint = RSS, plus GPU memory where a process has some (it is not part of RSS). "
            "Shared pages count in each process.",
        ),
        (
            ["device", "rss + device", "rss + device, unknown"],
            "Footprint = RSS, plus GPU memory where a process has some (it is not part of RSS), plus the known GPU "
            "memory where some is unknown, at least GPU memory where a process is not visible from here. "
            "Shared pages count in each process.",
        ),
        (["pss", "rss"], "Footprint = RSS, pss. Shared pages count in each process."),
    ],
)
def test_footprints_of_a_list_are_explained_in_one_order(kinds: list[str], text: str) -> None:
    """ "A, or B" did not say of which processes, and changed places with the rows."""
    found = [
        replace(process(pid, "python3", "ada", GIB), footprint_basis=kind) for pid, kind in enumerate(kinds, 1)
    ]

    assert wording.bases(found) == wording.bases(found[::-1]) == text


def test_memory_of_an_npu_has_its_name_in_the_words_of_a_list() -> None:
    found = [
        replace(process(1, "python3", "ada", GIB), footprint_basis="rss"),
        replace(process(2, "flm", "ada", GIB, npu0=GIB), footprint_basis="rss + device"),
    ]

    assert "plus NPU memory where a process has some" in wording.bases(found)


def test_each_basis_has_its_words_for_one_process_and_for_a_list() -> None:
    assert [*wording.BASIS_PARTS] == sorted(wording.BASIS_WORDS, key=[*wording.BASIS_PARTS].index)
