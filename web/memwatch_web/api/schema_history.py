"""The JSON contract of the past: history, ticks that mattered, and the last words of a run."""

from __future__ import annotations

from pydantic import Field

from memwatch_web.api.schema import Answer, Figures, LevelWord, Reason


class Series(Answer):
    """Buckets of one series; null values mark a gap. An extreme is never averaged away."""

    name: str
    unit: str
    unix: list[float]
    min: list[float | None]
    avg: list[float | None]
    max: list[float | None]


class History(Answer):
    from_: float = Field(alias="from")
    to: float
    points: int
    series: list[Series]


class TickPool(Figures):
    id: str
    label: str
    size_bytes: int
    used_bytes: int | None
    available_bytes: int | None


class TickPressure(Answer):
    target: str
    label: str
    level: LevelWord
    ratio: float
    reasons: list[str]


class TickProcess(Figures):
    pid: int
    name: str
    user: str | None
    unit: str | None
    container: str | None
    rss_bytes: int | None
    footprint_bytes: int | None
    device_bytes: dict[str, int | dict[str, Reason] | None]


class Tick(Answer):
    """A tick that mattered, with the processes that held the most memory."""

    time: str
    unix: float
    pools: list[TickPool]
    pressure: list[TickPressure]
    processes: list[TickProcess]


class Sample(Answer):
    unix: float
    figures: dict[str, float] = Field(description="By the names of series.")


class LastWords(Answer):
    """The last two minutes of a run that did not end cleanly, at full resolution."""

    time: str = Field(description="Of the last sample.")
    unix: float
    machine_restarted: bool = Field(description="False where only memwatchd ended.")
    text: str
    samples: list[Sample]
    last: Tick | None = Field(description="The last tick of which is known who held the memory.")
