"""Contents of pools in /metrics add up to the pools' sizes, on every machine and in every demo."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from memwatch.snapshot import Snapshot
from memwatch_web.metrics.families import Exporter
from memwatchd.recording.demos import path_of
from memwatchd.recording.frames import read_frames
from support.paths import MACHINES

GOLDEN = sorted(MACHINES.glob("*/metrics*.txt"))
DEMOS = sorted(file.stem for file in path_of("dgx-spark").parent.glob("*.memwatch"))
# Inside LXC, System RAM is that of the host. Its contents are not visible there.
WITHOUT_CONTENTS = {"lxc-alpine"}


def sums(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sum of the contents of each pool, and the sizes of the pools."""
    contents: Counter[str] = Counter()
    sizes: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "memwatch_pool_contents_bytes":
                contents[sample.labels["pool"]] += int(sample.value)
            if sample.name == "memwatch_pool_size_bytes":
                sizes[sample.labels["pool"]] = sample.value
    return dict(contents), sizes


def exported(snapshot: Snapshot) -> str:
    return Exporter("1", dict).render(snapshot, generate_latest).decode()


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_contents_add_up_to_the_size_of_each_pool(file: Path) -> None:
    """sum without (content) is memwatch_pool_size_bytes, to the byte."""
    contents, sizes = sums(file.read_text())

    assert contents == {pool: sizes[pool] for pool in contents}
    assert ("ram" in contents) == (file.parent.name not in WITHOUT_CONTENTS)


@pytest.mark.parametrize("demo", DEMOS)
def test_contents_add_up_in_every_snapshot_of_a_demo(demo: str) -> None:
    for number, snapshot in enumerate(read_frames(path_of(demo))):
        if number % 50 == 0:
            contents, sizes = sums(exported(snapshot))
            assert contents == {pool: sizes[pool] for pool in contents}


def test_memory_held_by_a_gpu_is_a_content_of_system_ram() -> None:
    """`devices`, as in the JSON API: the part of a unified machine that no page of a process explains."""
    text = (MACHINES / "gb10/metrics.txt").read_text()

    assert 'memwatch_pool_contents_bytes{content="devices",device="",pool="ram"}' in text
