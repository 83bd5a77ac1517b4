"""Test the recording and alerting rules with promtool, and their runbooks."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

from memwatch_monitor.alerts.rules import EVENTS, runbook_anchor
from scripts.reference.runbooks import SOURCE, TEMPLATE, anchors
from support.exported_metrics import exported_names
from support.paths import ROOT

NEEDED_PROGRAMS = ("promtool",)

PROMETHEUS = ROOT / "deploy/prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))


def rules() -> list[dict[str, Any]]:
    return [
        rule for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
    ]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def test_promtool_accepts_the_rules_and_passes_their_tests() -> None:
    """Prometheus evaluates every alert as the rule tests expect."""
    checked = subprocess.run(["promtool", "check", "rules", *RULES], capture_output=True, text=True, check=False)
    tested = subprocess.run(
        ["promtool", "test", "rules", PROMETHEUS / "rules_test.yml"], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_tested_firing_and_not_firing(name: str) -> None:
    """The rule tests have a time at which it fires and one at which it does not."""
    written = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())
    cases = [
        case for test in written["tests"] for case in test.get("alert_rule_test", ()) if case["alertname"] == name
    ]

    assert any(case["exp_alerts"] for case in cases)
    assert any(not case["exp_alerts"] for case in cases)


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_severity_and_a_runbook(name: str) -> None:
    """It has a severity, a summary, a description and a link to a section that the daemon serves.

    The link begins with the address that memwatchd reports, never with a label or an address of this machine.
    """
    alert = ALERTS[name]

    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} <= alert["annotations"].keys()
    link = alert["annotations"]["runbook_url"]
    assert re.fullmatch(rf"\{{\{{ with query .*memwatch_web_info.*/runbooks#{name.lower()}\{{\{{ end \}}\}}", link)
    assert "://" not in link
    assert f' id="{name.lower()}" ' in TEMPLATE.read_text()


def test_each_runbook_belongs_to_an_alert() -> None:
    """Each heading is an alert of Prometheus's rules or of memwatchd itself."""
    own = {runbook_anchor(event, "ram") for event in EVENTS}

    assert set(anchors(SOURCE.read_text())) == {name.lower() for name in ALERTS} | own


def test_rules_use_existing_metrics() -> None:
    """Metrics in expressions and annotations are exported, recorded here, or built into Prometheus."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    queried = {name for rule in rules() for name in re.findall(r"(?<![:\w])memwatch_\w+", text_of(rule))}
    used = {name for rule in rules() for name in re.findall(r"\w+:memwatch_\w+:\w+", rule["expr"])}

    assert {name.removeprefix("memwatch_") for name in queried} <= exported_names()
    assert used <= recorded


def text_of(rule: dict[str, Any]) -> str:
    return " ".join((rule["expr"], *rule.get("annotations", {}).values()))


def test_critical_alerts_are_about_shared_memory() -> None:
    """A GPU that its model server fills pages no operator: its alert has severity info."""
    assert ALERTS["GPUMemoryCritical"]["labels"]["severity"] == "info"
    assert "gpu" in ALERTS["MemoryCritical"]["expr"].partition('target!~"')[2]
