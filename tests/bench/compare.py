"""Compare the cost of two commits: make bench-compare [OLD=COMMIT] [NEW=COMMIT].

Without OLD it is the commit before the change (`CHANGE_BASE`, the merge base with the upstream main branch, or a
commit some time ago), and NEW is this working tree. All figures are CPU time, wake-ups and memory, so other work on
the host changes them little: both run at the same time at rest, and start in turns. A figure that is above 1.25
times the older one in every round is measured again with new processes. If it is again, in every round, the
comparison fails, unless a commit of the change names the reason: `Cost: FIGURE: REASON`.
"""

from __future__ import annotations

import argparse
import compileall
import http.client
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from subjects import Subject, children_of, cpu_seconds, rss_mib, running, spent

from simulators import sample_nvml_integrated
from simulators.nvml_machine import Simulator
from support.change_base import Repository, find_base
from support.free_ports import free_port
from support.moving_memory import CopiedMachine
from support.paths import MACHINES, ROOT

PACKAGES = ("daemon", "web")
# The first request to a new daemon, and all that follow before its memory is measured.
PAGE, API = "/", "/api/v1/snapshot"
PAGES = ("/history", "/processes", "/devices", "/alerts", "/fit", "/incidents", "/about", "/docs", "/metrics")
SETTLE_SECONDS = 14.0
# Some work is done every ten seconds: each round has it once.
STRETCH_SECONDS = 10.0
ROUNDS, MIN_ROUNDS = 3, 3
# A figure has changed if all rounds agree on its direction, and the median ratio differs by more than this.
NOTABLE = 0.03
# Above this ratio in every round, twice, a comparison fails.
MAX_RATIO = 1.25

Figures = dict[str, float]
Rounds = Sequence[tuple[Figures, Figures]]


class Tree(Struct, frozen=True):
    """Source of one commit, or of this working tree."""

    name: str
    folder: Path

    def subject(self, environ: Mapping[str, str], *arguments: str) -> Subject:
        """Return its daemon on a free port. `env` is replaced by it, so that the process id is the daemon's."""
        port = free_port()
        path = f"{self.folder / 'daemon'}:{self.folder / 'web'}"
        changes = {**environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
        assigned = [f"{name}={value}" for name, value in changes.items()]
        program = [sys.executable, "-m", "memwatchd", f"--listen=127.0.0.1:{port}", *arguments]
        return Subject(self.name, port, ["env", *assigned, *program], "/readyz")


class Host(Struct, frozen=True):
    """Machine that both watch: a name, options of the daemon, and its environment."""

    name: str
    arguments: Sequence[str]
    environ: Mapping[str, str]


def check_out(revision: str, folder: Path) -> Tree:
    """Write the files of a commit, compiled. Without a revision they are those of this working tree.

    Both are copies in a folder of the same kind, so that paths and caches differ in nothing.
    """
    if not revision:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        compile_tree(folder)
        return Tree("working tree", folder)
    done = subprocess.run(["git", "archive", revision, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench-compare: {done.stderr.decode().strip()}; name a commit of this repository")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=done.stdout, check=True)
    compile_tree(folder)
    return Tree(revision[:10], folder)


def compile_tree(folder: Path) -> None:
    """Write byte code, so that no start of a comparison compiles; into PYTHONPYCACHEPREFIX where it is set."""
    for package in PACKAGES:
        compileall.compile_dir(folder / package, quiet=2)


@contextmanager
def hosts() -> Iterator[list[Host]]:
    """Yield the machines: a DGX Spark that a model server fills, with its driver, and a workstation without."""
    with tempfile.TemporaryDirectory() as folder:
        spark = CopiedMachine(MACHINES / "gb10", Path(folder, "spark"))
        spark.use(0.85)
        simulator = Simulator.of(Path(folder), sample_nvml_integrated.GB10)
        plain = CopiedMachine(MACHINES / "workstation", Path(folder, "plain"))
        yield [
            Host("DGX Spark, 85 % used", spark.roots, simulator.environ),
            Host("workstation", plain.roots, {}),
        ]


def request(port: int, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"bench-compare: {path} was answered with {answer.status}")


def measure_start(tree: Tree, host: Host) -> Figures:
    """Return the CPU time of the start, and of the first answers; the memory after all pages and views."""
    subject = tree.subject(host.environ, *host.arguments)
    with running(subject) as (pid, _):
        found = {"start, ms of CPU": 1000 * cpu_seconds(pid)}
        time.sleep(1.5)  # loads what the first tick left for later
        for name, path in (("first page", PAGE), ("first answer of the API", API)):
            before = cpu_seconds(pid)
            request(subject.port, path)
            found[f"{name}, ms of CPU"] = 1000 * (cpu_seconds(pid) - before)
        for path in PAGES:
            request(subject.port, path)
        found["memory after all pages, MiB"] = rss_mib(pid)
    return found


def measure_starts(trees: Sequence[Tree], host: Host) -> list[Figures]:
    """Start each of the trees in turn."""
    return [measure_start(tree, host) for tree in trees]


def measure_rest(trees: Sequence[Tree], machines: Sequence[Host]) -> list[list[Figures]]:
    """Run all trees on all machines at the same time. Return the figures of each tree for every round."""
    with ExitStack() as stack:
        groups = [[run_one(stack, tree, host) for host in machines] for tree in trees]
        time.sleep(SETTLE_SECONDS)
        watched = [[[pid, *children_of(pid)] for pid, _ in group] for group in groups]
        ports = [[port for _, port in group] for group in groups]
        rounds = []
        for _ in range(ROUNDS):
            quiet = stretch(watched, [])
            scraped = stretch(watched, [port for group in ports for port in group])
            rounds.append([name_figures(machines, *both) for both in zip(quiet, scraped, strict=True)])
        for figures, group in zip(rounds[0], groups, strict=True):
            figures["memory at rest, MiB"] = sum(rss_mib(pid) for pid, _ in group) / len(group)
    for later in rounds[1:]:
        for figures, first in zip(later, rounds[0], strict=True):
            figures["memory at rest, MiB"] = first["memory at rest, MiB"]
    return rounds


def run_one(stack: ExitStack, tree: Tree, host: Host) -> tuple[int, int]:
    subject = tree.subject(host.environ, *host.arguments)
    return stack.enter_context(running(subject))[0], subject.port


def stretch(groups: Sequence[Sequence[Sequence[int]]], ports: Sequence[int]) -> list[list[tuple[float, float]]]:
    """Return CPU in % of a core and wake-ups a second of each daemon with its helper, scraped at `ports`."""
    before, began = [[spent(pids) for pids in group] for group in groups], time.monotonic()
    while time.monotonic() < began + STRETCH_SECONDS:
        for port in ports:
            request(port, "/metrics")
        time.sleep(1.0)
    passed = time.monotonic() - began
    after = [[spent(pids) for pids in group] for group in groups]
    return [
        [((now[0] - then[0]) / passed * 100, (now[1] - then[1]) / passed) for then, now in zip(*both, strict=True)]
        for both in zip(before, after, strict=True)
    ]


def name_figures(
    machines: Sequence[Host], quiet: Sequence[tuple[float, float]], scraped: Sequence[tuple[float, float]]
) -> Figures:
    found: Figures = {}
    for host, (at_rest, wakeups), (busy, _) in zip(machines, quiet, scraped, strict=True):
        found[f"{host.name}: CPU at rest, % of a core"] = at_rest
        found[f"{host.name}: CPU scraped once a second, % of a core"] = busy
        found[f"{host.name}: wake-ups a second"] = wakeups
    return found


def look(old: Tree, new: Tree) -> list[tuple[Figures, Figures]]:
    """Measure both in each round; the order changes from round to round."""
    with hosts() as machines:
        at_rest = measure_rest((old, new), machines)
        found = []
        for number, (before, after) in enumerate(at_rest):
            order = (old, new) if number % 2 == 0 else (new, old)
            started = dict(zip(order, measure_starts(order, machines[1]), strict=True))
            found.append(({**before, **started[old]}, {**after, **started[new]}))
    return found


def ratios_of(rounds: Rounds) -> dict[str, list[float]]:
    """Return new to old by figure and round; figures that are 0 in a round of the older tree are left out."""
    return {
        name: [after[name] / before[name] for before, after in rounds]
        for name in rounds[0][0]
        if all(before[name] > 0 for before, _ in rounds)
    }


def verdict(ratios: Sequence[float]) -> str:
    middle = statistics.median(ratios)
    if len(ratios) < MIN_ROUNDS:
        return "too few rounds"
    if abs(middle - 1) <= NOTABLE or min(ratios) < 1 < max(ratios):
        return "no change shown"
    return "more" if middle > 1 else "less"


def far_above(rounds: Rounds) -> list[str]:
    """Return the figures that cost more than 1.25 times as much in every round."""
    found = ratios_of(rounds)
    return [name for name, ratios in found.items() if len(ratios) >= MIN_ROUNDS and min(ratios) > MAX_RATIO]


def rows(rounds: Rounds) -> list[str]:
    """Return a row for each figure: both medians, the median ratio, its least and greatest, and a verdict."""
    found = []
    for name, ratios in ratios_of(rounds).items():
        old, new = (statistics.median([one[index][name] for one in rounds]) for index in (0, 1))
        found.append(
            f"| {name} | {old:,.5g} | {new:,.5g} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} | {verdict(ratios)} |"
        )
    return found


def print_table(rounds: Rounds, old: Tree, new: Tree) -> None:
    print(f"| {old.name} to {new.name} | older | newer | ratio | over {len(rounds)} rounds | |")
    print("|---|---:|---:|---:|---:|---|")
    print("\n".join(rows(rounds)), flush=True)


def reasons_of(commits: str, names: Sequence[str]) -> dict[str, str]:
    """Return those of the figures that these messages of commits expect to rise, each with its line."""
    found = {}
    for name in names:
        if line := re.search(rf"^Cost: {re.escape(name)}: \S.*$", commits, re.MULTILINE):
            found[name] = line[0]
    return found


def judge(first: Rounds, second: Rounds | None, reasons: Mapping[str, str]) -> list[str]:
    """Return the figures that fail the comparison: far above in both looks, without a reason."""
    again = far_above(second) if second is not None else []
    return [name for name in far_above(first) if name in again and name not in reasons]


def compare(old: Tree, new: Tree, commits: str) -> int:
    first = look(old, new)
    print_table(first, old, new)
    if not (suspects := far_above(first)):
        print(f"bench-compare: no figure is above {MAX_RATIO} times that of {old.name} in all rounds")
        return 0
    print(f"\nSecond look, as every round is above {MAX_RATIO}: {'; '.join(suspects)}\n", flush=True)
    second, reasons = look(old, new), reasons_of(commits, suspects)
    print_table(second, old, new)
    for line in reasons.values():
        print(f"bench-compare: allowed by a commit: {line}")
    failed = judge(first, second, reasons)
    for name in failed:
        print(
            f"bench-compare: {name} is above {MAX_RATIO} times that of {old.name} in all rounds of two looks; "
            f"spend less, or name the reason in a commit: Cost: {name}: REASON"
        )
    return int(bool(failed))


def warm_up(tree: Tree, host: Host) -> None:
    """Let a daemon of this tree write its compiled templates. Raise SystemExit if it does not start or answer."""
    subject = tree.subject(host.environ, *host.arguments)
    with running(subject):
        for path in (PAGE, API, *PAGES):
            request(subject.port, path)


def runs_here(tree: Tree) -> bool:
    """Return False for a commit that does not run with the dependencies of today."""
    try:
        with hosts() as machines:
            warm_up(tree, machines[1])
            return True
    except SystemExit as error:
        print(error)
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("--old", default="", help="the older commit; by default that before the change")
    parser.add_argument("--new", default="", help="the newer commit; by default this working tree")
    chosen = parser.parse_args()
    repository, old, because = Repository(ROOT), chosen.old, "named"
    if not old:
        base = find_base(repository)
        old, because = base.commit, base.reason
    if not old:
        print(f"bench-compare was not run: {because}")
        return 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        trees = check_out(old, Path(folder, "old")), check_out(chosen.new, Path(folder, "new"))
        print(f"{trees[0].name} is the commit to compare with: {because}", flush=True)
        if not runs_here(trees[0]):
            print(f"bench-compare was not run: {trees[0].name} does not run in this environment")
            return 0
        with hosts() as machines:
            warm_up(trees[1], machines[1])
        return compare(*trees, repository.git("log", "--format=%B", f"{old}..{chosen.new or 'HEAD'}"))


if __name__ == "__main__":
    sys.exit(main())
