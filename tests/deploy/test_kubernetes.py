"""Test that the output of kustomize is valid by the published schemas and confined."""

from __future__ import annotations

import base64
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel

from memwatch_web.asgi.routes import HEALTHZ, OPEN_PATHS, READYZ
from support.paths import ROOT

NEEDED_PROGRAMS = ("kubectl",)

FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("base", "nvidia", "amd")
VERSIONS = ("1.31", kubernetes_validate.latest_version())


def manifests(overlay: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", FOLDER / overlay], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def pod(overlay: str) -> Any:
    return manifests(overlay)["DaemonSet"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_are_valid_by_the_kubernetes_schemas(overlay: str) -> None:
    """Strict validation, against an older release and the newest known."""
    built = manifests(overlay)

    assert built.keys() == {
        "Namespace", "ServiceAccount", "DaemonSet", "NetworkPolicy", "PodMonitor", "PrometheusRule"
    }  # fmt: skip
    for kind in ("Namespace", "ServiceAccount", "DaemonSet", "NetworkPolicy"):
        for version in VERSIONS:
            kubernetes_validate.validate(built[kind], version, strict=True)


def operator_model(kind: str) -> type[BaseModel]:
    """Import the models lazily: that takes 1.7 s, which every worker would spend on collecting tests."""
    from cloudcoil.models.prometheus_operator import v1

    model: type[BaseModel] = getattr(v1, kind)
    return model


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_prometheus_operator_resources_are_valid_by_its_models(kind: str) -> None:
    """No required field is missing, and every field is known to the models."""
    written = manifests("base")[kind]

    read = operator_model(kind).model_validate(written)

    assert read.model_dump(by_alias=True, exclude_unset=True, mode="json") == written


def test_misspelled_field_is_invalid() -> None:
    """Shows that the two tests above can fail."""
    built = manifests("base")
    built["DaemonSet"]["spec"]["template"]["spec"]["hostPid"] = True
    built["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["prot"] = "http"

    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        kubernetes_validate.validate(built["DaemonSet"], VERSIONS[0], strict=True)
    read = operator_model("PodMonitor").model_validate(built["PodMonitor"])
    assert read.model_dump(by_alias=True, exclude_unset=True, mode="json") != built["PodMonitor"]


def test_prometheusrule_equals_the_prometheus_rules() -> None:
    """The file is generated from deploy/prometheus/rules."""
    found = importlib.util.spec_from_file_location("prometheusrule", FOLDER / "prometheusrule.py")
    assert found
    assert found.loader
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)

    assert script.TARGET.read_text() == script.wrapped()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pod_mounts_the_node_read_only(overlay: str) -> None:
    """Host folders are mounted read-only. There is no privilege, device or unexplained capability."""
    spec = pod(overlay)
    (container,) = spec["containers"]
    host = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = {one["name"]: one for one in container["volumeMounts"]}

    assert spec["hostPID"] is True
    assert set(host.values()) == {"/proc", "/sys", "/etc/passwd", "/var/log/containers"}
    assert all(mounts[name]["readOnly"] for name in host)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["capabilities"].get("add", []) == (
        ["IPC_LOCK", "SYS_PTRACE"] if overlay == "amd" else []
    )
    assert spec["securityContext"]["runAsNonRoot"] is (overlay != "amd")


def test_pod_runs_as_the_image_user_on_the_image_port() -> None:
    """The Dockerfile and the DaemonSet agree."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    spec = pod("base")

    assert f"USER {spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" in dockerfile
    assert f"EXPOSE {spec['containers'][0]['ports'][0]['containerPort']}" in dockerfile


def test_nvidia_overlay_sees_all_gpus_and_requests_none() -> None:
    """A pod that requests nvidia.com/gpu would take GPUs away from programs."""
    spec = pod("nvidia")
    (container,) = spec["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}

    assert spec["runtimeClassName"] == "nvidia"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "nvidia.com/gpu" not in {**container["resources"]["limits"], **container["resources"]["requests"]}


def documented_secret() -> dict[str, Any]:
    """Run the command from kustomization.yaml without a cluster."""
    text = (FOLDER / "base/kustomization.yaml").read_text()
    (command,) = re.findall(r"^#\s+(openssl rand .*)$", text, re.MULTILINE)
    done = subprocess.run(
        ["sh", "-c", f"{command} --dry-run=client --output=yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    secret: dict[str, Any] = yaml.safe_load(done.stdout)
    return secret


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_token_comes_from_a_secret_that_is_in_no_file(overlay: str) -> None:
    """The pod mounts the documented Secret for its group only, and memwatchd requires the token in it."""
    secret = documented_secret()
    spec = pod(overlay)
    (container,) = spec["containers"]
    (volume,) = (one["secret"] for one in spec["volumes"] if "secret" in one)
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "token")
    environment = {one["name"]: one.get("value") for one in container["env"]}

    assert "Secret" not in manifests(overlay)
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == (volume["secretName"], "memwatch")
    assert (volume["defaultMode"], spec["securityContext"]["fsGroup"]) == (0o440, 64360)
    assert mount["readOnly"] is True
    (key,) = secret["data"]
    assert environment["MEMWATCHD_WEB_AUTH_BEARER_TOKEN"] == f"file:{mount['mountPath']}/{key}"
    assert "MEMWATCHD_INSECURE" not in environment
    assert re.fullmatch(rb"[0-9a-f]{64}", base64.b64decode(secret["data"][key]))


def test_prometheus_operator_scrapes_with_the_same_secret() -> None:
    """The PodMonitor reads the key that memwatchd reads; an operator accepts only Secrets of the same namespace."""
    secret = documented_secret()
    monitor = manifests("base")["PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (key,) = secret["data"]

    assert monitor["metadata"]["namespace"] == secret["metadata"]["namespace"]
    assert endpoint["authorization"] == {"credentials": {"name": secret["metadata"]["name"], "key": key}}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_need_no_login(overlay: str) -> None:
    """The kubelet has no token: every probe uses a path that is open without one."""
    (container,) = pod(overlay)["containers"]

    probed = {probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}
    assert probed == {HEALTHZ, READYZ}
    assert probed <= OPEN_PATHS


def daemonset_with(component: str, folder: Path) -> Any:
    """Return the DaemonSet of an overlay with the base and a component."""
    for name in ("base", component):
        shutil.copytree(FOLDER / name, folder / name)
    (folder / "kustomization.yaml").write_text(f"resources: [base]\ncomponents: [{component}]\n")
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "DaemonSet")


def test_node_features_component_adds_one_confined_container(tmp_path: Path) -> None:
    """It writes one folder of the node, without capabilities. The container of memwatchd stays as it is."""
    daemonset = daemonset_with("node-features", tmp_path)
    spec, plain = daemonset["spec"]["template"]["spec"], pod("base")
    first, second = spec["containers"]
    writable = [one for one in second["volumeMounts"] if not one.get("readOnly")]
    (added,) = [one for one in spec["volumes"] if one not in plain["volumes"]]

    for version in VERSIONS:
        kubernetes_validate.validate(daemonset, version, strict=True)
    assert [first] == plain["containers"]
    assert second["image"] == first["image"]
    assert second["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert second["securityContext"]["allowPrivilegeEscalation"] is False
    assert [one["name"] for one in writable] == [added["name"]]
    assert added["hostPath"]["path"] == "/etc/kubernetes/node-feature-discovery/features.d"
    assert second["command"][second["command"].index("--output") + 1].startswith(writable[0]["mountPath"])


def test_kernel_log_component_adds_the_device_and_nothing_else(tmp_path: Path) -> None:
    """Only a privileged container may open /dev/kmsg. Strict validation accepts the result."""
    daemonset = daemonset_with("kernel-log", tmp_path)
    spec = daemonset["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    added = [one for one in spec["volumes"] if one not in pod("base")["volumes"]]

    for version in VERSIONS:
        kubernetes_validate.validate(daemonset, version, strict=True)
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert added == [{"name": "kmsg", "hostPath": {"path": "/dev/kmsg", "type": "CharDevice"}}]
    assert {"name": "kmsg", "mountPath": "/host/root/dev/kmsg", "readOnly": True} in container["volumeMounts"]
