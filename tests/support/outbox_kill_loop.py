"""Kills processes that have an outbox, at random, and counts what became of their messages."""

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
    """What the children said before they died, and what arrived."""

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
    """Messages that were acknowledged and never arrived, that arrived twice, and ids with two bodies."""

    kept: int
    lost: int
    duplicates: int
    two_bodies: int


def tally(killed: Killed, site: Site) -> Tally:
    arrived = Counter(site.accepted)
    said = {delivery.headers["webhook-id"] for delivery in site.deliveries}
    bodies = {(delivery.headers["webhook-id"], delivery.body) for delivery in site.deliveries}
    lost = (killed.kept | {last for last in killed.last_values if last != "none"}) - set(arrived)
    return Tally(len(killed.kept), len(lost), arrived.total() - len(arrived), len(bodies) - len(said))


def kill_at_random(folder: Path, url: str, rounds: int, longest_seconds: float = 0.06) -> Killed:
    """So many processes killed while they put and deliver messages, then one that delivers what is left."""
    killed = Killed()
    with nursery(folder, url) as process:
        for number in range(rounds):
            pid = begin(process, killed, f"{number * 1000} 900")
            time.sleep(random.uniform(0.005, longest_seconds))
            os.kill(pid, signal.SIGKILL)
            listen(process, killed, "dead")
            killed.rounds += 1
        begin(process, killed, "0 0")
        listen(process, killed, "dead")
    return killed


@contextmanager
def nursery(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
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
    """Start a child; its pid."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return int(listen(process, killed, "pid").partition(" ")[2])


def listen(process: subprocess.Popen[str], killed: Killed, until: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        text = line.rstrip("\n")
        if text.partition(" ")[0] == until:
            return text
        killed.take(text)
    raise AssertionError("the nursery died")
