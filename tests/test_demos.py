"""The simulated machines that are shipped are what the code makes of the story, and tell it whole."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import demo_machines
from memwatch.snapshot import Snapshot
from memwatch_web.as_json import snapshot_json
from memwatchd.recording import demos
from memwatchd.recording.frames import frames_of, open_recording
from memwatchd.settings.model import DEMOS, Replay
from memwatchd.settings.section import keys_of

NAMES = tuple(demos.DESCRIPTIONS)
# What each machine must be, and the share that shows how its GPU's memory lies.
KINDS = {
    "dgx-spark": ("unified", "CUDA Pool ⊂ System RAM"),
    "jetson-orin": ("unified", "CUDA Pool ⊂ System RAM"),
    "strix-halo": ("unified", "GTT ⊂ System RAM"),
    "gh200": ("coherent", "NVML used ⊂ HBM"),
    "h100x8-mig": ("discrete", None),
    "rtx4090": ("discrete", None),
    "macbook": ("unified", "Metal working set ⊂ Unified memory"),
}


def levels_of(frames: list[Snapshot]) -> list[str]:
    """The worst level of each moment."""
    return [level.word for frame in frames if (level := frame.worst_level) is not None]


def test_every_demo_has_a_recording_and_the_other_way_round() -> None:
    """The list of names, the files, the setting and the stories that make them agree."""
    folder = Path(demos.__file__).parent

    assert {path.stem for path in folder.glob("*.memwatch")} == set(NAMES) == set(DEMOS) == set(KINDS)
    assert set(get_args(keys_of(Replay)["demo"].kind)) == set(NAMES)
    assert sum(path.stat().st_size for path in folder.glob("*.memwatch")) < 700_000


@pytest.mark.parametrize("name", NAMES)
def test_a_demo_tells_its_story(name: str) -> None:
    """Calm, a model is loaded, the cache is flooded without alarm, a leak becomes critical, all is well again."""
    architecture, relation = KINDS[name]
    contents = open_recording(demos.path_of(name), salvage=False)
    frames = list(frames_of(contents.path))
    levels = levels_of(frames)
    loaded, flooded = frames[120], frames[185]

    assert contents.count == len(frames) == demo_machines.SECONDS
    assert all(frame.simulated for frame in frames)
    assert loaded.machine.architecture == architecture
    assert relation is None or relation in [loaded.relation(share) for share in loaded.shares]
    assert levels[0] == "low"
    assert "critical" not in levels[:200]
    assert "critical" in levels[260:315]
    assert levels[-1] in ("low", "medium", "high")
    ram = (loaded.pools[0], flooded.pools[0])
    free = [pool.free_bytes for pool in ram if isinstance(pool.free_bytes, int)]
    assert free[1] < free[0]
    assert ram[1].used_bytes == ram[0].used_bytes
    assert not [one.error for one in loaded.collectors if "/tmp" in (one.error or "")]
    assert {status.state for frame in frames for status in frame.collectors} <= {"ok", "unavailable"}


@pytest.mark.parametrize("name", ["rtx4090", "macbook", "dgx-spark"])
def test_what_is_shipped_is_what_the_code_makes(name: str) -> None:
    """Nobody edited it, and no rule has changed since: `python tests/demo_machines.py` makes them anew."""
    made = demo_machines.story_of(name)

    shipped = list(frames_of(demos.path_of(name)))

    for second in (0, 100, 200, 300, 315, demo_machines.SECONDS - 1):
        assert snapshot_json(shipped[second]) == snapshot_json(made[second]), second
