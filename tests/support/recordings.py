"""Small recordings, one snapshot a second."""

from __future__ import annotations

from pathlib import Path

from memwatch.core.model import Absent
from memwatch.core.snapshot import Machine, SelfUsage, Snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.recording import RecordingFile
from memwatch.reporting.render.json import snapshot_json
from memwatchd.recording.player import read_frames
from support.fakes import GIB, ram

OWN = SelfUsage(Absent.NOT_SUPPORTED, 0.0, 0.0, 0.0, False)


def snapshot_at(second: int, used: int = GIB) -> Snapshot:
    machine = Machine("NVIDIA DGX Spark")
    return Snapshot(second, 1e9 + second, 0.0, "boot", "spark", 1.0, False, machine, OWN, (ram(used),))


def recorded(path: Path, count: int = 50, first: int = 0) -> None:
    file = RecordingFile(path, host="spark")
    for second in range(first, first + count):
        file.write(to_bytes(snapshot_json(snapshot_at(second, (second % 60) * GIB))))
    file.close()


def seconds_in(path: Path) -> list[int]:
    return [frame.seq for frame in read_frames(path)]
