"""Test every query of every Grafana panel against a Prometheus that scrapes simulated machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from scripts.golden import roots_arguments
from support.daemon_process import RunningDaemon, running_daemon
from support.mutable_machine import MutableMachine
from support.nvml_machine import Simulator
from support.paths import DEPLOY
from support.prometheus_servers import Engine, prometheus, shipped
from support.sample_nvml import EIGHT_H100, GB10

GRAFANA = DEPLOY / "grafana"
BOARDS = {file.stem: json.loads(file.read_text()) for file in sorted((GRAFANA / "dashboards").glob("*.json"))}
CHATTY = """
[processes]
interval = "1s"
metrics = true
[[alerts.webhooks]]
name = "operators"
url = "http://127.0.0.1:1/no-listener"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw0aGq3o8p3yM="
"""


class Fleet(Struct, frozen=True):
    """Three machines and their Prometheus: full memory, a lost GPU, an unreadable file."""

    server: Engine
    instances: dict[str, str]
    began: float

    def series(self, expression: str, instance: str = ".+") -> list[Any]:
        """Return the result of a panel query over the time since the start."""
        variables = {
            "$job": "memwatchd",
            "$instance": instance,
            "$need": "1",
            "$__rate_interval": "5s",
            "$__range": "1m",
        }
        for name, value in variables.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, f"a variable is not replaced: {expression}"
        answer = self.server.ask(
            "/api/v1/query_range", query=expression, start=str(self.began), end=str(time.time() + 1), step="1"
        )
        return list(answer["data"]["result"])


def panels(board: str) -> list[dict[str, Any]]:
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


QUERIES = [
    pytest.param(board, panel, target["expr"], id=f"{board}: {panel['title']} {target['refId']}")
    for board in BOARDS
    for panel in panels(board)
    for target in panel["targets"]
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    began = time.time()
    with ExitStack() as stack:
        spark = MutableMachine.of("gb10", tmp_path_factory.mktemp("spark") / "machine")
        server_gpus = Simulator.of(tmp_path_factory.mktemp("server"), EIGHT_H100)

        def start(name: str, arguments: list[str], environ: dict[str, str]) -> RunningDaemon:
            folder = tmp_path_factory.mktemp(name)
            return stack.enter_context(
                running_daemon(folder, "--interval", "500ms", *arguments, config=CHATTY, environ=environ)
            )

        spark.use(0.5)
        gpu = Simulator.of(tmp_path_factory.mktemp("gb10"), GB10)
        amd = MutableMachine.of("mi210", tmp_path_factory.mktemp("amd") / "machine")
        daemons = {
            "gb10": start("gb10", spark.arguments, dict(gpu.environ)),
            "8x-h100": start("8x-h100", roots_arguments("8x-h100"), dict(server_gpus.environ)),
            "mi210": start("mi210", amd.arguments, {}),
        }
        instances = {name: f"127.0.0.1:{daemon.port}" for name, daemon in daemons.items()}
        server = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), watching(instances)))
        server.wait_for('memwatch_device_up{device="gpu0"} == 1')
        server_gpus.show(EIGHT_H100.with_gpu(0, down=15))
        amd.garble("proc/pressure/memory")
        fill(server, spark)
        server.wait_for("memwatch_device_up == 0")
        server.wait_for("memwatch_collector_up == 0")
        yield Fleet(server, instances, began)


def watching(instances: dict[str, str]) -> str:
    """Return the shipped configuration with these machines, short waits and rules that fire at once."""
    rules = DEPLOY / "prometheus/rules"
    targets = ", ".join(f'"{address}"' for address in instances.values())
    changes = {'"127.0.0.1:6360"': targets, "127.0.0.1:9093": "127.0.0.1:1", "15s": "1s", "10s": "1s"}
    return shipped("prometheus/prometheus.yml", {**changes, "rules/": f"{rules}/"})


def fill(server: Engine, spark: MutableMachine) -> None:
    """Fill memory slowly until there is a forecast, then until it is critical and the OOM killer acts."""
    used = 0.5
    while not server.query("memwatch_time_to_full_seconds"):
        used += 0.004
        assert used < 0.94, "no forecast came"
        spark.use(used)
        time.sleep(0.25)
    spark.use(0.97)
    spark.set_oom_kills(3)
    server.wait_for("memwatch_kernel_oom_kills_total == 3")
    server.wait_for('ALERTS{alertname="MemoryCritical", alertstate="firing"}', 40)


@pytest.mark.parametrize(("board", "panel", "expression"), QUERIES)
def test_every_dashboard_query_returns_data(
    fleet: Fleet, board: str, panel: dict[str, Any], expression: str
) -> None:
    """An empty result is an empty panel: a wrong metric name, or a label that does not match."""
    found = fleet.series(expression)

    assert found, f"{board}, {panel['title']}: nothing for {expression}"


@pytest.mark.parametrize("machine", ["gb10", "8x-h100", "mi210"])
def test_panels_that_may_be_empty_explain_it(fleet: Fleet, machine: str) -> None:
    """Each machine has data for every panel without a text for missing data."""
    empty = [
        panel["title"]
        for panel in panels("memwatch-machine")
        if "noValue" not in panel["fieldConfig"]["defaults"]
        if not any(fleet.series(target["expr"], fleet.instances[machine]) for target in panel["targets"])
    ]

    assert empty == []


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


def test_dashboard_variables_list_the_machines(fleet: Fleet) -> None:
    """Evaluate label_values() of the variables as Grafana does."""
    for board in BOARDS.values():
        for variable in (one for one in board["templating"]["list"] if one["type"] == "query"):
            metric, label = re.fullmatch(r"label_values\((\w+).*, (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            found = fleet.server.ask(f"/api/v1/label/{label}/values", **{"match[]": metric})["data"]
            expected = {"instance": sorted(fleet.instances.values()), "job": ["memwatchd"]}
            assert sorted(found) == expected[label]


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
        if panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
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
    """The provisioned data source is a Prometheus, and the folder is the one that docker-compose mounts."""
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/memwatch.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/memwatch.yml").read_text())["providers"]

    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


@pytest.mark.parametrize("board", BOARDS)
def test_page_about_grafana_names_every_row_of_a_dashboard(board: str) -> None:
    page = (DEPLOY.parent / "docs" / "howto" / "prometheus.md").read_text()
    rows = [panel["title"] for panel in BOARDS[board]["panels"] if panel["type"] == "row"]

    assert len(rows) >= 3
    assert [row for row in rows if f"| {row} |" not in page] == []
