"""Names of pods and containers from the kubelet's links to logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.accounting.compose import Composer
from memwatch.core.collectors.containers import FOLDER, KubernetesCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable

UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
ID = "c0ffee" + "0" * 58


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir(parents=True)
    return tmp_path


def link(root: Path, pod: str, container: str, its_id: str = ID, uid: str = UID, namespace: str = "ml") -> Path:
    """Make a link as the kubelet does; its target is on the node, not here."""
    path = root / FOLDER / f"{pod}_{namespace}_{container}-{its_id}.log"
    path.symlink_to(f"/var/log/pods/{namespace}_{pod}_{uid}/{container}/0.log")
    return path


def collector(root: Path) -> KubernetesCollector:
    return KubernetesCollector(Roots(root / "proc", root / "sys", root))


def test_pods_and_containers_have_names_by_id(root: Path) -> None:
    """The ids are those of cgroups. Names may contain dashes; the logs themselves are not read."""
    link(root, "vllm-0", "server-a")

    found = collector(root).collect()

    assert found.container_names == {ID[:12]: "ml/vllm-0/server-a"}
    assert found.pod_names == {UID: "ml/vllm-0"}


def test_static_pod_has_an_id_without_dashes(root: Path) -> None:
    link(root, "etcd-node1", "etcd", uid="a" * 32, namespace="kube-system")

    assert collector(root).collect().pod_names == {"a" * 32: "kube-system/etcd-node1"}


def test_other_files_and_cut_names_are_left_out(root: Path) -> None:
    """The kubelet cuts a name at 255 characters, and with it the id."""
    (root / FOLDER / "notes.txt").write_text("x")
    (root / FOLDER / f"no-link_ml_c-{ID}.log").write_text("x")
    link(root, "p" * 200, "c", its_id="c0ffee")
    (root / FOLDER / f"odd_ml_c-{'b' * 64}.log").symlink_to("/elsewhere/0.log")

    found = collector(root).collect()

    assert (found.container_names, found.pod_names) == ({}, {})


def test_names_follow_the_links(root: Path) -> None:
    first = link(root, "old", "c")
    reader = collector(root)
    reader.collect()
    first.unlink()
    link(root, "new", "c", its_id="b" * 64, uid=UID.replace("0", "1"))

    found = reader.collect()

    assert found.container_names == {"b" * 12: "ml/new/c"}


def test_node_without_kubernetes_has_no_collector(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="No such file"):
        collector(tmp_path)


def test_names_of_a_container_runtime_and_of_kubernetes_are_merged() -> None:
    docker, kubelet = {"aaaa": "web"}, {"bbbb": "ml/vllm-0/server"}

    found = Composer().compose([Findings(container_names=docker), Findings(container_names=kubelet)])

    assert found.container_names == {**docker, **kubelet}
