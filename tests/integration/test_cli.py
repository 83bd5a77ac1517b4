"""The memwatchd command line as a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memwatch.build_info import describe
from memwatchd.settings.load import FLAGS
from support.client_process import into_a_closed_pipe
from support.daemon_process import MEMWATCHD, clean_environment, run_program
from support.waiting import MAX_WAIT_SECONDS

MODULE = [sys.executable, "-m", "memwatchd"]


def memwatchd(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_program(MEMWATCHD, *arguments, **environ)


def started(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a new interpreter, for tests of what it imports and of how it is called."""
    environ = clean_environment()
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, check=False
    )


@pytest.mark.parametrize("command", [[MEMWATCHD], MODULE], ids=["script", "module"])
def test_version_is_one_line(command: list[str]) -> None:
    """--version prints name and version, for the script and for the module."""
    done = started(*command, "--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, describe("memwatchd") + "\n", "")


def test_help_lists_flags_exit_codes_and_examples() -> None:
    """It fits a terminal of 80 columns."""
    done = memwatchd("--help")

    assert done.returncode == 0
    for flag in [*FLAGS, "config", "once", "json", "check_config", "version", "help"]:
        assert f"--{flag.replace('_', '-')}" in done.stdout
    for code in ("0", "1", "2", "78"):
        assert f"\n  {code} " in done.stdout
    assert "memwatchd --once --json" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_one_shot_flags_do_not_import_the_web_stack() -> None:
    """--help, --version and --check-config answer without importing the web server."""
    code = (
        "import sys; from memwatchd.cli import main; main({0!r}); "
        "web = ('fastapi', 'uvicorn', 'starlette', 'jinja2'); "
        "print([name for name in web if name in sys.modules], file=sys.stderr)"
    )

    for question in ("--help", "--version", "--check-config"):
        done = started(sys.executable, "-c", code.format([question]))
        assert (question, done.stderr) == (question, "[]\n")


LATE = (
    "starlette anyio prometheus_client fastapi jinja2 http.client email.message html http.server urllib.request "
    "gzip tomllib tomli memwatch.planning memwatch.core.accounting.nvidia memwatch.core.accounting.amd "
    "memwatch.core.drivers.tegra.tegrastats memwatch.core.engines.kinds memwatchd.recording.player "
    "memwatch_monitor.neighbours.tick memwatch_monitor.render.status_line memwatch.reporting.render.memory_map"
)


def test_daemon_at_rest_has_imported_only_what_it_uses() -> None:
    """Metrics, pages and the API load their frameworks with the first request, receivers HTTP in their threads.

    The rest is for GPUs, model servers, a configuration file, recordings and neighbours, which many machines do not
    have.
    """
    code = (
        f"import sys; from memwatchd import run; print([name for name in {LATE.split()} if name in sys.modules], "
        "sum(name.startswith('memwatch') for name in sys.modules) <= 254, file=sys.stderr)"
    )

    assert started(sys.executable, "-c", code).stderr == "[] True\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "--nonsense"),
        (["surplus"], "surplus"),
        (["--config"], "--config"),
        (["--json"], "use --once --json"),
        (["--once", "--check-config"], "use one of them"),
        (["--once", "--record", "box.memwatch"], "cannot be used with --once; use one of them"),
        (["--test-alert", "--record", "box.memwatch"], "cannot be used with --test-alert; use one of them"),
        (["--speed", "5"], "--speed needs --demo or --replay"),
        (["--at", "3m"], "--at needs --demo or --replay; use for example --replay FILE --at 3m"),
        (["--at", "soon", "--demo", "gh200"], '--at is "soon", which is not a duration from 0s to 24h'),
        (["--at", "-5s", "--demo", "gh200"], '--at is "-5s", which is not a duration from 0s to 24h'),
        (["--salvage"], "use --replay FILE --salvage"),
        (["--salvage", "--demo", "dgx-spark"], "use --replay FILE --salvage"),
        (["--speed", "5", "--check-config"], "--speed needs --demo or --replay"),
        (["--interval", "0"], '--interval is "0", which is not a duration from 100ms to 1m'),
        (["--interval", ""], '--interval is ""'),
        (["--listen", ":6360"], '--listen is ":6360", which is not HOST:PORT'),
        (["--log-level", "loud"], '--log-level is "loud", which is not one of "debug", "info"'),
        (["--procfs", "/no/such"], '--procfs is "/no/such", which is not an existing directory'),
    ],
)
def test_invalid_command_line_is_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    """The error is one line on stderr."""
    done = memwatchd(*arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("memwatchd: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_replay_options_may_come_from_another_place_than_the_recording(tmp_path: Path) -> None:
    """A flag may complete a file or a variable. In a file or a variable it is valid without a recording."""
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


def test_invalid_configuration_is_one_line_per_problem_and_exit_78(tmp_path: Path) -> None:
    """Each line names the place. There is no traceback."""
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


def test_check_config_shows_settings_with_their_origin_and_hides_secrets(tmp_path: Path) -> None:
    """A webhook is shown by its origin (scheme, host, port) only."""
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


def test_check_config_warns_about_a_world_readable_secret(tmp_path: Path) -> None:
    """It is a warning on stderr, not an error."""
    file = tmp_path / "public.toml"
    file.write_text(
        '[[alerts.webhooks]]\nname = "ops"\nurl = "https://example.com/"\n'
        'secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="\n'
    )
    file.chmod(0o644)

    done = memwatchd("--check-config", "--config", str(file))

    assert done.returncode == 0
    assert done.stderr.startswith(f"memwatchd: every user of this machine can read the secret in {file}")


def test_closed_stdout_causes_no_traceback() -> None:
    """Output into a closed pipe ends quietly."""
    done = into_a_closed_pipe([*MODULE, "--help"])

    assert done.stderr == ""
    assert done.returncode == 1
