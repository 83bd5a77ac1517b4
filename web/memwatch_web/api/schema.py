"""JSON schema, for OpenAPI and tests. Bytes are integers; null means absent, and `absent` has the reason."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from memwatch.core.snapshot import LevelWord
from memwatch_web.api.schema_base import Answer, Figures, Reason
from memwatch_web.api.schema_kernel import (
    CgroupPressure,
    Kernel,
    KernelLog,
    MemoryPsi,
    Node,
    Swap,
    Tegrastats,
    ZfsCache,
    Zram,
)


class Machine(Figures):
    name: str | None
    architecture: str = Field(examples=["unified", "discrete", "mixed", "cpu_only", "unknown"])
    explanation: str
    in_container: bool
    sees_all_processes: bool = Field(description="False if processes outside a container are hidden.")
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
        description="Completely unused memory (MemFree on Linux); page cache is available, not free."
    )
    reserved_bytes: int | None
    unattributed_bytes: int | None = Field(description="Used memory not attributed to any holder.")
    unattributed_note: str = Field(description="Usual cause of it on such a machine; may be empty.")
    overlap: bool = Field(description="True if the known holders add up to more than is used.")
    set_aside_bytes: int = Field(
        description="Reserved for one purpose (huge pages); excluded from the pressure ratio."
    )
    set_aside_free_bytes: int | None = Field(
        description="Part of it that is neither used nor promised to a process."
    )
    contents: dict[str, int] = Field(description="Breakdown of the pool; adds up to size_bytes.")
    source: str
    quality: Literal["measured", "derived", "estimated"]


class Share(Figures):
    """Memory inside a pool or another share. Never add shares to anything."""

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
        "gpu_limit",
    ]
    label: str
    relation: str = Field(examples=["CUDA Pool ⊂ System RAM"])
    within: str
    device: str | None
    used_bytes: int | None
    limit_bytes: int | None
    limit_throttles: bool = Field(
        description="At the limit, the kernel slows the processes and kills none (memory.high)."
    )
    peak_bytes: int | None = Field(
        description="Highest use since the cgroup was created, of a limit on GPU memory."
    )
    note: str | None
    source: str
    quality: Literal["measured", "derived", "estimated"]


class Total(Figures):
    """Sum of all pools, the only valid sum."""

    size_bytes: int | None
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
    headroom_bytes: int | None = Field(
        description="Memory that can be allocated now, page cache that the kernel reclaims for it included."
    )
    headroom_certain_bytes: int | None = Field(
        description="Part of the headroom that is free without reclaim; equal to it for VRAM and huge pages."
    )
    state: str
    evidence: list[str]
    errors: dict[str, int] = Field(description="Memory errors reported by the driver, by kind.")
    errors_seen_unix: dict[str, float] = Field(description="Time of the last error, by kind.")
    process_list: Literal["complete", "partial"] | None = Field(
        description="Complete if all processes that hold memory of the device are visible."
    )
    api_free_bytes: dict[str, int | dict[str, Reason] | None] = Field(
        description="Free memory as reported by each API.", examples=[{"cuda": 2147483648}]
    )
    busy_ratio: float | None = Field(description="Fraction of time the device was busy, 0–1.")
    memory_busy_ratio: float | None = Field(description="Fraction of time its memory was read or written, 0–1.")
    temperature_celsius: float | None = Field(description="Temperature of the device.")
    power_watts: float | None = Field(description="Power of the device; on a Jetson, of the rail in `details`.")
    clock_hertz: dict[str, int] | None = Field(
        description="Clocks by name: sm, graphics or memory.", examples=[{"sm": 1980000000}]
    )
    throttled: list[str] | None = Field(description="What lowers the clocks now. Empty if nothing does.")
    details: dict[str, str] = Field(description="Additional facts as reported by the driver.")
    notes: list[str] = Field(description="Additional information, in sentences.")


class Process(Figures):
    pid: int
    start_time: float | None
    name: str | None = Field(description="Null for a process that is not visible.")
    user: str | None
    unit: str | None
    container: str | None
    container_name: str | None = Field(
        description="Null unless a configured container runtime or the kubelet's links to logs have it."
    )
    pod_name: str | None = Field(description="Namespace and name of the pod, from the kubelet's links to logs.")
    pod: str | None = Field(description="UID of the Kubernetes pod.")
    job: str | None = Field(
        description="Job of Slurm (its SLUID since 26.05), PBS, Torque or LSF by number, of HTCondor by slot."
    )
    command: str | None = Field(description="Null unless command_lines is set.")
    rss_bytes: int | None
    swap_bytes: int | None
    device_bytes: dict[str, int | dict[str, Reason] | None]
    footprint_bytes: int | None = Field(
        description="Null if only a range is known: device memory may also be counted in RSS."
    )
    footprint_low_bytes: int | None
    footprint_high_bytes: int | None
    footprint_basis: str
    visible: bool = Field(
        description="False if only a driver lists the process: it is in another PID namespace, or has ended."
    )
    orphan: bool = Field(
        description="True if its parent has ended, nothing supervises it, and it holds at least 10% of a pool."
    )
    note: str | None = Field(description="Explains a process that is not visible or an orphan.")


class EndedProcess(Figures):
    pid: int
    name: str
    held_bytes: int = Field(description="Memory of the pool that it held last.")
    unit: str | None
    container: str | None


class NotReturned(Answer):
    """Memory of a pool that is still used 30 s after the processes ended that held it."""

    pool: str
    held_bytes: int
    since_unix: float = Field(description="Time when the first of the processes ended.")
    processes: list[EndedProcess]
    text: str


class Lease(Answer):
    """Memory reserved for a process. Pools count it as available; `fit` and `wait` of others do not."""

    id: str
    name: str
    target: str = Field(description="Pool or device of the request.")
    pid: int
    bytes: int
    held: dict[str, int] = Field(
        description="Bytes still reserved, by pool or share.", examples=[{"gpu0": 1 << 34}]
    )
    held_bytes: int
    arrived_bytes: int = Field(description="Bytes that the process and its descendants have allocated since.")
    until: str
    until_unix: float
    created_unix: float
    made_by: str = Field(description="User of this machine, user or token of the login, or client certificate.")


class ProcessScan(Answer):
    seen: int
    unreadable: int
    process_list: Literal["complete", "partial"]
    note: str | None = Field(description="Why the list is partial.")


class PressureReason(Answer):
    signal: str
    text: str
    level: LevelWord | None = Field(
        default=None, description="The level that the reason asks for; null or absent if that is not known."
    )


class Thresholds(Answer):
    medium: float
    high: float
    critical: float = Field(description="The level is critical above it, not at it.")


class Pressure(Figures):
    target: str
    kind: str = Field(description="Kind of the pool or share.")
    level: LevelWord
    base_level: LevelWord
    ratio: float = Field(
        description="Used fraction of the judged memory without resident memory; above 1 if over budget."
    )
    used_ratio: float = Field(description="The same, including resident memory.")
    size_bytes: int | None = Field(description="Judged size: the pool without reserved memory, or a budget.")
    available_bytes: int | None = Field(description="Available part of it; negative if over budget.")
    resident_bytes: int = Field(description="Resident memory; excluded from the ratio.")
    thresholds: Thresholds | None = Field(description="Fractions of the ratio at which the levels begin.")
    reasons: list[PressureReason]
    seconds_to_full: float | None = Field(
        description="Time to full at the current rate; null without a trend, or if over budget."
    )
    clears_in_seconds: float | None = Field(
        description="Time until the level falls if use and signals stay as they are; null if it does not fall then."
    )
    corroborated: bool = Field(description="True if any signal other than use supports the level.")


class Collector(Figures):
    name: str
    state: Literal["ok", "starting", "failing", "stalled", "unavailable"]
    age_seconds: float | None
    duration_seconds: float | None
    last_success_unix: float | None
    error: str | None
    errors: dict[str, int]


class AllocatorReport(Figures):
    """Memory of an allocator as reported by the process itself; added to no total."""

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
    gpu: str | None


class SelfUsage(Figures):
    """Memory and CPU time of memwatchd itself."""

    rss_bytes: int | None
    cpu_seconds: float
    tick_lag_seconds: float
    tick_duration_seconds: float
    memory_locked: bool


class Engine(Figures):
    """A model server. Its weights and its KV cache are parts of the memory of its processes."""

    id: str = Field(examples=["vllm-8000"])
    kind: Literal["vllm", "sglang", "llama.cpp", "ollama", "tgi", "tensorrt-llm", "triton", "openai"]
    title: str = Field(examples=["vLLM"])
    url: str | None
    pid: int | None = Field(description="The first process of the server.")
    pids: list[int] = Field(description="All its processes.")
    user: str | None
    version: str | None
    model: str | None
    quantization: str | None
    context_tokens: int | None
    weights_bytes: int | None
    kv_cache_bytes: int | None = Field(description="Reserved for the KV cache.")
    kv_cache_used_bytes: int | None = Field(description="Part of it that holds tokens.")
    kv_cache_ratio: float | None = Field(
        description="Used fraction of the KV cache, 0 to 1: that of the fullest replica or rank."
    )
    kv_cache_mean_ratio: float | None = Field(description="Mean used fraction of all replicas and ranks, 0 to 1.")
    footprint_bytes: int | None = Field(description="Memory of all its processes.")
    remainder_bytes: int | None = Field(
        description="Memory without weights and KV cache: graphs, workspace, fragmentation."
    )
    held_bytes: dict[str, int | dict[str, Reason] | None] = Field(description="Device memory by pool or share.")
    requests_running: int | None
    requests_waiting: int | None
    prompt_tokens_total: int | None = Field(description="Since the server started.")
    generation_tokens_total: int | None
    tokens_per_second: float | None = Field(description="Generated, in the last 5 s.")
    prompt_tokens_per_second: float | None
    time_to_first_token_seconds: float | None = Field(description="Mean of the requests of the last 5 s.")
    sleeping: bool | None = Field(description="True while the model is unloaded until the next request.")
    gpu_fraction: float | None = Field(description="Fraction of a GPU that the server was allowed to use.")
    quality: Literal["measured", "derived", "estimated"] = Field(description="That of weights and KV cache.")
    notes: list[str] = Field(description="Why figures are missing, and how to get them.")
    advice: str | None = Field(description="A lower limit for the server while memory is short.")


class SilenceInForce(Answer):
    """A silence: notifications of matching alerts are muted until it ends."""

    id: str
    event: str | None = Field(description="Muted event; null: all.")
    target: str | None = Field(description="Muted target; null: all.")
    until: str
    until_unix: float
    created_unix: float
    comment: str
    made_by: str = Field(description="User of this machine, user or token of the login, or client certificate.")


class Snapshot(Figures):
    """All data of the latest tick."""

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
    zfs_cache: ZfsCache | None
    psi: MemoryPsi | None
    cgroup_pressure: CgroupPressure | None
    nodes: list[Node]
    tegrastats: Tegrastats | None
    kernel: Kernel
    kernel_log: KernelLog | None
    pressure: list[Pressure]
    collectors: list[Collector]
    claims: list[AllocatorReport]
    not_returned: list[NotReturned]
    leases: list[Lease]
    silences: list[SilenceInForce]
    engines: list[Engine]
    engines_not_followed: int = Field(description="Model servers beyond the limit of those that are followed.")
    left_out: dict[str, int] = Field(description="Entries beyond the maximum, by list.")
    self_: SelfUsage = Field(alias="self")


class Event(Answer):
    seq: int
    time: str
    unix: float
    kind: str
    text: str
    target: str | None


class Release(Answer):
    released: list[str] = Field(description="Collectors that release their driver within one period.")
    seconds: float


class MarkReceipt(Answer):
    seq: int = Field(description="Number of the new event.")


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
