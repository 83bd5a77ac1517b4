"""Direct and transitive dependencies of memwatchd in the tested versions, from the lock that `make lock` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
CONSTRAINTS = ROOT / "tests/constraints.txt"
LOCK = ROOT / "deploy/package/lock.txt"
BUILD_LOCK = ROOT / "deploy/package/build-lock.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class Locked(NamedTuple):
    """One entry of a lock: the requirement, and the SHA-256 of each of its files."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (only,) = self.requirement.specifier
        return only.version

    def line(self) -> str:
        """Return the entry without its marker, which pip evaluates for the Python that runs it."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{one}" for one in self.hashes)])


def build_environment(python: str, machine: str) -> dict[str, str]:
    """Return the marker environment of the target machine."""
    here = {name: str(value) for name, value in default_environment().items()}
    full = {**here, "python_version": python, "python_full_version": f"{python}.0"}
    system = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return {**full, **system, "platform_machine": machine}


def read_lock(path: Path = LOCK) -> Iterator[Locked]:
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = line.split(" --hash=sha256:")
            yield Locked(Requirement(requirement), tuple(one.strip() for one in hashes))


def locked_for(environment: Mapping[str, str], path: Path = LOCK) -> list[Locked]:
    """Return the entries for this environment."""
    return [
        one
        for one in read_lock(path)
        if one.requirement.marker is None or one.requirement.marker.evaluate(dict(environment))
    ]
