"""Measure effects of clients: memory after pages and documents, first answers, one scrape a second."""

from __future__ import annotations

import http.client
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from compileall import compile_dir
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sysconfig import get_path

from bench_machines import SETTLE_SECONDS, daemon_on, machine_of
from bench_rest import STRETCH_SECONDS
from msgspec import Struct
from peers import subjects
from sheet import Column, Sheet
from subjects import Subject, children_of, cpu_seconds, pss_mib, rss_mib, running

from memwatch_web.pages.compiled_templates import write_compiled
from memwatch_web.pages.template_environment import LINKS, PATHS
from memwatchd.settings.schema import DEMOS
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, running_daemon
from support.free_ports import free_port
from support.paths import ROOT
from support.sleeping_processes import sleepers

PAGES = tuple(dict.fromkeys((*PATHS.values(), *LINKS.values(), "/docs", "/runbooks")))
VIEWS = ("/openapi.json", "/api/v1/snapshot", "/api/v1/processes", "/api/v1/history?series=pool.ram.used_bytes")
STARTS = 5
PACKAGES = ("daemon", "web")
# Of Prometheus 3, which keeps its connection.
PROMETHEUS = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.6,*/*;q=0.1", "Accept-Encoding": "gzip"}
SCRAPED = ("memwatchd", "node_exporter, memory", "collectd, memory")


def bench_memory(sheet: Sheet) -> None:
    """Measure resident memory at rest, and after all pages and documents were read once."""
    columns = ("at rest", "after a scrape", "after all pages", "after the API's documents as well", "helper PSS")
    sheet.head("memory", "MiB", *(Column(name) for name in columns))
    with sleepers(300):
        for name, gpus in (("no GPU, 300 processes", 0), ("8 GPUs, 300 processes", 8)):
            with daemon_on(machine_of(gpus)) as daemon:
                time.sleep(SETTLE_SECONDS)
                sheet.row(name, *memory_of(daemon), sum(map(pss_mib, children_of(daemon.pid))) or None)
    with ExitStack() as stack:
        demos = {name: stack.enter_context(demo(name)) for name in DEMOS}
        time.sleep(SETTLE_SECONDS)
        for name, daemon in demos.items():
            sheet.row(f"demo {name}", *memory_of(daemon), None)
    sheet.end()


@contextmanager
def demo(name: str) -> Iterator[RunningDaemon]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_daemon(Path(folder), "--demo", name, "--at", "3m", environ=WITHOUT_COVERAGE) as daemon,
    ):
        yield daemon


def memory_of(daemon: RunningDaemon) -> list[float]:
    found = [rss_mib(daemon.pid)]
    for paths in (("/metrics",), PAGES, VIEWS):
        for path in paths:
            answer = daemon.get(path)
            if answer.status != 200:
                raise SystemExit(f"{path} answers {answer.status}")
        found.append(rss_mib(daemon.pid))
    return found


class Started(Struct, frozen=True):
    """CPU time in seconds of the start, the first page and the first answer of the API, and their durations."""

    cpu: tuple[float, ...]
    seconds: tuple[float, ...]
    later_ms: float


def bench_start(sheet: Sheet) -> None:
    """Measure starts with and without byte code, in turns; the least of several counts."""
    names = ("first tick", "first page", "first API answer")
    columns = [Column(f"{name}, s of CPU", ".3f") for name in names]
    times = [Column(f"{name}, s", ".3f", is_exact=False) for name in names]
    sheet.head("start", "start", *columns, *times, Column("later API answers, ms of CPU", ".2f"))
    with tempfile.TemporaryDirectory() as folder:
        ways = {"with byte code": Path(folder, "with"), "without byte code of memwatchd": Path(folder, "without")}
        for copied in ways.values():
            copy_product(copied)
        for package in PACKAGES:
            compile_beside(ways["with byte code"] / package)
        compile_beside(Path(get_path("purelib")))  # where the tests keep it elsewhere, libraries have none there
        found: dict[str, list[Started]] = {name: [] for name in ways}
        for _ in range(STARTS):
            for name, copied in ways.items():
                found[name].append(start_once(copied))
    for name, seen in found.items():
        cpu = [min(one.cpu[place] for one in seen) for place in range(3)]
        seconds = [min(one.seconds[place] for one in seen) for place in range(3)]
        sheet.row(name, *cpu, *seconds, min(one.later_ms for one in seen))
    sheet.end()


def copy_product(folder: Path) -> None:
    """Copy the packages as a wheel has them."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    compiled = folder / "web/memwatch_web/templates/compiled"
    compiled.mkdir()
    write_compiled(compiled)


def compile_beside(folder: Path) -> None:
    """Write byte code beside the sources, where the programs of this measurement look for it."""
    prefix, sys.pycache_prefix = sys.pycache_prefix, None
    try:
        compile_dir(folder, quiet=2)
    finally:
        sys.pycache_prefix = prefix


def product_in(folder: Path) -> Subject:
    port = free_port()
    path = f"{folder / 'daemon'}:{folder / 'web'}"
    environ = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **WITHOUT_COVERAGE}
    words = ["env", "-u", "PYTHONPYCACHEPREFIX", *(f"{name}={value}" for name, value in environ.items())]
    program = [sys.executable, "-m", "memwatchd", f"--listen=127.0.0.1:{port}", "--log-level=error"]
    return Subject("memwatchd", port, [*words, *program], "/readyz")


def start_once(folder: Path) -> Started:
    subject = product_in(folder)
    with running(subject) as (pid, took):
        cpu, seconds = [cpu_seconds(pid)], [took]
        time.sleep(1.5)
        for path in ("/", "/api/v1/snapshot"):
            before, began = cpu_seconds(pid), time.perf_counter()
            get(subject.port, path)
            cpu.append(cpu_seconds(pid) - before)
            seconds.append(time.perf_counter() - began)
        before = cpu_seconds(pid)
        for _ in range(100):
            get(subject.port, "/api/v1/snapshot")
        later = (cpu_seconds(pid) - before) / 100 * 1000
    return Started(tuple(cpu), tuple(seconds), later)


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ask(connection, path, headers or {})
    connection.close()


def ask(connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]) -> None:
    connection.request("GET", path, headers=dict(headers))
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path} answers {answer.status}")


class Scraper(Struct):
    """Client of one program, with a connection that stays open, and the duration of each scrape in ms."""

    connection: http.client.HTTPConnection
    path: str
    headers: Mapping[str, str]
    took_ms: list[float]

    def scrape(self) -> None:
        began = time.perf_counter()
        ask(self.connection, self.path, self.headers)
        self.took_ms.append((time.perf_counter() - began) * 1000)


class Pair(Struct, frozen=True):
    """The same program twice: one that is scraped once a second, and one without a client."""

    quiet: int
    scraped: int
    scraper: Scraper
    is_ours: bool


def bench_scraped(sheet: Sheet, seconds: float) -> None:
    """Measure each program with and without one scrape a second, all at the same time."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        quiet, busy = ({one.name: one for one in subjects(folder) if one.name in SCRAPED} for folder in folders)
        pairs = {
            name: start_pair(stack, quiet[name], busy[name], {}, name == "memwatchd")
            for name in SCRAPED
            if name in quiet
        }
        again = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        third = next(subjects(again))
        pairs["memwatchd, as Prometheus asks"] = start_pair(
            stack, None, third, PROMETHEUS, True, pairs["memwatchd"]
        )
        time.sleep(SETTLE_SECONDS)
        rates = measure_pairs(list(pairs.values()), seconds)
    columns = (
        Column("unscraped CPU %", ".3f"),
        Column("scraped once a second CPU %", ".3f"),
        Column("ratio", ".2f"),
        Column("a cold scrape, ms of CPU", ".2f"),
        Column("a cold scrape, median ms", ".2f", is_exact=False),
    )
    sheet.head("scraped", "once a second", *columns)
    for (name, pair), (without, scraped) in zip(pairs.items(), rates, strict=True):
        ratio = scraped / without if without else None
        median = statistics.median(pair.scraper.took_ms[1:])
        sheet.row(name, without, scraped, ratio, (scraped - without) * 10, median, is_ours=pair.is_ours)
    sheet.end()


def start_pair(
    stack: ExitStack,
    quiet: Subject | None,
    scraped: Subject,
    headers: Mapping[str, str],
    is_ours: bool,
    other: Pair | None = None,
) -> Pair:
    """Start both; without `quiet`, that of the `other` pair counts."""
    alone = stack.enter_context(running(quiet))[0] if quiet is not None else other.quiet if other is not None else 0
    busy = stack.enter_context(running(scraped))[0]
    connection = http.client.HTTPConnection("127.0.0.1", scraped.port, timeout=60)
    stack.callback(connection.close)
    return Pair(alone, busy, Scraper(connection, scraped.path, headers, []), is_ours)


def measure_pairs(pairs: Sequence[Pair], seconds: float) -> list[tuple[float, float]]:
    """Return the least CPU of the stretches of ten seconds, in % of a core: unscraped, and scraped."""
    found: list[list[tuple[float, float]]] = []
    for _ in range(max(1, round(seconds / STRETCH_SECONDS))):
        before, began = [costs(pair) for pair in pairs], time.monotonic()
        for number in range(round(STRETCH_SECONDS)):
            # Apart from each other, so that none waits.
            for place, pair in enumerate(pairs):
                pause(began + number + place / len(pairs))
                pair.scraper.scrape()
        pause(began + STRETCH_SECONDS)
        passed = time.monotonic() - began
        after = [costs(pair) for pair in pairs]
        found.append(
            [
                ((now[0] - then[0]) / passed * 100, (now[1] - then[1]) / passed * 100)
                for then, now in zip(before, after, strict=True)
            ]
        )
    return [
        (min(one[place][0] for one in found), min(one[place][1] for one in found)) for place in range(len(pairs))
    ]


def costs(pair: Pair) -> tuple[float, float]:
    return cpu_seconds(pair.quiet), cpu_seconds(pair.scraped)


def pause(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))
