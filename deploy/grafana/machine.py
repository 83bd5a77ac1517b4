"""Dashboard of one machine: pools, shares inside them, pressure, devices, memwatchd itself."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row

from board import LEVELS, ORANGE, RED, UP, USE, board, dashed, figure, lines, rows, stacked, states, variable

UID = "memwatch-machine"
M = '{job=~"$job",instance=~"$instance"}'


RAM = M[:-1] + ',kind="system_ram"}'
LATELY = M[:-1] + ',window="10s"}'


def machine() -> dashboard.Dashboard:
    text = "Memory of one machine: pools, the shares inside them, pressure, devices."
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
    built.with_panel(figure("Used", "Fraction of each pool that is used.", used, "percentunit", steps=USE))
    left = {"{{pool}}": f"memwatch_pool_available_bytes{M}"}
    built.with_panel(figure("Available", "Memory that can be allocated without swapping.", left, spark=True))
    headroom = {"{{device}}": f"memwatch_device_headroom_bytes{M}"}
    text = "Minimum of the memory left in all pools and limits that the device allocates from. Do not sum."
    built.with_panel(figure("GPU headroom", text, headroom, missing="no GPU"))
    full = {"{{target}}": f"memwatch_time_to_full_seconds{M}"}
    steps = ((None, RED), (900, ORANGE), (3600, "green"))
    built.with_panel(figure("Time to full", "Forecast at the current rate.", full, "s", "no trend", steps))
    kills = {"OOM kills": f"increase(memwatch_kernel_oom_kills_total{M}[$__range])"}
    text = "Processes killed by the OOM killer in the selected time range."
    built.with_panel(figure("OOM kills", text, kills, "none", "no data", ((None, "green"), (0.5, RED))))


def inside(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Pools and shares"))
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
    text = "Available contains page cache, free does not. Unattributed is used memory without a known owner."
    built.with_panel(lines("System RAM", text, queries))
    queries = {
        "{{device}} can allocate": f"memwatch_device_headroom_bytes{M}",
        "{{device}} {{api}} reports free": f"memwatch_device_api_free_bytes{M}",
    }
    text = "On unified machines CUDA reports only MemFree as free; page cache can be reclaimed."
    built.with_panel(lines("Headroom of devices", text, queries, missing="no GPU"))
    queries = {
        "{{name}} {{pid}} resident": f"topk(10, memwatch_process_resident_bytes{M})",
        "{{name}} {{pid}} ⊂ {{within}}": f"topk(10, memwatch_process_device_bytes{M})",
    }
    text = "The 10 largest of each kind, which may overlap. Needs `metrics = true` under `[processes]`."
    built.with_panel(lines("Processes", text, queries, missing="processes are not exported"))
    queries = {"used": f"memwatch_swap_used_bytes{M}", "size": f"memwatch_swap_size_bytes{M}"}
    built.with_panel(dashed(lines("Swap", "Not counted as memory.", queries, missing="no data"), "^size$"))


def pressure(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Pressure"))
    levels = {"{{target}}": f"memwatch_pressure_level{M}"}
    built.with_panel(states("Level", "low, medium, high, critical", levels, LEVELS))
    ratio = {"{{target}}": f"memwatch_pressure_ratio{M}"}
    text = "Usage determines the level; other signals raise it."
    built.with_panel(lines("Usage for the pressure level", text, ratio, "percentunit").max(1))
    queries = {
        "{{kind}}": f"memwatch_psi_stall_ratio{LATELY}",
        "{{kind}}, from the counter": f"rate(memwatch_psi_stalled_seconds_total{M}[$__rate_interval])",
    }
    text = "Pressure stall information: some or all (full) tasks stalled on memory."
    built.with_panel(lines("PSI", text, queries, "percentunit", missing="not supported by the kernel"))
    queries = {
        "node {{node}}: in blocks of at least 4 MiB": f"memwatch_free_large_blocks_bytes{M}",
        "node {{node}}: largest block": f"memwatch_largest_free_block_bytes{M}",
    }
    text = "Drivers need large blocks; without them allocations fail while gigabytes are available."
    built.with_panel(lines("Fragmentation", text, queries, missing="no data"))
    reasons = {"": f"memwatch_pressure_reason{M}"}
    text = "Signals of the current level."
    built.with_panel(rows("Reasons", text, reasons, {"target": "target", "signal": "signal"}, missing="no signals"))
    full = {"{{target}}": f"memwatch_time_to_full_seconds{M}"}
    built.with_panel(lines("Time to full", "Forecast over time.", full, "s", missing="no trend"))


def devices(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Devices"))
    names = ("device", "vendor", "name", "architecture", "driver", "pci", "uuid")
    built.with_panel(
        rows(
            "Devices",
            "Identity and memory architecture. Unified memory is part of System RAM.",
            {"": f"memwatch_device_info{M}"},
            {name: name for name in names},
            24,
            "no GPU",
        )
    )
    up = {"{{device}}": f"memwatch_device_up{M}"}
    text = "A GPU that is lost, missing or needs a reset reports no values."
    built.with_panel(states("Up", text, up, UP, missing="no GPU"))
    queries = {
        "{{device}} compute": f"memwatch_device_busy_ratio{M}",
        "{{device}} memory": f"memwatch_device_memory_busy_ratio{M}",
    }
    built.with_panel(
        lines("Utilization", "Fraction of time busy.", queries, "percentunit", missing="no data").max(1)
    )
    errors = {"{{device}} {{kind}}": f"increase(memwatch_driver_memory_errors_total{M}[$__rate_interval])"}
    text = "ECC errors, remapped rows, retired pages, XIDs."
    built.with_panel(lines("Memory errors", text, errors, "none", missing="no data"))
    complete = {"{{device}}": f"memwatch_device_process_list_complete{M}"}
    text = "Complete if all processes with GPU memory are visible. In a container some may be hidden."
    panel = rows("Process visibility", text, complete, {"device": "device", "Value": "complete"}, missing="no GPU")
    built.with_panel(panel)


def itself(built: dashboard.Dashboard) -> None:
    built.with_row(Row("memwatchd"))
    up = {"{{collector}}": f"memwatch_collector_up{M}"}
    built.with_panel(states("Collectors", "State of the collectors that this machine supports.", up, UP))
    took = {"{{collector}}": f"memwatch_collector_duration_seconds{M}"}
    built.with_panel(lines("Collector duration", "Duration of the last collection.", took, "s"))
    queries = {"delay": f"memwatch_tick_lag_seconds{M}", "duration": f"memwatch_tick_duration_seconds{M}"}
    built.with_panel(lines("Ticks", "Delayed ticks: the machine is overloaded.", queries, "s"))
    queries = {"resident": f"process_resident_memory_bytes{M}"}
    built.with_panel(lines("Memory (RSS)", "Overhead of memwatchd.", queries, width=6))
    cpu = {"of a core": f"rate(process_cpu_seconds_total{M}[$__rate_interval])"}
    built.with_panel(lines("CPU", "Overhead of memwatchd.", cpu, "percentunit", width=6))
    queries = {
        "{{receiver}} {{outcome}}": f"increase(memwatch_notifications_total{M}[$__range])",
        "{{receiver}} pending": f"memwatch_notifications_pending{M}",
    }
    text = "Notifications sent by memwatchd."
    built.with_panel(lines("Notifications", text, queries, "none", missing="no receiver configured"))
    version = {"": f"memwatch_build_info{M}"}
    names = {"instance": "machine", "version": "version", "simulated": "simulated"}
    built.with_panel(rows("Version", "Installed version; simulated data is marked.", version, names))
