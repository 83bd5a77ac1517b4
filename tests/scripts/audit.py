"""Check the dependencies for known vulnerabilities: make audit.

Checks the pins of the runtime dependencies and the lower bounds of pyproject.toml against a list of advisories in
OSV format: tests/advisories.json, or ADVISORIES=FILE. If its service answers, pip-audit checks the pins as well. A
package that the list does not cover is an error, and so is one that pip-audit skips while it knows others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.paths import ROOT
from support.requirements import DAEMON, LIBRARY, required_by

ADVISORIES = ROOT / "tests/advisories.json"
PINS = ROOT / "tests/constraints.txt"
PIP_AUDIT_SECONDS = 120
MAX_AGE_DAYS = 30


class Advisories(Struct, frozen=True):
    """Advisories in OSV format, the packages that were looked up for them, and the date of that."""

    collected: str
    packages: frozenset[str]
    vulns: tuple[Mapping[str, Any], ...]

    def affecting(self, name: str, version: Version) -> Iterator[Mapping[str, Any]]:
        for vulnerability in self.vulns:
            for affected in vulnerability["affected"]:
                package = affected["package"]
                is_package = package["ecosystem"] == "PyPI" and canonicalize_name(package["name"]) == name
                if is_package and is_affected(version, affected):
                    yield vulnerability
                    break


class Audited(Struct, frozen=True):
    """A version to be checked, and where it is written."""

    name: str
    version: Version
    where: str


class AuditError(Exception):
    """A file that cannot be used. The message names it, the reason and the remedy."""


def is_affected(version: Version, affected: Mapping[str, Any]) -> bool:
    """Evaluate the versions and ranges of an OSV record."""
    if str(version) in affected.get("versions", ()):
        return True
    return any(_is_in_range(version, one["events"]) for one in affected.get("ranges", ()) if one["type"] != "GIT")


def _is_in_range(version: Version, events: Iterable[Mapping[str, str]]) -> bool:
    inside = False
    for kind, text in sorted((next(iter(event.items())) for event in events), key=lambda one: Version(one[1])):
        limit = Version(text)
        if kind == "introduced" and version >= limit:
            inside = True
        elif (kind == "fixed" and version >= limit) or (kind == "last_affected" and version > limit):
            inside = False
    return inside


def load_advisories(path: Path = ADVISORIES) -> Advisories:
    try:
        read = json.loads(path.read_text())
        names = frozenset(canonicalize_name(name) for name in read["packages"])
        date.fromisoformat(read["collected"])
        return Advisories(read["collected"], names, tuple(read["vulns"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AuditError(
            f"cannot read advisories from {path}: {error!r}; give a JSON object with collected, packages and vulns"
        ) from None


def runtime_pins(names: Iterable[str], path: Path = PINS) -> list[Audited]:
    """Return all pins of these packages; several if Python versions need different ones."""
    wanted = {canonicalize_name(name) for name in names}
    pins = [Requirement(line) for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [
        Audited(canonicalize_name(pin.name), Version(next(iter(pin.specifier)).version), path.name)
        for pin in pins
        if canonicalize_name(pin.name) in wanted
    ]


def lower_bounds(paths: Iterable[Path] = (DAEMON, LIBRARY)) -> list[Audited]:
    """Return the oldest version that each pyproject.toml allows of each dependency, extras included."""
    return [
        Audited(canonicalize_name(one.name), max(bounds), f"lower bound in {path.name}")
        for path in paths
        for one in map(Requirement, required_by(path))
        if (bounds := [Version(spec.version) for spec in one.specifier if spec.operator in (">=", "==")])
    ]


def findings_in(audited: Iterable[Audited], advisories: Advisories) -> Iterator[str]:
    """Return a line for each known vulnerability, and for each package that was not looked up."""
    for one in audited:
        if one.name not in advisories.packages:
            yield f"{one.name}: not audited: the list of advisories does not cover it; look it up and add it"
        for vulnerability in advisories.affecting(one.name, one.version):
            ids = ", ".join((vulnerability["id"], *vulnerability.get("aliases", ())))
            links = " ".join(link["url"] for link in vulnerability.get("references", ())[:1])
            summary = vulnerability.get("summary", "")
            yield f"{one.name} {one.version} ({one.where}): {ids}: {summary} {links}".rstrip()


def ask_pip_audit(program: str, requirements: Path) -> tuple[list[str], str]:
    """Return the findings of pip-audit, and a reason if its service does not answer for any package."""
    command = [program, "--requirement", str(requirements), "--no-deps", "--disable-pip", "--format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_AUDIT_SECONDS, check=False)
        packages = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return [], f"no answer in {PIP_AUDIT_SECONDS} s"
    except (OSError, ValueError, KeyError) as error:
        return [], f"no result ({error!r})"
    skipped = [one for one in packages if "skip_reason" in one]
    if len(skipped) == len(packages):
        return [], skipped[0]["skip_reason"] if skipped else "it audited no package"
    found = [f"{one['name']}: not audited by pip-audit: {one['skip_reason']}" for one in skipped]
    for one in packages:
        found += [f"{one['name']} {one['version']} (pip-audit): {vuln['id']}" for vuln in one.get("vulns", ())]
    return found, ""


def age_warning(collected: str, today: date | None = None) -> str:
    """Return a remark on a list that is too old, or "". Newer vulnerabilities are not in it."""
    age = (today or datetime.now(timezone.utc).date()) - date.fromisoformat(collected)
    return f", {age.days} days ago: look the packages up again" if age.days > MAX_AGE_DAYS else ""


def audit(options: argparse.Namespace) -> int:
    advisories = load_advisories(options.advisories)
    names = {Requirement(line).name for line in options.requirements.read_text().split()}
    bounds = lower_bounds((options.project,) if options.project else (DAEMON, LIBRARY))
    pins = runtime_pins(names | {one.name for one in bounds}, options.constraints)
    if missing := names - {one.name for one in pins}:
        raise AuditError(
            f"{', '.join(sorted(missing))}: not pinned; add the tested version to {options.constraints}"
        )
    findings = list(dict.fromkeys(findings_in([*pins, *bounds], advisories)))
    counts = f"{len(pins)} pins and {len(bounds)} lower bounds against {len(advisories.vulns)} advisories"
    print(f"checked {counts} of {advisories.collected}{age_warning(advisories.collected)}")
    if options.pip_audit:
        more, why = ask_pip_audit(options.pip_audit, options.requirements)
        findings += more
        print(f"pip-audit: {f'not used: {why}' if why else 'answered, with the advisories of today'}")
    print("\n".join(findings) or "no known vulnerability")
    return 1 if findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "requirements", type=Path, help="names of the runtime dependencies, one NAME==VERSION a line"
    )
    parser.add_argument("--advisories", type=Path, default=ADVISORIES, help="advisories in OSV format")
    parser.add_argument("--constraints", type=Path, default=PINS, help="pins to check")
    parser.add_argument("--project", type=Path, help="another pyproject.toml with lower bounds")
    parser.add_argument("--pip-audit", help="pip-audit to ask as well")
    try:
        return audit(parser.parse_args())
    except (AuditError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
