"""Test the errors about a wrong command line."""

from __future__ import annotations

import pytest

from memwatch.cli.cli import main
from memwatchd.cli import main as daemon_main


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("status --nope", "; see memwatch status --help"),
        ("status extra", "; see memwatch status --help"),
        ("autopsy", "; see memwatch autopsy --help"),
        ("nosuch", "; see memwatch --help"),
        ("status --url", "; see memwatch --help"),
        ("run", "COMMAND is missing; for example memwatch run -- python train.py"),
    ],
)
def test_wrong_command_line_has_a_remedy(command: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first part is click's, and changes with its version."""
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{remedy}\n")
    assert ".;" not in error


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("nosuch", "see memwatchd --help"),
        ("--listen", "see memwatchd --help"),
        (
            "install-service --uninstall",
            "install the Debian package, or copy the unit files of the package as docs/start/install.md shows "
            "under Other Linux",
        ),
    ],
)
def test_wrong_command_line_of_the_daemon_has_a_remedy(
    command: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert daemon_main(command.split()) == 2
    assert capsys.readouterr().err.endswith(f"; {remedy}\n")
