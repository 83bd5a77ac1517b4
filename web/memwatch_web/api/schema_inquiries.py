"""JSON schema of on-demand checks: backends, fit and doctor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch_web.api.schema_base import Answer, Figures


class BackendDevice(Figures):
    """Compute device of a backend. A CPU is never listed as a GPU."""

    id: str | None = Field(description="Id of the device in the snapshot; null if not listed there.")
    name: str
    kind: Literal["cpu", "gpu", "accelerator"]
    size_bytes: int | None = Field(description="Maximum memory that it can use.")
    headroom_bytes: int | None = Field(description="Memory that can be allocated now.")
    own_headroom_bytes: int | None = Field(
        description="Limit on that by this backend's own rule; null and not absent if it has none."
    )
    unified: bool | None = Field(description="True if it shares memory with the CPU.")
    state: str = Field(description="As in the snapshot: ok, lost, stalled, missing, needs_reset.")
    note: str | None


class Backend(Figures):
    name: Literal["cpu", "cuda", "rocm", "metal", "opencl", "vulkan"]
    label: str
    available: bool | None = Field(description="Null if it was not or could not be probed.")
    reason: str
    devices: list[BackendDevice]


class Backends(Answer):
    recommended: str = Field(description="Name of the recommended backend.")
    recommended_reason: str
    age_seconds: float = Field(description="Time since files and drivers were probed; memory values are current.")
    backends: list[Backend]


class FitVerdict(Figures):
    """Verdict for one GPU or the CPU, with the reason."""

    device: str
    name: str
    fits: bool | None
    size_bytes: int | None = Field(description="Maximum memory that it can use.")
    headroom_bytes: int | None = Field(description="Memory that can be allocated now.")
    spare_bytes: int | None = Field(description="Bytes to spare; negative: bytes missing.")
    reason: str
    headroom_certain_bytes: int | None = Field(description="Part of the headroom that is free without reclaim.")
    needs_reclaim: bool | None = Field(
        description="True if it fits only after the kernel has reclaimed page cache; null if that is unknown."
    )
    need_bytes: int = Field(description="Bytes that it needs from this device.")
    leased_bytes: int = Field(description="Bytes that leases of others take from the headroom.")
    ram_need_bytes: int = Field(
        description="Bytes moved to system RAM; on unified memory they are part of need_bytes."
    )


class FitChange(Figures):
    """A change that reduces the need; `words` continue the sentence "it would fit with"."""

    words: str
    flags: str = Field(description="Options of memwatch fit for it.")
    bytes: int
    ram_bytes: int = Field(description="Bytes moved to system RAM with it.")


class FitSplit(Answer):
    """Several GPUs that hold the model together."""

    devices: list[str]
    bytes: int = Field(description="Bytes on each of them.")
    spare_bytes: int = Field(description="What is left on the fullest.")
    reason: str


class FitGreatest(Answer):
    """The greatest that fits, each with the other parameters as given; null if nothing does."""

    context: int | None
    batch: int | None
    dtype: str | None = Field(description="Widest format of the weights, if their own does not fit.")


class LaunchFlag(Answer):
    flag: str = Field(description="Option, variable or parameter, as in the command.")
    reason: str


class Launch(Answer):
    """Launch line of an engine with which its own arithmetic gives this plan."""

    engine: str
    command: str = Field(description="Lines to copy.")
    language: Literal["sh", "python"]
    flags: list[LaunchFlag]
    notes: list[str]


class Fit(Answer):
    bytes: int = Field(description="Bytes on one GPU, without what is moved to system RAM.")
    best: str | None = Field(description="Device to use alone; null if none fits alone, see split.")
    verdicts: list[FitVerdict]
    split: FitSplit | None = Field(description="GPUs to use together, if no single one has room.")
    unknown: str | None = Field(description="Why the answer is neither yes nor no; null for a certain answer.")
    parts: dict[str, int] = Field(description="Breakdown of a model's bytes; empty for a size.")
    runtime_source: str | None = Field(description="Source of the part runtime; null without one.")
    moves: dict[str, int] = Field(description="Bytes of each part that are moved to system RAM.")
    ram_bytes: int = Field(description="Most bytes in system RAM at one time beside the GPU.")
    change: FitChange | None = Field(description="Cheapest change that makes the model fit, if it fits nowhere.")
    greatest: FitGreatest | None = Field(description="The greatest that fits; null for a size.")
    launch: list[Launch] = Field(description="Launch lines of the engines that were asked for and can run it.")
    launch_refused: dict[str, str] = Field(description="Engines that were asked for and cannot, and why.")


class Check(Answer):
    """Result of one check as a sentence. `remedy`: what the operator can do."""

    id: str
    verdict: Literal["ok", "hint", "problem"]
    text: str
    remedy: str | None


class Examination(Answer):
    worst: Literal["ok", "hint", "problem"] = Field(description="Worst verdict of all checks.")
    version: str = Field(description="Version of the program that made the checks.")
    revision: str = Field(description="Its commit, or `unknown`.")
    checks: list[Check]
