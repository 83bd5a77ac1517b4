"""Simulated machines of all kinds, watched by a Prometheus with the shipped configuration, for the dashboards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.owners import OwnerKind
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.render.owners_json import owners_json
from memwatchd.recording.demos import DESCRIPTIONS, path_of
from memwatchd.recording.player import read_frames, rebuild_owners
from scripts.golden import roots_arguments
from simulators.nvml_machine import Simulator
from simulators.sample_nvml import EIGHT_H100
from simulators.sample_nvml_integrated import GB10
from support import engine_texts
from support.daemon_process import RunningDaemon, running_daemon
from support.engine_servers import engine_site
from support.mutable_machine import MutableMachine
from support.paths import DEPLOY
from support.prometheus_servers import Engine, prometheus, shipped

# All that may be configured: processes as metrics, a receiver, and a model server.
CHATTY = """
[processes]
interval = "1s"
metrics = true
[[alerts.webhooks]]
name = "operators"
url = "http://127.0.0.1:1/no-listener"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw0aGq3o8p3yM="
[[engines]]
name = "chat"
kind = "sglang"
url = "http://127.0.0.1:{port}"
"""
# Machines with these settings, in one job. Each of the others is a separate job, with default settings.
CONFIGURED = ("gb10", "8x-h100", "mi210")
# A machine without a GPU, and one with pods of Kubernetes.
OTHERS = ("workstation", "three-makers-dmem")
DEMOS = tuple(DESCRIPTIONS)
JOB = "memwatchd"
# The other jobs are scraped every two seconds: a rate over five needs two samples.
OTHER_INTERVAL = "2s"
# Seconds of a demo that are played, and scraped, before its panels are read. The hundredth second, in which model
# servers start, is not reached: at this speed it takes eight minutes.
PLAYED_SECONDS = 4
DEMO_SPEED = "0.2"
# Rate at which a machine fills, how often that is tried, and the pause after a fall without a forecast.
FILLED_EACH_SECOND, FALLS, CALM_SECONDS = 0.012, 4, 10.0
OWNER_KINDS: tuple[OwnerKind, ...] = ("unit", "container", "pod", "user")

Json = dict[str, Any]


class Sighting(Struct, frozen=True):
    """State of a machine at one time. `owners`: by kind, those with a name."""

    snapshot: Json
    owners: Mapping[OwnerKind, Sequence[Json]]


class Watched(Struct, frozen=True):
    """One machine. `sightings`: at the end, and before that when all was well, if something happens to it.

    `has_alert`: Prometheus lists a firing alert of its job.
    """

    name: str
    job: str
    instance: str
    sightings: Sequence[Sighting]
    has_alert: bool


class Fleet(Struct, frozen=True):
    """All machines and their Prometheus. Memory of one is full, one has lost a GPU, one has an unreadable file."""

    server: Engine
    machines: Mapping[str, Watched]
    began: float

    def series(self, expression: str, instance: str = ".+", job: str = ".+") -> list[Any]:
        """Return the result of a panel query over the time since the start."""
        variables = {
            "$job": job,
            "$instance": instance,
            "$need": "1",
            "$__rate_interval": "5s",
            "$__range": "1m",
        }
        for name, value in variables.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, f"a variable is not replaced: {expression}"
        return results_since(self.server, self.began, expression)


def results_since(server: Engine, began: float, expression: str) -> list[Any]:
    """Return the result of a query for each second since then, as a panel asks."""
    answer = server.ask(
        "/api/v1/query_range", query=expression, start=str(began), end=str(time.time() + 1), step="1"
    )
    return list(answer["data"]["result"])


@contextmanager
def watched_fleet(folder: Callable[[str], Path]) -> Iterator[Fleet]:
    """Run all machines until each has had what its panels show. `folder` makes a folder for a name."""
    began = time.time()
    with ExitStack() as stack:
        spark = MutableMachine.of("gb10", folder("spark") / "machine")
        amd = MutableMachine.of("mi210", folder("amd") / "machine")
        spark.use(0.5)
        cards = Simulator.of(folder("server"), EIGHT_H100)
        quick = ["--interval", "500ms"]
        commands = {
            "gb10": ([*quick, *spark.arguments], Simulator.of(folder("gb10"), GB10).environ),
            "8x-h100": ([*quick, *roots_arguments("8x-h100")], cards.environ),
            "mi210": ([*quick, *amd.arguments], {}),
            **{name: (roots_arguments(name), {}) for name in OTHERS},
            **{name: (["--demo", name, "--at", "0s", "--speed", DEMO_SPEED], {}) for name in DEMOS},
        }
        chat = stack.enter_context(engine_site(engine_texts.sglang()))
        daemons = start_all(stack, folder, commands, CHATTY.format(port=chat.port))
        server = stack.enter_context(prometheus(folder("prometheus"), watching(daemons)))
        server.wait_for('memwatch_device_up{device="gpu0"} == 1')
        # What goes away below is in Prometheus first.
        stalls = f'memwatch_psi_stall_ratio{{instance="{address_of(daemons["mi210"])}"}}'
        server.wait_for(f"count_over_time({stalls}[1m]) > 2")
        before = look_at_all({name: daemons[name] for name in CONFIGURED})
        cards.show(EIGHT_H100.with_gpu(0, down=15))
        amd.garble("proc/pressure/memory")
        fill(server, began, spark)
        server.wait_for('memwatch_device_up{job="memwatchd"} == 0')
        server.wait_for('memwatch_collector_up{job="memwatchd"} == 0')
        seen = look_at_all({name: daemons[name] for name in (*CONFIGURED, *OTHERS)})
        seen |= {name: look_at_recording(name) for name in DEMOS}
        alerted = jobs_with_alerts(server)
        machines = {
            name: Watched(
                name,
                job_of(name),
                address_of(daemon),
                [*before.get(name, ()), *seen[name]],
                job_of(name) in alerted,
            )
            for name, daemon in daemons.items()
        }
        wait_for_scrapes(server, machines.values())
        yield Fleet(server, machines, began)


def start_all(
    stack: ExitStack,
    folder: Callable[[str], Path],
    commands: Mapping[str, tuple[list[str], Mapping[str, str]]],
    configuration: str,
) -> dict[str, RunningDaemon]:
    """Start the daemons at once, which takes a third of the time. `configuration`: of those in CONFIGURED."""
    runs = {
        name: running_daemon(
            folder(name),
            *arguments,
            config=configuration if name in CONFIGURED else "",
            environ=environ,
        )
        for name, (arguments, environ) in commands.items()
    }
    with ThreadPoolExecutor() as pool:
        return dict(zip(runs, pool.map(stack.enter_context, runs.values()), strict=True))


def job_of(name: str) -> str:
    return JOB if name in CONFIGURED else name


def address_of(daemon: RunningDaemon) -> str:
    return f"127.0.0.1:{daemon.port}"


def look_at_all(daemons: Mapping[str, RunningDaemon]) -> dict[str, list[Sighting]]:
    """Ask all daemons at once: each loads its API first."""
    with ThreadPoolExecutor() as pool:
        return {name: [seen] for name, seen in zip(daemons, pool.map(look_at, daemons.values()), strict=True)}


def look_at(daemon: RunningDaemon) -> Sighting:
    owners = {kind: select_named(daemon.get(f"/api/v1/owners?by={kind}").json["owners"]) for kind in OWNER_KINDS}
    return Sighting(daemon.snapshot(), owners)


def look_at_recording(name: str) -> list[Sighting]:
    """Return the first and a later second of a demo. Asking its daemon would have it load the API."""
    frames = [*islice(read_frames(path_of(name)), PLAYED_SECONDS)]
    snapshots = [replace(frame, owners=rebuild_owners(frame)) for frame in (frames[0], frames[-1])]
    return [
        Sighting(
            json.loads(to_bytes(snapshot_json(one))),
            {kind: select_named(list(owners_json(one, kind)["owners"])) for kind in OWNER_KINDS},
        )
        for one in snapshots
    ]


def select_named(owners: Sequence[Json]) -> list[Json]:
    return [one for one in owners if one["name"]]


def jobs_with_alerts(server: Engine) -> set[str]:
    alerts = server.ask("/api/v1/alerts")["data"]["alerts"]
    return {one["labels"].get("job", "") for one in alerts if one["state"] == "firing"}


def wait_for_scrapes(server: Engine, machines: Iterable[Watched]) -> None:
    """Wait until Prometheus has the last sighting of each machine, or a later one."""
    for one in machines:
        series = f'memwatch_snapshot_timestamp_seconds{{instance="{one.instance}"}}'
        if one.name in DEMOS:
            server.wait_for(f"{series} - min_over_time({series}[5m]) > {PLAYED_SECONDS}")
        else:
            server.wait_for(f"{series} >= {one.sightings[-1].snapshot['unix']}")


def watching(daemons: Mapping[str, RunningDaemon]) -> str:
    """Return the shipped configuration with these machines, short waits and rules that fire at once."""
    rules = DEPLOY / "prometheus/rules"
    targets = ", ".join(f'"{address_of(daemons[name])}"' for name in CONFIGURED)
    changes = {'"127.0.0.1:6360"': targets, "127.0.0.1:9093": "127.0.0.1:1", "15s": "1s", "10s": "1s"}
    configuration = shipped("prometheus/prometheus.yml", {**changes, "rules/": f"{rules}/"})
    jobs = [
        {"job_name": name, "scrape_interval": OTHER_INTERVAL, "static_configs": [{"targets": [address_of(daemon)]}]}
        for name, daemon in daemons.items()
        if name not in CONFIGURED
    ]
    return configuration + "".join(f"  - {json.dumps(job)}\n" for job in jobs)


def fill(server: Engine, began: float, spark: MutableMachine) -> None:
    """Fill memory slowly until there is a forecast, then until it is critical and the OOM killer acts."""
    assert any(fall(server, began, spark) for _ in range(FALLS)), "no forecast came"
    spark.use(0.97)
    spark.set_oom_kills(3)
    server.wait_for('memwatch_kernel_oom_kills_total{job="memwatchd",scope="unknown"} == 3')
    server.wait_for('ALERTS{alertname="MemoryCritical",alertstate="firing",job="memwatchd"}', 40)


def fall(server: Engine, began: float, spark: MutableMachine) -> bool:
    """Fill memory at a constant rate; return True when there was a forecast. On a busy machine a fall has steps."""
    started = time.monotonic()
    while (used := 0.5 + FILLED_EACH_SECOND * (time.monotonic() - started)) < 0.94:
        spark.use(used)
        if results_since(server, began, 'memwatch_time_to_full_seconds{job="memwatchd"}'):
            return True
        time.sleep(0.1)
    spark.use(0.5)
    time.sleep(CALM_SECONDS)
    return False
