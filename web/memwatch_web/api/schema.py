"""The JSON contract, for OpenAPI and for tests. Bytes are integers; null means absent, and `absent` says why."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Reason = Literal["not_supported", "not_permitted", "not_available", "stale", "inconsistent"]
LevelWord = Literal["low", "medium", "high", "critical"]


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    simulated: bool = Field(default=False, description="True in what --demo and --replay answer.")


class Figures(Answer):
    absent: dict[str, Reason] = Field(default_factory=dict, description="Why a field of this object is null.")


class Machine(Figures):
    name: str | None
    architecture: str = Field(examples=["unified", "discrete", "mixed", "cpu_only", "unknown"])
    explanation: str
    in_container: bool
    sees_all_processes: bool = Field(description="False where processes outside a container are hidden.")
    details: dict[str, str] = Field(examples=[{"soc": "tegra234"}])


class Pool(Figures):
    """Physical memory that overlaps no other pool: used_bytes + available_bytes = size_bytes."""

    id: str
    kind: Literal["system_ram", "vram", "hbm", "carveout"]
    label: str
    size_bytes: int
    used_bytes: int | None
    available_bytes: int | None
    free_bytes: int | None = Field(
        description="Memory nobody uses for anything (MemFree); cache is available, not free."
    )
    reserved_bytes: int | None
    unattributed_bytes: int | None = Field(description="Used, and nobody known holds it.")
    unattributed_note: str = Field(description="What that usually is on a machine like this; may be empty.")
    overlap: bool = Field(description="True where the known holders add up to more than is used.")
    set_aside_bytes: int = Field(
        description="Set aside for one purpose (huge pages): left out of the pressure ratio."
    )
    set_aside_free_bytes: int | None = Field(description="The part of it that is promised to nobody yet.")
    contents: dict[str, int] = Field(description="The pool by use; adds up to size_bytes.")
    source: str
    quality: Literal["measured", "derived", "estimated"]


class Share(Figures):
    """Bytes inside a pool or another share. Never add shares to anything."""

    id: str
    kind: Literal[
        "cuda_pool",
        "gtt",
        "gpu_buffers",
        "npu_buffers",
        "metal_working_set",
        "mig_instance",
        "nvml_used",
        "cgroup",
    ]
    label: str
    relation: str = Field(examples=["CUDA Pool ⊂ System RAM"])
    within: str
    device: str | None
    used_bytes: int | None
    limit_bytes: int | None
    note: str | None
    source: str
    quality: Literal["measured", "derived", "estimated"]


class Total(Figures):
    """All pools added up: the one sum that is allowed."""

    size_bytes: int
    used_bytes: int | None
    available_bytes: int | None


class Device(Figures):
    id: str
    vendor: str
    name: str
    uuid: str | None
    pci: str | None
    driver: str | None
    architecture: Literal["discrete", "unified", "carveout", "coherent", "unknown"]
    allocates_from: list[str]
    headroom_bytes: int | None
    state: str
    evidence: list[str]
    errors: dict[str, int] = Field(description="What the driver says about memory that went wrong, by kind.")
    errors_seen_unix: dict[str, float] = Field(description="When a kind of error was last seen.")
    process_list: Literal["complete", "partial"] | None = Field(
        description="Whether every process that holds memory of the device can be seen."
    )
    api_free_bytes: dict[str, int | dict[str, Reason] | None] = Field(
        description="What an interface itself calls free, by its name.", examples=[{"cuda": 2147483648}]
    )
    busy_ratio: float | None = Field(description="Part of the time that it computed, 0 to 1.")
    memory_busy_ratio: float | None = Field(description="Part of the time that its memory moved data, 0 to 1.")
    details: dict[str, str] = Field(description="Further facts, in the driver's words.")
    notes: list[str] = Field(description="What else one should know of it, in sentences.")


class Process(Figures):
    pid: int
    start_time: float
    name: str
    user: str | None
    unit: str | None
    container: str | None
    container_name: str | None = Field(description="Null unless a runtime's socket is configured and knows it.")
    pod: str | None = Field(description="The uid of a Kubernetes pod.")
    job: str | None = Field(description="The number of a Slurm job.")
    command: str | None = Field(description="Null unless command_lines is set.")
    rss_bytes: int | None
    swap_bytes: int | None
    device_bytes: dict[str, int | dict[str, Reason] | None]
    footprint_bytes: int | None = Field(
        description="Null where it is not one figure: where what is held of a device may be resident as well."
    )
    footprint_low_bytes: int | None
    footprint_high_bytes: int | None
    footprint_basis: str


class ProcessScan(Answer):
    seen: int
    unreadable: int
    process_list: Literal["complete", "partial"]
    note: str | None = Field(description="Why the list is partial.")


class Swap(Figures):
    size_bytes: int
    used_bytes: int
    zswap_stored_bytes: int | None
    zswap_memory_bytes: int | None


class Zram(Figures):
    stored_bytes: int
    memory_bytes: int


class PsiLine(Answer):
    ratio_10s: float
    ratio_60s: float
    ratio_300s: float
    total_seconds: float


class MemoryPsi(Figures):
    some: PsiLine
    full: PsiLine | None


class CgroupPressure(Answer):
    """A cgroup whose limit makes it wait for memory though the machine has plenty."""

    cgroup: str
    some_ratio: float


class Node(Figures):
    id: int
    size_bytes: int | None
    available_bytes: int | None
    free_bytes: int | None
    has_cpus: bool | None
    largest_free_block_bytes: int | None
    free_large_blocks_bytes: int | None
    contents: dict[str, int] = Field(description="The used part by use, for a node without processors.")


class Tegrastats(Answer):
    largest_free_blocks: int = Field(description="How many free blocks there are of the largest size.")
    largest_free_block_bytes: int = Field(description="At most 4 MiB; falls with fragmentation.")


class Kernel(Figures):
    oom_kills_total: int | None
    compact_fail_total: int | None


class OomKill(Answer):
    number: int = Field(description="Counts since memwatchd was started.")
    pid: int
    name: str
    anonymous_bytes: int
    scope: Literal["machine", "nodes", "cgroup"] = Field(description="What had run out.")
    cgroup: str = Field(description="Whose limit was reached, as the kernel names it; empty if it was none.")


class DriverError(Answer):
    driver: str
    pci: str = Field(description="Empty where the line does not say which GPU.")
    kind: str
    count: int
    last_seen_unix: float
    text: str = Field(description="The latest such line.")


class KernelLog(Answer):
    """What the kernel's log said about memory since memwatchd was started."""

    kills: list[OomKill]
    driver_errors: list[DriverError]
    lost_total: int = Field(description="Messages that were overwritten before they could be read.")


class PressureReason(Answer):
    signal: str
    text: str


class Pressure(Figures):
    target: str
    kind: str = Field(description="The kind of the pool or share.")
    level: LevelWord
    base_level: LevelWord
    ratio: float = Field(
        description="Used part of what is judged, without what is resident; above 1 beyond a budget."
    )
    used_ratio: float = Field(description="The same with what is resident.")
    size_bytes: int | None = Field(description="What is judged: without what is set aside, or a budget.")
    available_bytes: int | None = Field(description="What of it is left; negative beyond a budget.")
    resident_bytes: int = Field(description="What is there to stay, and not judged.")
    reasons: list[PressureReason]
    seconds_to_full: float | None = Field(
        description="At the current rate; null where there is no trend, and beyond a budget."
    )
    corroborated: bool = Field(description="Whether any signal besides use speaks for the level.")


class Collector(Figures):
    name: str
    state: Literal["ok", "starting", "failing", "stalled", "unavailable"]
    age_seconds: float | None
    duration_seconds: float | None
    last_success_unix: float | None
    error: str | None
    errors: dict[str, int]


class AllocatorReport(Figures):
    """What an allocator inside a process holds, by its own word; added to nothing."""

    pid: int
    name: str
    device: str | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    active_bytes: int | None
    inactive_split_bytes: int | None
    limit_bytes: int | None
    retries: int | None
    ooms: int | None


class SelfUsage(Figures):
    """Memory and processor time that memwatchd itself uses."""

    rss_bytes: int | None
    cpu_seconds: float
    tick_lag_seconds: float
    tick_duration_seconds: float
    memory_locked: bool


class Snapshot(Figures):
    """Everything of the latest tick."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)

    schema_: int = Field(alias="schema")
    seq: int
    time: str
    unix: float
    boot_id: str
    host: str
    interval_seconds: float
    simulated: bool
    machine: Machine
    pools: list[Pool]
    shares: list[Share]
    total: Total
    devices: list[Device]
    processes: list[Process]
    process_scan: ProcessScan | None
    swap: Swap | None
    zram: Zram | None
    psi: MemoryPsi | None
    cgroup_pressure: CgroupPressure | None
    nodes: list[Node]
    tegrastats: Tegrastats | None
    kernel: Kernel
    kernel_log: KernelLog | None
    pressure: list[Pressure]
    collectors: list[Collector]
    claims: list[AllocatorReport]
    self_: SelfUsage = Field(alias="self")


class Alert(Answer):
    target: str
    rule: str = Field(examples=["pressure.critical"])
    severity: Literal["critical", "warning", "info"]
    state: Literal["pending", "firing"]
    since: str | None = Field(description="When it began to fire.")
    since_unix: float | None
    silenced: bool
    reasons: list[PressureReason]


class Silence(Answer):
    """Alerts that nobody is told of before it ends."""

    id: str
    event: str | None = Field(description="Which alerts; null means all.")
    target: str | None = Field(description="About what; null means anything.")
    until: str
    until_unix: float
    created_unix: float
    comment: str
    made_by: str = Field(description="A user, or from where it came.")
    note: str | None = Field(description="Where its target is not here now: those that are.")


class Receiver(Answer):
    """Somebody who is told of alerts, and how that goes."""

    name: str
    kind: str = Field(examples=["webhook", "alertmanager", "apprise"])
    events: list[str]
    targets: list[str] = Field(description="None means any.")
    disabled: bool = Field(description="It answered 410; nothing more is sent until a restart.")
    pending: int
    outcomes: dict[str, int]
    failure: str = Field(description="Why the last attempt failed; empty after one that did not.")
    next_attempt_seconds: float | None
    last_delivered_unix: float | None


class AlertTest(Answer):
    receivers: list[str]


class Event(Answer):
    seq: int
    time: str
    unix: float
    kind: str
    text: str
    target: str | None


class Release(Answer):
    released: list[str] = Field(description="The collectors that let go, within one period.")
    seconds: float


class MarkReceipt(Answer):
    seq: int = Field(description="The number of the event that it became.")


class ReportReceipt(Answer):
    claims: int


class Health(Answer):
    status: Literal["ok", "stalled", "starting"]
    age_seconds: float | None


class ProblemDetails(Answer):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
