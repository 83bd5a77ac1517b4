"""Names and runbooks of memwatchd's own alerts, compared with Prometheus's shipped rules and the runbooks."""

from __future__ import annotations

import re

import yaml

from memwatch_monitor.alerts.rules import EVENTS, alert_name, runbook_anchor, target_labels
from support.paths import DEPLOY, ROOT

RULES = yaml.safe_load((DEPLOY / "prometheus/rules/alerts.yml").read_text())["groups"]
HEADINGS = {name.lower() for name in re.findall(r"^## (\w+)$", (ROOT / "docs/howto/runbooks.md").read_text(), re.M)}


def test_each_own_alert_has_a_runbook() -> None:
    alerts = [(event, target) for event in EVENTS for target in ("ram", "gpu0", "gpu0.mig3", "gpu0.gtt")]

    assert [one for one in alerts if runbook_anchor(*one) not in HEADINGS] == []


def test_test_notification_has_no_runbook() -> None:
    assert runbook_anchor("test", "test") is None


def test_alerts_that_prometheus_also_has_are_named_as_there() -> None:
    """Routes, silences and inhibitions in Alertmanager then apply to both."""
    named = {rule["alert"] for group in RULES for rule in group["rules"]}
    shared = {
        ("pressure.critical", "ram"): "MemoryCritical",
        ("pressure.critical", "gpu0.gtt"): "MemoryCritical",
        ("pressure.critical", "gpu0"): "GPUMemoryCritical",
        ("pressure.critical", "gpu1.mig2"): "GPUMemoryCritical",
        ("pressure.forecast", "ram"): "MemoryFullSoon",
        ("collector.failing", "nvml"): "MemwatchCollectorDown",
        ("device.lost", "gpu0"): "GPULost",
        ("engine.kv_full", "vllm-8000"): "EngineKVCacheFull",
        ("kernel.oom_kill", "kernel"): "MemoryOOMKill",
        ("driver.error", "driver"): "GPUMemoryErrors",
        ("guardian.acted", "guardian"): "GuardianActed",
    }

    assert {key: alert_name(*key) for key in shared} == shared
    assert set(shared.values()) <= named


def test_target_of_an_alert_has_the_label_of_the_rule() -> None:
    assert target_labels("pressure.critical", "ram", fact=False) == {"target": "ram"}
    assert target_labels("device.lost", "gpu0", fact=False) == {"device": "gpu0"}
    assert target_labels("collector.failing", "nvml", fact=False) == {"collector": "nvml"}
    assert target_labels("kernel.oom_kill", "kernel", fact=True) == {}
