"""JSON schema of memory by owner, process growth, and PSS."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from memwatch_web.api.schema_base import Answer, Figures, Reason


class Owner(Figures):
    """All processes of one unit, container, pod, job or user, whether listed or not."""

    name: str | None = Field(description="Null: processes without such an owner, or that are not visible.")
    container_name: str | None = Field(
        description="Name of the container if a container runtime is configured, or on a Kubernetes node."
    )
    pod_name: str | None = Field(description="Namespace and name of the pod on a Kubernetes node.")
    processes: int
    rss_bytes: int | None
    device_bytes: dict[str, int | dict[str, Reason] | None]
    footprint_bytes: int | None
    footprint_low_bytes: int
    footprint_high_bytes: int | None
    cgroup_bytes: int | None = Field(
        description="memory.current of the owner's cgroup, page cache included; null if it has none."
    )
    cgroup_note: str | None = Field(examples=["does not include GPU memory"])
    cgroup_device_bytes: dict[str, int | dict[str, Reason] | None] = Field(
        description="Device memory that the kernel charges to the owner's cgroup, by pool or share (dmem)."
    )
    visible: bool = Field(description="False for the processes that only a driver lists, together.")


class Remainder(Figures):
    """Used and unattributed memory of a pool."""

    id: str
    label: str
    used_bytes: int | None
    unattributed_bytes: int | None
    unattributed_note: str
    overlap: bool


class ShareRemainder(Figures):
    """Used memory of a device's share, and the part that no listed process holds."""

    id: str
    relation: str
    used_bytes: int | None
    unattributed_bytes: int | None


class Owners(Figures):
    by: Literal["unit", "container", "pod", "job", "user"]
    process_list: Literal["complete", "partial"] | None
    note: str | None
    owners: list[Owner]
    pools: list[Remainder]
    shares: list[ShareRemainder]


class ProcessIdentity(Figures):
    pid: int
    start_time: float | None
    name: str | None
    user: str | None
    unit: str | None
    container: str | None


class ProcessGrowth(ProcessIdentity):
    """Memory of a process at two times. A process that started in between starts at 0."""

    from_unix: float
    from_bytes: int
    to_bytes: int
    grown_bytes: int
    bytes_per_second: float
    whole: bool = Field(description="False if the process was first seen after the requested time.")
    windows: dict[str, int | dict[str, Reason] | None] = Field(
        description="Growth by window in seconds.", examples=[{"60": 0, "600": 1048576}]
    )


class LeakSuspect(ProcessIdentity):
    """A process that grew steadily. This is a hint, not an alert."""

    since_unix: float
    grown_bytes: int
    evidence: str


class Growth(Answer):
    from_: float = Field(alias="from")
    to: float
    processes: list[ProcessGrowth]
    suspects: list[LeakSuspect]


class Pss(ProcessIdentity):
    """Proportional set size: each page divided by the number of processes that share it."""

    pss_bytes: int
    rss_bytes: int
    anonymous_bytes: int | None
    file_bytes: int | None
    shared_memory_bytes: int | None
    swap_bytes: int | None
