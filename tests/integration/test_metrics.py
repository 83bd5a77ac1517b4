"""Prometheus metrics: valid names and formats, no sample for unknown values, one rendering per tick."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import Metric, ProcessCollector, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from memwatch.core.model import Absent, PoolKind, Process, Quality, Share, ShareKind
from memwatch.core.snapshot import CollectorStatus, Level, Machine, Pressure, Reason, SelfUsage, Snapshot
from memwatch_monitor.between_scrapes import BetweenScrapes
from memwatch_web.metrics.families import Exporter, ProcessFigures, own_process_families
from memwatchd.recording.demos import DESCRIPTIONS, path_of
from memwatchd.recording.player import read_frames, rebuild_owners
from scripts.golden import RUN_HERE
from support.daemon_process import RunningDaemon, running_daemon
from support.exposition import merge_expositions
from support.fakes import GIB, ram
from support.machine_exports import export_of
from support.monitors import features_of
from support.mutable_machine import MutableMachine

NEEDED_PROGRAMS = ("promtool",)

CLASSIC = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a 30 s interval, so that two requests see the same tick."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "30s") as running:
        yield running


def rendered(snapshot: Snapshot, most_processes: int = 0) -> str:
    exporter = Exporter("1.2.3", max_processes=lambda: most_processes)
    text = exporter.render(snapshot, generate_latest).decode()
    return "\n".join(line for line in text.splitlines() if line.startswith("memwatch_"))


def snapshot_of(**parts: object) -> Snapshot:
    own = SelfUsage(50_000_000, 1.5, 0.001, 0.0002, True)
    base = Snapshot(7, 1_700_000_000.0, 0.0, "boot", "host", 1.0, False, Machine(), own, (ram(GIB),))
    return replace(base, **parts)


def test_promtool_accepts_the_metrics_of_this_machine(daemon: RunningDaemon) -> None:
    """Names, units and help texts pass Prometheus's own linter."""
    body = daemon.get("/metrics", Accept=CLASSIC).body

    assert promtool(body) == (0, b"", b"")


def promtool(exposition: bytes) -> tuple[int, bytes, bytes]:
    """Return exit code and messages of Prometheus's linter."""
    lint = subprocess.run(["promtool", "check", "metrics"], input=exposition, capture_output=True, check=False)
    return lint.returncode, lint.stdout, lint.stderr


def test_promtool_accepts_the_metrics_of_every_simulated_machine() -> None:
    """Every sample of every simulated machine, with no line filtered out, in one call. A label is the machine."""
    merged = merge_expositions({name: export_of(name).metrics for name in RUN_HERE})

    assert merged.count("\nmemwatch_machine_info{") == len(RUN_HERE)
    assert promtool(merged.encode()) == (0, b"", b"")


def test_promtool_rejects_a_fault_of_one_machine() -> None:
    """A counter's name on a gauge, and a series that one machine has twice."""
    wrong = "# HELP memwatch_a_total Text.\n# TYPE memwatch_a_total gauge\nmemwatch_a_total 1.0\n"
    twice = "# HELP memwatch_b Text.\n# TYPE memwatch_b gauge\nmemwatch_b 1.0\nmemwatch_b 1.0\n"
    machines = {name: export_of(name).metrics for name in RUN_HERE[:2]}

    assert b"memwatch_a_total" in promtool(merge_expositions({**machines, "x": wrong}).encode())[2]
    assert promtool(merge_expositions({**machines, "x": twice}).encode())[0] != 0


def test_promtool_accepts_the_metrics_of_every_demo() -> None:
    """A calm and a critical second of each story, with peaks, owners and processes."""
    bodies = {f"{demo}-{at}": text for demo in DESCRIPTIONS for at, text in seconds_of(demo).items()}

    assert promtool(merge_expositions(bodies).encode()) == (0, b"", b"")
    assert all("memwatch_pressure_seconds_total{" in body for body in bodies.values())


def seconds_of(demo: str) -> dict[int, str]:
    between = BetweenScrapes()
    exporter = Exporter("1.2.3", features_of(between), lambda: 20)
    frames = list(read_frames(path_of(demo)))
    bodies = {}
    for at in (5, 300):
        snapshot = replace(frames[at], owners=rebuild_owners(frames[at]))
        between.add(snapshot)
        bodies[at] = exporter.render(snapshot, generate_latest).decode()
    return bodies


def test_text_and_openmetrics_have_the_same_samples(daemon: RunningDaemon) -> None:
    """The parsers of prometheus_client read the same samples from both formats."""
    classic = daemon.get("/metrics", Accept=CLASSIC)
    openmetrics = daemon.get("/metrics", Accept=OPENMETRICS)

    def samples(families: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {(s.name, tuple(sorted(s.labels.items()))) for f in families for s in f.samples}

    parse_openmetrics: Callable[[str], Iterable[Metric]] = text_string_to_metric_families
    assert classic.headers["content-type"].startswith("text/plain")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")
    own = {name for name, _ in samples(parse_text(classic.text))}
    assert {name for name, _ in samples(parse_openmetrics(openmetrics.text))} == own
    assert "memwatch_pool_used_bytes" in own


@pytest.mark.parametrize("accept", ["text/plain; version=abc", "application/openmetrics-text; version=1.x"])
def test_invalid_version_in_accept_gets_the_classic_format(daemon: RunningDaemon, accept: str) -> None:
    """Accept is untrusted input: no value of it makes the scrape fail."""
    answer = daemon.get("/metrics", Accept=accept)

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"memwatch_pool_size_bytes" in answer.body


def test_gzip_is_sent_if_accepted(daemon: RunningDaemon) -> None:
    """Less than half of the bytes, the same content."""
    plain = daemon.get("/metrics", Accept=CLASSIC)
    packed = daemon.get("/metrics", Accept=CLASSIC, Accept_Encoding="gzip")

    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("gzip", True),
        ("deflate, GZip;q=0.5 , br", True),
        ("x-gzip;q=1.0", True),
        ("br , gzip ; q = 0.001", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, deflate", False),
        ("", False),
        ("identity", False),
        ("notgzip, gzipped", False),
    ],
)
def test_gzip_is_sent_only_if_the_header_accepts_it(daemon: RunningDaemon, header: str, wanted: bool) -> None:
    """Weight 0 is a refusal; names that only contain the word are other encodings. Pages follow the same rule."""
    for path in ("/metrics", "/", "/static/app.css"):
        answer = daemon.get(path, Accept_Encoding=header)

        assert answer.status == 200
        assert ("content-encoding" in answer.headers) == wanted, path


def test_scrapes_of_one_tick_return_the_same_bytes(daemon: RunningDaemon) -> None:
    """A tick is rendered once; even the daemon's own CPU time does not change between ticks."""
    texts = [daemon.get("/metrics").text for _ in range(5)]
    # A kill elsewhere on this machine is one more tick.
    ticks = {re.findall(r"^memwatch_snapshot_timestamp_seconds.*", text, re.MULTILINE)[0] for text in texts}
    assert len(set(texts)) == len(ticks) < 5


def test_sum_of_pool_metrics_counts_no_share() -> None:
    """sum(memwatch_pool_used_bytes) is the used memory: shares have another metric name."""
    share = Share("cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", GIB, "nvml", Quality.MEASURED, device="gpu0")
    vram = replace(ram(2 * GIB, 8 * GIB, "vram0"), kind=PoolKind.VRAM)

    text = rendered(snapshot_of(pools=(ram(3 * GIB), vram), shares=(share,)))

    used = re.findall(r"^memwatch_pool_used_bytes\{.*\} (.*)$", text, re.MULTILINE)
    assert sum(map(float, used)) == 5 * GIB
    assert (
        'memwatch_share_used_bytes{device="gpu0",kind="cuda_pool",share="cuda0",within="ram"} 1.073741824e+09'
        in text
    )


def test_unknown_values_have_no_sample() -> None:
    """An absent value is a missing line: not 0, not NaN, not the last value."""
    stale = replace(ram(GIB), used_bytes=Absent.STALE, available_bytes=Absent.STALE, free_bytes=Absent.STALE)

    text = rendered(snapshot_of(pools=(stale,)))

    assert "memwatch_pool_size_bytes{" in text
    for gone in ("pool_used", "pool_available", "pool_free", "kernel_oom", "psi_", "swap_", "NaN"):
        assert gone not in text


def test_unavailable_collector_has_no_collector_up_sample() -> None:
    """collector_up is 0 for a failing collector and missing for an unavailable one, so alerts can use `== 0`."""
    statuses = (
        CollectorStatus("meminfo", "ok", 0.1, 0.001, 1_700_000_000.0),
        CollectorStatus("psi", "failing", error="x", errors={"io": 3}),
        CollectorStatus("cgroup", "unavailable", error="not in a container"),
    )

    text = rendered(snapshot_of(collectors=statuses))

    assert 'memwatch_collector_up{collector="meminfo"} 1.0' in text
    assert 'memwatch_collector_up{collector="psi"} 0.0' in text
    assert 'memwatch_collector_errors_total{collector="psi",reason="io"} 3.0' in text
    assert 'collector="cgroup"' not in text


def test_pressure_is_exported_as_number_state_and_reasons() -> None:
    pressure = Pressure("ram", Level.HIGH, Level.MEDIUM, 0.79, (Reason("util", "79.0% used"),))

    text = rendered(snapshot_of(pressure=(pressure,)))

    assert 'memwatch_pressure_level{device="",target="ram"} 2.0' in text
    assert 'memwatch_pressure{device="",level="high",target="ram"} 1.0' in text
    assert 'memwatch_pressure{device="",level="critical",target="ram"} 0.0' in text
    assert 'memwatch_pressure_reason{device="",signal="util",target="ram"} 1.0' in text
    assert "memwatch_time_to_full_seconds{" not in text


def test_process_metrics_are_exported_only_if_enabled() -> None:
    """One series per process is expensive to store."""
    held: dict[str, int | Absent] = {"gpu0": 2 * GIB, "gpu1": Absent.NOT_PERMITTED}
    process = Process(
        42, 0.0, 'py"thon\n', GIB, 3 * GIB, "rss + device", unit="x.service", device_bytes=held, swap_bytes=0
    )
    shot = snapshot_of(processes=(process,))

    assert "process_" not in rendered(shot)
    text = rendered(shot, most_processes=1)
    labels = 'container="",name="py\\"thon\\n",pid="42",unit="x.service"'
    assert f"memwatch_process_resident_bytes{{{labels}}} 1.073741824e+09" in text
    assert f'memwatch_process_device_bytes{{{labels},within="gpu0"}} 2.147483648e+09' in text
    assert f"memwatch_process_swap_bytes{{{labels}}} 0.0" in text
    assert "gpu1" not in text


def test_resident_and_device_memory_of_processes_have_separate_names() -> None:
    """Bytes on a device may also be resident: each family can be summed, the two together cannot."""
    one = Process(1, 0.0, "a", GIB, GIB, "rss", device_bytes={"cuda0": GIB})
    two = Process(2, 0.0, "b", GIB, GIB, "rss", device_bytes={"cuda0": GIB})

    text = rendered(snapshot_of(processes=(one, two)), most_processes=2)

    for name in ("process_resident_bytes", "process_device_bytes"):
        figures = re.findall(rf"^memwatch_{name}\{{.*\}} (.*)$", text, re.MULTILINE)
        assert sum(map(float, figures)) == 2 * GIB


def test_openmetrics_names_the_unit_of_every_family(daemon: RunningDaemon) -> None:
    """Each family whose name ends in a unit has a UNIT line; the parser rejects a unit that the name lacks."""
    text = daemon.get("/metrics", Accept=OPENMETRICS).text

    families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    units = {name: family.unit for name, family in families.items() if name.startswith("memwatch_")}
    assert units["memwatch_pool_used_bytes"] == "bytes"
    assert units["memwatch_psi_stalled_seconds"] == "seconds"
    assert units["memwatch_tick_run_seconds"] == "seconds"
    assert {name for name in units if name.endswith(("_bytes", "_seconds", "_ratio"))} == {
        name for name, unit in units.items() if unit
    }


def test_peak_between_two_scrapes_is_exported(tmp_path: Path) -> None:
    """Memory fills up and empties again before the next scrape: only gauges of that moment miss it."""
    machine = MutableMachine.of("workstation", tmp_path / "machine")
    machine.use(0.3)
    config = '[pressure]\nclear_after = "0s"\n'
    with running_daemon(tmp_path, "--interval", "100ms", *machine.arguments, config=config) as daemon:
        before = scraped(daemon)
        machine.use(0.97)
        daemon.wait_for("/api/v1/pressure", lambda found: found[0]["level"] == "critical")
        machine.use(0.3)
        daemon.wait_for("/api/v1/pressure", lambda found: found[0]["level"] == "low")
        after = scraped(daemon)

    size, changed = after["memwatch_pool_size_bytes"], "memwatch_pressure_changes_total"
    critical = 'memwatch_pressure_seconds_total{device="",level="critical",target="ram"}'
    assert after["memwatch_pool_used_bytes"] < 0.4 * size
    assert after["memwatch_pool_used_bytes_max"] > 0.95 * size
    assert after["memwatch_pool_available_bytes_min"] < 0.05 * size
    assert (before[critical], before[changed]) == (0, 0)
    assert after[critical] > 0
    assert after[changed] >= 2
    assert after["memwatch_tick_run_seconds_count"] > before["memwatch_tick_run_seconds_count"]


def scraped(daemon: RunningDaemon) -> dict[str, float]:
    """Return the last sample of each name, and each sample by name and labels."""
    lines = [line for line in daemon.get("/metrics", Accept=CLASSIC).text.splitlines() if line[0] != "#"]
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    return {name.partition("{")[0]: value for name, value in samples.items()} | samples


def test_own_process_is_described_as_by_the_client_library() -> None:
    """Names, texts and types are those of every client library; figures are of this process."""
    usage = replace(snapshot_of().self_usage, rss_bytes=5, cpu_seconds=2.5)
    ours = own_process_families(usage, ProcessFigures(0, {}, 0, 7))
    theirs = {one.name: one for one in ProcessCollector(registry=None).collect()}

    assert {one.name for one in ours} == set(theirs)
    found = {one.name.removeprefix("process_"): one.samples[0].value for one in ours}
    for one in ours:
        other = theirs[one.name]
        assert (one.type, one.documentation, one.unit) == (other.type, other.documentation, other.unit)
        assert [each._replace(value=0) for each in one.samples] == [
            each._replace(value=0) for each in other.samples
        ]
    assert (found["virtual_memory_bytes"], found["resident_memory_bytes"], found["cpu_seconds"]) == (7, 5, 2.5)
    for name in ("max_fds", "start_time_seconds"):
        assert found[name] == pytest.approx(theirs[f"process_{name}"].samples[0].value, abs=0.02)
    assert found["open_fds"] == len(os.listdir("/proc/self/fd")) - 1


def test_own_process_without_figures_has_no_series() -> None:
    assert own_process_families(snapshot_of().self_usage, None) == ()
