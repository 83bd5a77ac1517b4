"""Write the SBOM of a release (CycloneDX) and its requirements: python deploy/package/sbom.py FOLDER."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from closure import ROOT, build_environment, find_needed, pins_for

from memwatch import __version__

VENDORED = ROOT / "web/memwatch_web/static/vendor"
EXTRAS = ("auth", "opencl", "notify")


def read_licence(name: str) -> str | None:
    """Return the licence from the package's metadata, or None if it is not installed here."""
    try:
        found = metadata(name)
    except PackageNotFoundError:
        return None
    classifiers = [one.rpartition(" :: ")[2] for one in found.get_all("Classifier") or [] if "License ::" in one]
    return found.get("License-Expression") or "; ".join(classifiers) or found.get("License")


def component(name: str, version: str, licence: str | None) -> dict[str, Any]:
    about: dict[str, Any] = {"type": "library", "name": name, "version": version}
    if licence:
        about["licenses"] = [{"license": {"name": licence}}]
    return about


def from_pypi(pins: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {**component(name, version, read_licence(name)), "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(pins.items())
    ]


def list_vendored() -> list[dict[str, Any]]:
    """Return the vendored JavaScript; names and versions are taken from file names."""
    stems = {path.name.removesuffix(".min.js").removesuffix(".js") for path in VENDORED.glob("*.js")}
    return [
        {
            **component(*stem.rpartition("-")[::2], None),
            "purl": f"pkg:npm/{stem.rpartition('-')[0]}@{stem.rpartition('-')[2]}",
        }
        for stem in sorted(stems)
    ]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    environment = build_environment(".".join(platform.python_version_tuple()[:2]), platform.machine())
    pinned = pins_for(environment)
    pins = {name: pinned[name].removeprefix("==") for name in find_needed("memwatchd", EXTRAS, environment, set())}
    (folder / "runtime.txt").write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins.items())))
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "memwatchd", "version": __version__}},
        "components": [*from_pypi(pins), *list_vendored()],
    }
    (folder / "memwatchd.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")


if __name__ == "__main__":
    main()
