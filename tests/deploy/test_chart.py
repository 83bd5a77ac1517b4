"""The Helm chart without Helm: versions, values and links. `make test-deploy` renders it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from memwatch.build_info import BASE_VERSION
from support.paths import ROOT

CHART = ROOT / "deploy/helm/memwatchd"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = sorted((CHART / "templates").iterdir())


def test_chart_has_the_version_of_the_daemon() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (BASE_VERSION, BASE_VERSION)


def test_schema_knows_each_value_and_no_other() -> None:
    """`global` is Helm's own."""
    assert SCHEMA["properties"].keys() == VALUES.keys() | {"global"}
    for name, value in VALUES.items():
        known = SCHEMA["properties"][name]
        if known.get("additionalProperties") is False:
            assert known["properties"].keys() == value.keys()


def test_each_value_is_used_by_a_template() -> None:
    """A value that no template reads would be ignored."""
    text = "".join(file.read_text() for file in TEMPLATES)
    used = set(re.findall(r"\.Values\.(\w+)", text))

    assert used == VALUES.keys()


def test_templates_read_manifests_that_exist() -> None:
    """The chart's base is the kustomize base, by a link that Helm follows."""
    named = {name for file in TEMPLATES for name in re.findall(r'"([\w-]+\.yaml)"', file.read_text())}
    listed = yaml.safe_load((CHART / "base/kustomization.yaml").read_text())["resources"]

    assert (CHART / "base").resolve() == ROOT / "deploy/kubernetes/base"
    assert named == set(listed) - {"namespace.yaml"}
    assert not Path(CHART / "base").readlink().is_absolute()
