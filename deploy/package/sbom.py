"""SBOM (CycloneDX) of a Debian package: a component for each wheel and vendored library that is in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

VENDORED = "memwatch_web/static/vendor"


def read_metadata(unpacked: Path) -> Message:
    (file,) = unpacked.glob("*.dist-info/METADATA")
    return Parser().parsestr(file.read_text("utf-8"))


def read_licence(metadata: Message) -> str | None:
    classifiers = [one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or [] if "License ::" in one]
    return metadata["License-Expression"] or "; ".join(classifiers) or metadata["License"]


def component(name: str, version: str, licence: str | None, purl: str) -> dict[str, Any]:
    about: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence:
        about["licenses"] = [{"license": {"name": licence}}]
    return about


def wheel_component(wheel: Path, unpacked: Path) -> dict[str, Any]:
    """Return the component of a wheel. Several Pythons may need different ones of the same version."""
    metadata = read_metadata(unpacked)
    name, version = canonicalize_name(metadata["Name"]), metadata["Version"]
    # A "+" is a space in a query.
    purl = f"pkg:pypi/{name}@{version}?file_name={wheel.name}".replace("+", "%2B")
    content = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {
        **component(name, version, read_licence(metadata), purl),
        "hashes": [{"alg": "SHA-256", "content": content}],
    }


def list_vendored(unpacked: Path) -> Iterator[dict[str, Any]]:
    """Yield the vendored libraries of a wheel; names and versions are taken from file names."""
    files = [path for path in (unpacked / VENDORED).glob("*") if path.suffix in (".js", ".css")]
    for stem in sorted({path.stem.removesuffix(".min") for path in files}):
        name, _, version = stem.rpartition("-")
        yield component(name, version, None, f"pkg:npm/{name}@{version}")


def list_components(wheels: Iterable[tuple[Path, Path]]) -> list[dict[str, Any]]:
    """Return the components of wheels, each with the folder that it was unpacked to."""
    found = []
    for wheel, unpacked in wheels:
        found += [wheel_component(wheel, unpacked), *list_vendored(unpacked)]
    return sorted(found, key=lambda one: one["bom-ref"])


def write_sbom(path: Path, version: str, components: list[dict[str, Any]]) -> None:
    """Write the SBOM without time and serial number, so that two builds are equal."""
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "memwatchd", "version": version}},
        "components": components,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=2) + "\n")
