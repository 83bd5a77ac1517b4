"""Test the thresholds of a memory limit: at, just below and just above each of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from memwatch.library import guard as guarding
from memwatch.library.guard import Guard


def calls_at(values: Iterable[int], clear_at: float | None = None) -> list[tuple[str, int]]:
    """Return the calls of a guard of 1,000 bytes that warns at 90 %, for one value after the other."""
    used, calls = [0], list[tuple[str, int]]()
    with Guard(
        1000,
        0.9,
        lambda usage: calls.append(("warn", usage.used_bytes)),
        lambda usage: calls.append(("limit", usage.used_bytes)),
        interval=3600,
        measure=lambda: used[0],
        clear_at=clear_at,
    ) as guard:
        for value in values:
            used[0] = value
            guard.check()
    return calls


@pytest.mark.parametrize(
    ("used", "names"),
    [
        (899, []),
        (900, ["warn"]),
        (901, ["warn"]),
        (999, ["warn"]),
        (1000, ["warn", "limit"]),
        (1001, ["warn", "limit"]),
    ],
)
def test_callbacks_are_called_from_their_threshold_on(used: int, names: list[str]) -> None:
    assert calls_at([used]) == [(name, used) for name in names]


@pytest.mark.parametrize(("fallen", "is_called"), [(851, False), (850, False), (849, True), (0, True)])
def test_warning_is_repeated_after_usage_fell_by_5_percent(fallen: int, is_called: bool) -> None:
    assert calls_at([900, fallen, 900]) == [("warn", 900)] * (1 + is_called)


@pytest.mark.parametrize(("fallen", "is_called"), [(951, False), (950, False), (949, True)])
def test_limit_is_repeated_after_usage_fell_by_5_percent(fallen: int, is_called: bool) -> None:
    """It is armed apart from the warning, which usage has not fallen below."""
    assert calls_at([1000, fallen, 1000]) == [("warn", 1000)] + [("limit", 1000)] * (1 + is_called)


@pytest.mark.parametrize(
    ("values", "clears"),
    [([799], 0), ([800], 1), ([801], 1), ([800, 751, 800], 1), ([800, 749, 800], 2)],
)
def test_unused_memory_is_cleared_again_after_usage_fell_by_5_percent(
    values: list[int], clears: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared: list[bool] = []
    monkeypatch.setattr(guarding, "clear", lambda: cleared.append(True))

    calls_at(values, clear_at=0.8)

    assert len(cleared) == clears


@pytest.mark.parametrize(("left", "cleared"), [(300, "cleared 600 B"), (950, "cleared 0 B")])
def test_cleared_memory_is_logged(
    left: int, cleared: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory that a framework allocates meanwhile makes it no negative size."""
    used = [900]
    monkeypatch.setattr(guarding, "clear", lambda: used.__setitem__(0, left))
    with Guard(1000, 0.99, interval=3600, measure=lambda: used[0], clear_at=0.8) as guard:
        guard.check()

    (message,) = caplog.messages
    assert message.endswith(f": {cleared}")
