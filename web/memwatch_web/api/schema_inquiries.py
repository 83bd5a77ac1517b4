"""The JSON contract of what is looked into on demand: backends, what fits, and what is not seen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch_web.api.schema import Answer, Figures


class BackendDevice(Figures):
    """What a backend computes on; a CPU is listed, and never as a GPU."""

    id: str | None = Field(description="The id of the device in the snapshot, where it is listed there.")
    name: str
    kind: Literal["cpu", "gpu", "accelerator"]
    size_bytes: int | None = Field(description="The memory it can use at most.")
    headroom_bytes: int | None = Field(description="What it could allocate right now.")
    own_headroom_bytes: int | None = Field(
        description="What this backend's own rule leaves of that; null and not absent where it has none."
    )
    unified: bool | None = Field(description="Whether it shares one memory with the processors.")
    state: str = Field(description="As in the snapshot: ok, lost, stalled, missing, needs_reset.")
    note: str | None


class Backend(Figures):
    name: Literal["cpu", "cuda", "rocm", "metal", "opencl", "vulkan"]
    label: str
    available: bool | None = Field(description="Null where it was not, or could not be, tried.")
    reason: str
    devices: list[BackendDevice]


class Backends(Answer):
    recommended: str = Field(description="The name of the backend to use.")
    recommended_reason: str
    age_seconds: float = Field(description="How long ago files and drivers were looked at; memory is of now.")
    backends: list[Backend]


class FitVerdict(Figures):
    """One GPU, or the CPU: whether it would fit there now, and why."""

    device: str
    name: str
    fits: bool | None
    size_bytes: int | None = Field(description="The memory it can use at most.")
    headroom_bytes: int | None = Field(description="What it could allocate right now.")
    spare_bytes: int | None = Field(description="What would be left; below zero, what is missing.")
    reason: str


class FitChange(Figures):
    """Something that makes it smaller, in words that follow "it would fit with"."""

    words: str
    bytes: int


class Fit(Answer):
    bytes: int
    best: str | None = Field(description="The device to use; null where it fits nowhere.")
    verdicts: list[FitVerdict]
    parts: dict[str, int] = Field(description="What the bytes of a model consist of; empty for a size.")
    change: FitChange | None = Field(description="The cheapest with which a model would fit that fits nowhere.")


class Check(Answer):
    """One thing that was looked at, in a sentence; `remedy` is what somebody can do about it."""

    id: str
    verdict: Literal["ok", "hint", "problem"]
    text: str
    remedy: str | None


class Examination(Answer):
    worst: Literal["ok", "hint", "problem"] = Field(description="The worst verdict of all checks.")
    checks: list[Check]
