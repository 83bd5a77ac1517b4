"""Test that model servers and processes beyond a limit are counted, and shown where the list is."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from memwatch.client.engines import engine_lines
from memwatch.collectors.engines import Collector
from memwatch.linux.engine_processes import MAX_ENGINES, MAX_MEMBERS
from memwatch.model import Absent
from memwatch.render.json import snapshot_json
from memwatch_web.metrics.engine_families import engine_families
from support.engine_host import EngineHost
from support.sample_snapshots import calm_workstation

LLAMA = ("llama-server", "-m", "/m/a.gguf")


def crowded(tmp_path: Path, count: int) -> EngineHost:
    host = EngineHost(tmp_path)
    for number in range(count):
        host.add(1000 + number, LLAMA)
    return host


def test_servers_beyond_the_limit_are_counted_and_shown(tmp_path: Path) -> None:
    found = Collector(crowded(tmp_path, MAX_ENGINES + 4).roots, True, (), None).collect()
    snapshot = replace(calm_workstation(), engines=found.engines, engines_not_followed=found.engines_not_followed)
    shown = snapshot_json(snapshot)

    assert (len(found.engines), found.engines_not_followed) == (MAX_ENGINES, 4)
    assert shown["engines_not_followed"] == 4
    assert list(engine_lines(shown["engines"], shown["engines_not_followed"]))[-1] == "and 4 more are not followed"
    samples = {one.name: one.value for family in engine_families(snapshot) for one in family.samples}
    assert samples["memwatch_engines_not_followed"] == 4


def test_server_beyond_the_limit_is_followed_when_another_has_ended(tmp_path: Path) -> None:
    host = crowded(tmp_path, MAX_ENGINES + 2)
    collector = Collector(host.roots, True, (), None)
    first = {one.pid for one in collector.collect().engines}
    (host.proc / "1003").rename(host.proc / "gone")
    found = collector.collect()

    assert {one.pid for one in found.engines} - first == {1000 + MAX_ENGINES}
    assert found.engines_not_followed == 1


def test_server_beyond_the_limit_that_ended_is_counted_no_more(tmp_path: Path) -> None:
    host = crowded(tmp_path, MAX_ENGINES + 2)
    collector = Collector(host.roots, True, (), None)
    collector.collect()
    (host.proc / str(1000 + MAX_ENGINES)).rename(host.proc / "gone")
    (host.proc / "1003").rename(host.proc / "gone too")
    found = collector.collect()

    assert (len(found.engines), found.engines_not_followed) == (MAX_ENGINES, 0)


def test_no_server_beyond_the_limit_is_no_line(tmp_path: Path) -> None:
    found = Collector(crowded(tmp_path, MAX_ENGINES).roots, True, (), None).collect()
    assert found.engines_not_followed == 0
    shown = snapshot_json(replace(calm_workstation(), engines=found.engines))
    assert "not followed" not in "".join(engine_lines(shown["engines"], shown["engines_not_followed"]))


def test_processes_of_a_server_beyond_the_limit_are_named(tmp_path: Path) -> None:
    host = crowded(tmp_path, 1)
    for number in range(MAX_MEMBERS + 3):
        host.add(2000 + number, ("worker",), parent=1000)
    (engine,) = Collector(host.roots, True, (), None).collect().engines

    assert len(engine.pids) == MAX_MEMBERS + 1
    assert engine.notes[-1] == "The memory of 3 more of its processes is not counted."
    assert engine.url is Absent.NOT_AVAILABLE
