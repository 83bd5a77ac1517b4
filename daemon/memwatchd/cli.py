"""Command line of the daemon. Imports are deferred to the command that needs them, so --version stays fast."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from memwatch.build_info import __version__, describe
from memwatch.core.printable import printable_lines
from memwatch.core.runtime.own_process import (
    explain_shortage,
    fit_into_limits,
    open_standard_files,
    refuse_huge_pages,
)

if TYPE_CHECKING:
    from memwatchd.settings.schema import Settings

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_CONFIGURATION = 0, 1, 2, 78

REMOVED_COMMAND = "install-service"
INSTEAD = (
    f"{REMOVED_COMMAND} was removed; install the Debian package, or copy the unit files of the package as "
    "docs/start/install.md shows under Other Linux"
)

ABOUT = """Monitors memory of hosts and GPUs. Serves a dashboard, Prometheus metrics and a JSON API, and sends
webhooks when memory gets critical.

Without options it listens on http://127.0.0.1:6360 and runs until SIGTERM or Ctrl-C."""

EXAMPLES = (
    ("memwatchd", "serve the dashboard on this machine only"),
    ("memwatchd --listen 0.0.0.0:6360 --insecure", "serve it to a trusted network"),
    ("memwatchd --once --json", "print one sample and exit"),
    ("memwatchd --config my.toml --check-config", "check a configuration file"),
    ("memwatchd --demo dgx-spark", "show a simulated machine"),
    ("memwatchd --replay box.memwatch --speed 10", "replay a recording at 10 times the speed"),
    ("memwatchd --test-alert", "send a test notification to each receiver"),
    ("memwatchd --procfs /host/proc --sysfs /host/sys", "monitor the host from inside a container"),
)

EXIT_CODES = (
    ("0", "success"),
    ("1", "runtime error"),
    ("2", "invalid command line"),
    ("78", "invalid configuration"),
)

SETTINGS = """Flags override the environment, the environment overrides the configuration file, and the file
overrides the defaults. The environment variable of a flag is MEMWATCHD_<FLAG> (MEMWATCHD_INTERVAL=500ms; addresses
in MEMWATCHD_LISTEN are separated by commas). The variable of a key in the file is MEMWATCHD_<SECTION>_<KEY>
(MEMWATCHD_PRESSURE_HIGH_PERCENT=75). SIGHUP reloads the settings. SIGTERM stops the daemon."""


class GroupedCommand(click.Command):
    """A command whose help lists options by group, then examples and exit codes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record:
                groups.setdefault(getattr(option, "group", "Other"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Where settings come from"):
            formatter.write_text(SETTINGS)
        for heading, rows in (("Examples", EXAMPLES), ("Exit codes", EXIT_CODES)):
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=52)


class Option(click.Option):
    """An option with its heading in the help."""

    def __init__(self, *names: Any, group: str = "Other", **rest: Any) -> None:  # noqa: ANN401  click's own
        super().__init__(*names, **rest)
        self.group = group


class SettingOption(Option):
    """An option that sets a key of the file. Its help is the key's documentation and default, with `help` between.

    They are read when the help is printed: to import the schema takes longer than `--version` does.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from memwatchd.settings.keys import default_words, documentation
        from memwatchd.settings.load import flag_key

        record, key = super().get_help_record(ctx), flag_key(self.name or "")
        repeated = "May be repeated." if self.multiple else ""
        words = [documentation(key), self.help or "", repeated, default_words(key)]
        return record and (record[0], " ".join(filter(None, words)))


OPTIONS = (
    Option(
        ["--config"],
        group="Settings",
        metavar="FILE",
        help="Configuration file.  [default: /etc/memwatchd/memwatchd.toml]",
    ),
    SettingOption(["--listen"], group="Settings", metavar="ADDRESS", multiple=True),
    SettingOption(["--insecure"], group="Settings", is_flag=True, default=None),
    SettingOption(["--interval"], group="Settings", metavar="DURATION"),
    SettingOption(["--state-dir"], group="Settings", metavar="DIR"),
    SettingOption(["--record"], group="Settings", metavar="FILE"),
    SettingOption(["--log-level"], group="Settings", metavar="LEVEL"),
    SettingOption(["--procfs"], group="Host paths", metavar="DIR"),
    SettingOption(["--sysfs"], group="Host paths", metavar="DIR"),
    SettingOption(["--rootfs"], group="Host paths", metavar="DIR"),
    SettingOption(
        ["--demo"], group="Simulation and replay", metavar="MACHINE", help='"list" prints them with a description.'
    ),
    SettingOption(["--replay"], group="Simulation and replay", metavar="FILE"),
    SettingOption(["--at"], group="Simulation and replay", metavar="DURATION"),
    SettingOption(["--speed"], group="Simulation and replay", metavar="NUMBER", type=float),
    SettingOption(["--salvage"], group="Simulation and replay", is_flag=True, default=None, help="Needs --replay."),
    Option(["--once"], group="One-shot commands", is_flag=True, help="Print one sample and exit."),
    Option(["--json", "as_json"], group="One-shot commands", is_flag=True, help="With --once: print JSON."),
    Option(
        ["--test-alert"],
        group="One-shot commands",
        is_flag=True,
        help="Send a test notification to every receiver, report the result and exit.",
    ),
    Option(
        ["--check-config"],
        group="One-shot commands",
        is_flag=True,
        help="Check the settings, print each effective value with its origin, and exit.",
    ),
    Option(
        ["--reload"],
        group="One-shot commands",
        is_flag=True,
        help="Reload the daemon of the unit ($MAINPID), wait for the result and fail if it refuses the settings.",
    ),
)


def command_line() -> GroupedCommand:
    """Return the command with all options. The generated reference uses it too."""
    command = GroupedCommand(
        "memwatchd",
        params=[*OPTIONS],
        callback=answer,
        help=ABOUT,
        context_settings={"help_option_names": ["--help"], "max_content_width": 110},
    )
    click.version_option(__version__, message=describe("memwatchd"))(command)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Errors are one sentence on stderr."""
    open_standard_files()
    fit_into_limits()
    refuse_huge_pages()
    command = command_line()
    argv = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if argv[:1] == [REMOVED_COMMAND]:
            return print_errors([INSTEAD], EXIT_USAGE)
        code: int = command.main(argv, prog_name="memwatchd", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        from memwatch.cli.cli import usage_sentence

        return print_errors([usage_sentence(error, "memwatchd")], EXIT_USAGE)
    except click.Abort:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe. Flushing the rest of the buffer at exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except Exception as error:
        sentence = explain_shortage(error)
        if sentence is None and not isinstance(error, OSError):
            raise
        return print_errors([sentence or str(error)], EXIT_FAILURE)
    return code


def answer(
    once: bool,
    as_json: bool,
    test_alert: bool,
    check_config: bool,
    reload: bool,
    **flags: Any,  # noqa: ANN401  from click
) -> int:
    """Serve, print one sample, send a test notification, or check the settings."""
    if as_json and not once:
        raise click.UsageError("--json needs --once; use --once --json")
    chosen = [
        flag
        for flag, given in (
            ("--once", once),
            ("--test-alert", test_alert),
            ("--check-config", check_config),
            ("--reload", reload),
        )
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} cannot be used together; use one of them")
    if flags.get("record") and (once or test_alert):
        raise click.UsageError(
            f"--record needs a running daemon and cannot be used with {chosen[0]}; use one of them"
        )
    if flags.get("demo") and flags.get("replay"):
        raise click.UsageError("--demo and --replay are mutually exclusive; use one of them")
    if flags.get("demo") == "list":
        return list_demos()
    if reload:
        return reload_daemon()
    if check_config or test_alert:
        from memwatchd.service_eyes import is_of_service, run_as_service

        if is_of_service(flags.get("config") or os.environ.get("MEMWATCHD_CONFIG")):
            return run_as_service(lambda: work(chosen, as_json, flags))
    return work(chosen, as_json, flags)


def work(chosen: Sequence[str], as_json: bool, flags: Mapping[str, Any]) -> int:
    """Load the settings, and do what is chosen: without anything, serve."""
    from memwatchd.settings.fallback import load_for_start
    from memwatchd.settings.load import SettingsError, load

    try:
        settings = load(flags, os.environ) if chosen else load_for_start(flags, os.environ)
    except SettingsError as error:
        return print_errors(error.problems, EXIT_USAGE if error.usage else EXIT_CONFIGURATION)
    refuse_replaying(flags, settings)
    if "--check-config" in chosen:
        return show(settings)
    from memwatchd import run
    from memwatchd.logging_setup import start_direct_logging, start_logging

    if not chosen:
        writer = start_logging(settings.log.level, os.environ)
        return run.serve(
            settings, lambda had_file: load(flags, os.environ, had_file=had_file), lambda: writer.dropped
        )
    start_direct_logging("warning", os.environ)
    return run.test_alert(settings) if "--test-alert" in chosen else run.once(settings, as_json)


def reload_daemon() -> int:
    from memwatchd.config_keeper import ReloadError, reload

    try:
        reload(os.environ)
    except ReloadError as error:
        return print_errors(error.problems, EXIT_CONFIGURATION)
    return EXIT_OK


def refuse_replaying(flags: Mapping[str, Any], settings: Settings) -> None:
    """Raise UsageError for replay flags without a replay. Call after loading: the environment or the file may set
    the replay."""
    demo, file = settings.replay.demo, settings.replay.file
    if flags.get("salvage") and (demo or file is None):
        raise click.UsageError("--salvage needs --replay; use --replay FILE --salvage")
    for flag, value in (("speed", "10"), ("at", "3m")):
        if flags.get(flag) is not None and demo is None and file is None:
            usage = f"use for example --replay FILE --{flag} {value}"
            raise click.UsageError(f"--{flag} needs --demo or --replay; {usage}")


def show(settings: Settings) -> int:
    """Print the effective settings with their origins."""
    from memwatchd.settings.diff import flat
    from memwatchd.settings.keys import setting_text

    print_errors(settings.warnings, EXIT_OK)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may contain any byte
    lines = [(".".join(path), setting_text(value)) for path, value in flat(settings)]
    width = max(len(f"{key} = {value}") for key, value in lines)
    print("ok")
    for key, value in lines:
        print(f"{f'{key} = {value}':<{width}}  # {settings.origins.get(key, 'default')}")
    return EXIT_OK


def list_demos() -> int:
    from memwatchd.recording.demos import DESCRIPTIONS

    width = max(map(len, DESCRIPTIONS))
    for name, description in DESCRIPTIONS.items():
        print(f"{name:<{width}}  {description}")
    return EXIT_OK


def print_errors(sentences: Sequence[str], code: int) -> int:
    for sentence in sentences:
        print(f"memwatchd: {printable_lines(sentence)}", file=sys.stderr)
    return code
