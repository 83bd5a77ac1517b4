"""Licences of what is distributed: allowed ones pass, others and unknown ones fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.licences import VENDORED, is_allowed, read_package, read_vendored
from support.paths import ROOT


def check(folder: Path, *names: str, vendored: Path = VENDORED) -> tuple[int, str]:
    requirements = folder / "runtime.txt"
    requirements.write_text("".join(f"{name}==1.0\n" for name in names))
    command = [sys.executable, "-m", "scripts.licences", str(requirements), f"--vendored={vendored}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "tests", check=False)
    return done.returncode, done.stdout + done.stderr


def installed(folder: Path, name: str, *lines: str) -> None:
    """Write the metadata of a package where the program finds it."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        "\n".join(("Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *lines, ""))
    )
    (about / "RECORD").write_text("")


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND MIT", True),
        ("Apache-2.0 OR LGPL-2.1-or-later", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-2.0-only", False),
        ("AGPL-3.0-only OR LGPL-3.0-only", False),
        ("", False),
        ("UNKNOWN", False),
    ],
)
def test_one_alternative_must_be_allowed_as_a_whole(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("License-Expression: GPL-3.0-only",), "'GPL-3.0-only' is not in ALLOWED"),
        (("License: Proprietary",), "'Proprietary' is not in ALLOWED"),
        (
            ("Classifier: License :: OSI Approved :: GNU General Public License (GPL)",),
            "'GNU General Public License",
        ),
        ((), "its licence is not known"),
    ],
)
def test_other_and_unknown_licences_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], words: str
) -> None:
    installed(tmp_path / "site", "oddity", *lines)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    code, output = check(tmp_path, "oddity", "msgspec")

    assert code == 1
    assert f"oddity 1.0: {words}" in output
    assert "msgspec" not in output


def test_package_that_is_not_installed_fails(tmp_path: Path) -> None:
    code, output = check(tmp_path, "left-pad")

    assert (code, "left-pad: its licence is not known: install it here" in output) == (1, True)


def test_fields_of_older_packages_are_understood() -> None:
    """bcrypt has a classifier and a field, jinja2 only a classifier, certifi MPL-2.0."""
    found = {name: read_package(name).expression for name in ("bcrypt", "jinja2", "certifi", "msgspec")}

    assert found == {"bcrypt": "Apache-2.0", "jinja2": "BSD", "certifi": "MPL-2.0", "msgspec": "BSD-3-Clause"}


def test_vendored_files_have_licences_with_their_texts() -> None:
    found = list(read_vendored())

    assert len(found) >= 4
    assert all(is_allowed(one.expression) and one.has_text for one in found), found


def test_vendored_file_that_the_table_lacks_fails(tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    shutil.copytree(VENDORED, folder)
    (folder / "jquery-1.0.min.js").write_text("")

    code, output = check(tmp_path, "msgspec", vendored=folder)

    assert (code, "jquery-1.0.min.js: its licence is not known" in output) == (1, True)
