"""Contents of pools in /metrics add up to the pools' sizes in every demo; on every machine, see test_golden.py."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from memwatch.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatchd.recording.demos import path_of
from memwatchd.recording.frames import read_frames
from support.exposition import contents_and_sizes
from support.paths import MACHINES

DEMOS = sorted(file.stem for file in path_of("dgx-spark").parent.glob("*.memwatch"))


def exported(snapshot: Snapshot) -> str:
    return Exporter("1", dict).render(snapshot, generate_latest).decode()


@pytest.mark.parametrize("demo", DEMOS)
def test_contents_add_up_in_every_snapshot_of_a_demo(demo: str) -> None:
    for number, snapshot in enumerate(read_frames(path_of(demo))):
        if number % 50 == 0:
            contents, sizes = contents_and_sizes(exported(snapshot))
            assert contents == {pool: sizes[pool] for pool in contents}


def test_memory_held_by_a_gpu_is_a_content_of_system_ram() -> None:
    """`devices`, as in the JSON API: the part of a unified machine that no page of a process explains."""
    text = (MACHINES / "gb10/metrics.txt").read_text()

    assert 'memwatch_pool_contents_bytes{content="devices",device="",pool="ram"}' in text
