"""Files for a public forge: issue forms, checks of a change, updates. The keys are those that the forge accepts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.paths import ROOT

FORGE = ROOT / ".github"
FORMS = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
ATTRIBUTES = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "dropdown": {"label", "description", "options", "multiple", "default"},
    "checkboxes": {"label", "description", "options"},
}
PYTHONS = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_there_is_a_form_for_bugs_and_for_hardware() -> None:
    assert [form.stem for form in FORMS] == ["bug", "hardware"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: str(path.stem))
def test_issue_form_is_valid(path: Path) -> None:
    form = load(path)

    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert ids
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", one) for one in ids)
    for part in form["body"]:
        check_part(part)


def check_part(part: dict[str, Any]) -> None:
    """Check one element of a form."""
    kind, attributes = part["type"], part["attributes"]
    assert part.keys() <= {"type", "id", "attributes", "validations"}
    assert attributes.keys() <= ATTRIBUTES[kind]
    assert attributes["value" if kind == "markdown" else "label"]
    assert part.get("validations", {}).keys() <= {"required"}
    options = attributes.get("options", [])
    if kind == "dropdown":
        assert all(isinstance(option, str) for option in options)
        assert len(set(options)) == len(options) > 1
    if kind == "checkboxes":
        assert options
        assert all(option["label"] and option.keys() <= {"label", "required"} for option in options)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: str(path.stem))
def test_issue_form_asks_for_the_report_and_to_look_at_it(path: Path) -> None:
    (report,) = (part for part in load(path)["body"] if part.get("id") == "report")

    assert "memwatch doctor --report" in report["attributes"]["description"]
    assert report["validations"]["required"] is True
    assert "I have looked at" in path.read_text()


def test_links_of_forms_lead_to_files_of_the_repository() -> None:
    for path in FORGE.rglob("*.*"):
        for target in re.findall(r"\]\(\.\./blob/HEAD/([^)]+)\)", path.read_text()):
            assert (ROOT / target).is_file()


def test_change_is_checked_as_on_a_developers_machine() -> None:
    """The workflow runs .ci/run, may only read, and tests each Python that the package names."""
    workflow = load(FORGE / "workflows/ci.yml")
    jobs = workflow["jobs"]
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow[True]) == {"push", "pull_request"}
    assert workflow["permissions"] == {"contents": "read"}
    assert {"run": "bash .ci/run"} in jobs["checks"]["steps"]
    named = PYTHONS.findall((ROOT / "pyproject.toml").read_text())
    assert jobs["pythons"]["strategy"]["matrix"]["python"] == named
    for job in jobs.values():
        assert {"runs-on", "steps", "timeout-minutes"} <= job.keys()
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_updates_are_asked_for_where_dependencies_are() -> None:
    found = load(FORGE / "dependabot.yml")
    files = {
        "pip": "pyproject.toml",
        "docker": "Dockerfile",
        "docker-compose": "docker-compose.yml",
        "github-actions": ".github/workflows/ci.yml",
    }

    assert found["version"] == 2
    assert {one["package-ecosystem"] for one in found["updates"]} == files.keys()
    for one in found["updates"]:
        assert one["schedule"]["interval"] in ("daily", "weekly", "monthly")
        for folder in one.get("directories") or [one["directory"]]:
            assert (ROOT / folder.lstrip("/") / files[one["package-ecosystem"]]).is_file()
