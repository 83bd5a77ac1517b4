"""Programs that tests need: root is asked on a terminal before apt installs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.paths import TESTS
from support.terminal_screen import in_terminal

SCRIPT = TESTS / "tools/apt_install.sh"
COMMAND = ("/bin/sh", str(SCRIPT), "wrk", "fonts-dejavu-core")
INSTALLED = "install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 wrk fonts-dejavu-core"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose apt-get writes its arguments to a file."""
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def asked_of_apt(folder: Path) -> list[str]:
    asked = folder / "asked"
    return asked.read_text().splitlines() if asked.exists() else []


@pytest.mark.parametrize("answer", ["\n", "y\n", "Yes\n"])
def test_root_agrees_on_a_terminal(tmp_path: Path, environ: dict[str, str], answer: str) -> None:
    with in_terminal(COMMAND, 100, 10, environ) as program:
        program.wait_for("Install by apt: wrk fonts-dejavu-core? [Y/n]")
        assert asked_of_apt(tmp_path) == []
        program.send(answer)

        assert program.end() == 0
    assert asked_of_apt(tmp_path) == ["update -qq", INSTALLED]


@pytest.mark.parametrize("answer", ["n\n", "what?\n", "\x04"])
def test_root_refuses_on_a_terminal(tmp_path: Path, environ: dict[str, str], answer: str) -> None:
    with in_terminal(COMMAND, 100, 10, environ) as program:
        program.wait_for("[Y/n]")
        program.send(answer)

        assert program.end() == 1
        assert "nothing was installed" in program.screen.text
    assert asked_of_apt(tmp_path) == []


def test_nobody_is_asked_without_a_terminal(tmp_path: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        COMMAND, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert asked_of_apt(tmp_path) == ["update -qq", INSTALLED]
