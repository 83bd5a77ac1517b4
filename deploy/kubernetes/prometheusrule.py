"""Writes base/prometheusrule.yaml from deploy/prometheus/rules: the same rules, wrapped for the operator."""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus/rules"
TARGET = HERE / "base/prometheusrule.yaml"


def wrapped() -> str:
    groups = [group for file in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "memwatchd", "labels": {"app.kubernetes.io/name": "memwatchd"}},
        "spec": {"groups": groups},
    }
    head = "# Written by deploy/kubernetes/prometheusrule.py from deploy/prometheus/rules: change those.\n"
    return head + yaml.safe_dump(rule, sort_keys=False, width=1000, allow_unicode=True)


if __name__ == "__main__":
    TARGET.write_text(wrapped())
