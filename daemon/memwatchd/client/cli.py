"""The command line of the client. What an answer needs is imported when it is asked for."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from memwatch import __version__
from memwatchd.client.address import DEFAULT, Address
from memwatchd.client.advise import advise
from memwatchd.client.completion import completion
from memwatchd.client.context import (
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
from memwatchd.client.errors import EXIT_FAILURE, CommandError
from memwatchd.client.fit import fit
from memwatchd.client.help import DocumentedGroup
from memwatchd.client.history import history
from memwatchd.client.http import ask
from memwatchd.client.run import run, wait
from memwatchd.client.watch import top, watch

ABOUT = """Shows what memwatchd knows of a machine's memory, GPUs included: which pools there are, what is inside
which, how full they are, and what could still be allocated."""

WHERE = """A daemon is looked for at --url, else at MEMWATCH_URL, else at http://127.0.0.1:6360. Where none answers
on this machine, all but events, history, record and release read the machine themselves, and say so;
those need a daemon. Figures of another machine come from its daemon only. Where it asks for a login, put its
token into MEMWATCH_TOKEN, or use its socket file."""

EXAMPLES = (
    ("memwatch status", "what is inside what, how full, how much is left"),
    ("memwatch status --json", "the same for programs"),
    ("memwatch backends", "CPU, CUDA, ROCm, Metal, OpenCL, Vulkan: which work, and why the others do not"),
    ("memwatch doctor", "what is seen, what is not, why, and what would change that"),
    ("memwatch fit ./Mistral-7B --context 32768", "whether a model fits, where, and what would make it fit"),
    ("memwatch watch --interval 0.5 --csv", "one line a sample, for a spreadsheet"),
    ("memwatch run -- python train.py", "what memory a program and its children take"),
    ("memwatch wait --free 20GiB -- python train.py", "start it when there is room"),
    ("memwatch --url http://gpu7:6360 devices", "the GPUs of another machine"),
    ("memwatch record box.memwatch --for 10m --redact", "a recording for a bug report, without names"),
    ("memwatch release --for 60s", "let go of the GPUs, to reset one or change its MIG mode"),
)

EXIT_CODES = (
    ("0", "all went well"),
    ("1", "no daemon answered, or it declined, or nothing could be read; fit: it fits nowhere; wait: too late"),
    ("2", "the command line cannot be used; wait: there is less than that in all"),
    ("126", "run and wait: the program cannot be run"),
    ("127", "run and wait: there is no such program"),
    ("…", "of run and wait: the program's own, 128 and the signal's number where one ended it"),
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
    help=f"Where the daemon is: http://HOST:PORT or unix:/PATH.  [default: {DEFAULT}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.version_option(__version__, prog_name="memwatch", message="%(prog)s %(version)s")
def memwatch(**_before: object) -> int:
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return EXIT_USAGE
    return EXIT_OK


memwatch.sections = (("Where it looks", WHERE), ("Examples", EXAMPLES), ("Exit codes", EXIT_CODES))


@memwatch.command(short_help="What is inside what, how full, how much is left.")
@common
def status(url: Address | None, as_json: bool) -> int:
    """Pools, what is inside them, their pressure, and what each GPU could allocate now."""
    from memwatchd.client import tree

    question = build_context(url, as_json)
    answer = question.snapshot()
    with check_shape(question.address):
        age = None if answer.unix is None else answer.unix - answer.json["unix"]
        code = EXIT_OK if answer.json["pools"] else EXIT_FAILURE
    return question.show(answer.json, lambda: tree.render_lines(answer.json, age)) or code


@memwatch.command(short_help="The GPUs and what they could allocate.")
@common
def devices(url: Address | None, as_json: bool) -> int:
    """A table of GPUs: how their memory relates to System RAM, what they could allocate, their state."""
    from memwatchd.client import tables

    question = build_context(url, as_json)
    answer = question.snapshot()
    with check_shape(question.address):
        found = answer.json["devices"]
    return question.show(found, lambda: tables.device_lines(answer.json), answer.is_simulated)


@memwatch.command(short_help="CPU, CUDA, ROCm, …: which work, and why not.")
@common
def backends(url: Address | None, as_json: bool) -> int:
    """What can be computed with (CPU, CUDA, ROCm, Metal, OpenCL, Vulkan), or why not, and which to use.

    Files are looked at, and OpenCL is asked in a process of its own, at most once a minute. Vulkan is not asked,
    since that wakes sleeping GPUs: a question mark says so.
    """
    from memwatchd.client import tables

    question = build_context(url, as_json)
    found = question.backends().json
    return question.show(found, lambda: tables.backend_lines(found))


@memwatch.command(short_help="What is not seen, why, and what would change that.")
@common
def doctor(url: Address | None, as_json: bool) -> int:
    """What is seen of a machine, what is not, why, and what would change that; versions known not to fit together.

    Exits with 1 where figures are missing or wrong.
    """
    from memwatchd.client import tables

    question = build_context(url, as_json)
    found = question.doctor().json
    with check_shape(question.address):
        code = EXIT_FAILURE if found["worst"] == "problem" else EXIT_OK
    return question.show(found, lambda: tables.check_lines(found)) or code


@memwatch.command(short_help="What happened, newest last.")
@click.option("--limit", type=Number(1, 1000, 20), default=20, show_default=True, help="At most so many.")
@common
def events(limit: int, url: Address | None, as_json: bool) -> int:
    """What happened, newest last: levels, alerts, OOM kills, collectors that fail."""
    from memwatchd.client import tables

    question = build_context(url, as_json)
    answer = ask(question.address, f"/api/v1/events?limit={limit}")
    return question.show(answer.json, lambda: tables.event_lines(answer.json), answer.is_simulated)


@memwatch.command(short_help="Let go of the GPU drivers for a while.")
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "1h", "60s"),
    default="60s",
    metavar="DURATION",
    help="How long, 1s to 1h.  [default: 60s]",
)
@common
def release(seconds: float, url: Address | None, as_json: bool) -> int:
    """Have the daemon let go of every GPU driver, so that a GPU can be reset or cut into MIG instances."""
    from memwatchd.client import tables

    question = build_context(url, as_json)
    answer = ask(question.address, f"/api/v1/release?seconds={seconds:g}", "POST")
    now_unix = answer.unix or time.time()
    return question.show(answer.json, lambda: tables.release_lines(answer.json, now_unix), answer.is_simulated)


@memwatch.command(short_help="Write down what a daemon serves.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "24h", "10m"),
    default="10m",
    metavar="DURATION",
    help="How long, 1s to 24h; Ctrl-C ends it sooner.  [default: 10m]",
)
@click.option("--redact", is_flag=True, help="Hide names and ids of hosts, users, programs, units and devices.")
@common
def record(file: Path, seconds: float, redact: bool, url: Address | None, as_json: bool) -> int:
    """Write each snapshot that a daemon serves to FILE, to be shown by memwatchd --replay FILE.

    A recording that is there is gone on with.
    """
    from memwatchd.client.record import record as write

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    question = build_context(url, as_json)
    count = write(question.address, file, seconds, redact)
    found = {"file": str(file), "snapshots": count, "redacted": redact}
    line = f"{count} snapshots in {file}; look at them with: memwatchd --replay {file}"
    return question.show(found, lambda: [line])


for command in (fit, advise, history, watch, top, run, wait, completion):
    memwatch.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code. What goes wrong is one sentence on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know no "✓"
    try:
        code: int = memwatch.main(arguments, prog_name="memwatch", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return print_errors([error.format_message()], EXIT_USAGE)
    except click.Abort:
        return 130
    except BrokenPipeError:
        # Nobody reads any more; what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except CommandError as error:
        return print_errors([str(error)], error.code)
    except OSError as error:
        return print_errors([str(error)])
    return code
