"""The command line, as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from memwatch import __version__
from memwatchd.settings.environment import FLAGS
from support.client_process import into_a_closed_pipe
from support.waiting import MAX_WAIT_SECONDS

SCRIPT = [str(Path(sys.executable).with_name("memwatchd"))]
MODULE = [sys.executable, "-m", "memwatchd"]


def memwatchd(*arguments: str, command: Sequence[str] = MODULE, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMWATCHD_")}
    return subprocess.run(
        [*command, *arguments],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])
def test_version_is_one_line(command: list[str]) -> None:
    """--version says name and version, installed or as a module."""
    done = memwatchd("--version", command=command)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"memwatchd {__version__}\n", "")


def test_help_tells_a_stranger_everything() -> None:
    """--help names every flag, every exit code and examples, and fits a terminal."""
    done = memwatchd("--help")

    assert done.returncode == 0
    for flag in [*FLAGS, "config", "once", "json", "check_config", "version", "help"]:
        assert f"--{flag.replace('_', '-')}" in done.stdout
    for code in ("0", "1", "2", "78"):
        assert f"\n  {code} " in done.stdout
    assert "memwatchd --once --json" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_questions_do_not_wait_for_the_web_stack() -> None:
    """--help, --version and --check-config answer without importing the web server."""
    code = (
        "import sys; from memwatchd.cli import main; main({0!r}); "
        "web = ('fastapi', 'uvicorn', 'starlette', 'jinja2'); "
        "print([name for name in web if name in sys.modules], file=sys.stderr)"
    )

    for question in ("--help", "--version", "--check-config"):
        done = memwatchd(command=[sys.executable, "-c", code.format([question])])
        assert (question, done.stderr) == (question, "[]\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "--nonsense"),
        (["surplus"], "surplus"),
        (["--config"], "--config"),
        (["--json"], "use --once --json"),
        (["--once", "--check-config"], "use one of them"),
        (["--once", "--record", "box.memwatch"], "--once makes none; use one of them"),
        (["--test-alert", "--record", "box.memwatch"], "--test-alert makes none; use one of them"),
        (["--speed", "5"], "--speed says how fast --demo or --replay goes"),
        (["--salvage"], "use --replay FILE --salvage"),
        (["--salvage", "--demo", "dgx-spark"], "use --replay FILE --salvage"),
        (["--speed", "5", "--check-config"], "--speed says how fast"),
        (["--interval", "0"], '--interval is "0", which is not a duration from 100ms to 1m'),
        (["--interval", ""], '--interval is ""'),
        (["--listen", ":6360"], '--listen is ":6360", which is not HOST:PORT'),
        (["--log-level", "loud"], '--log-level is "loud", which is not one of "debug", "info"'),
        (["--procfs", "/no/such"], '--procfs is "/no/such", which is not a folder that exists'),
    ],
)
def test_unusable_command_line_is_one_sentence_and_exit_2(arguments: list[str], words: str) -> None:
    """What is wrong on the command line is said in one line on stderr, and the exit code is 2."""
    done = memwatchd(*arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("memwatchd: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_how_to_replay_may_be_said_apart_from_what(tmp_path: Path) -> None:
    """The flag beside a file or a variable that names what to show; beside nothing, in a file, it waits for it."""
    file = tmp_path / "demo.toml"
    file.write_text('[replay]\ndemo = "dgx-spark"\n')
    alone = tmp_path / "speed.toml"
    alone.write_text("[replay]\nspeed = 5\nsalvage = true\n")

    cases: list[tuple[list[str], dict[str, str]]] = [
        (["--config", str(file), "--speed", "5"], {}),
        (["--speed", "5", "--salvage"], {"MEMWATCHD_REPLAY": str(tmp_path / "box.memwatch")}),
        (["--config", str(alone)], {}),
        ([], {"MEMWATCHD_SPEED": "5"}),
    ]
    for arguments, environ in cases:
        done = memwatchd("--check-config", *arguments, **environ)
        assert (done.returncode, done.stderr) == (0, "")


def test_bad_configuration_is_a_sentence_a_problem_and_exit_78(tmp_path: Path) -> None:
    """Each problem of a configuration is one line with its place, no traceback, and the exit code is 78."""
    file = tmp_path / "bad.toml"
    file.write_text("[sampling]\ninterval = 0\n[pressure]\nmedium = 3\n")

    for question in ([], ["--check-config"], ["--once"]):
        done = memwatchd("--config", str(file), *question, MEMWATCHD_NONSENSE="1")
        assert done.returncode == 78
        assert done.stdout == ""
        assert [line.split(" is ")[0] for line in done.stderr.splitlines()] == [
            "memwatchd: MEMWATCHD_NONSENSE",
            f"memwatchd: {file} line 2: sampling.interval",
            f"memwatchd: {file} line 4: pressure.medium",
        ]


def test_check_config_shows_what_is_in_force_and_hides_secrets(tmp_path: Path) -> None:
    """--check-config says ok and lists each setting with where it comes from; of a webhook only the origin."""
    file = tmp_path / "good.toml"
    file.write_text(
        '[web]\nhosts = ["gpu1"]\n[[alerts.webhooks]]\nname = "ops"\nurl = "https://example.com/token"\n'
        'secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="\n'
    )

    done = memwatchd(
        "--check-config", "--interval", "500ms", MEMWATCHD_CONFIG=str(file), MEMWATCHD_PROCESSES_TOP="9"
    )

    rows = {row.partition(" = ")[0]: " ".join(row.partition(" = ")[2].split()) for row in done.stdout.splitlines()}
    assert done.returncode == 0
    assert done.stdout.startswith("ok\n")
    assert rows["web.hosts"] == f'["gpu1"] # {file} line 2'
    assert rows["sampling.interval"] == '"500ms" # --interval'
    assert rows["processes.top"] == "9 # MEMWATCHD_PROCESSES_TOP"
    assert rows["history.length"] == '"1h" # default'
    assert rows["alerts.webhooks.ops.url"] == f'"https://example.com:443" # {file} line 5'
    assert rows["alerts.webhooks.ops.secret"] == f'"(hidden)" # {file} line 6'
    assert "hook/token" not in done.stdout + done.stderr
    assert "whsec_" not in done.stdout + done.stderr


def test_check_config_warns_of_a_secret_that_everybody_can_read(tmp_path: Path) -> None:
    """A readable secret does not stop anything; it is said on stderr."""
    file = tmp_path / "public.toml"
    file.write_text(
        '[[alerts.webhooks]]\nname = "ops"\nurl = "https://example.com/"\n'
        'secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="\n'
    )
    file.chmod(0o644)

    done = memwatchd("--check-config", "--config", str(file))

    assert done.returncode == 0
    assert done.stderr.startswith(f"memwatchd: every user of this machine can read the secret in {file}")


def test_nobody_reading_is_no_traceback() -> None:
    """Output into a pipe that is closed ends quietly."""
    done = into_a_closed_pipe([*MODULE, "--help"])

    assert done.stderr == ""
    assert done.returncode == 1
