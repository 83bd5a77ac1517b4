"""Metrics as Prometheus wants them: named well, absent when unknown, the same bytes for all scrapers of a tick."""

from __future__ import annotations

import gzip
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from memwatch.model import Absent, PoolKind, Process, Quality, Share, ShareKind
from memwatch.snapshot import CollectorStatus, Level, Machine, Pressure, Reason, SelfUsage, Snapshot
from memwatch_web.metrics.families import Exporter
from scripts.golden import with_help
from support.daemon_process import RunningDaemon, running_daemon
from support.fakes import GIB, ram
from support.paths import MACHINES

CLASSIC = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon whose ticks are far enough apart that two requests see the same one."""
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--interval", "30s") as running:
        yield running


def rendered(snapshot: Snapshot, most_processes: int = 0) -> str:
    exporter = Exporter("1.2.3", dict, tuple, lambda: most_processes)
    text = exporter.render(snapshot, generate_latest).decode()
    return "\n".join(line for line in text.splitlines() if line.startswith("memwatch_"))


def snapshot_of(**parts: object) -> Snapshot:
    own = SelfUsage(50_000_000, 1.5, 0.001, 0.0002, True)
    base = Snapshot(7, 1_700_000_000.0, 0.0, "boot", "host", 1.0, False, Machine(), own, (ram(GIB),))
    return replace(base, **parts)


def test_promtool_finds_nothing_to_complain_about(daemon: RunningDaemon) -> None:
    """Names, units and help texts pass the linter of the people who scrape."""
    body = daemon.get("/metrics", Accept=CLASSIC).body

    lint = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)

    assert lint.returncode == 0, lint.stdout.decode() + lint.stderr.decode()
    assert lint.stderr == b""


@pytest.mark.parametrize(
    "file", sorted(MACHINES.glob("*/metrics*.txt")), ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_promtool_finds_nothing_on_any_machine(file: Path) -> None:
    """Every family that any simulated machine has, with no line filtered out."""
    body = with_help(file.read_text()).encode()

    lint = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)

    assert (lint.returncode, lint.stdout, lint.stderr) == (0, b"", b"")


def test_both_formats_parse_and_agree(daemon: RunningDaemon) -> None:
    """What one client library wrote, its parsers read: the same samples in text and in OpenMetrics."""
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
def test_a_version_that_is_no_number_gets_the_classic_format(daemon: RunningDaemon, accept: str) -> None:
    """An Accept header is a stranger's text: whatever it says, metrics are the answer."""
    answer = daemon.get("/metrics", Accept=accept)

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"memwatch_pool_size_bytes" in answer.body


def test_gzip_is_sent_to_those_who_ask(daemon: RunningDaemon) -> None:
    """A third of the bytes, the same content."""
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
def test_who_refuses_gzip_is_not_sent_it(daemon: RunningDaemon, header: str, wanted: bool) -> None:
    """A weight of nought is a refusal; names that only contain the word are others. Pages go by the same."""
    for path in ("/metrics", "/", "/static/app.css"):
        answer = daemon.get(path, Accept_Encoding=header)

        assert answer.status == 200
        assert ("content-encoding" in answer.headers) == wanted, path


def test_scrapers_of_one_tick_get_the_same_bytes(daemon: RunningDaemon) -> None:
    """Rendering happens once; even the daemon's own processor time stands still between ticks."""
    assert len({daemon.get("/metrics").body for _ in range(5)}) == 1


def test_only_pools_can_be_summed() -> None:
    """sum(memwatch_pool_used_bytes) is the truth: shares have another name."""
    share = Share("cuda0", ShareKind.CUDA_POOL, "CUDA Pool", "ram", GIB, "nvml", Quality.MEASURED, device="gpu0")
    vram = replace(ram(2 * GIB, 8 * GIB, "vram0"), kind=PoolKind.VRAM)

    text = rendered(snapshot_of(pools=(ram(3 * GIB), vram), shares=(share,)))

    used = re.findall(r"^memwatch_pool_used_bytes\{.*\} (.*)$", text, re.MULTILINE)
    assert sum(map(float, used)) == 5 * GIB
    assert (
        'memwatch_share_used_bytes{device="gpu0",kind="cuda_pool",share="cuda0",within="ram"} 1.073741824e+09'
        in text
    )


def test_what_is_not_known_has_no_sample() -> None:
    """Absent is a missing line: not 0, not NaN, not the last one."""
    stale = replace(ram(GIB), used_bytes=Absent.STALE, available_bytes=Absent.STALE, free_bytes=Absent.STALE)

    text = rendered(snapshot_of(pools=(stale,)))

    assert "memwatch_pool_size_bytes{" in text
    for gone in ("pool_used", "pool_available", "pool_free", "kernel_oom", "psi_", "swap_", "NaN"):
        assert gone not in text


def test_a_collector_this_machine_does_not_need_is_not_down() -> None:
    """collector_up is 0 for what fails and missing for what is not there, so `== 0` can be alerted on."""
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


def test_pressure_is_a_number_a_state_and_reasons() -> None:
    """Three ways to ask, one truth."""
    pressure = Pressure("ram", Level.HIGH, Level.MEDIUM, 0.79, (Reason("util", "79.0% used"),))

    text = rendered(snapshot_of(pressure=(pressure,)))

    assert 'memwatch_pressure_level{target="ram"} 2.0' in text
    assert 'memwatch_pressure{level="high",target="ram"} 1.0' in text
    assert 'memwatch_pressure{level="critical",target="ram"} 0.0' in text
    assert 'memwatch_pressure_reason{signal="util",target="ram"} 1.0' in text
    assert "memwatch_time_to_full_seconds{" not in text


def test_processes_are_exported_only_when_asked_for() -> None:
    """A label per process is expensive for whoever stores it."""
    process = Process(42, 0.0, 'py"thon\n', GIB, GIB, "rss", unit="x.service", container=None)
    shot = snapshot_of(processes=(process,))

    assert "process_memory" not in rendered(shot)
    text = rendered(shot, most_processes=1)
    labels = 'container="",name="py\\"thon\\n",pid="42",unit="x.service",where="rss"'
    assert f"memwatch_process_memory_bytes{{{labels}}} 1.073741824e+09" in text
