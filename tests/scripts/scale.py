"""Scrape five hundred machines with one Prometheus; measure scrapes, memory, and the cost of rules.

One process serves 500 different expositions, each based on a real daemon's on a simulated machine; every value
changes from scrape to scrape. A real Prometheus scrapes them all every 5 s with our rules loaded, and then answers
every query of the fleet dashboard.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from scripts.golden import host_of
from support.daemon_process import running_daemon
from support.paths import DEPLOY
from support.prometheus_servers import Engine, prometheus

KINDS = ("gb10", "8x-h100", "rtx-4090", "strix-halo", "workstation")
INTERVAL_SECONDS = 5
MIB = 1 << 20


class Machine(Struct, frozen=True):
    """Lines of an exposition; those with a changing value are split before it."""

    lines: Sequence[tuple[str, float | None]]

    def exposition(self, number: int, turn: int) -> bytes:
        # Between 90 and 110 %, different for each machine and scrape.
        factor = 0.9 + ((number * 7919 + turn * 104_729) % 2000) / 10_000
        return b"".join(
            f"{text} {value * factor}\n".encode() if value is not None else f"{text}\n".encode()
            for text, value in self.lines
        )


def machine_of(metrics: str) -> Machine:
    def cut(line: str) -> tuple[str, float | None]:
        text, _, figure = line.rpartition(" ")
        return (line, None) if line.startswith("#") or float(figure) < 1000 else (text, float(figure))

    return Machine([cut(line) for line in metrics.splitlines()])


def machines() -> list[Machine]:
    """Return the exposition of a daemon on each kind of machine."""
    found = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            host = host_of(kind, Path(folder))
            with running_daemon(Path(folder), *host.roots, environ=host.environ) as daemon:
                for collector in host.waits_for:
                    daemon.wait_until_ok(collector)
                daemon.wait_for("/api/v1/collectors", lambda all_: all(one["state"] != "starting" for one in all_))
                found.append(machine_of(daemon.get("/metrics").text))
    return found


@contextmanager
def serving(kinds: Sequence[Machine]) -> Iterator[int]:
    """Yield a port that serves the current exposition of machine N at /N/metrics."""
    loop = asyncio.new_event_loop()
    turns: dict[int, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                number = int(head.split(b"/", 2)[1])
                turns[number] = turns.get(number, 0) + 1
                body = kinds[number % len(kinds)].exposition(number, turns[number])
                fields = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}"
                )
                writer.write(fields.encode() + b"\r\n\r\n" + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def configuration(folder: Path, port: int, count: int) -> str:
    listed = [
        {"targets": [f"127.0.0.1:{port}"],
         "labels": {"__metrics_path__": f"/{number}/metrics", "instance": f"machine-{number:04}"}}
        for number in range(count)
    ]  # fmt: skip
    (folder / "machines.json").write_text(json.dumps(listed))
    return f"""
global: {{scrape_interval: {INTERVAL_SECONDS}s, evaluation_interval: 15s}}
rule_files: ["{DEPLOY}/prometheus/rules/*.yml"]
scrape_configs:
  - job_name: memwatchd
    file_sd_configs: [{{files: ["{folder}/machines.json"]}}]
  - job_name: prometheus
    static_configs: [{{targets: ["127.0.0.1:OWN"]}}]
"""


def value(server: Engine, expression: str) -> float:
    result = server.query(expression)
    return float(result[0]["value"][1]) if result else float("nan")


SCRAPES = 'scrape_duration_seconds{job="memwatchd"}[2m]'
UP = 'up{job="memwatchd"}[2m]'
FIGURES = {
    "machines that answer": 'sum(up{job="memwatchd"})',
    "series in memory": "prometheus_tsdb_head_series",
    "samples per second": "rate(prometheus_tsdb_head_samples_appended_total[2m])",
    "scrape duration, median, ms": f"1000 * quantile(0.5, avg_over_time({SCRAPES}))",
    "scrape duration, 99 %, ms": f"1000 * quantile(0.99, max_over_time({SCRAPES}))",
    "scrapes that failed": f"sum(count_over_time({UP}) - sum_over_time({UP}))",
    "Prometheus' memory, MiB": f"process_resident_memory_bytes{{job='prometheus'}} / {MIB}",
    "Prometheus' CPU, cores": "rate(process_cpu_seconds_total{job='prometheus'}[2m])",
    "all our rules, ms": "1000 * sum(prometheus_rule_group_last_duration_seconds)",
    "alerts firing": 'count(ALERTS{alertstate="firing"}) or vector(0)',
}


def dashboard_seconds(server: Engine) -> tuple[float, str]:
    """Return the slowest query of the fleet dashboard over the last 15 minutes, at a step of 15 s."""
    board = json.loads((DEPLOY / "grafana/dashboards/memwatch-fleet.json").read_text())
    slowest = (0.0, "")
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$job", "memwatchd").replace("$need", "20")
            expression = expression.replace("$__rate_interval", "20s")
            now = time.time()
            server.ask("/api/v1/query_range", query=expression, start=str(now - 900), end=str(now), step="15")
            slowest = max(slowest, (time.time() - now, panel["title"]))
    return slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=500, help="number of machines (default 500)")
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="duration (default 6; the last two are measured)"
    )
    chosen = parser.parse_args()
    kinds = machines()
    with tempfile.TemporaryDirectory() as name, serving(kinds) as port:
        folder = Path(name)
        # Its port is known only once it has started.
        with prometheus(folder, configuration(folder, port, chosen.machines).replace("OWN", "1")) as server:
            file = folder / f"prometheus-{server.port}.yml"
            file.write_text(file.read_text().replace("127.0.0.1:1", server.address))
            server.process.send_signal(signal.SIGHUP)
            time.sleep(chosen.minutes * 60)
            found = {name: value(server, expression) for name, expression in FIGURES.items()}
            seconds, panel = dashboard_seconds(server)
    print(f"| {chosen.machines} machines, every {INTERVAL_SECONDS} s, {chosen.minutes:g} minutes | |\n|---|---:|")
    for name, figure in found.items():
        print(f"| {name} | {figure:,.1f} |")
    print(f"| slowest query of the fleet dashboard ({panel}), ms | {seconds * 1000:,.0f} |")
    well = found["machines that answer"] == chosen.machines and found["scrapes that failed"] == 0
    print("" if well else "FAILED: not every machine was scraped every time")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
