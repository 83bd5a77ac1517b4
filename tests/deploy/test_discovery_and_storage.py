"""Test the shipped discovery and remote-write configurations."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from support.daemon_process import running_daemon
from support.free_ports import free_port
from support.paths import DEPLOY
from support.prometheus_servers import Engine, prometheus, running, shipped
from support.waiting import wait_until

NEEDED_PROGRAMS = ("promtool", "victoria-metrics")

PROMETHEUS = DEPLOY / "prometheus"
DISCOVERY = sorted((PROMETHEUS / "discovery").glob("*.yml"))
TOKEN_FILE = "/etc/prometheus/memwatchd-token"
STORES = sorted((PROMETHEUS / "remote-write").glob("*.yml"))


def vmagent_accepts(file: Path) -> subprocess.CompletedProcess[str]:
    """Debian's Prometheus lacks Consul and Kubernetes discovery; vmagent reads the same files and has both."""
    command = ["vmagent", "-dryRun", f"-promscrape.config={file}", "-remoteWrite.url=http://127.0.0.1:1/"]
    return subprocess.run(command, capture_output=True, text=True, cwd=file.parent, check=False)


@pytest.mark.parametrize("file", DISCOVERY, ids=lambda file: file.stem)
def test_vmagent_accepts_each_discovery_example(file: Path, tmp_path: Path) -> None:
    """The file is accepted and uses a token; with a misspelled key it is not accepted."""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(file.read_text().replace("_sd_configs:", "_sd_confugs:"))

    (job,) = yaml.safe_load(file.read_text())["scrape_configs"]
    assert job["authorization"] == {"credentials_file": TOKEN_FILE}
    assert vmagent_accepts(file).returncode == 0, vmagent_accepts(file).stderr
    assert vmagent_accepts(wrong).returncode != 0


@pytest.mark.parametrize("name", ["discovery/file.yml", "discovery/dns.yml", "federation.yml"])
def test_debians_prometheus_accepts_the_configuration(name: str, tmp_path: Path) -> None:
    """promtool checks the configuration and the files it names."""
    token, config = tmp_path / "token", tmp_path / "prometheus.yml"
    token.touch()
    (tmp_path / "machines.json").write_bytes((PROMETHEUS / "discovery/machines.json").read_bytes())
    config.write_text((PROMETHEUS / name).read_text().replace(TOKEN_FILE, str(token)))
    done = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", STORES, ids=lambda file: file.stem)
def test_prometheus_agent_accepts_each_remote_write_example(file: Path) -> None:
    """Agent mode refuses rules and local storage."""
    done = subprocess.run(
        ["promtool", "check", "config", "--agent", file], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


LOOPBACK = [PROMETHEUS / "prometheus.yml", *STORES, DEPLOY / "otel/collector.yml"]


@pytest.mark.parametrize("file", LOOPBACK, ids=lambda file: file.stem)
def test_commented_token_of_each_loopback_example_is_valid(file: Path) -> None:
    """On loopback no token is needed by default. The comment shows the lines, which only need to be uncommented."""
    text = file.read_text()
    assert text.count("# authorization:") == 1
    read = yaml.safe_load(text.replace("# authorization:", "authorization:"))
    read = read["receivers"]["prometheus"]["config"] if "receivers" in read else read
    (job,) = read["scrape_configs"]

    assert job["job_name"] == "memwatchd"
    assert job["authorization"] == {"credentials_file": TOKEN_FILE}


def url_of(file: Path) -> str:
    return str(yaml.safe_load(file.read_text())["remote_write"][0]["url"])


@pytest.mark.parametrize(
    "file", [one for one in STORES if one.stem != "victoriametrics"], ids=lambda file: file.stem
)
def test_prometheus_agent_forwards_by_remote_write(file: Path, tmp_path: Path) -> None:
    """An agent with the shipped file sends to a Prometheus that receives as Mimir and Thanos do."""
    target = tmp_path / "receiver"
    target.mkdir()
    with (
        running_daemon(tmp_path) as daemon,
        prometheus(target, "global: {}\n", "--web.enable-remote-write-receiver") as receiver,
    ):
        text = shipped(
            f"prometheus/remote-write/{file.name}",
            {
                url_of(file): f"http://{receiver.address}/api/v1/write",
                "127.0.0.1:6360": f"127.0.0.1:{daemon.port}",
                "15s": "1s",
            },
        )
        with prometheus(tmp_path, text, agent=True):
            (stored,) = receiver.wait_for('memwatch_pool_size_bytes{pool="ram"}')

    assert stored["metric"]["cluster"] == "example"
    assert stored["metric"]["job"] == "memwatchd"


@pytest.mark.long
def test_victoriametrics_stores_samples_of_the_agent(tmp_path: Path) -> None:
    """A real VictoriaMetrics receives samples by the shipped file."""
    port = free_port()
    command = ["victoria-metrics", f"-storageDataPath={tmp_path / 'vm'}", f"-httpListenAddr=127.0.0.1:{port}"]
    file = PROMETHEUS / "remote-write/victoriametrics.yml"
    with running_daemon(tmp_path) as daemon, running("victoria", command, port, "/health", tmp_path) as store:
        here = url_of(file).replace("victoria-metrics.example.com:8428", store.address)
        text = shipped(
            "prometheus/remote-write/victoriametrics.yml",
            {url_of(file): here, "127.0.0.1:6360": f"127.0.0.1:{daemon.port}", "15s": "1s"},
        )
        with prometheus(tmp_path, text, agent=True):
            found = wait_for_series(store, "memwatch_pool_size_bytes")

    assert found["cluster"] == "example"


def wait_for_series(store: Engine, name: str) -> dict[str, str]:
    """VictoriaMetrics answers instant queries from samples older than 30 s; /series is current."""
    found: list[dict[str, str]] = []

    def is_stored() -> bool:
        found[:] = store.ask("/api/v1/series", **{"match[]": name})["data"]
        return bool(found)

    wait_until(is_stored)
    return found[0]


def test_otel_collector_configuration_is_valid(tmp_path: Path) -> None:
    """promtool accepts the scrape configuration in the OpenTelemetry Collector file; its pipelines are complete."""
    collector = yaml.safe_load((DEPLOY / "otel/collector.yml").read_text())
    scrape = tmp_path / "prometheus.yml"
    scrape.write_text(json.dumps(collector["receivers"]["prometheus"]["config"]))
    done = subprocess.run(["promtool", "check", "config", scrape], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    for pipeline in collector["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) == collector[part].keys()
