"""Random kills of processes that have an outbox, and the count of lost and duplicate messages."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from support.paths import TESTS
from support.webhook_receiver import Site

CHILD = "support.outbox_child"


class Killed(Struct):
    """Output of the killed children."""

    kept: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    last_values: list[str] = field(default_factory=list)
    rounds: int = 0
    drained: bool = False

    def take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "kept":
            self.kept.add(rest)
        elif word == "complaint":
            self.complaints.append(rest)
        elif word == "last":
            self.last_values.append(rest)
        elif word == "drained":
            self.drained = True


class Tally(Struct, frozen=True):
    """Acknowledged messages, how many of them never arrived, duplicates, and ids with two bodies."""

    kept: int
    lost: int
    duplicates: int
    two_bodies: int


def tally(killed: Killed, site: Site) -> Tally:
    arrived = Counter(site.accepted)
    sent_ids = {delivery.headers["webhook-id"] for delivery in site.deliveries}
    bodies = {(delivery.headers["webhook-id"], delivery.body) for delivery in site.deliveries}
    lost = (killed.kept | {last for last in killed.last_values if last != "none"}) - set(arrived)
    return Tally(len(killed.kept), len(lost), arrived.total() - len(arrived), len(bodies) - len(sent_ids))


def kill_at_random(folder: Path, url: str, rounds: int, longest_seconds: float = 0.06) -> Killed:
    """Kill `rounds` processes while they put and deliver messages, then run one that delivers the rest.

    Every other one is killed soon after it has stored messages: on a busy machine, none stores any within
    `longest_seconds`.
    """
    killed = Killed()
    with parent_process(folder, url) as process:
        for number in range(rounds):
            pid = begin(process, killed, f"{number * 1000} 900")
            if number % 2:
                wait_for_kept(process, killed, random.randint(3, 30))
            time.sleep(random.uniform(0.005, longest_seconds))
            os.kill(pid, signal.SIGKILL)
            read_until(process, killed, "dead")
            killed.rounds += 1
        begin(process, killed, "0 0")
        read_until(process, killed, "dead")
    return killed


@contextmanager
def parent_process(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", CHILD, str(folder), url]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=null, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def begin(process: subprocess.Popen[str], killed: Killed, line: str) -> int:
    """Start a child and return its pid."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return int(read_until(process, killed, "pid").partition(" ")[2])


def wait_for_kept(process: subprocess.Popen[str], killed: Killed, count: int) -> None:
    """Read until the child has stored this number of messages, of which it has more."""
    until = len(killed.kept) + count
    assert process.stdout is not None
    while len(killed.kept) < until:
        line = process.stdout.readline()
        assert line not in ("", "dead\n"), "the child has ended by itself"
        killed.take(line.rstrip("\n"))


def read_until(process: subprocess.Popen[str], killed: Killed, until: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        text = line.rstrip("\n")
        if text.partition(" ")[0] == until:
            return text
        killed.take(text)
    raise AssertionError("the parent of the children exited")
