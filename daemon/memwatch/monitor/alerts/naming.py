"""Names of alerts in Alertmanager, and the section of the runbooks for each. Pure functions.

An alert that Prometheus's shipped rules also have gets their name and labels, so that routes, silences and
inhibitions in Alertmanager apply to both, and the same alert from both is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from memwatch.monitor.alerts.rules import RULES

# The same expression as in deploy/prometheus/rules/alerts.yml: a GPU's own memory, or a MIG instance.
GPU_MEMORY = re.compile(r"gpu[0-9]+([.]mig[0-9]+)?")
_NAMES = {rule.name: rule.alert for rule in RULES}
_RUNBOOKS = {rule.name: rule.runbook or rule.alert for rule in RULES}
_TARGET_LABELS = {"collector.failing": "collector", "device.lost": "device", "engine.kv_full": "engine"}
_TARGET_LABELS |= {"collector.failed": "collector", "neighbour.silent": "neighbour"}


def alert_name(rule: str, target: str) -> str:
    """Return the alert's name: MemoryCritical for pressure.critical, GPUMemoryCritical for a GPU's own memory."""
    return f"GPU{_NAMES[rule]}" if is_gpu_memory(rule, target) else _NAMES.get(rule, "MemwatchTest")


def runbook_anchor(rule: str, target: str) -> str | None:
    """Return the anchor of the alert's section on /runbooks. None for a test notification."""
    if is_gpu_memory(rule, target):
        return "gpumemorycritical"
    return _RUNBOOKS[rule].lower() if rule in _RUNBOOKS else None


def target_labels(rule: str, target: str, fact: bool) -> Mapping[str, str]:
    """Return the label with the alert's target. None for a one-off event, whose target is a fixed word."""
    return {} if fact else {_TARGET_LABELS.get(rule, "target"): target}


def is_gpu_memory(rule: str, target: str) -> bool:
    return rule.startswith("pressure.") and GPU_MEMORY.fullmatch(target) is not None
