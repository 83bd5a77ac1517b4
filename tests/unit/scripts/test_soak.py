"""Test that the soak run can fail: it tells a leak from noise, and names the growing value."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from memwatchd.settings.load import load
from scripts.soak import MIB, Reading, Soak, complaints_about, config_for, counts_of, line_through
from scripts.soak_churn import EXCHANGED_EVERY, LOST_EVERY, machine_at
from simulators.nvml_state_file import state_file


def soaked(bytes_per_tick: float = 0.0, descriptors: int = 12, threads: int = 4) -> Soak:
    """Return 15 minutes at ten ticks a second: a warm-up, noise of 100 KiB, and the given growth."""
    rng = random.Random(7)

    def reading(number: int) -> Reading:
        ticks = number * 20
        size = 50 * MIB + min(ticks, 2000) * 800 + int(ticks * bytes_per_tick) + rng.randrange(100 << 10)
        return Reading(number * 2.0, ticks, size + 15 * MIB, size, 20, 5)

    loaded = [reading(number) for number in range(450)]
    return Soak(
        Reading(0.0, 0, 0, 0, 12, 4), loaded, Reading(900.0, 9000, 0, 0, descriptors=descriptors, threads=threads)
    )


def test_noise_and_a_warm_up_are_no_complaint() -> None:
    """Memory that settles in the first half and then varies slightly causes no complaint."""
    assert complaints_about(soaked()) == []


def test_leak_of_fifty_bytes_a_tick_is_found() -> None:
    """One small object kept per tick is 4 MB a day: RSS and anonymous memory each cause a complaint."""
    found = complaints_about(soaked(bytes_per_tick=50))

    assert [sentence.partition(" grows")[0] for sentence in found] == ["RSS", "anonymous memory"]


def test_leaked_descriptor_and_thread_are_found() -> None:
    """One more of either than before the load is a complaint with both numbers."""
    found = complaints_about(soaked(descriptors=13, threads=5))

    assert found == [
        "12 descriptors before the load and 13 after it",
        "4 threads before the load and 5 after it",
    ]


def test_single_step_does_not_change_the_slope() -> None:
    """A block of 200 KiB taken once is not a leak: the slope is the median over all pairs."""
    figures = [1_000_000 + (200 << 10 if number > 300 else 0) for number in range(450)]

    line = line_through([number * 20 for number in range(450)], figures)

    assert line.bytes_per_tick < 10


def test_slope_of_descriptors_and_threads_is_reported() -> None:
    """Constant descriptors and threads have a slope of 0 a day."""
    assert counts_of(soaked()) == {"descriptors": 0.0, "threads": 0.0}


def test_gpus_change_at_every_step_and_are_lost_periodically() -> None:
    """No two steps are equal; one GPU is lost at the end of each half minute, all of them once in four."""
    chance = random.Random(1)
    steps = [machine_at(step, chance) for step in range(EXCHANGED_EVERY)]

    assert len({state_file(machine) for machine in steps[: LOST_EVERY // 2]}) == LOST_EVERY // 2
    assert [gpu.down for gpu in steps[LOST_EVERY - 1].gpus].count(15) == 1
    assert (steps[-1].down, steps[0].down) == (18, None)


@pytest.mark.parametrize("minutes", [5.0, 15.0, 360.0])
def test_settings_of_the_soak_are_valid(tmp_path: Path, minutes: float) -> None:
    """They are valid for every length of a run; otherwise a mistake would show only in the next soak run."""
    config = tmp_path / "memwatchd.toml"
    config.write_text(config_for(minutes))

    found = load({"config": str(config)}, {})

    assert found.history.length.total_seconds() < minutes * 60 / 2
