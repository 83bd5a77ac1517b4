"""Dashboard of one machine: pools and what is in them, owners, peaks, pressure, devices, memwatchd itself."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row

from board import (
    GREEN,
    INCIDENT_LINK,
    LEVEL_LABELS,
    LEVELS,
    ORANGE,
    RED,
    UP,
    USE,
    YELLOW,
    Annotation,
    board,
    colored,
    dashed,
    figure,
    lines,
    rows,
    stacked,
    states,
    variable,
)
from conditions import (
    BLOCKS,
    BUSY,
    CACHE_USE,
    CONTAINERS,
    CONTENTS,
    COUNTED_ERRORS,
    ENGINES,
    EXPORTED_PROCESSES,
    GPU,
    HELD,
    LISTED_PROCESSES,
    OOM_COUNTER,
    OWN_USAGE,
    PSI,
    RECEIVERS,
    SHARES,
    SIGNALS,
    SWAP,
    TREND,
    UNITS,
    USERS,
)

UID = "memwatch-machine"
M = '{job=~"$job",instance=~"$instance"}'
RAM = M[:-1] + ',kind="system_ram"}'
BUILD = f"memwatch_build_info{M}"
LATELY = M[:-1] + ',window="10s"}'
# All machines of the time range by name, also one that is down now. label_values() has addresses only.
MACHINES = (
    'query_result(memwatch_machine_info{job=~"$job"}'
    ' or last_over_time(memwatch_machine_info{job=~"$job"}[$__range:5m]))'
)
NAME_AND_ADDRESS = r'/[{,]hostname="(?<text>[^"]+)|[{,]instance="(?<value>[^"]+)/g'


def machine() -> dashboard.Dashboard:
    text = "Memory of one machine: pools and what is in them, owners, pressure, devices."
    built = board(UID, "memwatch: machine", text, ("Fleet", "memwatch-fleet"))
    built.with_variable(variable("job", "Job", "label_values(memwatch_build_info, job)", several=True))
    built.with_variable(variable("instance", "Machine", MACHINES, several=False, regex=NAME_AND_ADDRESS))
    for one in annotations():
        built.annotation(one)
    for add in (now, inside, owners, peaks, pressure, devices, engines, itself):
        add(built)
    return built


def annotations() -> list[Annotation]:
    """Events that metrics have. memwatchd counts its alerts with and without rules in Prometheus."""
    kills = f"sum without (scope) (increase(memwatch_kernel_oom_kills_total{M}[$__rate_interval]))"
    restarts = f"changes(process_start_time_seconds{M}[$__rate_interval])"
    return [
        Annotation("Alert", f"memwatch_alerts_firing{M}", RED, "{{rule}} ({{severity}})", ("rule", "severity")),
        Annotation("OOM kill", kills, "purple"),
        Annotation("Incident", f"memwatch_incident_info{M}", ORANGE, INCIDENT_LINK, ("kind", "target")),
        Annotation("memwatchd restarted", restarts, "blue"),
    ]


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
    headroom = {
        "{{device}} now": f"memwatch_device_headroom_bytes{M}",
        "{{device}} after reclaim": f"memwatch_device_headroom_after_reclaim_bytes{M}",
    }
    text = "What a device can allocate now, and once the kernel has reclaimed page cache. Do not sum."
    built.with_panel(figure("GPU headroom", text, headroom, only=GPU))
    full = {"{{target}}": f"memwatch_time_to_full_seconds{M}"}
    steps = ((None, RED), (900, ORANGE), (3600, GREEN))
    built.with_panel(figure("Time to full", "Forecast at the current rate.", full, "s", TREND, steps))
    kills = {"OOM kills": f"sum without (scope) (increase(memwatch_kernel_oom_kills_total{M}[$__range]))"}
    text = "Processes killed by the OOM killer in the selected time range."
    built.with_panel(figure("OOM kills", text, kills, "none", OOM_COUNTER, ((None, GREEN), (0.5, RED))))


def inside(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Pools and shares"))
    queries = {
        "{{pool}} used": f"memwatch_pool_used_bytes{M}",
        "size": f"sum by (instance) (memwatch_pool_size_bytes{M})",
    }
    text = "Pools do not overlap: stacked, they are the machine's memory. The dashed line is its size."
    built.with_panel(dashed(stacked(lines("Pools", text, queries)), "^size$"))
    contents(built)
    queries = {
        "{{share}} ⊂ {{within}}": f"memwatch_share_used_bytes{M}",
        "limit of {{share}}": f"memwatch_share_limit_bytes{M}",
    }
    text = "Bytes inside a pool: CUDA Pool ⊂ System RAM, GTT, MIG instances, a container. Never added to anything."
    built.with_panel(dashed(lines("Shares", text, queries, only=SHARES), "^limit of"))
    queries = {
        "available": f"memwatch_pool_available_bytes{RAM}",
        "free": f"memwatch_pool_free_bytes{RAM}",
        "unattributed": f"memwatch_pool_unattributed_bytes{RAM}",
    }
    text = "Available contains page cache, free does not. Unattributed is used memory without a known owner."
    built.with_panel(lines("System RAM", text, queries))
    queries = {
        "{{device}} can allocate now": f"memwatch_device_headroom_bytes{M}",
        "{{device}} after reclaim": f"memwatch_device_headroom_after_reclaim_bytes{M}",
        "{{device}} {{api}} reports free": f"memwatch_device_api_free_bytes{M}",
    }
    text = "On unified machines CUDA reports only MemFree as free; page cache can be reclaimed."
    built.with_panel(lines("Headroom of devices", text, queries, only=GPU))
    queries = {"used": f"memwatch_swap_used_bytes{M}", "size": f"memwatch_swap_size_bytes{M}"}
    built.with_panel(dashed(lines("Swap", "Not counted as memory.", queries, only=SWAP), "^size$"))


def contents(built: dashboard.Dashboard) -> None:
    """Stack the contents of all pools that have them: what is used, page cache, then free memory."""

    def summed(content: str) -> str:
        return f"sum by (content) (memwatch_pool_contents_bytes{M[:-1]},{content}}})"

    queries = {
        "{{content}}": summed('content!~"page_cache|free"'),
        "page_cache": summed('content="page_cache"'),
        "free": summed('content="free"'),
        "size": f"sum by (instance) (memwatch_pool_contents_bytes{M})",
    }
    text = "What memory is used for. The parts add up to the size of the pools that have contents, the dashed line."
    panel = dashed(stacked(lines("Contents", text, queries, only=CONTENTS)), "^size$")
    built.with_panel(colored(panel, {"page_cache": "super-light-blue", "free": "light-green"}))


def owners(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Owners"))
    counted = "The largest, each with resident and device memory; no byte is counted twice."
    kinds = (
        ("Units", "{{name}}", "unit", UNITS),
        ("Containers and pods", "{{kind}} {{name}}", "container|pod", CONTAINERS),
        ("Users and jobs", "{{kind}} {{name}}", "user|job", USERS),
    )
    for title, legend, kind, only in kinds:
        built.with_panel(lines(title, counted, footprints(legend, kind), only=only))
    queries = {"{{name}} ⊂ {{within}}": f'memwatch_owner_device_bytes{M[:-1]},kind="unit"}}'}
    text = "Device memory of units, by pool or share."
    built.with_panel(lines("Device memory of units", text, queries, only=HELD))
    queries = {
        "{{name}} {{pid}} resident": f"topk(10, memwatch_process_resident_bytes{M})",
        "{{name}} {{pid}} ⊂ {{within}}": f"topk(10, memwatch_process_device_bytes{M})",
    }
    text = "The 10 largest of each kind, which may overlap."
    built.with_panel(lines("Processes", text, queries, width=24, only=EXPORTED_PROCESSES))


def footprints(legend: str, kind: str) -> dict[str, str]:
    """Query the memory of owners. Where a footprint is not known, resident memory is a part of it."""
    of_kind = f'{M[:-1]},kind=~"{kind}"}}'
    footprint = f"memwatch_owner_footprint_bytes{of_kind}"
    resident = f"memwatch_owner_resident_bytes{of_kind} unless on (job, instance, kind, name) {footprint}"
    return {legend: footprint, f"{legend} (resident only)": resident}


def peaks(built: dashboard.Dashboard) -> None:
    """Add extremes of all ticks, of which a scrape sees one in fifteen."""
    built.with_row(Row("Worst of each interval"))
    window = "[$__rate_interval]"
    queries = {
        "{{pool}} highest": f"max_over_time(memwatch_pool_used_bytes_max{M}{window})",
        "{{pool}} at the scrape": f"memwatch_pool_used_bytes{M}",
    }
    text = "Highest use of all ticks, also between two scrapes. Peaks of two pools may be at different times."
    built.with_panel(dashed(lines("Highest use", text, queries), "at the scrape$"))
    queries = {
        "{{pool}} lowest": f"min_over_time(memwatch_pool_available_bytes_min{M}{window})",
        "{{pool}} at the scrape": f"memwatch_pool_available_bytes{M}",
    }
    text = "Lowest available memory of all ticks, also between two scrapes."
    built.with_panel(dashed(lines("Lowest available", text, queries), "at the scrape$"))
    queries = {
        "{{device}} lowest": f"min_over_time(memwatch_device_headroom_after_reclaim_bytes_min{M}{window})",
        "{{device}} at the scrape": f"memwatch_device_headroom_after_reclaim_bytes{M}",
    }
    text = "Lowest headroom after reclaim of all ticks, also between two scrapes."
    built.with_panel(dashed(lines("Lowest headroom", text, queries, only=GPU), "at the scrape$"))
    passed = f'rate(memwatch_pressure_seconds_total{M[:-1]},level!="low"}}{window})'
    queries = {"{{level}}": f"max by (level) ({passed})"}
    text = "Fraction of the time at each level above OK, of the target with the most."
    panel = lines("Time at each level", text, queries, "percentunit").max(1)
    built.with_panel(colored(panel, {"medium": YELLOW, "high": ORANGE, "critical": RED}))


def pressure(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Pressure"))
    levels = {"{{target}}": f"memwatch_pressure_level{M}"}
    built.with_panel(states("Level", ", ".join(LEVEL_LABELS), levels, LEVELS))
    ratio = {"{{target}}": f"memwatch_pressure_ratio{M}"}
    text = "Usage determines the level; other signals raise it."
    built.with_panel(lines("Usage for the pressure level", text, ratio, "percentunit").max(1))
    queries = {
        "{{kind}}": f"memwatch_psi_stall_ratio{LATELY}",
        "{{kind}}, from the counter": f"rate(memwatch_psi_stalled_seconds_total{M}[$__rate_interval])",
    }
    text = "Pressure stall information: some or all (full) tasks stalled on memory."
    built.with_panel(lines("PSI", text, queries, "percentunit", only=PSI))
    queries = {
        "node {{node}}: in blocks of at least 4 MiB": f"memwatch_free_large_blocks_bytes{M}",
        "node {{node}}: largest block": f"memwatch_largest_free_block_bytes{M}",
    }
    text = "Drivers need large blocks; without them allocations fail while gigabytes are available."
    built.with_panel(lines("Fragmentation", text, queries, only=BLOCKS))
    reasons = {"": f"memwatch_pressure_reason{M}"}
    text = "Signals of the current level."
    built.with_panel(rows("Reasons", text, reasons, {"target": "target", "signal": "signal"}, only=SIGNALS))
    full = {"{{target}}": f"memwatch_time_to_full_seconds{M}"}
    built.with_panel(lines("Time to full", "Forecast over time.", full, "s", only=TREND))


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
            GPU,
        )
    )
    up = {"{{device}}": f"memwatch_device_up{M}"}
    text = "A GPU that is lost, missing or needs a reset reports no values."
    built.with_panel(states("Up", text, up, UP, only=GPU))
    queries = {
        "{{device}} compute": f"memwatch_device_busy_ratio{M}",
        "{{device}} memory": f"memwatch_device_memory_busy_ratio{M}",
    }
    built.with_panel(lines("Utilization", "Fraction of time busy.", queries, "percentunit", only=BUSY).max(1))
    errors = {"{{device}} {{kind}}": f"increase(memwatch_driver_memory_errors_total{M}[$__rate_interval])"}
    text = "ECC errors, remapped rows, retired pages, XIDs."
    built.with_panel(lines("Memory errors", text, errors, "none", only=COUNTED_ERRORS))
    complete = {"{{device}}": f"memwatch_device_process_list_complete{M}"}
    text = "Complete if all processes with GPU memory are visible. In a container some may be hidden."
    columns = {"device": "device", "Value": "complete"}
    built.with_panel(rows("Process visibility", text, complete, columns, only=LISTED_PROCESSES))


def engines(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Model servers"))
    queries = {
        "{{engine}} weights": f"memwatch_engine_weights_bytes{M}",
        "{{engine}} KV cache": f"memwatch_engine_kv_cache_bytes{M}",
        "{{engine}} KV cache in use": f"memwatch_engine_kv_cache_used_bytes{M}",
    }
    text = "Parts of the memory of a model server: weights, KV cache reserved and in use."
    built.with_panel(lines("Memory of model servers", text, queries, only=ENGINES))
    used = {"{{engine}}": f"memwatch_engine_kv_cache_ratio{M}"}
    text = "Used fraction of the KV cache. Requests wait when it is full."
    built.with_panel(lines("KV cache in use", text, used, "percentunit", only=CACHE_USE).max(1))
    rate = {"{{engine}} {{kind}}": f"rate(memwatch_engine_tokens_total{M}[$__rate_interval])"}
    built.with_panel(lines("Tokens per second", "Tokens read and generated.", rate, "none", only=ENGINES))
    requests = {"{{engine}} {{state}}": f"memwatch_engine_requests{M}"}
    built.with_panel(lines("Requests", "Requests that run and wait.", requests, "none", only=ENGINES))


def itself(built: dashboard.Dashboard) -> None:
    built.with_row(Row("memwatchd"))
    up = {"{{collector}}": f"memwatch_collector_up{M}"}
    built.with_panel(states("Collectors", "State of the collectors that this machine supports.", up, UP))
    took = {"{{collector}}": f"memwatch_collector_duration_seconds{M}"}
    built.with_panel(lines("Collector duration", "Duration of the last collection.", took, "s"))
    queries = {"delay": f"memwatch_tick_lag_seconds{M}", "duration": f"memwatch_tick_duration_seconds{M}"}
    built.with_panel(lines("Ticks", "Delayed ticks: the machine is overloaded.", queries, "s"))
    queries = {"resident": f"process_resident_memory_bytes{M}"}
    built.with_panel(lines("Memory (RSS)", "Overhead of memwatchd.", queries, width=6, only=OWN_USAGE))
    cpu = {"of a core": f"rate(process_cpu_seconds_total{M}[$__rate_interval])"}
    built.with_panel(lines("CPU", "Overhead of memwatchd.", cpu, "percentunit", width=6, only=OWN_USAGE))
    queries = {
        "{{receiver}} {{outcome}}": f"increase(memwatch_notifications_total{M}[$__range])",
        "{{receiver}} pending": f"memwatch_notifications_pending{M}",
    }
    text = "Notifications sent by memwatchd."
    built.with_panel(lines("Notifications", text, queries, "none", only=RECEIVERS))
    identity = {"": f"memwatch_machine_info{M} * on (job, instance) group_left (version, simulated) {BUILD}"}
    names = ("hostname", "instance", "model", "memory", "architecture", "kernel", "version", "simulated")
    text = "Name and address of the machine, and the installed version of memwatchd; simulated data is marked."
    built.with_panel(rows("Machine", text, identity, {name: name for name in names}, 24))
