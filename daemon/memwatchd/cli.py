"""The command line of the daemon. What a question needs is imported when it is asked: --help needs nothing."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from memwatch import __version__

if TYPE_CHECKING:
    from memwatchd.settings.schema import Settings

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_CONFIGURATION = 0, 1, 2, 78

INSTALL = "install-service"

ABOUT = """Watches the memory of this machine, GPUs included, and tells the truth about it: a page in the
browser, Prometheus metrics, JSON, and webhooks when memory gets critical.

Without options it serves http://127.0.0.1:6360 until it is told to stop."""

EXAMPLES = (
    ("memwatchd", "serve the page on this machine only"),
    ("memwatchd --listen 0.0.0.0:6360 --insecure", "serve it to a network that is trusted"),
    ("memwatchd --once --json", "print one reading and leave"),
    ("memwatchd --config my.toml --check-config", "look for mistakes in a configuration"),
    ("memwatchd --demo dgx-spark", "look at a simulated machine"),
    ("memwatchd --replay box.memwatch --speed 10", "look at what was recorded elsewhere"),
    ("memwatchd --test-alert", "see whether alerts arrive where they should"),
    ("sudo memwatchd install-service", "make it a service of systemd; --help says more"),
    ("memwatchd --procfs /host/proc --sysfs /host/sys", "watch the host from inside a container"),
)

EXIT_CODES = (
    ("0", "all went well"),
    ("1", "it failed while it ran"),
    ("2", "the command line cannot be used"),
    ("78", "the configuration cannot be used"),
)

SETTINGS = """Flags win over the environment, the environment over the configuration file, and the file over the
defaults. A flag is MEMWATCHD_ and its name in the environment (MEMWATCHD_INTERVAL=500ms, and
MEMWATCHD_LISTEN with commas between addresses); a key of the file is MEMWATCHD_<SECTION>_<KEY>
(MEMWATCHD_PRESSURE_HIGH_PERCENT=75). SIGHUP reads the settings again, SIGTERM stops."""


class GroupedCommand(click.Command):
    """A command whose help shows its options under headings, and then examples and exit codes."""

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
    """An option with the heading under which help shows it."""

    def __init__(self, *names: Any, group: str = "Other", **rest: Any) -> None:  # noqa: ANN401  click's own
        super().__init__(*names, **rest)
        self.group = group


OPTIONS = (
    Option(
        ["--config"], group="Settings", metavar="FILE", help="Read this file, not /etc/memwatchd/memwatchd.toml."
    ),
    Option(
        ["--listen"],
        group="Settings",
        metavar="ADDRESS",
        multiple=True,
        help="HOST:PORT, [IPv6]:PORT or unix:/PATH; may be given several times.  [default: 127.0.0.1:6360]",
    ),
    Option(
        ["--insecure"],
        group="Settings",
        is_flag=True,
        default=None,
        help="Answer other machines without a login and without TLS.",
    ),
    Option(
        ["--interval"],
        group="Settings",
        metavar="DURATION",
        help="Time between readings, 100ms to 60s.  [default: 1s]",
    ),
    Option(
        ["--state-dir"],
        group="Settings",
        metavar="DIR",
        help="Keep here what must survive a restart.  [default: $STATE_DIRECTORY as set by systemd, else nowhere]",
    ),
    Option(
        ["--record"],
        group="Settings",
        metavar="FILE",
        help="Write what is read to this file as well, to be replayed.",
    ),
    Option(
        ["--log-level"],
        group="Settings",
        metavar="LEVEL",
        help="Least important messages to log: debug, info, warning or error.  [default: info]",
    ),
    Option(["--procfs"], group="Where to find the host", metavar="DIR", help="Its /proc.  [default: /proc]"),
    Option(["--sysfs"], group="Where to find the host", metavar="DIR", help="Its /sys.  [default: /sys]"),
    Option(["--rootfs"], group="Where to find the host", metavar="DIR", help="Its root folder.  [default: /]"),
    Option(
        ["--demo"],
        group="In place of this machine",
        metavar="MACHINE",
        help='Show a simulated one; "list" names them.',
    ),
    Option(
        ["--replay"], group="In place of this machine", metavar="FILE", help="Show what was recorded, in a loop."
    ),
    Option(
        ["--speed"],
        group="In place of this machine",
        metavar="NUMBER",
        type=float,
        help="How many times as fast, 0.1 to 100.  [default: 1]",
    ),
    Option(
        ["--salvage"],
        group="In place of this machine",
        is_flag=True,
        default=None,
        help="With --replay: play what can be read of a damaged recording.",
    ),
    Option(["--once"], group="Instead of serving", is_flag=True, help="Print one reading and leave."),
    Option(["--json", "as_json"], group="Instead of serving", is_flag=True, help="With --once: print it as JSON."),
    Option(
        ["--test-alert"],
        group="Instead of serving",
        is_flag=True,
        help="Send every receiver a test message, say what came of it, and leave.",
    ),
    Option(
        ["--check-config"],
        group="Instead of serving",
        is_flag=True,
        help="Check the settings, print those in force and where they come from, and leave.",
    ),
)


def command_line() -> GroupedCommand:
    """What may be given; also what the manual is made of."""
    command = GroupedCommand(
        "memwatchd",
        params=[*OPTIONS],
        callback=answer,
        help=ABOUT,
        context_settings={"help_option_names": ["--help"], "max_content_width": 110},
    )
    click.version_option(__version__, prog_name="memwatchd", message="%(prog)s %(version)s")(command)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code. What goes wrong is one sentence on stderr."""
    command = command_line()
    argv = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if argv[:1] == [INSTALL]:
            from memwatchd import install

            return install.main(argv[1:])
        code: int = command.main(argv, prog_name="memwatchd", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return print_errors([error.format_message()], EXIT_USAGE)
    except click.Abort:
        return 130
    except BrokenPipeError:
        # Nobody reads any more; what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        return print_errors([str(error)], EXIT_FAILURE)
    return code


def answer(once: bool, as_json: bool, test_alert: bool, check_config: bool, **flags: Any) -> int:  # noqa: ANN401  from click
    """Serve, print one reading, send a test message, or check the settings."""
    if as_json and not once:
        raise click.UsageError("--json says how --once prints; use --once --json")
    chosen = [
        flag
        for flag, given in (("--once", once), ("--test-alert", test_alert), ("--check-config", check_config))
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} cannot be used together; use one of them")
    if flags.get("record") and (once or test_alert):
        raise click.UsageError(f"--record writes one tick after the other, {chosen[0]} makes none; use one of them")
    if flags.get("demo") and flags.get("replay"):
        raise click.UsageError("--demo and --replay both stand in for this machine; use one of them")
    if flags.get("demo") == "list":
        return list_demos()
    from memwatchd.settings.load import SettingsError, load

    try:
        settings = load(flags, os.environ)
    except SettingsError as error:
        return print_errors(error.problems, EXIT_USAGE if error.usage else EXIT_CONFIGURATION)
    refuse_replaying(flags, settings)
    if check_config:
        return show(settings)
    from memwatchd import run
    from memwatchd.logging_setup import start_logging

    start_logging("warning" if chosen else settings.log.level, os.environ)
    if test_alert:
        return run.test_alert(settings)
    if once:
        return run.once(settings, as_json)
    return run.serve(settings, lambda: load(flags, os.environ))


def refuse_replaying(flags: Mapping[str, Any], settings: Settings) -> None:
    """Refuses flags that say how to replay where this machine itself is watched. What to show may be set elsewhere
    than on the command line, so it is known when the settings are."""
    demo, file = settings.replay.demo, settings.replay.file
    if flags.get("salvage") and (demo or file is None):
        raise click.UsageError("--salvage says how --replay reads a recording; use --replay FILE --salvage")
    if flags.get("speed") is not None and demo is None and file is None:
        raise click.UsageError(
            "--speed says how fast --demo or --replay goes; use for example --replay FILE --speed 10"
        )


def show(settings: Settings) -> int:
    """Print the settings in force."""
    from memwatchd.settings.diff import flat, setting_text

    print_errors(settings.warnings, EXIT_OK)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold any byte
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
        print(f"memwatchd: {sentence}", file=sys.stderr)
    return code
