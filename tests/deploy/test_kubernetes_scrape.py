"""Queries, rules and links of Kubernetes against a real Prometheus, with the configuration that its operator makes.

Without a cluster: `support.prometheus_operator` makes the configuration, and says by which part of the operator's
documentation. Two daemons are the pods of two nodes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from scripts.golden import roots_arguments
from support.daemon_process import RunningDaemon, running_daemon
from support.http_site import http, site
from support.mutable_machine import MutableMachine
from support.pages import fences
from support.paths import ROOT
from support.prometheus_operator import Pod, generated, with_pods
from support.prometheus_servers import Engine, prometheus
from support.waiting import wait_until

NEEDED_PROGRAMS = ("kubectl", "prometheus", "promtool")

PAGE = ROOT / "docs/howto/kubernetes.md"
# Configurations from clusters: their README says how to add one.
RECORDED = sorted((ROOT / "tests/deploy/operator").glob("*.yaml"))
TOKEN = "0123456789abcdef"
# The pod that holds GPU memory on the machine three-makers-dmem, as the kubelet names its log.
OWNER_ID = "4f1c" * 16
OWNER_LOG = f"train-0_research_trainer-{OWNER_ID}.log"
OWNER_TARGET = "/var/log/pods/research_train-0_7b0e5d1c-3f2a-4c8e-9a61-5d2f0b7c8e19/trainer/0.log"
# kube-state-metrics with --metric-labels-allowlist=pods=[team], and the kubelet's cAdvisor.
OTHERS = (
    b'kube_pod_labels{namespace="research",pod="train-0",uid="7b0e",label_team="vision"} 1\n'
    b'kube_pod_labels{namespace="memwatch",pod="memwatchd-x7k2p",uid="1c0d"} 1\n'
    b'container_memory_working_set_bytes{namespace="research",pod="train-0",container="trainer"} 1e9\n'
    b'container_memory_working_set_bytes{namespace="research",pod="train-0",container=""} 1.1e9\n'
)


# The machine itself does not answer.
OF_ANOTHER_MACHINE = ("MemwatchDown", "MemwatchAbsent")


class Cluster(Struct, frozen=True):
    """A Prometheus that scrapes the pods of two nodes, by the name of the node."""

    server: Engine
    nodes: dict[str, RunningDaemon]


def manifests() -> dict[str, Any]:
    done = subprocess.run(
        ["kubectl", "kustomize", ROOT / "deploy/kubernetes/base"], capture_output=True, text=True, check=True
    )
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def scrape_configs(source: str, built: dict[str, Any]) -> list[Any]:
    """Return the scrape configurations: generated, or from a file of a cluster."""
    if source == "generated":
        return generated(built["PodMonitor"], {("memwatchd", "token"): TOKEN})
    found: list[Any] = yaml.safe_load((ROOT / "tests/deploy/operator" / source).read_text())["scrape_configs"]
    for one in found:
        one["authorization"]["credentials"] = TOKEN
    return found


def environment_of(template: Any, node: str, url: str) -> dict[str, str]:
    """Return the container's variables as the kubelet sets them, except paths. `url`: the chart's externalUrl."""
    found: dict[str, str] = {}
    for one in template["spec"]["containers"][0]["env"]:
        if "valueFrom" in one:
            assert one["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
            found[one["name"]] = node
        elif not re.search("_(PROCFS|SYSFS|ROOTFS|STATE_DIR)$", one["name"]):
            value = url if url and one["name"] == "MEMWATCHD_WEB_URL" else one["value"]
            found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


def start_nodes(stack: ExitStack, folder: Path, template: Any, url: str) -> dict[str, RunningDaemon]:
    """Start the pods of two nodes; the first one has GPUs and a pod that uses them."""
    machine = MutableMachine.of("three-makers-dmem", folder / "machine")
    logs = machine.folder / "root/var/log/containers"
    logs.mkdir(parents=True)
    (logs / OWNER_LOG).symlink_to(OWNER_TARGET)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    nodes = {"node-a": machine.arguments, "node-b": roots_arguments("headless-server")}
    started = {}
    for node, roots in nodes.items():
        (folder / node).mkdir()
        environ = environment_of(template, node, url)
        environ["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"] = f"file:{folder / 'token'}"
        started[node] = stack.enter_context(running_daemon(folder / node, *roots, environ=environ))
    return started


def pods_of(nodes: dict[str, RunningDaemon], template: Any) -> list[Pod]:
    """Return the pods of the DaemonSet, and one of another program that the PodMonitor does not select."""
    labels = template["metadata"]["labels"]
    found = [
        Pod(f"memwatchd-{name[-1]}7k2p", name, f"127.0.0.1:{daemon.port}", labels) for name, daemon in nodes.items()
    ]
    other = Pod("other-x", "node-a", "127.0.0.1:1", {"app.kubernetes.io/name": "other"})
    ended = Pod("memwatchd-old", "node-a", "127.0.0.1:1", labels, phase="Failed")
    return [*found, other, ended]


@contextmanager
def cluster(folder: Path, source: str = "generated", url: str = "", rules: Any = None) -> Iterator[Cluster]:
    built = manifests()
    template = built["DaemonSet"]["spec"]["template"]
    with ExitStack() as stack:
        nodes = start_nodes(stack, folder, template, url)
        pods = pods_of(nodes, template)
        others = stack.enter_context(site(http(OTHERS, "text/plain; version=0.0.4")))
        jobs = [with_pods(one, pods, "1s") for one in scrape_configs(source, built)]
        # As kube-prometheus scrapes kube-state-metrics and the kubelet: with honorLabels.
        jobs.append(
            {
                "job_name": "kube",
                "honor_labels": True,
                "scrape_interval": "1s",
                "static_configs": [{"targets": [f"127.0.0.1:{others}"]}],
            }
        )
        (folder / "rules.yml").write_text(yaml.safe_dump(rules or built["PrometheusRule"]["spec"]))
        text = yaml.safe_dump(
            {
                "global": {"scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(folder / "rules.yml")],
                "scrape_configs": jobs,
            }
        )
        server = stack.enter_context(prometheus(folder, text))
        server.wait_for('count(up{job="memwatchd"} == 1) == 2')
        yield Cluster(server, nodes)


def queries() -> list[str]:
    return [fence.code for fence in fences(PAGE.read_text()) if fence.language == "promql"]


@pytest.mark.parametrize("source", ["generated", *(file.name for file in RECORDED)])
def test_each_query_of_the_page_has_a_result(source: str, tmp_path: Path) -> None:
    """The operator adds labels of memwatchd's own pod, which must not hide those of the pods that it reports."""
    with cluster(tmp_path, source) as found:
        by_team, beyond_kubelet = queries()
        (team,) = found.server.wait_for(by_team)
        (pod,) = found.server.wait_for(beyond_kubelet)
        (footprint,) = found.server.query('memwatch_owner_footprint_bytes{kind="pod",pod="train-0"}')
        instances = {one["metric"]["instance"] for one in found.server.query('up{job="memwatchd"}')}
        renamed = found.server.query('{__name__=~"memwatch_.*",exported_namespace!=""}')

    size = float(footprint["value"][1])
    assert (team["metric"], float(team["value"][1])) == ({"label_team": "vision"}, size)
    assert pod["metric"]["pod"] == "train-0"
    assert float(pod["value"][1]) == size - 1e9
    assert footprint["metric"]["namespace"] == "research"
    assert instances == {"node-a", "node-b"}
    assert renamed == []


def test_each_rule_is_evaluated_without_an_error(tmp_path: Path) -> None:
    """Alerts and recording rules of the PrometheusRule; the recorded series have both nodes."""
    with cluster(tmp_path) as found:
        recorded = found.server.wait_for("count(instance:memwatch_pool_size_bytes:sum) == 2")
        sizes = [
            pool["size_bytes"]
            for daemon in found.nodes.values()
            for pool in daemon.get("/api/v1/pools", Authorization=f"Bearer {TOKEN}").json
        ]
        # A rule may have been evaluated between the first scrapes of the two nodes.
        (fleet,) = found.server.wait_for(f"job:memwatch_pool_size_bytes:sum == {sum(sizes)}")
        groups = found.server.ask("/api/v1/rules")["data"]["groups"]
        addresses = found.server.query("memwatch_web_info")

    rules = [rule for group in groups for rule in group["rules"] if "slow" not in group["name"]]
    assert recorded
    assert float(fleet["value"][1]) == sum(sizes)
    assert len(rules) > 20
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert addresses == []  # pods have names and addresses that only the cluster knows


def always_firing(spec: Any) -> Any:
    """Return the alerts with an expression that holds for each node. Annotations are those of the rules."""
    alerts = [
        {
            "alert": rule["alert"],
            "expr": 'up{job="memwatchd"} == 1',
            "labels": rule["labels"],
            "annotations": rule["annotations"],
        }
        for group in spec["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    return {"groups": [{"name": "links", "rules": alerts}]}


def test_each_runbook_link_opens_at_the_address_of_the_chart(tmp_path: Path) -> None:
    """With externalUrl of the Helm chart, behind a proxy that leads to the pod of the node."""
    site_url = "https://memory.example.org"
    rules = always_firing(manifests()["PrometheusRule"]["spec"])
    with cluster(tmp_path, url=f"{site_url}/$(NODE_NAME)", rules=rules) as found:
        found.server.wait_for("count(memwatch_web_info) == 2")
        every = {rule["alert"] for rule in rules["groups"][0]["rules"]}
        found.server.wait_for(f"count(count by (alertname) (ALERTS)) == {len(every)}")
        fired = wait_until_linked(found.server)
        pages = {
            node: daemon.get("/runbooks", Authorization=f"Bearer {TOKEN}").text
            for node, daemon in found.nodes.items()
        }

    assert {one["labels"]["alertname"] for one in fired} == every
    for one in fired:
        link = one["annotations"]["runbook_url"]
        opened = re.fullmatch(rf"{site_url}/(node-[ab])/runbooks#(\w+)", link)
        assert opened, link
        assert f' id="{opened[2]}" ' in pages[opened[1]]
        if one["labels"]["alertname"] not in OF_ANOTHER_MACHINE:
            assert opened[1] == one["labels"]["instance"]


def wait_until_linked(server: Engine) -> list[Any]:
    """Return the alerts once each was evaluated with the addresses."""
    found: list[Any] = []

    def is_linked() -> bool:
        found[:] = server.ask("/api/v1/alerts")["data"]["alerts"]
        return all(one["annotations"]["runbook_url"] for one in found)

    wait_until(is_linked)
    return found
