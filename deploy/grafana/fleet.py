"""Dashboard of the fleet: worst machines, available memory, and devices where an allocation fits.

Machines are shown by name. `named` adds it to a query; without one, as in a machine that is down, there is only the
address.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import common as style
from grafana_foundation_sdk.builders import dashboard, heatmap
from grafana_foundation_sdk.builders.dashboard import Row
from grafana_foundation_sdk.models.common import HeatmapCalculationMode

from board import (
    DATASOURCE,
    INCIDENT_LINK,
    LEVEL_LABELS,
    LEVELS,
    ORANGE,
    RED,
    USE,
    YELLOW,
    Annotation,
    board,
    column,
    common_parts,
    figure,
    lines,
    rows,
    stacked,
    targets,
    variable,
)
from conditions import FAILING, FIRING, FITS, LOST, OOM_COUNTER, PSI, UNATTRIBUTED

UID = "memwatch-fleet"
J = '{job=~"$job"}'
# A GPU's own memory is filled on purpose: what is critical there is no machine in need.
SHARED = '{job=~"$job",target!~"gpu[0-9]+([.]mig[0-9]+)?"}'
LEVEL = f"max by (job, instance) (memwatch_pressure_level{SHARED})"
NAMES = f"max by (job, instance, hostname) (memwatch_machine_info{J})"


def named(expression: str) -> str:
    """Add the label `hostname` to series of machines."""
    return f"({expression}) * on (job, instance) group_left (hostname) {NAMES}"


def fleet() -> dashboard.Dashboard:
    text = "All machines with memwatchd: worst first, available memory, and where a model fits."
    built = board(UID, "memwatch: fleet", text, ("Machine", "memwatch-machine"))
    built.with_variable(variable("job", "Job", "label_values(memwatch_build_info, job)", several=True))
    needed = dashboard.TextBoxVariable("need").label("Fits (GiB)").default_value("20")
    built.with_variable(needed)
    kills = named(f"sum without (scope) (increase(memwatch_kernel_oom_kills_total{J}[$__rate_interval]))")
    built.annotation(Annotation("OOM kill", kills, "purple", "{{hostname}}", ("hostname",)))
    incidents = named(f"memwatch_incident_info{J}")
    built.annotation(Annotation("Incident", incidents, "orange", INCIDENT_LINK, ("hostname", "kind")))
    for add in (summary, worst, room, trouble):
        add(built)
    return built


def summary(built: dashboard.Dashboard) -> None:
    watched = {"machines": f"count(up{J})"}
    built.with_panel(figure("Machines", "Targets known to Prometheus.", watched, "none", width=3))
    down = {"down": f"count(up{J} == 0) or vector(0)"}
    bad = ((None, "green"), (1, RED))
    built.with_panel(
        figure("Down", "Machines whose memwatchd cannot be scraped.", down, "none", steps=bad, width=3)
    )
    for word, number, color in (("Critical", 3, RED), ("High", 2, ORANGE), ("Medium", 1, YELLOW)):
        queries = {word: f"count({LEVEL} == {number}) or vector(0)"}
        text = "Machines whose worst pool or limit is at this level, without dedicated GPU memory."
        built.with_panel(figure(word, text, queries, "none", steps=((None, "green"), (1, color)), width=3))
    size = {"size": f"sum(memwatch_pool_size_bytes{J})"}
    built.with_panel(figure("Memory", "All pools of all machines.", size, width=3))
    left = {"available": f"sum(memwatch_pool_available_bytes{J})"}
    built.with_panel(
        figure("Available", "Sum over all machines. One allocation can use only one machine.", left, width=3)
    )
    used = {"used": f"sum(memwatch_pool_used_bytes{J}) / sum(memwatch_pool_size_bytes{J})"}
    built.with_panel(
        figure(
            "Used", "Fraction of all pools of all machines that is used.", used, "percentunit", steps=USE, width=3
        )
    )


def worst(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Worst machines first"))
    queries = {
        "level": LEVEL,
        "used": f"max by (job, instance) (memwatch_pressure_ratio{SHARED})",
        "available": f'sum by (job, instance) (memwatch_pool_available_bytes{J[:-1]},kind="system_ram"}})',
        "full": f"min by (job, instance) (memwatch_time_to_full_seconds{SHARED})",
        "unattributed": f"sum by (job, instance) (memwatch_pool_unattributed_bytes{J})",
        "name": NAMES,
    }
    columns = {
        "hostname": "machine",
        "Value #A": "pressure",
        "Value #B": "used",
        "Value #C": "available",
        "Value #D": "full in",
        "Value #E": "unattributed",
        "instance": "address",
    }
    text = "By level, then by usage. The name links to the dashboard of the machine."
    # If no machine has a trend, only the column "full in" is missing.
    panel = rows("Machines", text, queries, columns, 16, sort_by=("pressure", "used"))
    links = [
        {"title": "Open", "url": "/d/memwatch-machine?var-instance=${__data.fields.instance}&${__url_time_range}"}
    ]
    column(panel, "machine", links=links)
    column(panel, "pressure", mappings=[LEVELS], custom__cellOptions={"type": "color-background"})
    column(panel, "used", unit="percentunit", decimals=1)
    for name in ("available", "unattributed"):
        column(panel, name, unit="bytes")
    built.with_panel(column(panel, "full in", unit="s"))
    firing = 'ALERTS{alertstate="firing",job=~"$job"}'
    alerts = {"": f"{named(firing)} or ({firing} unless on (job, instance) {NAMES})"}
    names = {
        "severity": "severity",
        "alertname": "alert",
        "hostname": "machine",
        "target": "target",
        "device": "device",
        "instance": "address",
    }
    text = "From the rules in deploy/prometheus/rules."
    built.with_panel(rows("Firing", text, alerts, names, 8, FIRING, ("severity",)))
    built.with_panel(heat())
    by_level = {word: f"count({LEVEL} == {number}) or vector(0)" for number, word in enumerate(LEVEL_LABELS)}
    built.with_panel(
        stacked(lines("Machines by level", "Each machine once, by its worst pool or limit.", by_level, "none"))
    )


def heat() -> heatmap.Panel:
    queries = {"{{instance}}": f"max by (instance) (memwatch_pressure_ratio{SHARED})"}
    text = "Distribution of usage over machines. Dark means many machines. A rising band is a fleet that fills up."
    panel = common_parts(heatmap.Panel(), "Pressure heat map", text, (12, 8), None)
    buckets = style.HeatmapCalculationBucketConfig().mode(HeatmapCalculationMode.SIZE).value("0.05")
    panel.calculate(True).calculation(style.HeatmapCalculationOptions().y_buckets(buckets))
    panel.y_axis(heatmap.YAxisConfig().unit("percentunit").min(0).max(1)).datasource(DATASOURCE)
    for query in targets(queries):
        panel.with_target(query)
    return panel


def room(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Headroom"))
    size = {
        "{{kind}} used": f"sum by (kind) (memwatch_pool_used_bytes{J})",
        "{{kind}} available": f"sum by (kind) (memwatch_pool_available_bytes{J})",
    }
    text = "Pools of all machines, stacked to the total."
    built.with_panel(stacked(lines("Headroom of the fleet", text, size)))
    identity = f"memwatch_device_info{J}"
    enough = f"memwatch_device_headroom_after_reclaim_bytes{J} >= $need * 1024 * 1024 * 1024"
    fits = named(f"({enough}) * on (job, instance, device) group_left (name, architecture) {identity}")
    names = {
        "hostname": "machine",
        "device": "device",
        "name": "name",
        "architecture": "memory",
        "Value": "can allocate",
        "instance": "address",
    }
    text = "Devices with room for the selected size after reclaim of page cache. Unified machines share memory."
    panel = rows("Where it fits", text, {"": fits}, names, 12, FITS, ("can allocate",))
    built.with_panel(column(panel, "can allocate", unit="bytes"))


def trouble(built: dashboard.Dashboard) -> None:
    built.with_row(Row("Problems"))
    unattributed = f"topk(10, sum by (job, instance) (memwatch_pool_unattributed_bytes{J}))"
    text = "Used memory without a known owner. Growth is a leak in a driver or the kernel."
    by_name = {"{{hostname}}": named(unattributed)}
    built.with_panel(lines("Unattributed, top 10", text, by_name, only=UNATTRIBUTED))
    kills = f"topk(10, sum without (scope) (increase(memwatch_kernel_oom_kills_total{J}[$__rate_interval])))"
    text = "Processes killed by the OOM killer; the 10 machines with the most."
    built.with_panel(lines("OOM kills", text, {"{{hostname}}": named(kills)}, "none", only=OOM_COUNTER))
    waits = f'topk(10, memwatch_psi_stall_ratio{J[:-1]},kind="full",window="60s"}})'
    text = "Fraction of the last minute in which all tasks stalled on memory (PSI full)."
    built.with_panel(lines("PSI full, top 10", text, {"{{hostname}}": named(waits)}, "percentunit", only=PSI))
    lost = {"": named(f"memwatch_device_up{J} == 0")}
    names = {"hostname": "machine", "device": "device", "instance": "address"}
    text = "Lost, missing, or in need of a reset."
    built.with_panel(rows("GPUs not responding", text, lost, names, 6, LOST))
    failing = {"": named(f"memwatch_collector_up{J} == 0")}
    names = {"hostname": "machine", "collector": "collector", "instance": "address"}
    text = "Collectors that this machine supports and that fail."
    built.with_panel(rows("Failing collectors", text, failing, names, 6, FAILING))
    versions = {"{{version}}": f"count by (version) (memwatch_build_info{J})"}
    built.with_panel(lines("Versions of memwatchd", "Number of machines by version.", versions, "none"))
