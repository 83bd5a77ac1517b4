"""Recordings, damaged or invented: rejected with a message, or played to the end, twice."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass

from fuzz.oracle import as_file
from memwatch.monitor.loop import Identity, Monitor, Rules
from memwatchd.recording.file_format import GZIP, BadRecording, _with_sum, first_line, lines_of
from memwatchd.recording.frames import frames_of, open_recording
from memwatchd.recording.player import PlayedClock, PlayedSleep, Player

MAX_BYTES = 6000
MAX_TICKS = 5
MAX_SECONDS = 3600.0


@dataclass
class ManualClock(PlayedClock):
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
        with suppress(BadRecording):
            first_line(path)
        lines = list(lines_of(path))
        assert len(lines) <= 64 * len(whole) + 2
        frames = list(frames_of(path))
        assert [one.unix for one in frames] == sorted(one.unix for one in frames)
        with suppress(BadRecording):
            contents = open_recording(path, salvage=True)
            clock = ManualClock()
            player = Player(contents, clock)
            monitor = Monitor(player, clock, Rules(), Identity("x", "y"), PlayedSleep(1.0), 1.0)
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
