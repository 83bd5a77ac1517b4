"""Lists with an upper length: what is left out is said where the list is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memwatch.core.budget import EVENT_STREAMS, KINDS

# Lists whose left-out entries are counted, in `left_out` of the snapshot, a metric and the doctor.
LISTS: Mapping[str, str] = {
    "announced_kills": "kills that services reported in one tick were not taken",
    "cgroup_pressure": "cgroups were not searched for one that stalls on memory",
    "container_logs": "logs of containers were not read for the names of containers and pods",
    "dmem_cgroups": "cgroups were not searched for limits and use of GPU memory",
    "dmem_users": "cgroups with GPU memory in use and without a limit are not shown",
    "driver_errors": "errors of drivers in the kernel log are of further kinds or GPUs, and are not shown",
    "gpu_limits": "limits of cgroups on GPU memory are not shown",
    "kfd_processes": "processes of AMD's compute driver were not read for their GPU memory",
    "listening_sockets": "network namespaces have too many listening sockets to find all model servers by them",
    "nvidia_cgroups": "cgroups with processes on NVIDIA's GPUs were not searched for limits on GPU memory",
    **{one.name: one.refused for one in (*KINDS.values(), EVENT_STREAMS)},
}


def left_out_texts(counts: Mapping[str, int], *lists: str) -> Iterator[str]:
    """Yield a sentence for each of these lists, or of all, that leaves out entries."""
    for name in lists or LISTS:
        if count := counts.get(name):
            yield f"{count} more {LISTS[name]}"


def some_of(names: Sequence[str], most: int, others: int = 0) -> str:
    """Return the first names as a text: "a, b and 4 more". `others`: number of those that the names lack."""
    left_out = max(0, len(names) - most) + others
    return ", ".join(names[:most]) + (f" and {left_out} more" if left_out else "")


def first_of(lines: Sequence[str], most: int, what: str) -> tuple[str, ...]:
    """Return at most that many lines; the last one counts those that are left out: "4 more reasons"."""
    if len(lines) <= most:
        return tuple(lines)
    return (*lines[: most - 1], f"{len(lines) - most + 1} more {what}")
