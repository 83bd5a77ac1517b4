"""The Helm chart equals the kustomize manifests, and its values do what they say: `make test-deploy`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml

from support.paths import ROOT

CHART = ROOT / "deploy/helm/memwatchd"
KUBERNETES = ROOT / "deploy/kubernetes"
# The Python of an environment with helm-python-sdk.
PYTHON = os.environ.get("DEPLOY_PYTHON", str(ROOT / ".venv-deploy/bin/python"))
VERSIONS = ("1.31", kubernetes_validate.latest_version())
NATIVE = ("ServiceAccount", "DaemonSet", "NetworkPolicy")


def helm(action: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, str(ROOT / "tests/provision/render.py"), action, str(CHART), json.dumps(values)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rendered(**values: Any) -> dict[str, Any]:
    done = helm("render", values)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}


def built(overlay: str, *components: str) -> dict[str, Any]:
    """Return kustomize's output without the Namespace, which Helm creates itself."""
    folder = KUBERNETES / overlay
    if components:
        folder = ROOT / "out/kustomize"
        folder.mkdir(parents=True, exist_ok=True)
        text = {"resources": [f"../../deploy/kubernetes/{overlay}"],
                "components": [f"../../deploy/kubernetes/{one}" for one in components]}  # fmt: skip
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(text))
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    del found["Namespace"]
    return found


@pytest.mark.parametrize(("gpu", "overlay"), [("none", "base"), ("nvidia", "nvidia"), ("amd", "amd")])
def test_chart_equals_the_overlay(gpu: str, overlay: str) -> None:
    """Every kind, field and value, with the defaults and each kind of GPU."""
    assert rendered(gpu=gpu) == built(overlay)


@pytest.mark.parametrize(("gpu", "overlay"), [("none", "base"), ("nvidia", "nvidia"), ("amd", "amd")])
def test_chart_with_kernel_log_equals_the_component(gpu: str, overlay: str) -> None:
    """The component is privileged and root. Strict validation accepts it."""
    found = rendered(gpu=gpu, kernelLog=True)

    assert found == built(overlay, "kernel-log")
    for version in VERSIONS:
        kubernetes_validate.validate(found["DaemonSet"], version, strict=True)


def test_values_reach_the_manifests() -> None:
    """Image by digest, Secret, scheduling, resources, mounts, labels of the operator."""
    digest = f"sha256:{'0123456789abcdef' * 4}"
    found = rendered(
        image={"repository": "registry.example.org/memwatchd", "digest": digest, "pullPolicy": "Always"},
        imagePullSecrets=[{"name": "pull"}],
        tokenSecret={"name": "other", "key": "bearer"},
        hostMounts=[{"name": "data", "path": "/data", "mountPath": "/host/root/data"}],
        env=[{"name": "MEMWATCHD_INTERVAL", "value": "2s"}],
        resources={"limits": {"memory": "300Mi"}},
        priorityClassName="",
        nodeSelector={"pool": "gpu"},
        gpu="nvidia",
        tolerations=[],
        podMonitor={"labels": {"release": "monitoring"}, "interval": "30s"},
        externalUrl="https://memory.example.org/$(NODE_NAME)",
        networkPolicy={"namespace": "observability", "podLabels": {"app": "prometheus"}, "egress": [{}]},
    )
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environ = {one["name"]: one.get("value") for one in container["env"]}
    policy = found["NetworkPolicy"]["spec"]
    (source,) = policy["ingress"][0]["from"]
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]

    assert container["image"] == f"registry.example.org/memwatchd@{digest}"
    assert container["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"pool": "gpu", "nvidia.com/gpu.present": "true"}
    assert pod["tolerations"] == []
    assert container["resources"]["limits"] == {"memory": "300Mi"}
    assert environ["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"] == "file:/etc/memwatchd-token/bearer"
    assert environ["MEMWATCHD_INTERVAL"] == "2s"
    assert environ["MEMWATCHD_WEB_URL"] == "https://memory.example.org/$(NODE_NAME)"
    assert source["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}
    assert (source["podSelector"], policy["egress"]) == ({"matchLabels": {"app": "prometheus"}}, [{}])
    assert {"name": "data", "mountPath": "/host/root/data", "readOnly": True} in container["volumeMounts"]
    assert [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one] == ["other"]
    assert endpoint["authorization"] == {"credentials": {"name": "other", "key": "bearer"}}
    assert (endpoint["interval"], found["PodMonitor"]["metadata"]["labels"]["release"]) == ("30s", "monitoring")
    for kind in NATIVE:
        for version in VERSIONS:
            kubernetes_validate.validate(found[kind], version, strict=True)


def test_parts_for_the_operator_can_be_left_out() -> None:
    """A cluster without the Prometheus operator refuses its kinds."""
    off = {"enabled": False}

    assert rendered(podMonitor=off, prometheusRule=off, networkPolicy=off).keys() == {"ServiceAccount", "DaemonSet"}


@pytest.mark.parametrize(
    "values",
    [
        {"gpu": "intel"},
        {"image": {"digest": "latest"}},
        {"tolerance": []},
        {"tokenSecret": {"name": ""}},
        {"externalUrl": "gpu1"},
    ],
)
def test_wrong_values_are_refused_by_the_schema(values: Mapping[str, Any]) -> None:
    """A misspelled or impossible value is an error, not a silent default."""
    done = helm("render", values)

    assert done.returncode != 0
    assert next(iter(values)) in done.stderr


def test_chart_passes_helms_lint() -> None:
    """Strict: warnings count. Helm suggests an icon, which the chart has not."""
    found = json.loads(helm("lint", {}).stdout)

    assert found["total_charts_linted"] == 1
    assert [one["error"] for one in found["messages"] if one["severity"] > 1] == []
    assert found["errors"] == []
