"""Command line of the client. Imports are deferred to the command that needs them."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from memwatch.build_info import __version__, describe
from memwatch.cli.charset import fit_output
from memwatch.cli.context import (
    EXIT_OK,
    EXIT_USAGE,
    ClientContext,
    build_context,
    check_shape,
    common,
    print_errors,
    seconds_within,
    to_address,
)
from memwatch.cli.http import DEFAULT, EXIT_FAILURE, EXIT_UNKNOWN, Address, CommandError, ask
from memwatch.core.runtime.own_process import explain_shortage, fit_into_limits, open_standard_files

Rows = Sequence[tuple[str, str]]

# Errors of click without a remedy. Not all of them have a class of their own in each version.
BARE_ERRORS = (click.MissingParameter, click.NoSuchOption, click.BadOptionUsage)
BARE_BEGINNINGS = ("No such command", "Got unexpected extra argument")


def usage_sentence(error: click.ClickException, program: str) -> str:
    """Return the message about a wrong command line in one line, with a remedy where click gives none."""
    text = " ".join(error.format_message().split())
    is_bare = isinstance(error, BARE_ERRORS) or text.startswith(BARE_BEGINNINGS)
    if not is_bare or text.endswith("?"):  # click asks: Did you mean …?
        return text
    context = error.ctx if isinstance(error, click.UsageError) else None  # none if an option lacks its value
    return f"{text.removesuffix('.')}; see {context.command_path if context else program} --help"


class DocumentedGroup(click.Group):
    """Command group whose help fits a screen of 24 lines. `deferred`: commands by their module.

    `groups`: names of related commands, and what they show. `sections`: a text, or rows of two columns, for the
    manual page. Importing all commands takes three times as long as most of them do.
    """

    groups: Rows = ()
    hint = ""
    sections: Sequence[tuple[str, Rows | str]] = ()
    deferred: Mapping[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.deferred})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.deferred and cmd_name not in self.commands:
            self.add_command(getattr(import_module(self.deferred[cmd_name]), cmd_name.replace("-", "_")))
        return super().get_command(ctx, cmd_name)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write_paragraph()
        formatter.write_text(self.hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(self.groups, col_max=36)


ABOUT = """Shows memory usage of hosts and GPUs from memwatchd: pools, their contents, pressure, and available
memory."""

CONNECTION = """The daemon address is --url, else MEMWATCH_URL, else the socket file
/run/memwatchd/memwatchd.sock if this user can open it, else http://127.0.0.1:6360. Changes (release,
silence) need the socket file (sudo, or the group memwatchd), root, or a login. If no daemon runs on this machine,
commands read the machine directly and report that on stderr, except with --url. alerts, events, growth,
history, incidents, last-words, machines, owners, record, release and silence always need a daemon, and so do remote
machines. If the daemon requires a login, set its token in MEMWATCH_TOKEN or use its Unix socket."""

GROUPS = (
    ("status, top, watch", "memory now: once, live, in columns"),
    ("devices, backends, machines", "GPUs, compute backends, neighbours"),
    ("owners, growth, history, engines", "who holds memory, who grows"),
    ("incidents, events, last-words", "what happened; before a crash"),
    ("alerts, silence, check", "alerts, mute them, exit code by level"),
    ("fit, room, advise", "does it fit, what has to go; settings"),
    ("wait, run, autopsy", "start when it fits; peaks; blocks"),
    ("doctor, record, release, guardian", "missing data; record; free GPUs; guard"),
    ("mcp, mqtt, node-features, completion", "AI, Home Assistant, Kubernetes, shells"),
)
HINT = "memwatch COMMAND --help shows its options; man memwatch has examples."

EXAMPLES = (
    ("memwatch top", "live view; ? shows its keys"),
    ("memwatch status", "pools, contents, pressure, available memory"),
    ("memwatch status --json", "the same as JSON"),
    ("memwatch backends", "availability of CPU, CUDA, ROCm, Metal, OpenCL and Vulkan"),
    ("memwatch doctor", "diagnose missing data"),
    ("memwatch doctor --report", "write a redacted report for an issue"),
    ("memwatch fit ./Mistral-7B --context 32768", "check if a model fits, and where"),
    ("memwatch fit ./Mistral-7B --launch vllm", "add the command that starts it"),
    ("memwatch room 40GiB", "which model or process has to go so that it fits"),
    ("memwatch watch --interval 0.5 --csv", "print samples as CSV"),
    ("memwatch check --fail-on critical --warn-on high", "exit code 0, 1, 2 or 3 for Nagios, cron and Slurm"),
    ("memwatch run -- python train.py", "report the peak memory of a program and its children"),
    ("memwatch incidents --markdown", "the newest incident as a report"),
    ("memwatch autopsy memory.pickle", "show the largest blocks of PyTorch's allocator"),
    ("memwatch wait --free 20GiB -- python train.py", "start a program when memory is available"),
    ("memwatch wait --free 20GiB --lease 2m -- python train.py", "reserve it until the program has it"),
    ("memwatch --url http://gpu7:6360 devices", "the GPUs of another machine"),
    ("memwatch record box.memwatch --for 10m --redact", "record for a bug report, with names hidden"),
    ("memwatch silence all --for 8h --comment 'new GPUs'", "mute all notifications; --end ID ends it"),
    ("memwatch release --for 60s", "release the GPUs, to reset one or change its MIG mode"),
)

CHECKS = (
    ("cron", "*/5 * * * * root memwatch check || logger -p user.crit 'memory is critical'"),
    ("Slurm", "a Prolog that keeps jobs off a full node: memwatch check --fail-on high >&2 || exit 1"),
    ("Nagios", "command_line /usr/bin/memwatch --url http://$HOSTADDRESS$:6360 check --warn-on medium"),
)

EXIT_CODES = (
    ("0", "success"),
    ("1", "no daemon, request rejected, or no data; doctor: problems; fit, room: does not fit; wait: timeout"),
    ("2", "invalid command line; wait: SIZE exceeds the total"),
    ("0 1 2 3", "check: OK, warning, critical, unknown, also for an invalid command line"),
    ("126", "run and wait: the program cannot be run"),
    ("127", "run and wait: program not found"),
    ("…", "run and wait: exit code of the program, or 128 + signal number"),
)


@click.group(
    "memwatch",
    cls=DocumentedGroup,
    help=ABOUT,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["--help"], "max_content_width": 110},
)
@click.option(
    "--url",
    metavar="URL",
    callback=to_address,
    envvar="MEMWATCH_URL",
    help=f"Daemon address: http://HOST:PORT or unix:/PATH.  [default: MEMWATCH_URL, the socket file, or {DEFAULT}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.version_option(__version__, message=describe("memwatch"))
def memwatch(**_before: object) -> int:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return EXIT_USAGE
    return EXIT_OK


memwatch.groups = GROUPS
memwatch.hint = HINT
memwatch.sections = (
    ("Connection", CONNECTION),
    ("Examples", EXAMPLES),
    ("Checks by other programs", CHECKS),
    ("Exit codes", EXIT_CODES),
)


@memwatch.command(short_help="Pools, contents, pressure, available memory.")
@click.option("--tree", "as_tree", is_flag=True, help="Show all parts of each pool as a tree.")
@common
def status(as_tree: bool, url: Address | None, as_json: bool) -> int:
    """Show the pressure level, a line for each pool with its use, and how much each GPU can allocate now.

    Colours follow TERM, COLORTERM, NO_COLOR and CLICOLOR_FORCE.
    """
    from memwatch.cli import status as layout
    from memwatch.cli.output import paint_lines, stdout_depth, stdout_width

    context = build_context(url, as_json)
    answer = context.snapshot()
    with check_shape(context.address):
        pools = answer.json["pools"] if context.as_json else answer.snapshot.pools
        code = EXIT_OK if pools else EXIT_FAILURE
    if as_tree:
        return context.show(answer, lambda: layout.tree_lines(answer.snapshot, answer.age_seconds)) or code
    width, has_colour = stdout_width(), stdout_depth() > 0

    def lines() -> Iterator[str]:
        yield from paint_lines(layout.render_lines(answer.snapshot, answer.age_seconds, width, has_colour))

    return context.show_painted(answer, lines) or code


@memwatch.command(short_help="GPUs and how much they can allocate.")
@common
def devices(url: Address | None, as_json: bool) -> int:
    """List GPUs: how their memory relates to System RAM, how much they can allocate, and their state."""
    from memwatch.cli import tables

    context = build_context(url, as_json)
    answer = context.snapshot()
    with check_shape(context.address):
        found = answer.json["devices"] if context.as_json else None
    return context.show(found, lambda: tables.device_lines(answer.snapshot), answer.is_simulated)


@memwatch.command(short_help="Availability of CPU, CUDA, ROCm and others.")
@common
def backends(url: Address | None, as_json: bool) -> int:
    """List compute backends (CPU, CUDA, ROCm, Metal, OpenCL, Vulkan): available or not, why, and which to use.

    Most checks read files. OpenCL is queried in a separate process, at most once a minute. Vulkan is not queried,
    since that wakes sleeping GPUs: it is marked with a question mark.
    """
    from memwatch.cli import tables
    from memwatch.core.backends.model import Backends
    from memwatch.core.snapshot_json import RECORDS

    context = build_context(url, as_json)
    found = context.backends().json
    return context.show(found, lambda: tables.backend_lines(RECORDS.decode(Backends, found)))


@memwatch.command(short_help="Release GPU drivers temporarily.")
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "1h", "60s"),
    default="60s",
    metavar="DURATION",
    help="Duration, 1s to 1h.  [default: 60s]",
)
@common
def release(seconds: float, url: Address | None, as_json: bool) -> int:
    """Release all GPU drivers temporarily, so that a GPU can be reset or split into MIG instances."""
    from memwatch.cli import tables
    from memwatch.core.snapshot_json import RECORDS
    from memwatch.reporting.answers import Release

    context = build_context(url, as_json)
    answer = ask(context.address, f"/api/v1/release?seconds={seconds:g}", "POST")
    now_unix = answer.unix or time.time()

    def lines() -> Iterator[str]:
        return tables.release_lines(RECORDS.decode(Release, answer.json), now_unix)

    return context.show(answer.json, lines, answer.is_simulated)


GUARDIAN = "memwatchd-guardian"
# The value of --report without a file.
DEFAULT_FILE = ""


@memwatch.command(short_help="Diagnose missing data.")
@click.option(
    "--report",
    "file",
    is_flag=False,
    flag_value=DEFAULT_FILE,
    default=None,
    metavar="[FILE]",
    help="Write a redacted report for an issue.  [default: memwatch-report-DATE.tar.gz]",
)
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "1h", "60s"),
    metavar="DURATION",
    help="Duration of the recording in the report, 1s to 1h; Ctrl-C ends it early.  [default: 60s]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing report.")
@common
def doctor(file: str | None, seconds: float | None, overwrite: bool, url: Address | None, as_json: bool) -> int:
    """Diagnose missing data, with the cause and remedy of each problem. Report known incompatible versions.

    Exits with 1 if data is missing or wrong. With --report, it writes a redacted archive for an issue instead:
    versions, collectors, these results, files of /proc and /sys that memwatch reads, and a minute of recording.
    Run it as root to include files that only root may read. Look at the report before you send it.
    """
    context = build_context(url, as_json)
    if file is not None:
        return _report(context, Path(file) if file else None, 60.0 if seconds is None else seconds, overwrite)
    if seconds is not None or overwrite:
        raise click.UsageError("--for and --overwrite need --report")
    from memwatch.cli import tables
    from memwatch.core.snapshot_json import RECORDS
    from memwatch.reporting.answers import Examination, Verdict

    sent = context.doctor().json
    with check_shape(context.address):
        found: Examination = RECORDS.decode(Examination, sent)
    code = EXIT_FAILURE if found.worst is Verdict.PROBLEM else EXIT_OK
    return context.show(sent, lambda: tables.check_lines(found)) or code


def _report(context: ClientContext, file: Path | None, seconds: float, overwrite: bool) -> int:
    from memwatch.cli.doctor_report import write_report

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    written = write_report(context, file, seconds, overwrite)
    return context.show(written.json(), written.lines)


@memwatch.command(short_help="Serve an AI assistant on stdin and stdout (MCP).")
@common
def mcp(url: Address | None, as_json: bool) -> int:
    """Serve five read-only tools to an AI assistant on stdin and stdout, in the Model Context Protocol.

    They answer how full memory is, who holds it, if a model fits, how it changed, and what happened in an
    incident. It opens no port and changes nothing. Needs the extra mcp.
    """
    from importlib.util import find_spec

    context = build_context(url, as_json)
    if find_spec("mcp") is None:
        raise CommandError("memwatch mcp needs the MCP SDK; install it with: pip install 'memwatch[mcp]'")
    from memwatch.cli._mcp_tools import create_server

    create_server(context).run("stdio")
    return EXIT_OK


WHERE = {
    "bash": "~/.local/share/bash-completion/completions/memwatch",
    "zsh": "a file _memwatch in a directory of $fpath",
    "fish": "~/.config/fish/completions/memwatch.fish",
}


@memwatch.command(short_help="The guardian: status, test, history.")
@click.argument("what", metavar="status|test|history", type=click.Choice(("status", "test", "history")))
def guardian(what: str) -> int:
    """Show the state of memwatchd-guardian, what it would do on this machine now, or what it did.

    It is a separate program of the package memwatchd that ends a process before the machine stops responding. It
    is off by default.
    """
    _run_guardian(what)


def _run_guardian(what: str) -> NoReturn:
    """Replace this process by the program, which the package memwatchd has."""
    import shutil

    beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), GUARDIAN)
    program = beside if os.access(beside, os.X_OK) else shutil.which(GUARDIAN)
    if program is None:
        raise CommandError(
            f"{GUARDIAN} is not installed: it is a program of the package memwatchd; install that package"
        )
    sys.stdout.flush()
    os.execv(program, [GUARDIAN, what])  # noqa: S606  the program beside this one


@memwatch.command(short_help="Generate shell completion.")
@click.argument("shell", type=click.Choice(tuple(WHERE)))
def completion(shell: str) -> int:
    """Print the completion script for SHELL.

    bash: save it as ~/.local/share/bash-completion/completions/memwatch. zsh: save it as _memwatch in a directory
    of $fpath. fish: save it as ~/.config/fish/completions/memwatch.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if kind is None:
        raise CommandError(f"this version of click does not support completion for {shell}; upgrade click")
    click.echo(kind(root, {}, "memwatch", "_MEMWATCH_COMPLETE").source())
    return EXIT_OK


memwatch.deferred = {
    name: f"memwatch.cli.{module}"
    for module, names in {
        "alerts": ("alerts", "silence", "check"),
        "autopsy": ("autopsy",),
        "fit": ("fit", "advise"),
        "holders": ("owners", "growth", "history", "engines"),
        "incidents": ("incidents", "events", "last-words"),
        "machines": ("machines",),
        "mqtt": ("mqtt",),
        "node_features": ("node-features",),
        "record": ("record",),
        "room": ("room",),
        "run": ("run",),
        "wait": ("wait",),
        "watch": ("top", "watch"),
    }.items()
    for name in names
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Errors are one sentence on stderr."""
    open_standard_files()
    fit_into_limits()
    # At its end Python searches all objects for cycles, 40 ms: the kernel takes the memory back anyway.
    atexit.register(gc.freeze)
    fit_output()
    try:
        code: int = memwatch.main(arguments, prog_name="memwatch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return print_errors([usage_sentence(error, "memwatch")], _usage_code(error))
    except click.Abort:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe. Flushing the rest of the buffer at exit must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except CommandError as error:
        return print_errors([str(error)], error.code)
    except Exception as error:
        sentence = explain_shortage(error)
        if sentence is None and not isinstance(error, OSError):
            raise
        code = print_errors([sentence or str(error)])
        if sentence is not None and arguments is None:
            # Without memory, Python's own end prints an error for each object, after the sentence.
            with suppress(OSError, MemoryError):
                sys.stdout.flush()
            os._exit(code)
    return code


def _usage_code(error: click.ClickException) -> int:
    """Return the exit code of an invalid command line. For a Nagios plugin, 2 would be a critical state."""
    context = getattr(error, "ctx", None)
    return EXIT_UNKNOWN if context is not None and context.command.name == "check" else EXIT_USAGE
