"""Contents of pools in /metrics. They add up in the demos (test_demos.py) and on all machines (test_golden.py)."""

from __future__ import annotations

from support.paths import MACHINES


def test_memory_held_by_a_gpu_is_a_content_of_system_ram() -> None:
    """`devices`, as in the JSON API: the part of a unified machine that no page of a process explains."""
    text = (MACHINES / "gb10/metrics.txt").read_text()

    assert 'memwatch_pool_contents_bytes{content="devices",device="",pool="ram"}' in text
