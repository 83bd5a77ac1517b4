"""Tests declare the programs that they run, and TOOLS=none leaves out those whose programs are missing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.needed_programs import TESTS, programs_of, reachable, summarize, tree_of
from support.paths import ROOT

# Programs that a command begins with in a list.
COMMANDS = frozenset(
    {"amtool", "cc", "git", "free", "kubectl", "openssl", "prometheus-alertmanager", "promtool", "systemd-analyze",
     "tinyproxy", "victoria-metrics"}
)  # fmt: skip
FILES = [
    path
    for folder in ("unit", "integration", "browser", "deploy", "support")
    for path in sorted((TESTS / folder).rglob("*.py"))
]


def commands_in(file: Path) -> set[str]:
    """Return the programs that the file's lists of words begin with."""
    lists = (node.elts for node in ast.walk(tree_of(file)) if isinstance(node, ast.List | ast.Tuple))
    first = (words[0] for words in lists if len(words) > 1)
    return {str(word.value) for word in first if isinstance(word, ast.Constant)} & COMMANDS


def is_run(file: Path) -> bool:
    return "subprocess" in file.read_text() or "run_program(" in file.read_text()


def undeclared_in(file: Path) -> set[str]:
    """Return the programs that the file runs and does not declare."""
    commands = commands_in(file) if is_run(file) else set()
    return commands - programs_of(file) if commands else commands


def test_file_declares_the_programs_that_it_runs() -> None:
    assert {file.name: undeclared for file in FILES if (undeclared := undeclared_in(file))} == {}


def test_undeclared_program_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text('import subprocess\nsubprocess.run(["openssl", "version"])\nsubprocess.run(["git", "log"])\n')
    assert undeclared_in(file) == {"openssl", "git"}

    declared = tmp_path / "test_b.py"
    declared.write_text('NEEDED_PROGRAMS = ("git",)\n' + file.read_text())
    assert undeclared_in(declared) == {"openssl"}


def test_programs_of_helper_modules_count() -> None:
    """test_tls.py runs openssl through a helper module, which others reach through a second one."""
    assert "openssl" in programs_of(TESTS / "integration/test_tls.py")
    assert "openssl" in programs_of(TESTS / "unit/settings/test_settings_file.py")
    assert TESTS / "support/certificates.py" in reachable(TESTS / "unit/settings/test_settings_file.py")
    assert programs_of(TESTS / "unit/render/test_words.py") == frozenset()


@pytest.mark.long
def test_missing_programs_are_counted_at_the_end(tmp_path: Path) -> None:
    """No program is on the PATH: tests that need none pass, the others are deselected with their reasons."""
    files = ("unit/asgi/test_host_check.py", "unit/settings/test_certificate_names.py", "deploy/test_rules.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *(str(TESTS / file) for file in files)]
    environ = {**os.environ, "PATH": str(tmp_path), "TOOLS": "none"}
    environ.pop("PYTEST_XDIST_WORKER", None)

    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert "tests were not run, as TOOLS=none and these programs are not installed:" in done.stdout
    assert "    6 need openssl" in done.stdout
    assert "need promtool" in done.stdout
    assert " skipped" not in done.stdout


def test_complete_run_has_no_such_lines() -> None:
    assert summarize(Counter()) == []
    assert summarize(Counter({"cc": 1200}))[:2] == [
        "1,200 tests were not run, as TOOLS=none and these programs are not installed:",
        "1,200 need cc",
    ]
