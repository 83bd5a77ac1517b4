"""Command line of the client. Imports are deferred to the command that needs them."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from memwatch.build_info import __version__, describe
from memwatch.cli.address import DEFAULT, Address
from memwatch.cli.context import (
    EXIT_OK,
    EXIT_USAGE,
    Number,
    build_context,
    check_shape,
    common,
    print_errors,
    seconds_within,
    to_address,
)
from memwatch.cli.errors import EXIT_FAILURE, EXIT_UNKNOWN, CommandError
from memwatch.cli.help import DocumentedGroup, usage_sentence
from memwatch.cli.http import ask
from memwatch.core.runtime.small_limits import explain_shortage, fit_into_limits
from memwatch.core.runtime.standard_files import open_standard_files

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
    ("fit, advise", "does a model fit; recommended settings"),
    ("wait, run, autopsy", "start when it fits; peaks; blocks"),
    ("doctor, record, release", "missing data; recording; free the GPUs"),
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
    ("1", "no daemon, request rejected, or no data; doctor: problems; fit: does not fit; wait: timeout"),
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
    from memwatch.cli import tree
    from memwatch.cli.output import paint_lines, stdout_depth, stdout_width

    context = build_context(url, as_json)
    answer = context.snapshot()
    with check_shape(context.address):
        pools = answer.json["pools"] if context.as_json else answer.snapshot.pools
        code = EXIT_OK if pools else EXIT_FAILURE
    if as_tree:
        return context.show(answer, lambda: tree.render_lines(answer.snapshot, answer.age_seconds)) or code
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

    context = build_context(url, as_json)
    found = context.backends().json
    return context.show(found, lambda: tables.backend_lines(found))


@memwatch.command(short_help="Recent events, newest last.")
@click.option("--limit", type=Number(1, 1000, 20), default=20, show_default=True, help="Maximum number of events.")
@common
def events(limit: int, url: Address | None, as_json: bool) -> int:
    """List recent events, newest last: levels, alerts, OOM kills, failing collectors."""
    from memwatch.cli import tables

    context = build_context(url, as_json)
    answer = ask(context.address, f"/api/v1/events?limit={limit}")
    return context.show(answer.json, lambda: tables.event_lines(answer.json), answer.is_simulated)


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

    context = build_context(url, as_json)
    answer = ask(context.address, f"/api/v1/release?seconds={seconds:g}", "POST")
    now_unix = answer.unix or time.time()
    return context.show(answer.json, lambda: tables.release_lines(answer.json, now_unix), answer.is_simulated)


@memwatch.command(short_help="Record the snapshots of a daemon.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "24h", "10m"),
    default="10m",
    metavar="DURATION",
    help="Duration, 1s to 24h; Ctrl-C ends it early.  [default: 10m]",
)
@click.option("--redact", is_flag=True, help="Hide names and ids of hosts, users, programs, units and devices.")
@common
def record(file: Path, seconds: float, redact: bool, url: Address | None, as_json: bool) -> int:
    """Record each snapshot of a daemon to FILE. memwatchd --replay FILE plays it.

    Appends to an existing recording.
    """
    from memwatch.cli.record import record as write
    from memwatch.monitor.recording.redact import Redactor
    from memwatch.monitor.render import words as wording

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context = build_context(url, as_json)
    count = write(context.address, file, seconds, Redactor() if redact else None).snapshots
    found = {"file": str(file), "snapshots": count, "redacted": redact}
    line = f"{wording.count(count, 'snapshot')} in {file}; play it with: memwatchd --replay {file}"
    return context.show(found, lambda: [line])


memwatch.deferred = {
    name: f"memwatch.cli.{module}"
    for module, names in {
        "advise": ("advise",),
        "autopsy": ("autopsy",),
        "check": ("check",),
        "completion": ("completion",),
        "doctor": ("doctor",),
        "engines": ("engines",),
        "fit": ("fit",),
        "history": ("history",),
        "incidents": ("incidents",),
        "machines": ("machines",),
        "mcp": ("mcp",),
        "mqtt": ("mqtt",),
        "node_features": ("node-features",),
        "reports": ("alerts", "growth", "owners", "last-words"),
        "run": ("run",),
        "silence": ("silence",),
        "wait": ("wait",),
        "watch": ("top", "watch"),
    }.items()
    for name in names
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Errors are one sentence on stderr."""
    open_standard_files()
    fit_into_limits()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack "✓"
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
