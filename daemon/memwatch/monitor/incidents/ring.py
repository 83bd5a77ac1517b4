"""The frames of the last two minutes: all of the last half minute, before that one a second."""

from __future__ import annotations

from collections import deque

from memwatch.monitor.incidents.readings import Frame

# Half a minute at ten ticks a second, and two minutes at one.
MAX_FINE, MAX_COARSE = 300, 130
STEP_SECONDS = 0.95


class FrameRing:
    """Ring of frames. A frame shares its parts with the snapshot: both rings together take some 0.3 MB."""

    def __init__(self) -> None:
        self._fine: deque[Frame] = deque(maxlen=MAX_FINE)
        self._coarse: deque[Frame] = deque(maxlen=MAX_COARSE)

    def add(self, frame: Frame) -> None:
        self._fine.append(frame)
        if not self._coarse or frame.boottime - self._coarse[-1].boottime >= STEP_SECONDS:
            self._coarse.append(frame)

    @property
    def newest(self) -> Frame | None:
        return self._fine[-1] if self._fine else None

    def frames(self) -> list[Frame]:
        """Return all frames, oldest first."""
        first = self._fine[0].boottime if self._fine else 0.0
        return [*(one for one in self._coarse if one.boottime < first), *self._fine]

    def clear(self) -> None:
        self._fine.clear()
        self._coarse.clear()
