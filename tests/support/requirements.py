"""Requirements of memwatch and memwatchd, as their two pyproject.toml files name them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DAEMON, LIBRARY = ROOT / "pyproject.toml", ROOT / "daemon/pyproject.toml"


def read_project(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def required_by(path: Path) -> list[str]:
    """Return the requirements of a project and of its extras. Dynamic ones are in the section of the build hook."""
    project = read_project(path)
    hook = project.get("tool", {}).get("hatch", {}).get("metadata", {}).get("hooks", {}).get("custom", {})
    return [*project["project"].get("dependencies", hook.get("dependencies", ())), *extras_of(path)]


def extras_of(path: Path) -> list[str]:
    extras = read_project(path)["project"].get("optional-dependencies", {})
    return [text for extra in extras.values() for text in extra]
