"""Direct and transitive dependencies of memwatchd in the tested versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent


def build_environment(python: str, machine: str) -> dict[str, str]:
    """Return the marker environment of the target machine."""
    full = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    return {**full, "platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux"}


def pins_for(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the tested versions for this environment."""
    found = {}
    for line in (ROOT / "tests" / "constraints.txt").read_text().splitlines():
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(dict(environment)):
            found[canonicalize_name(pin.name)] = str(pin.specifier)
    return found


def find_needed(name: str, extras: Iterable[str], environment: Mapping[str, str], found: set[str]) -> set[str]:
    """Return the names of a distribution's direct and transitive dependencies."""
    try:
        requirements = requires(name) or []
    except PackageNotFoundError:  # needed on other Pythons only; these have no dependencies
        return found
    for text in requirements:
        requirement = Requirement(text)
        wanted = requirement.marker is None or any(
            requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
        )
        other = canonicalize_name(requirement.name)
        if wanted and other not in found:
            found.add(other)
            find_needed(other, requirement.extras, environment, found)
    return found
