"""Test `make audit`: its list of advisories, and the program with vulnerable pins and unknown packages."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from scripts.audit import age_warning, findings_in, is_affected, load_advisories, lower_bounds, runtime_pins
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

MINE = load_advisories()


def test_vulnerable_dependency_versions_are_excluded() -> None:
    """No lower bound of pyproject.toml allows a version with a known vulnerability. Each was looked up."""
    bounds = lower_bounds()
    names = {one.name for one in bounds}

    assert {"starlette", "h11", "jinja2", "psutil", "bcrypt", "apprise", "pyopencl"} <= names
    assert not {"python-multipart", "pickle5"} & names
    assert list(findings_in(bounds, MINE)) == []
    assert list(findings_in(runtime_pins(names), MINE)) == []


@pytest.mark.parametrize(
    ("name", "vulnerable", "fixed"),
    [
        ("starlette", "1.0.0", "1.3.1"),
        ("starlette", "0.49.0", "1.3.1"),
        ("h11", "0.14.0", "0.16.0"),
        ("jinja2", "3.1.5", "3.1.6"),
        ("psutil", "5.6.5", "5.6.6"),
        ("click", "8.1.8", "8.3.3"),
        ("urllib3", "1.26.18", "2.7.0"),
    ],
)
def test_known_holes_are_in_the_list(name: str, vulnerable: str, fixed: str) -> None:
    """Two ranges of one advisory, and the first version with a fix."""
    assert list(MINE.affecting(name, Version(vulnerable)))
    assert not list(MINE.affecting(name, Version(fixed)))


def test_each_advisory_has_an_id_a_range_and_a_source() -> None:
    """The list is dated, and every package in an advisory is one that was looked up."""
    assert datetime.date.fromisoformat(MINE.collected) <= datetime.date.today()
    assert MINE.collected in (ROOT / "SECURITY.md").read_text()
    assert len({one["id"] for one in MINE.vulns}) == len(MINE.vulns)
    for one in MINE.vulns:
        assert one["id"].startswith(("PYSEC-", "CVE-", "GHSA-"))
        assert one["references"][0]["url"].startswith("https://")
        assert {affected["package"]["name"] for affected in one["affected"]} <= MINE.packages
        assert all(affected["ranges"][0]["events"] for affected in one["affected"])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.0", False),
        ("1.1", True),
        ("1.9.9", True),
        ("2.0", False),
        ("3.0", True),
        ("3.2", True),
        ("3.2.1", False),
    ],
)
def test_ranges_are_evaluated_as_osv_defines(version: str, expected: bool) -> None:
    """`introduced` and `last_affected` are included, `fixed` is not; the order of events does not matter."""
    events = [{"fixed": "2.0"}, {"introduced": "1.1"}, {"last_affected": "3.2"}, {"introduced": "3.0"}]

    assert is_affected(Version(version), {"ranges": [{"type": "ECOSYSTEM", "events": events}]}) is expected
    assert is_affected(Version(version), {"versions": [version]})
    assert not is_affected(Version(version), {"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]})


def audit(folder: Path, pins: str, *arguments: str, bound: str = "starlette>=1.3.1") -> tuple[int, str]:
    """Run the program on these pins; return its exit code and output."""
    files = {name: folder / name for name in ("requirements", "constraints", "pyproject.toml")}
    files["requirements"].write_text(pins)
    files["constraints"].write_text(pins)
    files["pyproject.toml"].write_text(f'[project]\ndependencies = ["{bound}"]\n')
    command = [sys.executable, "-m", "scripts.audit", str(files["requirements"]), *arguments]
    command += [f"--constraints={files['constraints']}", f"--project={files['pyproject.toml']}"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT / "tests", timeout=MAX_WAIT_SECONDS, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_vulnerable_pin_fails_the_audit(tmp_path: Path) -> None:
    """Exit code 1, and a line with version, id and source. The fixed version passes."""
    code, output = audit(tmp_path, "h11==0.14.0\nstarlette==1.7.0\n")
    fixed, _ = audit(tmp_path, "h11==0.16.0\nstarlette==1.7.0\n")

    assert code == 1
    assert "h11 0.14.0 (constraints): CVE-2025-43859" in output
    assert "https://nvd.nist.gov/vuln/detail/CVE-2025-43859" in output
    assert fixed == 0


def test_vulnerable_lower_bound_fails_the_audit(tmp_path: Path) -> None:
    """The pin is fixed, but an older version may be installed."""
    code, output = audit(tmp_path, "starlette==1.7.0\n", bound="starlette>=1.1")

    assert code == 1
    assert "starlette 1.1 (lower bound in pyproject.toml): CVE-2026-54283" in output


def test_package_that_was_not_looked_up_fails_the_audit(tmp_path: Path) -> None:
    """No entry means unknown, not harmless. A dependency without a pin is an error as well."""
    code, output = audit(tmp_path, "starlette==1.7.0\nleft-pad==1.0\n")
    assert code == 1
    assert "left-pad: not audited" in output

    (tmp_path / "list.json").write_text("[]")
    code, output = audit(tmp_path, "starlette==1.7.0\n", f"--advisories={tmp_path / 'list.json'}")
    assert code == 2
    assert f"audit: cannot read advisories from {tmp_path / 'list.json'}" in output
    assert "Traceback" not in output


def test_given_list_replaces_the_shipped_one(tmp_path: Path) -> None:
    """ADVISORIES=FILE: newer advisories, in the format of the OSV service."""
    events = [{"introduced": "0"}, {"fixed": "1.9"}]
    package = {"ecosystem": "PyPI", "name": "Starlette"}
    vulnerability = {
        "id": "GHSA-new",
        "affected": [{"package": package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}],
    }
    given = tmp_path / "osv.json"
    given.write_text(json.dumps({"collected": "2026-12-01", "packages": ["starlette"], "vulns": [vulnerability]}))

    code, output = audit(tmp_path, "starlette==1.7.0\n", f"--advisories={given}")

    assert code == 1
    assert "1 advisories of 2026-12-01" in output
    assert "starlette 1.7.0 (constraints): GHSA-new" in output


def pip_audit(folder: Path, packages: list[dict[str, Any]]) -> str:
    """Write a program that answers as pip-audit does with --format=json."""
    program = folder / "pip-audit"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps({'dependencies': packages})!r})\n")
    program.chmod(0o755)
    return f"--pip-audit={program}"


SKIPPED = {"name": "h11", "skip_reason": "Dependency not found on PyPI and could not be audited: h11 (0.16.0)"}
CLEAN = {"name": "starlette", "version": "1.7.0", "vulns": []}


def test_package_skipped_by_pip_audit_fails_the_audit(tmp_path: Path) -> None:
    """If its service knows some packages and not others, the others are not taken for audited."""
    pins = "h11==0.16.0\nstarlette==1.7.0\n"

    code, output = audit(tmp_path, pins, pip_audit(tmp_path, [SKIPPED, CLEAN]))
    assert code == 1
    assert "h11: not audited by pip-audit: Dependency not found" in output

    code, output = audit(tmp_path, pins, pip_audit(tmp_path, [{**CLEAN, "vulns": [{"id": "PYSEC-1"}]}]))
    assert code == 1
    assert "starlette 1.7.0 (pip-audit): PYSEC-1" in output


def test_unreachable_service_of_pip_audit_leaves_the_list(tmp_path: Path) -> None:
    """The output says that the list alone was used, and why. Its findings count as before."""
    skips_all = pip_audit(tmp_path, [SKIPPED])
    code, output = audit(tmp_path, "h11==0.16.0\nstarlette==1.7.0\n", skips_all)
    assert code == 0
    assert "pip-audit: not used: Dependency not found on PyPI" in output

    code, output = audit(tmp_path, "h11==0.14.0\nstarlette==1.7.0\n", skips_all)
    assert code == 1

    code, output = audit(tmp_path, "starlette==1.7.0\n", f"--pip-audit={tmp_path / 'missing'}")
    assert code == 0
    assert "pip-audit: not used: no result" in output


def test_old_list_is_reported_with_its_age(tmp_path: Path) -> None:
    """A vulnerability of the last weeks is not in it."""
    assert age_warning("2026-11-01", date(2026, 12, 1)) == ""
    assert age_warning("2026-11-01", date(2026, 12, 2)) == ", 31 days ago: look the packages up again"

    (tmp_path / "old.json").write_text('{"collected": "2020-01-01", "packages": ["starlette"], "vulns": []}')
    _, output = audit(tmp_path, "starlette==1.7.0\n", f"--advisories={tmp_path / 'old.json'}")
    assert "against 0 advisories of 2020-01-01, " in output
    assert "days ago" in output
