"""Render or lint the chart by Helm's own Go code, without a cluster: render.py render|lint CHART VALUES-AS-JSON.

helm-python-sdk contains Helm 4 as a library; Debian and PyPI have no helm program.
"""

from __future__ import annotations

import json
import sys

import helm_python as helm
from helm_python.chart import lint

NAMESPACE = "memwatch"


def render(chart: str, values: str) -> None:
    """Print all manifests. Values that the chart's schema refuses are an error."""
    given = json.loads(values)
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(loaded.merge_values(given))
        manifests = loaded.render(given, name="memwatchd", namespace=NAMESPACE)
    print("\n---\n".join(text for name, text in manifests.items() if name.endswith(".yaml")))


def report(chart: str, values: str) -> None:
    print(json.dumps(lint(chart, json.loads(values), strict=True, namespace=NAMESPACE)))


if __name__ == "__main__":
    action, *rest = sys.argv[1:]
    try:
        {"render": render, "lint": report}[action](*rest)
    except helm.HelmError as error:
        sys.exit(str(error))
