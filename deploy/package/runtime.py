"""Write the names and tested versions of all dependencies, extras included, for `make audit`: runtime.py FOLDER."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from closure import CONSTRAINTS, build_environment, locked_for

EXTRAS = ("auth", "opencl", "notify")


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


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    environment = build_environment(".".join(platform.python_version_tuple()[:2]), platform.machine())
    pins = {one.name: one.version for one in locked_for(environment, CONSTRAINTS)}
    names = sorted(find_needed("memwatchd", EXTRAS, environment, set()))
    (folder / "runtime.txt").write_text("".join(f"{name}=={pins[name]}\n" for name in names))


if __name__ == "__main__":
    main()
