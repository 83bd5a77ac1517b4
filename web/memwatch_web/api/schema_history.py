"""JSON schema of history, notable ticks, and the last data of an unclean shutdown."""

from __future__ import annotations

from pydantic import Field

from memwatch.core.snapshot import LevelWord
from memwatch_web.api.schema_base import Answer, Figures, Reason


class Series(Answer):
    """Buckets of one series; null values mark a gap. Minimum and maximum are exact at any resolution."""

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


class TickDevice(Figures):
    id: str
    name: str
    state: str
    temperature_celsius: float | None
    power_watts: float | None
    clock_hertz: dict[str, int] | None
    throttled: list[str] | None
    errors: dict[str, int]


class Tick(Answer):
    """A notable tick with its largest processes."""

    time: str
    unix: float
    pools: list[TickPool]
    pressure: list[TickPressure]
    devices: list[TickDevice]
    processes: list[TickProcess]


class Sample(Answer):
    unix: float
    figures: dict[str, float] = Field(description="Values by series name.")


class LastWords(Answer):
    """The last two minutes of a run that did not end cleanly, at full resolution."""

    time: str = Field(description="Time of the last sample.")
    unix: float
    machine_restarted: bool = Field(description="False if only memwatchd ended.")
    text: str
    samples: list[Sample]
    last: Tick | None = Field(description="Last recorded tick with processes.")
