"""The sentences in deploy/grafana/conditions.py, tested with other answers of the daemon than its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from support.dashboard_fleet import CONFIGURED, Json, Sighting, Watched

Condition = Callable[[Watched], bool]


def in_snapshot(met: Callable[[Json], object]) -> Condition:
    """Return a condition that is met if the machine has had such a snapshot."""
    return lambda machine: any(bool(met(one.snapshot)) for one in machine.sightings)


def in_sighting(met: Callable[[Sighting], object]) -> Condition:
    return lambda machine: any(bool(met(one)) for one in machine.sightings)


def at_the_end(met: Callable[[Json], object]) -> Condition:
    return lambda machine: bool(met(machine.sightings[-1].snapshot))


def has(part: str, *fields: str) -> Callable[[Json], bool]:
    """Return a condition that a record of this part of the snapshot has one of the fields, known and not empty."""
    return lambda snapshot: any(one[field] not in (None, {}) for one in snapshot[part] for field in fields)


# Of a machine: a panel with this sentence has data if and only if the condition is met.
LASTING: Mapping[str, Condition] = {
    "Only on machines with a GPU or an NPU.": in_snapshot(lambda seen: seen["devices"]),
    "Only if a device, a driver or a cgroup has a part of a pool.": in_snapshot(has("shares", "used_bytes")),
    "Only where the kernel reports contents (Linux).": in_snapshot(has("pools", "contents")),
    "Only where holders of memory are known (Linux).": in_snapshot(has("pools", "unattributed_bytes")),
    "Only where the kernel counts OOM kills (Linux).": in_snapshot(
        lambda seen: seen["kernel"]["oom_kills_total"] is not None
    ),
    "Only if the kernel has pressure stall information.": in_snapshot(lambda seen: seen["psi"]),
    "Only where the kernel reports free blocks (Linux).": in_snapshot(has("nodes", "largest_free_block_bytes")),
    "Only if the system reports swap.": in_snapshot(lambda seen: seen["swap"]),
    "Only if a driver reports it.": in_snapshot(has("devices", "busy_ratio", "memory_busy_ratio")),
    "Only if a driver or the kernel's log has counted an error.": in_snapshot(
        lambda seen: has("devices", "errors")(seen) or (seen["kernel_log"] or {}).get("errors")
    ),
    "Only if a driver lists the processes of a GPU.": in_snapshot(has("devices", "process_list")),
    "Only if processes run in units of systemd.": in_sighting(lambda seen: seen.owners["unit"]),
    "Only if processes run in containers or pods.": in_sighting(
        lambda seen: seen.owners["container"] or seen.owners["pod"]
    ),
    "Only where memwatchd adds up all processes (Linux).": in_sighting(lambda seen: seen.owners["user"]),
    "Only if a driver reports the memory of processes.": in_sighting(
        lambda seen: any(one["device_bytes"] for one in seen.owners["unit"])
    ),
    "Only if a model server reports its memory.": in_snapshot(has("engines", "weights_bytes")),
    "Only if a model server reports the use of its cache.": in_snapshot(has("engines", "kv_cache_ratio")),
    "Only if memwatchd runs on Linux.": lambda _: True,
    "Needs `metrics = true` under `[processes]`.": lambda machine: machine.name in CONFIGURED,
    "Needs a receiver under `[alerts]`.": lambda machine: machine.name in CONFIGURED,
}
# Of a time: a panel with this sentence is empty only while the condition is not met.
PASSING: Mapping[str, Condition] = {
    "Empty while nothing fills up.": at_the_end(has("pressure", "seconds_to_full")),
    "Empty while no signal raises a level.": at_the_end(
        lambda seen: any(one["reasons"] for one in seen["pressure"])
    ),
    "Empty while no alert fires.": lambda machine: machine.has_alert,
    "Empty while no device can allocate that much.": at_the_end(
        lambda seen: any((one["headroom_after_reclaim_bytes"] or 0) >= 1 << 30 for one in seen["devices"])
    ),
    "Empty while all GPUs respond.": at_the_end(
        lambda seen: any(one["state"] not in ("ok", "stalled") for one in seen["devices"])
    ),
    "Empty while all collectors work.": at_the_end(
        lambda seen: any(one["state"] not in ("ok", "unavailable") for one in seen["collectors"])
    ),
}
ALL = {**LASTING, **PASSING}


def condition_of(description: str) -> str | None:
    """Return the sentence with the condition, None if a panel always has data."""
    return next((sentence for sentence in ALL if description.endswith(f" {sentence}")), None)


def explain(description: str, has_data: bool, machines: list[Watched]) -> str:
    """Return what is wrong about a panel's description, for the machines that it shows; "" if it is true."""
    sentence = condition_of(description)
    if sentence is None:
        return "" if has_data else "it is empty, and its description has no condition"
    met = any(ALL[sentence](machine) for machine in machines)
    if met and not has_data:
        return f"it is empty, and the condition is met: {sentence}"
    if has_data and not met and sentence in LASTING:
        return f"it has data, and the condition is not met: {sentence}"
    return ""
