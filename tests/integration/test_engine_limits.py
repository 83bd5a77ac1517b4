"""Test that model servers and processes beyond a limit are counted, and shown where the list is."""

from __future__ import annotations

import mmap
from pathlib import Path

from msgspec.structs import replace

from memwatch.cli.holders import engine_lines
from memwatch.core.budget import KINDS, Account, Budget, Budgets, users_part
from memwatch.core.collectors.engines import Collector
from memwatch.core.linux.engine_processes import (
    COMPARED_TURNS,
    LISTED_TURNS,
    MAX_MEMBERS,
    looked_at,
)
from memwatch.core.model import Absent
from memwatch.reporting.render.json import snapshot_json
from memwatch_web.metrics.families import engine_families
from support.dead_address import dead_port
from support.engine_host import EngineHost
from support.open_things import close_at_end
from support.sample_snapshots import calm_workstation

GIB = 1 << 30
# Of users. The rest is kept for services.
SLOTS = users_part(KINDS["engines"].most)
MOST = looked_at(Budget(KINDS["engines"]), Account("uid 1000"))
VLLM = ("vllm", "serve", "m")
LLAMA = ("llama-server", "-m", "/m/a.gguf")


def crowded(tmp_path: Path, count: int) -> EngineHost:
    host = EngineHost(tmp_path)
    for number in range(count):
        host.add(1000 + number, LLAMA)
    return host


def test_servers_beyond_the_limit_are_counted_and_shown(tmp_path: Path) -> None:
    found = close_at_end(Collector(crowded(tmp_path, SLOTS + 4).roots, True, (), None)).collect()
    snapshot = replace(calm_workstation(), engines=found.engines, engines_not_followed=found.engines_not_followed)
    shown = snapshot_json(snapshot)

    assert (len(found.engines), found.engines_not_followed) == (SLOTS, 4)
    assert shown["engines_not_followed"] == 4
    assert list(engine_lines(snapshot))[-1] == "and 4 more are not followed"
    samples = {one.name: one.value for family in engine_families(snapshot) for one in family.samples}
    assert samples["memwatch_engines_not_followed"] == 4


def test_server_beyond_the_limit_is_followed_when_another_has_ended(tmp_path: Path) -> None:
    host = crowded(tmp_path, SLOTS + 2)
    collector = close_at_end(Collector(host.roots, True, (), None))
    first = {one.pid for one in collector.collect().engines}
    (host.proc / "1003").rename(host.proc / "gone")
    found = collector.collect()

    assert {one.pid for one in found.engines} - first == {1000 + SLOTS}
    assert found.engines_not_followed == 1


def test_server_beyond_the_limit_that_ended_is_counted_no_more(tmp_path: Path) -> None:
    host = crowded(tmp_path, SLOTS + 2)
    collector = close_at_end(Collector(host.roots, True, (), None))
    collector.collect()
    (host.proc / str(1000 + SLOTS)).rename(host.proc / "gone")
    (host.proc / "1003").rename(host.proc / "gone too")
    found = collector.collect()

    assert (len(found.engines), found.engines_not_followed) == (SLOTS, 0)


def test_fakes_of_one_account_take_no_slot_from_servers_of_others(tmp_path: Path) -> None:
    """Processes that are only called like a server, some in containers; then two real ones."""
    host = EngineHost(tmp_path)
    (tmp_path / "etc/subuid").write_text("ana:100000:65536\n")
    for number in range(SLOTS):
        host.add(1000 + number, VLLM, uid=1000 if number % 2 else 100_000 + number)
    collector = close_at_end(Collector(host.roots, True, (), None, host.net))
    assert len(collector.collect().engines) == SLOTS
    host.add(1900, VLLM, uid=1001, resident_bytes=GIB)
    host.listen(1900, dead_port(), uid=1001)
    host.add(1901, VLLM, uid=1002, resident_bytes=GIB)  # it loads its model
    found = collector.collect()

    assert {1900, 1901} < {one.pid for one in found.engines}
    assert (len(found.engines), found.engines_not_followed) == (SLOTS, 2)


def test_server_is_followed_when_it_has_evidence(tmp_path: Path) -> None:
    """Fakes and server are of one account: only memory and socket tell them apart."""
    host = crowded(tmp_path, SLOTS)
    folder = host.add(1900, LLAMA, start=78)
    collector = close_at_end(Collector(host.roots, True, (), None, host.net))
    assert 1900 not in {one.pid for one in collector.collect().engines}
    (folder / "stat").write_text((folder / "stat").read_text().replace(" 5 0 0", f" {GIB // mmap.PAGESIZE} 0 0"))
    host.listen(1900, dead_port())
    rounds = [{one.pid for one in collector.collect().engines} for _ in range(COMPARED_TURNS)]

    assert 1900 in rounds[-1]
    assert [len(one) for one in rounds] == [SLOTS] * COMPARED_TURNS


def test_processes_beyond_the_limit_of_an_account_are_counted(tmp_path: Path) -> None:
    host = crowded(tmp_path, MOST + 5)
    host.add(900_000, LLAMA, uid=1001)
    found = close_at_end(Collector(host.roots, True, (), None, host.net)).collect()

    assert 900_000 in {one.pid for one in found.engines}
    assert found.engines_not_followed == MOST + 6 - SLOTS


def test_server_beyond_the_limit_of_its_account_is_followed_when_it_holds_memory(tmp_path: Path) -> None:
    """The processes of all containers without a user namespace may be root's."""
    host = crowded(tmp_path, MOST + 5)
    folder = host.add(900_000, LLAMA, start=78)
    collector = close_at_end(Collector(host.roots, True, (), None, host.net))
    assert 900_000 not in {one.pid for one in collector.collect().engines}
    (folder / "stat").write_text((folder / "stat").read_text().replace(" 5 0 0", f" {GIB // mmap.PAGESIZE} 0 0"))
    rounds = [collector.collect() for _ in range(LISTED_TURNS)]

    assert 900_000 in {one.pid for one in rounds[-1].engines}
    assert {one.engines_not_followed for one in rounds} == {MOST + 6 - SLOTS}


def test_limit_of_the_settings_bounds_the_servers_of_root(tmp_path: Path) -> None:
    """Forty of root are followed if the setting is 64, and those beyond the default are counted once each."""
    host = EngineHost(tmp_path)
    for number in range(40):
        host.add(1000 + number, LLAMA, uid=0)
    few, many = Budgets(), Budgets()
    many.use({"engines": 64})
    all_of_them = close_at_end(Collector(host.roots, True, (), None, budget=many["engines"])).collect()
    collector = close_at_end(Collector(host.roots, True, (), None, budget=few["engines"]))
    rounds = [collector.collect() for _ in range(LISTED_TURNS + 2)]

    assert (len(all_of_them.engines), many["engines"].refused) == (40, 0)
    assert {(len(one.engines), one.engines_not_followed) for one in rounds} == {(24, 16)}
    assert few["engines"].refused == 16


def test_no_server_beyond_the_limit_is_no_line(tmp_path: Path) -> None:
    found = close_at_end(Collector(crowded(tmp_path, SLOTS).roots, True, (), None)).collect()
    assert found.engines_not_followed == 0
    snapshot = replace(calm_workstation(), engines=found.engines)
    assert "not followed" not in "".join(engine_lines(snapshot))


def test_processes_of_a_server_beyond_the_limit_are_named(tmp_path: Path) -> None:
    host = crowded(tmp_path, 1)
    for number in range(MAX_MEMBERS + 3):
        host.add(2000 + number, ("worker",), parent=1000)
    (engine,) = close_at_end(Collector(host.roots, True, (), None)).collect().engines

    assert len(engine.pids) == MAX_MEMBERS + 1
    assert engine.notes[-1] == "The memory of 3 more of its processes is not counted."
    assert engine.url is Absent.NOT_AVAILABLE
