"""The `memwatch` command, as a process or in the process of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from memwatch.cli import cli
from support.daemon_process import clean_environment
from support.fork_server import can_fork, run_forked
from support.waiting import MAX_WAIT_SECONDS

SCRIPT = [str(Path(sys.executable).with_name("memwatch"))]
MODULE = [sys.executable, "-m", "memwatch.cli"]
QUERIES = ("status", "devices", "backends", "doctor", "events", "alerts", "growth", "owners")
OTHERS = ("advise", "check", "fit", "history", "incidents", "last-words", "room", "run", "top", "wait", "watch")
COMMANDS = (*QUERIES, "release", "silence", *OTHERS)
# For programs that `memwatch run` follows: it may look late. A sample of two processes makes nine reads.
OBSERVED = """
import json, os, time, urllib.request
def wait_for_samples(above=1):
    pid = os.getppid()
    for _ in range(above - 1):
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    def count_reads():
        return int(open(f"/proc/{pid}/io").read().partition("syscr: ")[2].split()[0])
    enough = count_reads() + 40
    while count_reads() < enough:
        time.sleep(0.02)
def wait_for_mark():
    url, end = os.environ["MEMWATCH_URL"] + "/api/v1/events?limit=1000", f"(process {os.getpid()})"
    while not any(one["text"].endswith(end) for one in json.load(urllib.request.urlopen(url))):
        time.sleep(0.02)
"""


def into_a_closed_pipe(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end while its output pipe has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        return subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=MAX_WAIT_SECONDS, check=False
        )


def memwatch(*arguments: str, command: Sequence[str] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    """Run memwatch to its end, without MEMWATCH_URL, which may name a daemon outside the test.

    `command` starts another program or the installed one; without it, memwatch is forked with its modules.
    """
    environment = _environment(environ)
    if not command and can_fork(environment):
        return run_forked([*SCRIPT, *arguments], environment, MAX_WAIT_SECONDS)
    return subprocess.run(
        [*(command or SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_SECONDS,
        check=False,
    )


def call_memwatch(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run memwatch to its end in this process: 15 ms of CPU time in place of 130 ms.

    For commands that print the answer of a daemon. Tests of the process, its signals and its limits use `memwatch`.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        with _program(_environment(environ)), redirect_stdout(stdout), redirect_stderr(stderr):
            code = cli.main(arguments)
        texts = []
        for one in (stdout, stderr):
            one.seek(0)
            texts.append(one.read())
    return subprocess.CompletedProcess(["memwatch", *arguments], code, *texts)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in clean_environment().items() if name != "MEMWATCH_URL"}
    return {**clean, **environ}


@contextmanager
def _program(environ: Mapping[str, str]) -> Iterator[None]:
    """Use this environment meanwhile, and undo the signal handlers that a command installs."""
    before, handlers = dict(os.environ), {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
