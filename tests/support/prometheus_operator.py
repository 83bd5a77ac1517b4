"""The scrape configuration that the Prometheus operator makes of a PodMonitor, without an operator or a cluster.

Each field names its source in the operator, version 0.84: `API` is Documentation/api-reference/api.md, `generator`
is the function generatePodMonitorConfig in pkg/prometheus/promcfg.go. A configuration from a cluster can take the
place of the generated one: see tests/deploy/operator/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

Config = dict[str, Any]
# API, RelabelConfig: the fields of a monitor in camelCase are those of Prometheus in snake_case.
RELABEL_FIELDS = {
    "sourceLabels": "source_labels",
    "separator": "separator",
    "targetLabel": "target_label",
    "regex": "regex",
    "modulus": "modulus",
    "replacement": "replacement",
    "action": "action",
}


class Pod(Struct, frozen=True):
    """A pod with one container port, as kubernetes_sd finds it. `address`: HOST:PORT to scrape."""

    name: str
    node: str
    address: str
    labels: Mapping[str, str]
    namespace: str = "memwatch"
    container: str = "memwatchd"
    port_name: str = "http"
    phase: str = "Running"

    @property
    def meta_labels(self) -> dict[str, str]:
        """Labels of the role `pod`: Prometheus 2.42, configuration, kubernetes_sd_config."""
        found = {
            "namespace": self.namespace,
            "pod_name": self.name,
            "pod_container_name": self.container,
            "pod_container_port_name": self.port_name,
            "pod_node_name": self.node,
            "pod_phase": self.phase,
        }
        for label, value in self.labels.items():
            found |= {f"pod_label_{sanitized(label)}": value, f"pod_labelpresent_{sanitized(label)}": "true"}
        return {f"__meta_kubernetes_{name}": value for name, value in found.items()}


def sanitized(label: str) -> str:
    """Generator, sanitizeLabelName."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def generated(monitor: Config, secrets: Mapping[tuple[str, str], str]) -> list[Config]:
    """Return one scrape configuration for each endpoint of a PodMonitor. `secrets`: by name and key."""
    return [_endpoint(monitor, index, secrets) for index in range(len(monitor["spec"]["podMetricsEndpoints"]))]


def _endpoint(monitor: Config, index: int, secrets: Mapping[tuple[str, str], str]) -> Config:
    metadata, endpoint = monitor["metadata"], monitor["spec"]["podMetricsEndpoints"][index]
    known = {"port", "path", "interval", "authorization", "honorLabels", "relabelings", "metricRelabelings"}
    unknown = endpoint.keys() - known
    assert not unknown, f"how the operator translates {unknown} is not described here"
    config: Config = {
        # Generator: podMonitor/NAMESPACE/NAME/INDEX.
        "job_name": f"podMonitor/{metadata['namespace']}/{metadata['name']}/{index}",
        # API, PodMetricsEndpoint, honorLabels: "When true, honorLabels preserves the metric's labels when they
        # collide with the target's labels." False without it.
        "honor_labels": endpoint.get("honorLabels", False),
        # API, PodMonitorSpec, namespaceSelector: by default the namespace of the PodMonitor.
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [metadata["namespace"]]}}],
        "scrape_interval": endpoint["interval"],
        "metrics_path": endpoint["path"],
        "relabel_configs": [*_target_labels(monitor, endpoint), *_relabelings(endpoint.get("relabelings", ()))],
    }
    if "authorization" in endpoint:
        # API, SafeAuthorization: type "Bearer" by default, credentials from the Secret in the monitor's namespace.
        reference = endpoint["authorization"]["credentials"]
        credentials = secrets[reference["name"], reference["key"]]
        config["authorization"] = {"type": "Bearer", "credentials": credentials}
    # API, shards: by default the hash of __address__; the last rules, after those of the monitor.
    config["relabel_configs"] += [
        {"source_labels": ["__address__"], "target_label": "__tmp_hash", "modulus": 1, "action": "hashmod"},
        {"source_labels": ["__tmp_hash", "__tmp_disable_sharding"], "regex": "$(SHARD);|.+;.+", "action": "keep"},
    ]
    if "metricRelabelings" in endpoint:
        config["metric_relabel_configs"] = _relabelings(endpoint["metricRelabelings"])
    return config


def _target_labels(monitor: Config, endpoint: Config) -> list[Config]:
    """Return the rules before those of the monitor, in the order of the generator."""
    metadata, selected = monitor["metadata"], monitor["spec"]["selector"]["matchLabels"]
    return [
        # Generator, initRelabelings.
        {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"},
        # API, PodMetricsEndpoint, filterRunning: true by default.
        {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
        # API, PodMonitorSpec, selector, with the default selectorMechanism RelabelConfig.
        *(
            {
                "action": "keep",
                "source_labels": [
                    f"__meta_kubernetes_pod_label_{sanitized(label)}",
                    f"__meta_kubernetes_pod_labelpresent_{sanitized(label)}",
                ],
                "regex": f"({value});true",
            }
            for label, value in sorted(selected.items())
        ),
        # API, PodMetricsEndpoint, port: the name of the container port.
        {
            "action": "keep",
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "regex": endpoint["port"],
        },
        # Generator: "Relabel namespace and pod and service labels into proper labels."
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        # Generator: NAMESPACE/NAME is the job without jobLabel, and the port is the endpoint.
        {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]


def _relabelings(rules: Sequence[Config]) -> list[Config]:
    return [{RELABEL_FIELDS[key]: value for key, value in rule.items()} for rule in rules]


def with_pods(config: Config, pods: Sequence[Pod], interval: str) -> Config:
    """Return a configuration for a Prometheus without a cluster, such as Debian's, which has no kubernetes_sd.

    The pods are static targets with the labels of kubernetes_sd, and the only shard is number 0: the operator's
    config-reloader replaces $(SHARD).
    """
    (discovery,) = config["kubernetes_sd_configs"]
    assert discovery["role"] == "pod"
    seen = [pod for pod in pods if pod.namespace in discovery["namespaces"]["names"]]
    targets = [{"targets": [pod.address], "labels": pod.meta_labels} for pod in seen]
    rules = [
        {**rule, "regex": rule["regex"].replace("$(SHARD)", "0")} if "regex" in rule else rule
        for rule in config["relabel_configs"]
    ]
    kept = {key: value for key, value in config.items() if key != "kubernetes_sd_configs"}
    return {**kept, "scrape_interval": interval, "relabel_configs": rules, "static_configs": targets}
