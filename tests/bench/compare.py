"""Compare two commits in turns: idle CPU, memory, first answers and scrapes, as ratios of the new to the old.

Both run in the interpreter of this environment with the dependencies that it has. A ratio shows a change only where
all rounds agree on its direction.
"""

from __future__ import annotations

import argparse
import compileall
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench_machines import bare_reader, machine_of
from msgspec import Struct
from subjects import Subject, children_of, idle, load, rss_mib, running

from simulators.nvml_machine import Simulator
from support.free_ports import free_port
from support.paths import MACHINES, ROOT
from support.sleeping_processes import sleepers

# Each is the first request to a new daemon.
PAGES = ("/", "/api/v1/snapshot", "/history", "/docs")
PROCESSES = 300
SETTLE_SECONDS = 15.0
LOAD_SECONDS = 2
# A figure has changed if at least three rounds all say so, and the median ratio differs by more than this.
NOTABLE = 0.03
MIN_ROUNDS = 3

Figures = dict[str, float]


class Tree(Struct, frozen=True):
    """Source of one commit, or of this working tree."""

    name: str
    folder: Path

    def subject(self, environ: Mapping[str, str], *arguments: str) -> Subject:
        """Return its daemon on a free port. `env` is replaced by it, so that the process id is the daemon's."""
        port = free_port()
        changes = {**environ, "PYTHONPATH": f"{self.folder / 'daemon'}:{self.folder / 'web'}"}
        assigned = [f"{name}={value}" for name, value in changes.items()]
        program = [sys.executable, "-m", "memwatchd", f"--listen=127.0.0.1:{port}", *arguments]
        return Subject(self.name, port, ["env", *assigned, *program], "/healthz")


def check_out(revision: str, folder: Path) -> Tree:
    """Write the files of a commit, compiled. Without a revision they are those of this working tree."""
    if not revision:
        return Tree("working tree", ROOT)
    done = subprocess.run(["git", "archive", revision, "daemon", "web"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench-compare: {done.stderr.decode().strip()}; name a commit of this repository")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=done.stdout, check=True)
    compileall.compile_dir(folder, quiet=1)
    return Tree(revision, folder)


def first_answer_ms(port: int, path: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    began = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    took = (time.perf_counter() - began) * 1000
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"bench-compare: {path} was answered with {answer.status}")
    return took


def measure_starts(tree: Tree, environ: Mapping[str, str], arguments: Sequence[str]) -> Figures:
    """Measure the start, the first answer of each page, and the memory after all of them."""
    found: Figures = {}
    for page in PAGES:
        subject = tree.subject(environ, *arguments)
        port = subject.port
        with running(subject) as (pid, seconds):
            found["start to the first answer, ms"] = seconds * 1000
            found[f"first answer of {page}, ms"] = first_answer_ms(port, page)
            if page == PAGES[-1]:
                for one in (*PAGES, "/metrics"):
                    first_answer_ms(port, one)
                found["RSS after all pages, MiB"] = rss_mib(pid)
                for clients in (1, 16):
                    found[f"scrapes a second, {clients} at a time"] = load(port, clients, LOAD_SECONDS).per_second
    return found


def measure_idle(
    trees: Sequence[Tree], environ: Mapping[str, str], arguments: Sequence[str], seconds: float
) -> list[Figures]:
    """Measure both at the same time, so that the host's other work is charged to both alike."""
    with ExitStack() as stack:
        reader = stack.enter_context(bare_reader())
        pids = [stack.enter_context(running(tree.subject(environ, *arguments)))[0] for tree in trees]
        time.sleep(SETTLE_SECONDS)
        helpers = [children_of(pid) for pid in pids]
        *costs, bare = idle([*([pid, *of] for pid, of in zip(pids, helpers, strict=True)), [reader]], seconds)
        memory = [rss_mib(pid) for pid in pids]
    return [
        {
            "idle CPU with its helper, × a bare read": cost.percent / bare.percent,
            "wake-ups a second": cost.wakeups,
            "RSS idle, MiB": held,
        }
        for cost, held in zip(costs, memory, strict=True)
    ]


def verdict(ratios: Sequence[float]) -> str:
    middle = statistics.median(ratios)
    if len(ratios) < MIN_ROUNDS:
        return "too few rounds"
    if abs(middle - 1) <= NOTABLE or min(ratios) < 1 < max(ratios):
        return "no change shown"
    return "more" if middle > 1 else "less"


def rows(rounds: Sequence[tuple[Figures, Figures]]) -> list[str]:
    """Return a row for each figure: both medians, the median ratio, its least and greatest, and a verdict."""
    found = []
    for name in rounds[0][0]:
        old, new = ([one[index][name] for one in rounds] for index in (0, 1))
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        found.append(
            f"| {name} | {statistics.median(old):,.5g} | {statistics.median(new):,.5g} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} | {verdict(ratios)} |"
        )
    return found


def compare(old: Tree, new: Tree, rounds: int, seconds: float) -> list[tuple[Figures, Figures]]:
    """Measure both in each round; the order changes from round to round."""
    found = []
    with tempfile.TemporaryDirectory() as folder, sleepers(PROCESSES):
        machine = machine_of(1)
        assert machine is not None
        environ = Simulator.of(Path(folder), machine).environ
        arguments = (f"--sysfs={MACHINES / '8x-h100' / 'sys'}",)
        for number in range(rounds):
            order = (old, new) if number % 2 == 0 else (new, old)
            at_rest = measure_idle(order, environ, arguments, seconds)
            figures = [
                {**one, **measure_starts(tree, environ, arguments)}
                for tree, one in zip(order, at_rest, strict=True)
            ]
            found.append((figures[0], figures[1]) if order[0] is old else (figures[1], figures[0]))
            print(f"round {number + 1} of {rounds} measured", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("old", help="the older commit")
    parser.add_argument("new", nargs="?", default="", help="the newer commit; by default this working tree")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="[default: 4]")
    parser.add_argument("--seconds", type=float, default=60, help="idle time in each round  [default: 60]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        old = check_out(chosen.old, Path(folder, "old"))
        new = check_out(chosen.new, Path(folder, "new"))
        found = compare(old, new, max(1, chosen.rounds), chosen.seconds)
    print(f"| 1 GPU, {PROCESSES} more processes | {old.name} | {new.name} | ratio | over {len(found)} rounds | |")
    print("|---|---:|---:|---:|---:|---|")
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
