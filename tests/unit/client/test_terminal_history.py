"""Test the figures above the charts of `memwatch top`."""

from __future__ import annotations

from memwatch.cli.terminal.past import Recent, decode_history
from support.fakes import GIB

NAME = "pool.ram.used_bytes"


def test_minimum_is_that_of_the_samples_and_not_of_the_greatest_values() -> None:
    """An hour of the history has one value each minute: the greatest for the chart, and the least."""
    series = {"name": NAME, "unix": [60.0, 120.0], "max": [16.0 * GIB, 8.0 * GIB], "min": [1.0 * GIB, 2.0 * GIB]}
    history = decode_history({"series": [series]})
    recent = Recent()
    recent.prepend(history)

    for trend in (history[NAME], recent.trends()[NAME]):
        assert trend.lowest(0.0, 120.0) == 1.0 * GIB
        assert trend.lowest(60.0, 120.0) == 2.0 * GIB
        assert trend.lowest(120.0, 180.0) is None
        assert trend.columns(0.0, 120.0, 1) == [16.0 * GIB]
