"""Programs that tests need, and one that they can do without: what apt is asked for, and what a failure means."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT

# Found in every environment of the tests.
HERE = "git"
APT_GET = """#!/bin/sh
echo "$*" >>"$ASKED"
exit $CODE
"""
POLICY = """#!/bin/sh
echo "$2:"
echo "  Candidate: $CANDIDATE"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with all programs that the script runs, and an apt that only notes what it is asked for."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "cat", "mktemp", "rm", "grep", "git"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    for name, text in {"apt-get": APT_GET, "apt-cache": POLICY, "id": "#!/bin/sh\necho $WHO\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def need(
    programs: Path, *names: str, who: int = 0, code: int = 0, candidate: str = "150.0"
) -> tuple[int, str, str]:
    """Return the exit code, what apt was asked to install, and the output."""
    asked = programs / "asked"
    environ = {
        "PATH": str(programs),
        "ASKED": str(asked),
        "WHO": str(who),
        "CODE": str(code),
        "CANDIDATE": candidate,
    }
    done = subprocess.run(
        ["/bin/sh", "tests/tools/need.sh", *names],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    installs = [line for line in asked.read_text().splitlines() if "install" in line] if asked.exists() else []
    return done.returncode, "".join(installs).partition("Use-Pty=0 ")[2], done.stdout + done.stderr


def test_nothing_is_installed_if_all_are_here(programs: Path) -> None:
    assert need(programs, HERE) == (0, "", "")


def test_missing_program_is_installed(programs: Path) -> None:
    code, installed, _ = need(programs, HERE, "no-such-program")

    assert (code, installed) == (0, "no-such-program fonts-dejavu-core")


def test_missing_program_that_cannot_be_installed_is_an_error(programs: Path) -> None:
    code, _, output = need(programs, "no-such-program", "chromium-headless-shell", code=100)

    assert code == 1
    assert "apt cannot install: no-such-program chromium-headless-shell fonts-dejavu-core" in output


def test_user_is_told_what_to_install(programs: Path) -> None:
    code, installed, output = need(programs, "no-such-program", "chromium-headless-shell", who=1000)

    assert (code, installed) == (1, "")
    assert "missing programs: no-such-program. On Debian and Ubuntu: sudo apt install no-such-program\n" in output


def test_quicker_browser_is_installed_where_apt_has_it(programs: Path) -> None:
    assert need(programs, HERE, "chromium-headless-shell")[:2] == (0, "chromium-headless-shell fonts-dejavu-core")
    assert need(programs, HERE, "chromium-headless-shell", candidate="(none)")[0] == 0


def test_tests_do_without_the_quicker_browser(programs: Path) -> None:
    """No candidate, no right, and no connection."""
    none = need(programs, HERE, "chromium-headless-shell", candidate="(none)")
    user = need(programs, HERE, "chromium-headless-shell", who=1000)
    code, _, output = need(programs, HERE, "chromium-headless-shell", code=100)

    assert (none, user) == ((0, "", ""), (0, "", ""))
    assert code == 0
    assert "going on without chromium-headless-shell\n" in output
