"""The dashboard of one machine: what is inside what, how full, since when."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row

from board import LEVELS, ORANGE, RED, UP, USE, board, dashed, figure, lines, rows, stacked, states, variable

UID = "memwatch-machine"
M = '{job=~"$job",instance=~"$instance"}'


RAM = M[:-1] + ',kind="system_ram"}'
LATELY = M[:-1] + ',window="10s"}'


def machine() -> dashboard.Dashboard:
    text = "One machine's memory by memwatchd: pools, the shares inside them, pressure, devices."
    built = board(UID, "memwatch: machine", text, ("Fleet", "memwatch-fleet"))
    built.with_variable(variable("job", "Job", "label_values(memwatch_build_info, job)", several=True))
    which = 'label_values(memwatch_build_info{job=~"$job"}, instance)'
    built.with_variable(variable("instance", "Machine", which, several=False))
    for add in (now, inside, pressure, devices, itself):
        add(built)
    return built


def now(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Now"))
    levels = {"{{target}}": f"memwatch_pressure_level{M}"}
    built.with_panel(
        figure(
            "Pressure", "The level of each pool and limit.", levels, "none", steps=((None, "text"), (9, RED))
        ).mappings([LEVELS])
    )
    used = {"{{pool}}": f"memwatch_pool_used_bytes{M} / memwatch_pool_size_bytes{M}"}
    built.with_panel(figure("Used", "Used part of each pool.", used, "percentunit", steps=USE))
    left = {"{{pool}}": f"memwatch_pool_available_bytes{M}"}
    built.with_panel(figure("Available", "What could be allocated without swapping.", left, spark=True))
    headroom = {"{{device}}": f"memwatch_device_headroom_bytes{M}"}
    text = "The least of what is left along everything the device allocates from. Not to be added up."
    built.with_panel(figure("A GPU can allocate", text, headroom, missing="no GPU"))
    full = {"{{target}}": f"memwatch_time_to_full_seconds{M}"}
    steps = ((None, RED), (900, ORANGE), (3600, "green"))
    built.with_panel(figure("Full in", "Forecast at the present rate.", full, "s", "no trend", steps))
    kills = {"OOM kills": f"increase(memwatch_kernel_oom_kills_total{M}[$__range])"}
    text = "Processes that the kernel killed for want of memory in the time shown."
    built.with_panel(figure("Killed", text, kills, "none", "not told", ((None, "green"), (0.5, RED))))


def inside(built: dashboard.Dashboard) -> None:
    built.with_row(Row("What is inside what"))
    queries = {
        "{{pool}} used": f"memwatch_pool_used_bytes{M}",
        "size": f"sum by (instance) (memwatch_pool_size_bytes{M})",
    }
    text = "Pools do not overlap: stacked, they are the machine's memory. The dashed line is its size."
    built.with_panel(dashed(stacked(lines("Pools", text, queries)), "^size$"))
    queries = {
        "{{share}} ⊂ {{within}}": f"memwatch_share_used_bytes{M}",
        "limit of {{share}}": f"memwatch_share_limit_bytes{M}",
    }
    text = "Bytes inside a pool: CUDA Pool ⊂ System RAM, GTT, MIG instances, a container. Never added to anything."
    built.with_panel(dashed(lines("Shares", text, queries, missing="no share here"), "^limit of"))
    queries = {
        "available": f"memwatch_pool_available_bytes{RAM}",
        "free": f"memwatch_pool_free_bytes{RAM}",
        "unattributed": f"memwatch_pool_unattributed_bytes{RAM}",
    }
    text = "Available contains page cache, free does not. Unattributed is used, but by nobody known."
    built.with_panel(lines("System RAM", text, queries))
    queries = {
        "{{device}} can allocate": f"memwatch_device_headroom_bytes{M}",
        "{{device}} {{api}} says free": f"memwatch_device_api_free_bytes{M}",
    }
    text = "On unified machines CUDA's free is MemFree: to it, page cache is used."
    built.with_panel(lines("Headroom of devices", text, queries, missing="no GPU"))
    queries = {"{{name}} {{pid}} {{where}}": f"topk(10, memwatch_process_memory_bytes{M})"}
    text = "The ten largest. Exported where `metrics = true` stands under `[processes]`."
    built.with_panel(lines("Who holds it", text, queries, missing="processes are not exported"))
    queries = {"used": f"memwatch_swap_used_bytes{M}", "size": f"memwatch_swap_size_bytes{M}"}
    built.with_panel(dashed(lines("Swap", "Never capacity.", queries, missing="not told"), "^size$"))


def pressure(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Pressure"))
    levels = {"{{target}}": f"memwatch_pressure_level{M}"}
    built.with_panel(states("Level", "low, medium, high, critical", levels, LEVELS))
    ratio = {"{{target}}": f"memwatch_pressure_ratio{M}"}
    text = "What levels begin with; other signals raise them."
    built.with_panel(lines("Used part that is judged", text, ratio, "percentunit").max(1))
    queries = {
        "{{kind}}": f"memwatch_psi_stall_ratio{LATELY}",
        "{{kind}}, by the counter": f"rate(memwatch_psi_stalled_seconds_total{M}[$__rate_interval])",
    }
    text = "Pressure stall information: some tasks waited for memory, or all of them did (full)."
    built.with_panel(lines("Time lost waiting", text, queries, "percentunit", missing="the kernel does not tell"))
    queries = {
        "node {{node}}: in blocks of at least 4 MiB": f"memwatch_free_large_blocks_bytes{M}",
        "node {{node}}: largest block": f"memwatch_largest_free_block_bytes{M}",
    }
    text = "Drivers need large blocks; without them allocations fail while gigabytes are available."
    built.with_panel(lines("Fragmentation", text, queries, missing="not told"))
    reasons = {"": f"memwatch_pressure_reason{M}"}
    text = "The signals that speak for the present level."
    built.with_panel(
        rows("Why", text, reasons, {"target": "target", "signal": "signal"}, missing="nothing speaks for a level")
    )
    full = {"{{target}}": f"memwatch_time_to_full_seconds{M}"}
    built.with_panel(lines("Full in", "The forecast over time.", full, "s", missing="no trend"))


def devices(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Devices"))
    names = ("device", "vendor", "name", "architecture", "driver", "pci", "uuid")
    built.with_panel(
        rows(
            "Devices",
            "Who they are, and how their memory lies: unified is part of System RAM.",
            {"": f"memwatch_device_info{M}"},
            {name: name for name in names},
            24,
            "no GPU",
        )
    )
    up = {"{{device}}": f"memwatch_device_up{M}"}
    text = "A GPU that is lost, missing or needs a reset has no figures."
    built.with_panel(states("Answering", text, up, UP, missing="no GPU"))
    queries = {
        "{{device}} computes": f"memwatch_device_busy_ratio{M}",
        "{{device}} moves data": f"memwatch_device_memory_busy_ratio{M}",
    }
    built.with_panel(lines("Busy", "Part of the time.", queries, "percentunit", missing="not told").max(1))
    errors = {"{{device}} {{kind}}": f"increase(memwatch_driver_memory_errors_total{M}[$__rate_interval])"}
    text = "ECC errors, remapped rows, retired pages, XIDs."
    built.with_panel(lines("Memory errors", text, errors, "none", missing="not told"))
    complete = {"{{device}}": f"memwatch_device_process_list_complete{M}"}
    text = "Whether all processes that hold its memory can be seen; in a container some may hide."
    panel = rows("Who can be seen", text, complete, {"device": "device", "Value": "complete"}, missing="no GPU")
    built.with_panel(panel)


def itself(built: dashboard.Dashboard) -> None:
    built.with_row(Row("memwatchd itself"))
    up = {"{{collector}}": f"memwatch_collector_up{M}"}
    built.with_panel(states("Collectors", "Collectors this machine can use, and whether they answer.", up, UP))
    took = {"{{collector}}": f"memwatch_collector_duration_seconds{M}"}
    built.with_panel(lines("Time per reading", "How long each collector's last answer took.", took, "s"))
    queries = {"late by": f"memwatch_tick_lag_seconds{M}", "took": f"memwatch_tick_duration_seconds{M}"}
    built.with_panel(lines("Ticks", "A tick that is late is a machine that has no time.", queries, "s"))
    queries = {"resident": f"process_resident_memory_bytes{M}"}
    built.with_panel(lines("Its own memory", "What watching costs.", queries, width=6))
    cpu = {"of a core": f"rate(process_cpu_seconds_total{M}[$__rate_interval])"}
    built.with_panel(lines("Its own CPU", "What watching costs.", cpu, "percentunit", width=6))
    queries = {
        "{{receiver}} {{outcome}}": f"increase(memwatch_notifications_total{M}[$__range])",
        "{{receiver}} waiting": f"memwatch_notifications_pending{M}",
    }
    text = "The daemon's own webhooks."
    built.with_panel(lines("Notifications", text, queries, "none", missing="no receiver is set"))
    version = {"": f"memwatch_build_info{M}"}
    names = {"instance": "machine", "version": "version", "simulated": "simulated"}
    built.with_panel(rows("Version", "What runs there, and whether its figures are simulated.", version, names))
