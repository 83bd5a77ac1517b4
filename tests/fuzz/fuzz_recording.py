"""Recordings, damaged or invented: rejected with a message, or played to the end, twice."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass

from fuzz.oracle import as_file
from memwatch.core.reading.identity import Identity
from memwatch.reporting.recording import GZIP, RecordingError, _with_sum, first_line, read_lines
from memwatch_monitor.feature import MonitorRules
from memwatchd.recording.player import Player, ReplayClock, ReplaySleep, open_recording, read_frames
from support.monitors import create_monitor

MAX_BYTES = 6000
MAX_TICKS = 5
MAX_SECONDS = 3600.0


@dataclass
class ManualClock(ReplayClock):
    """Played clock that advances only on request."""

    now: float = 0.0
    speed: float = 1.0
    began_unix: float = 1.7e9

    def monotonic(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.began_unix + self.now


def check(data: bytes) -> None:
    """Check bytes that begin like gzip as a file; otherwise checksum and pack the lines."""
    whole = data if data.startswith(b"\x1f\x8b") else packed(data)
    with as_file(whole, ".gz") as path:
        with suppress(RecordingError):
            first_line(path)
        lines = list(read_lines(path))
        assert len(lines) <= 64 * len(whole) + 2
        frames = list(read_frames(path))
        assert [one.unix for one in frames] == sorted(one.unix for one in frames)
        with suppress(RecordingError):
            contents = open_recording(path, salvage=True)
            clock = ManualClock()
            player = Player(contents, clock)
            monitor = create_monitor(player, clock, MonitorRules(), Identity("x", "y"), ReplaySleep(1.0), 1.0)
            try:
                for _ in range(MAX_TICKS):
                    monitor.tick()
                    clock.now += min(2 * contents.length / MAX_TICKS, MAX_SECONDS)
            finally:
                player.stop()


def packed(lines: bytes) -> bytes:
    summed = b"".join(_with_sum(line) for line in lines.split(b"\n") if line)
    packer = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    return packer.compress(summed) + packer.flush()
