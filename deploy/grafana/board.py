"""Panels in one style, built with Grafana's builders. Each has a description of how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders import common as style
from grafana_foundation_sdk.builders import dashboard, heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import prometheus as query_model
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from conditions import Condition
from memwatch.core.snapshot import Level

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
# The words for people, by the value of memwatch_pressure_level.
LEVEL_LABELS = tuple(level.label for level in Level)
LEVELS = ValueMap(
    options={
        str(number): ValueMappingResult(text=text, color=color, index=number)
        for number, (text, color) in enumerate(zip(LEVEL_LABELS, (GREEN, YELLOW, ORANGE, RED), strict=True))
    }
)
UP = ValueMap(
    options={
        "0": ValueMappingResult(text="down", color=RED, index=0),
        "1": ValueMappingResult(text="up", color=GREEN, index=1),
    }
)
# Default thresholds of the levels. A machine may have others, so they only color panels.
USE = ((None, GREEN), (0.6, YELLOW), (0.8, ORANGE), (0.95, RED))

# A shorter alert may be missing in a long time range, as between two points of a chart.
ANNOTATION_STEP = "15s"
# Grafana shows links in the text of an annotation. The browser must reach the address that Prometheus scrapes.
INCIDENT_LINK = '<a href="http://{{instance}}/incidents/{{id}}">Incident {{id}}</a>'

Queries = Mapping[str, str]
Panel = TypeVar("Panel", heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)


def thresholds(steps: Sequence[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    marks = [Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(marks)


def targets(queries: Queries, instant: bool = False) -> list[prometheus.Dataquery]:
    """Build queries from legends and expressions. `instant`: for tables and single values."""
    built = []
    for place, (legend, expression) in enumerate(queries.items()):
        query = prometheus.Dataquery().ref_id(chr(ord("A") + place)).datasource(DATASOURCE).expr(expression)
        built.append(query.instant().legend_format(legend) if instant else query.range().legend_format(legend))
    return built


def common_parts(panel: Panel, title: str, text: str, size: tuple[int, int], only: Condition | None) -> Panel:
    """Set what all panels have. `only`: the condition for data; without one there is always data."""
    width, height = size
    panel.title(title).datasource(DATASOURCE).span(width).height(height)
    if only is None:
        return panel.description(text)
    return panel.description(f"{text} {only.sentence}").no_value(only.short)


def lines(
    title: str, text: str, queries: Queries, unit: str = "bytes", width: int = 12, only: Condition | None = None
) -> timeseries.Panel:
    """Time series with a zero-based axis."""
    panel = common_parts(timeseries.Panel(), title, text, (width, 8), only).unit(unit).min(0)
    panel.fill_opacity(8).span_nulls(False).show_points(common.VisibilityMode.NEVER)
    panel.legend(
        style.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    panel.tooltip(style.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    for query in targets(queries):
        panel.with_target(query)
    return panel


def stacked(panel: timeseries.Panel) -> timeseries.Panel:
    """Stack series. Only for values that may be summed."""
    return panel.stacking(style.StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(30)


def colored(panel: timeseries.Panel, colors: Mapping[str, str]) -> timeseries.Panel:
    """Give series of these names fixed colors."""
    for name, color in colors.items():
        panel.override_by_name(name, [DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    return panel


def dashed(panel: timeseries.Panel, pattern: str) -> timeseries.Panel:
    """Draw sizes and limits dashed, unfilled and not stacked."""
    return panel.override_by_regexp(
        pattern,
        [
            DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
            DynamicConfigValue("custom.fillOpacity", 0),
            DynamicConfigValue("custom.stacking", {"mode": "none"}),
        ],
    )


def figure(
    title: str,
    text: str,
    queries: Queries,
    unit: str = "bytes",
    only: Condition | None = None,
    steps: Sequence[tuple[float | None, str]] = ((None, GREEN),),
    width: int = 4,
    spark: bool = False,
) -> stat.Panel:
    """Single values, one per series."""
    panel = common_parts(stat.Panel(), title, text, (width, 5), only).unit(unit).thresholds(thresholds(steps))
    panel.reduce_options(style.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_mode(common.BigValueColorMode.BACKGROUND if len(steps) > 1 else common.BigValueColorMode.VALUE)
    panel.graph_mode(common.BigValueGraphMode.AREA if spark else common.BigValueGraphMode.NONE)
    for query in targets(queries, instant=not spark):
        panel.with_target(query)
    return panel


def states(
    title: str, text: str, queries: Queries, words: ValueMap, width: int = 12, only: Condition | None = None
) -> statetimeline.Panel:
    """State timeline: colored bars."""
    panel = common_parts(statetimeline.Panel(), title, text, (width, 8), only).mappings([words])
    panel.show_value(common.VisibilityMode.NEVER).merge_values(True).row_height(0.8)
    for query in targets(queries):
        panel.with_target(query)
    return panel


def rows(
    title: str,
    text: str,
    queries: Queries,
    columns: Mapping[str, str],
    width: int = 12,
    only: Condition | None = None,
    sort_by: Sequence[str] = (),
) -> table.Panel:
    """Table. `columns` maps labels and values (`Value`, or `Value #A`, …) to titles, in display order."""
    panel = common_parts(table.Panel(), title, text, (width, 9), only)
    for query in targets(queries, instant=True):
        panel.with_target(query.format(query_model.PromQueryFormat.TABLE))
    if len(queries) > 1:
        panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel.with_transformation(
        DataTransformerConfig("filterFieldsByName", options={"include": {"names": list(columns)}})
    )
    order = {name: place for place, name in enumerate(columns)}
    panel.with_transformation(
        DataTransformerConfig("organize", options={"indexByName": order, "renameByName": dict(columns)})
    )
    panel.sort_by([style.TableSortByFieldState().display_name(column).desc(True) for column in sort_by])
    return panel


def column(panel: table.Panel, name: str, **properties: object) -> table.Panel:
    """Set display options of a column: `unit`, `mappings`, `links`, `color`."""
    values = [DynamicConfigValue(key.replace("__", "."), value) for key, value in properties.items()]
    return panel.override_by_name(name, values)


def variable(name: str, label: str, query: str, several: bool, regex: str | None = None) -> dashboard.QueryVariable:
    """Create a variable. `regex`: takes the text and the value of each choice out of a query result."""
    built = dashboard.QueryVariable(name).label(label).query({"query": query, "refId": name}).datasource(DATASOURCE)
    built.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    if regex:
        built.regex(regex)
    if several:
        # Without an allValue, All matches only jobs that run memwatchd.
        built.multi(True).include_all(True).current(VariableOption(text="All", value="$__all", selected=True))
    return built


class LabelledAnnotation(dashboard_model.AnnotationQuery):
    """Annotation with the fields of the Prometheus data source, which Grafana's builders do not have."""

    title_format = text_format = tag_keys = ""

    def to_json(self) -> dict[str, object]:
        named = {"titleFormat": self.title_format, "textFormat": self.text_format, "tagKeys": self.tag_keys}
        return {**super().to_json(), **named, "step": ANNOTATION_STEP}


class Annotation(dashboard.AnnotationQuery):
    """Builder of an annotation: a mark on all panels, or a region, while an expression is not 0."""

    def __init__(self, title: str, expression: str, color: str, detail: str = "", tags: Sequence[str] = ()) -> None:
        built = LabelledAnnotation(title, DATASOURCE, icon_color=color, expr=expression)
        built.title_format, built.text_format, built.tag_keys = title, detail, ",".join(tags)
        self._internal = built


def board(uid: str, title: str, text: str, other: tuple[str, str]) -> dashboard.Dashboard:
    """Create a dashboard with a variable for the data source and a link to the other dashboard."""
    built = dashboard.Dashboard(title).uid(uid).description(text).tags(["memwatch"]).editable()
    built.refresh("30s").time("now-3h", "now").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    built.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    link = dashboard.DashboardLink(other[0]).url(f"/d/{other[1]}").type(DashboardLinkType.LINK)
    return built.link(link.keep_time(True).include_vars(False))
