"""Test every query of every Grafana panel against a Prometheus that scrapes simulated machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared_files import place_of
from support.dashboard_conditions import ALL, LASTING, condition_of, explain
from support.dashboard_fleet import DEMOS, OTHERS, Fleet, Watched, watched_fleet
from support.paths import DEPLOY
from support.waiting import MAX_WAIT_SECONDS

GRAFANA = DEPLOY / "grafana"
BOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((GRAFANA / "dashboards").glob("*.json"))}
MACHINES = ("gb10", "8x-h100", "mi210", *OTHERS, *DEMOS)


def panels(board: str) -> list[dict[str, Any]]:
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def defaults(panel: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a panel's fields. A heat map has none."""
    return dict(panel.get("fieldConfig", {}).get("defaults", {}))


QUERIES = [
    pytest.param(board, panel, target["expr"], id=f"{board}: {panel['title']} {target['refId']}")
    for board in BOARDS
    for panel in panels(board)
    for target in panel["targets"]
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with watched_fleet(lambda name: tmp_path_factory.mktemp(name)) as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize(("board", "panel", "expression"), QUERIES)
def test_every_dashboard_query_returns_data(
    fleet: Fleet, board: str, panel: dict[str, Any], expression: str
) -> None:
    """An empty result is an empty panel: a wrong metric name, or a label that does not match."""
    found = fleet.series(expression)

    assert found, f"{board}, {panel['title']}: nothing for {expression}"


def judge(fleet: Fleet, shown: Sequence[dict[str, Any]], machines: list[Watched], job: str, instance: str) -> Any:
    """Return the number of panels with data, empty and in error, and what is wrong about which panel."""
    counts, wrong = Counter[str](), {}
    for panel in shown:
        try:
            found = [fleet.series(target["expr"], instance, job) for target in panel["targets"]]
        except AssertionError as error:  # Prometheus refuses the query
            counts["error"] += 1
            wrong[panel["title"]] = str(error)
            continue
        counts["data" if any(found) else "empty"] += 1
        if fault := explain(panel["description"], any(found), machines):
            wrong[panel["title"]] = fault
    return counts, wrong


def judge_again(fleet: Fleet, *arguments: Any) -> Any:
    """Judge at most three times: where this machine is busy, a collector may have no figures at one tick."""
    for _ in range(2):
        counts, wrong = judge(fleet, *arguments)
        if not wrong:
            return counts, wrong
        time.sleep(2)
    return judge(fleet, *arguments)


@pytest.mark.long
@pytest.mark.parametrize("name", MACHINES)
def test_panels_of_a_machine_are_empty_only_for_the_reason_they_give(fleet: Fleet, name: str) -> None:
    """A panel with a condition has data if and only if the machine meets it. Every other panel has data."""
    machine, shown = fleet.machines[name], panels("memwatch-machine")
    counts, wrong = judge_again(fleet, shown, [machine], machine.job, machine.instance)

    assert wrong == {}, counts
    assert counts["data"] > counts["empty"]
    assert counts["data"] + counts["empty"] == len(shown)


@pytest.mark.long
@pytest.mark.parametrize("job", ["memwatchd", *OTHERS, *DEMOS])
def test_panels_of_a_fleet_are_empty_only_for_the_reason_they_give(fleet: Fleet, job: str) -> None:
    """The same for the fleet dashboard, with the machines of one job."""
    machines = [machine for machine in fleet.machines.values() if machine.job == job]
    counts, wrong = judge_again(fleet, panels("memwatch-fleet"), machines, job, ".+")

    assert wrong == {}, counts
    assert counts["data"] > counts["empty"]


@pytest.mark.long
def test_broken_panels_are_reported(fleet: Fleet) -> None:
    """The two tests above can fail: a misspelled metric, a syntax error, a false condition."""
    machine = fleet.machines["rtx4090"]

    def panel(title: str, expression: str, description: str) -> dict[str, Any]:
        return {"title": title, "description": description, "targets": [{"expr": expression}]}

    shown = [
        panel("misspelled", "memwatch_pool_size", "Size."),
        panel("syntax", "sum(", "Size."),
        panel("met", "memwatch_pool_size", "Size. Only on machines with a GPU or an NPU."),
        panel("not met", "memwatch_pool_size_bytes", "Size. Only if processes run in containers or pods."),
        panel("correct", "memwatch_pool_size_bytes", "Size. Only on machines with a GPU or an NPU."),
    ]
    counts, wrong = judge(fleet, shown, [machine], machine.job, machine.instance)

    assert counts == {"data": 2, "empty": 2, "error": 1}
    assert list(wrong) == ["misspelled", "syntax", "met", "not met"]


@pytest.mark.long
def test_each_condition_of_a_panel_is_met_here_and_also_not_met(fleet: Fleet) -> None:
    """Without a machine of either kind a condition would not be tested."""
    met = {
        sentence: {condition(machine) for machine in fleet.machines.values()}
        for sentence, condition in LASTING.items()
    }
    never_met = [sentence for sentence, found in met.items() if True not in found]
    always_met = {sentence for sentence, found in met.items() if False not in found}

    assert never_met == []
    assert always_met <= {"Only if memwatchd runs on Linux.", "Only if the system reports swap."}


def test_panels_with_a_text_for_no_data_have_a_condition() -> None:
    """The condition ends the description, and each is used."""
    shown = [panel for board in BOARDS for panel in panels(board)]
    with_text = [panel["title"] for panel in shown if "noValue" in defaults(panel)]
    with_condition = [panel["title"] for panel in shown if condition_of(panel["description"])]

    assert with_text == with_condition
    assert {condition_of(panel["description"]) for panel in shown} == {*ALL, None}


@pytest.mark.long
def test_table_columns_are_returned_labels(fleet: Fleet) -> None:
    """A column is a label or the value of the result. A label that no series has gives an empty column."""
    for board in BOARDS:
        for panel in (one for one in panels(board) if one["type"] == "table"):
            wanted = {
                name
                for change in panel["transformations"]
                if change["id"] == "filterFieldsByName"
                for name in change["options"]["include"]["names"]
                if not name.startswith("Value")
            }
            labels = {
                label
                for target in panel["targets"]
                for one in fleet.series(target["expr"])
                for label in one["metric"]
            }
            if panel["title"] == "Firing":
                wanted -= {"device"}  # belongs to other alerts than the one that fires here
            assert wanted <= labels, f"{board}, {panel['title']}"


@pytest.mark.long
def test_dashboard_variables_list_the_machines(fleet: Fleet) -> None:
    """Evaluate label_values() and query_result() of the variables as Grafana does: jobs, and machines by name."""
    hosts = {(one.sightings[-1].snapshot["host"], one.instance) for one in fleet.machines.values()}
    jobs = {(one.job, one.job) for one in fleet.machines.values()}
    for board in BOARDS.values():
        for variable in (one for one in board["templating"]["list"] if one["type"] == "query"):
            expected = {"instance": hosts, "job": jobs}[variable["name"]]
            assert choices(fleet, variable["query"]["query"], variable.get("regex")) == expected


def choices(fleet: Fleet, query: str, regex: str | None) -> set[tuple[str, str]]:
    """Return text and value of each choice of a variable."""
    if listed := re.fullmatch(r"label_values\((\w+), (\w+)\)", query):
        metric, label = listed.groups()
        found = fleet.server.ask(f"/api/v1/label/{label}/values", **{"match[]": metric})["data"]
        return {(value, value) for value in found}
    wrapped = re.fullmatch(r"query_result\((.+)\)", query)
    assert wrapped, query
    assert regex, query
    pattern = re.compile(regex.removeprefix("/").removesuffix("/g").replace("(?<", "(?P<"))
    answers = fleet.server.query(wrapped[1].replace("$job", ".+").replace("$__range", "1m"))
    return {choice(pattern, one["metric"]) for one in answers}


def choice(pattern: re.Pattern[str], labels: dict[str, str]) -> tuple[str, str]:
    text = "{" + ",".join(f'{name}="{value}"' for name, value in labels.items() if name != "__name__") + "}"
    groups = [found.groupdict() for found in pattern.finditer(text)]
    (name,), (value,) = ([one[key] for one in groups if one[key]] for key in ("text", "value"))
    return name, value


@pytest.mark.long
def test_annotations_mark_what_happened(fleet: Fleet) -> None:
    """Each annotation has a mark: of the alert and the OOM kills of one machine, and of no restart."""
    marks = {
        (name, one["name"]): [
            series["metric"]
            for series in fleet.series(one["expr"])
            if any(float(value) for _, value in series["values"])
        ]
        for name, board in BOARDS.items()
        for one in board["annotations"]["list"]
    }
    marked = {key: {labels["instance"] for labels in found} for key, found in marks.items()}
    full = fleet.machines["gb10"].instance

    assert marked["memwatch-machine", "memwatchd restarted"] == set()
    assert marked["memwatch-machine", "OOM kill"] == marked["memwatch-fleet", "OOM kill"] == {full}
    assert {"rule", "severity"} <= marks["memwatch-machine", "Alert"][0].keys()
    assert full in marked["memwatch-machine", "Alert"]
    assert marks["memwatch-fleet", "OOM kill"][0]["hostname"] == "spark-1a2b"


@pytest.mark.long
def test_incident_annotations_link_to_the_page_of_the_incident(fleet: Fleet) -> None:
    """Of the machine without memory, and of the one that has lost a GPU; each link is opened."""
    full, lost = fleet.machines["gb10"].instance, fleet.machines["8x-h100"].instance
    for board in BOARDS.values():
        (mark,) = (one for one in board["annotations"]["list"] if one["name"] == "Incident")
        found = [series["metric"] for series in fleet.series(mark["expr"])]
        links = {labels["instance"]: link_of(mark["textFormat"], labels) for labels in found}

        assert {full, lost} <= links.keys()
        assert {"kind", "target", *mark["tagKeys"].split(",")} <= found[0].keys()
        for instance in (full, lost):
            with urllib.request.urlopen(links[instance], timeout=MAX_WAIT_SECONDS) as page:
                report = f'incidents/{links[instance].rpartition("/")[2]}/report.md"'
                assert report in page.read().decode()


def link_of(text: str, labels: dict[str, str]) -> str:
    """Return the address in the text of an annotation, as Grafana fills it in."""
    filled = re.sub(r"{{(\w+)}}", lambda label: labels[label[1]], text)
    return str(re.findall(r'href="([^"]+)"', filled)[0])


@pytest.mark.long
def test_incidents_have_a_few_series_at_a_time(fleet: Fleet) -> None:
    """Each id is a label, so only those of now are exported."""
    now = fleet.server.ask("/api/v1/query", query="count by (instance) (memwatch_incident_info)")
    counts = [int(one["value"][1]) for one in now["data"]["result"]]

    assert counts
    assert max(counts) <= 5


def test_dashboard_data_source_can_be_selected() -> None:
    """No panel, query or variable is bound to one data source."""
    text = "".join((GRAFANA / f"dashboards/{name}.json").read_text() for name in BOARDS)

    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", *BOARDS}
    for board in BOARDS.values():
        first = board["templating"]["list"][0]
        assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")


def test_each_panel_has_a_description_and_its_own_position() -> None:
    """Panels have a description, a unique id, and do not overlap."""
    for board in BOARDS.values():
        ids = [panel["id"] for panel in board["panels"]]
        spots = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        assert len(set(spots)) == len(spots)
    assert [panel["title"] for name in BOARDS for panel in panels(name) if not panel["description"]] == []


def test_only_pools_are_stacked() -> None:
    """Stacking adds up, which is wrong for shares. Counts of machines may be stacked."""
    stacked = [
        target["expr"]
        for board in BOARDS
        for panel in panels(board)
        if defaults(panel).get("custom", {}).get("stacking", {}).get("mode") == "normal"
        for target in panel["targets"]
    ]

    assert stacked
    assert all("memwatch_pool_" in expression or expression.startswith("count(") for expression in stacked)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's builders need Python 3.11")
def test_dashboards_equal_the_build_of_their_source(tmp_path: Path) -> None:
    """The JSON is generated by `python deploy/grafana/build.py`, not edited."""
    subprocess.run([sys.executable, GRAFANA / "build.py", tmp_path], check=True, capture_output=True)

    for name in BOARDS:
        assert (tmp_path / f"{name}.json").read_text() == (GRAFANA / f"dashboards/{name}.json").read_text()


def test_provisioning_finds_the_dashboards() -> None:
    """The provisioned data source is a Prometheus, and the folder is the one that packages install."""
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/memwatch.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/memwatch.yml").read_text())["providers"]

    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert provider["options"]["path"] == f"/usr/share/{place_of('deploy/grafana/dashboards')}"


@pytest.mark.parametrize("board", BOARDS)
def test_page_about_grafana_names_every_row_of_a_dashboard(board: str) -> None:
    page = (DEPLOY.parent / "docs" / "howto" / "prometheus.md").read_text()
    rows = [panel["title"] for panel in BOARDS[board]["panels"] if panel["type"] == "row"]

    assert len(rows) >= 3
    assert [row for row in rows if f"| {row} |" not in page] == []
