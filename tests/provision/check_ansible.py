"""The Ansible role by Ansible's own programs: `make test-deploy`. `make test-image` runs it in a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.paths import ROOT

FOLDER = ROOT / "deploy/ansible"
# The Python of an environment with ansible-core and ansible-lint.
PROGRAMS = Path(os.environ.get("DEPLOY_PYTHON", str(ROOT / ".venv-deploy/bin/python"))).parent


def run(*words: str | Path, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "NO_COLOR": "1"}
    environ.pop("PYTHONPATH", None)
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300)


def test_playbook_has_valid_syntax() -> None:
    done = run("ansible-playbook", "--inventory", "localhost,", "--syntax-check", "playbook.yml")

    assert done.returncode == 0, done.stdout + done.stderr


def test_role_passes_the_strictest_profile_of_the_linter() -> None:
    """Offline: the linter downloads no collection. The role uses none beside ansible.builtin."""
    done = run("ansible-lint", "-c", ".ansible-lint", "playbook.yml", "roles")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Profile 'production' was required, and it passed" in done.stdout + done.stderr


def test_wrong_argument_is_refused_before_a_change(tmp_path: Path) -> None:
    """argument_specs names the drop-ins that exist."""
    book = tmp_path / "book.yml"
    book.write_text("- {hosts: all, gather_facts: false, roles: [memwatchd], "
                    "vars: {memwatchd_package: /nothing.deb, memwatchd_drop_ins: [everything]}}\n")  # fmt: skip
    environ = f"ANSIBLE_ROLES_PATH={FOLDER / 'roles'}"
    done = run("env", environ, "ansible-playbook", "--inventory", "localhost,", "--connection", "local", book)

    assert done.returncode != 0
    assert "value of memwatchd_drop_ins must be one or more of: amd, jetson" in done.stdout
