"""History of the largest processes, units and containers: places, identity, and bounds."""

from __future__ import annotations

import random
import tracemalloc

from msgspec.structs import replace

from memwatch.core.model import Absent, Process
from memwatch.core.owners import sum_owners
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.history.tier import TierSpec
from memwatch_monitor.history.holders import (
    MAX_KEPT,
    MAX_RECORDED,
    Holder,
    HolderHistory,
    build_figures,
    choose,
    is_same_process,
    list_holders,
    parse_name,
)
from support.sample_snapshots import critical_gb10

GIB = 1 << 30
START = 1_764_115_200.0
SMALL = (TierSpec(10.0, 1000.0), TierSpec(300.0, 30_000.0))


def holder(name: str, size: int) -> Holder:
    return Holder(name, name, size, process(7, size))


def process(pid: int, size: int, start: float = START, **fields: object) -> Process:
    return replace(Process(pid, start, f"job{pid}", size, size, "rss", unit=None, container=None), **fields)


def machine(*processes: Process) -> Snapshot:
    """Return a machine whose owners are the sums of these processes."""
    return replace(critical_gb10(), processes=processes, owners=sum_owners(processes))


def values(past: HolderHistory, name: str) -> list[tuple[float, float]]:
    return past.history.since(past.find(name), 0.0)


def test_largest_holders_are_recorded() -> None:
    chosen = choose([holder(f"h{number}", number) for number in range(1, 31)], ())

    assert [one.id for one in chosen] == [f"h{number}" for number in range(30, 20, -1)]


def test_equal_holders_keep_their_places() -> None:
    """32 workers of about one size take no turns: none leads by a tenth."""
    jitter = random.Random(1)
    recorded: set[str] = set()
    first = None
    for _ in range(200):
        workers = [holder(f"w{number}", GIB + jitter.randrange(GIB // 20)) for number in range(32)]
        recorded = {one.id for one in choose(workers, recorded)}
        first = first or recorded

    assert len(recorded) == MAX_RECORDED
    assert recorded == first


def test_holder_that_leads_by_a_tenth_takes_the_smallest_place() -> None:
    recorded = {f"h{number}": GIB * (1 + number) for number in range(MAX_RECORDED)}
    holders = [holder(name, size) for name, size in recorded.items()]

    close = {one.id for one in choose([*holders, holder("new", int(1.09 * GIB))], recorded)}
    clear = {one.id for one in choose([*holders, holder("new", int(1.11 * GIB))], recorded)}

    assert close == set(recorded)
    assert clear == set(recorded) - {"h0"} | {"new"}


def test_free_place_goes_to_the_largest_other_one() -> None:
    recorded = [f"h{number}" for number in range(MAX_RECORDED)]
    holders = [holder(name, GIB) for name in recorded[1:]]

    chosen = {one.id for one in choose([*holders, holder("a", 5), holder("b", 6)], recorded)}

    assert chosen == {*recorded[1:], "b"}


def test_series_have_the_names_of_the_json_fields() -> None:
    """A footprint with bounds has the names of these; GPU memory is a separate series."""
    exact = process(7, GIB, unit="ssh.service", container="0123456789ab")
    bounded = replace(
        process(8, GIB, device_bytes={"cuda": GIB}),
        footprint_bytes=Absent.NOT_SUPPORTED,
        footprint_range=(GIB, 2 * GIB),
    )
    past = HolderHistory(SMALL)
    past.add(1000.0, machine(exact, bounded))

    assert sorted(past.names()) == [
        "container.0123456789ab.footprint_bytes",
        "process.7-1764115200.footprint_bytes",
        "process.8-1764115200.device_bytes",
        "process.8-1764115200.footprint_high_bytes",
        "process.8-1764115200.footprint_low_bytes",
        "unit.ssh.service.footprint_bytes",
    ]
    assert [parse_name(name) is None for name in past.names()] == [False] * 6
    assert parse_name("unit.ssh.service.footprint_bytes") == ("unit", "ssh.service", "footprint_bytes")
    assert [parse_name(name) for name in ("pool.ram.used_bytes", "process.7", "unit..footprint_bytes")] == [
        None
    ] * 3


def test_name_without_a_start_time_is_the_latest_process_with_that_id() -> None:
    """Any other name is that of a series already, also that of a unit whose name is a number."""
    past = HolderHistory(SMALL)
    for at, start in enumerate((START, START + 900)):
        past.add(1000.0 + 10 * at, machine(process(7, GIB, start, unit="7")))

    assert past.find("process.7.footprint_bytes") == "process.7-1764116100.footprint_bytes"
    for name in (
        "pool.ram.used_bytes", "process.7", "unit.7.footprint_bytes", "process.8.footprint_bytes",
        "process.7-1764115200.footprint_bytes",
    ):  # fmt: skip
        assert past.find(name) == name


def test_unknown_figures_are_no_series() -> None:
    """A process without a start time cannot be told from a later one; unknown GPU memory is not 0."""
    unknown = process(8, GIB, device_bytes={"cuda": Absent.NOT_PERMITTED})
    nameless = replace(process(9, GIB), start_time=Absent.NOT_AVAILABLE)
    sizeless = replace(process(10, 0), footprint_bytes=Absent.NOT_PERMITTED)

    found = list_holders(machine(unknown, nameless, sizeless), "process")

    assert [(one.id, build_figures(one.of)) for one in found] == [("8-1764115200", {"footprint_bytes": GIB})]


def test_small_unit_with_gpu_memory_is_among_the_largest() -> None:
    """Units are listed by RSS; those far down the list count if they hold GPU memory or are recorded."""
    large = [process(pid, GIB * pid, unit=f"unit{pid}.service") for pid in range(2, 42)]
    engine = replace(
        process(1, 1, unit="engine.service", device_bytes={"cuda": 99 * GIB}), footprint_bytes=99 * GIB
    )
    snapshot = machine(*large, engine)

    found = {one.id: one.size_bytes for one in list_holders(snapshot, "unit", {"unit2.service"})}

    assert found["engine.service"] == 99 * GIB
    assert "unit2.service" in found
    assert "unit3.service" not in found
    assert len(found) == 2 * MAX_RECORDED + 2


def test_reused_process_id_begins_a_new_curve() -> None:
    past = HolderHistory(SMALL)
    past.add(1000.0, machine(process(7, 3 * GIB)))
    past.add(1010.0, machine(process(7, GIB, START + 5)))

    assert values(past, "process.7-1764115200.footprint_bytes") == [(1000.0, 3.0 * GIB)]
    assert values(past, "process.7-1764115205.footprint_bytes") == [(1010.0, 1.0 * GIB)]
    assert past.find("process.7.footprint_bytes") == "process.7-1764115205.footprint_bytes"
    assert past.find("process.8.footprint_bytes") == "process.8.footprint_bytes"


def test_one_reading_in_each_slot() -> None:
    """Ticks come each second or faster; processes are read each ten seconds."""
    past = HolderHistory(SMALL)
    for tenth in range(305):
        past.add(1000.0 + tenth / 10, machine(process(7, tenth + 1)))

    assert values(past, "process.7.footprint_bytes") == [(1000.0 + 10 * n, 100.0 * n + 1) for n in range(4)]


def test_ended_process_keeps_its_curve_and_others_leave_a_gap() -> None:
    past = HolderHistory(SMALL)
    for step in range(20):
        past.add(1000.0 + 10 * step, machine(process(7, GIB), *([process(8, GIB)] if step < 5 else [])))

    assert len(values(past, "process.8.footprint_bytes")) == 5
    assert len(values(past, "process.7.footprint_bytes")) == 20
    assert past.titles()["process.8-1764115200"] == "job8"
    assert past.current_names() == ["process.7-1764115200.footprint_bytes"]
    assert len(past.names()) == 2


def test_missing_process_list_is_a_gap() -> None:
    past = HolderHistory(SMALL)
    past.add(1000.0, machine(process(7, GIB)))
    past.add(1010.0, machine())
    past.add(1060.0, machine(process(7, GIB)))

    buckets = past.history.query(past.find("process.7.footprint_bytes"), 1000.0, 1070.0, 7)
    assert [bucket.average for bucket in buckets] == [GIB, None, GIB]


def test_2000_churning_processes_take_bounded_space() -> None:
    """Each process lives for some readings, beside one that stays and is never evicted."""
    past = HolderHistory()
    stays = process(1, 2 * GIB, unit="stays.service")

    def run(first: int, last: int) -> None:
        for step in range(first, last):
            alive = [process(100 + 2 * step - back, GIB, START + step - back) for back in range(12)]
            past.add(1000.0 + 10 * step, machine(stays, *alive))

    tracemalloc.start()
    run(0, 1000)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    names = past.names()
    assert len(names) == MAX_KEPT + 1  # and the unit
    assert len({name for name in names if name.startswith("process.")}) == MAX_KEPT
    assert values(past, "process.1.footprint_bytes")[0][0] == 1000.0
    assert len(values(past, "process.1.footprint_bytes")) == 1000
    assert len(past.titles()) == MAX_KEPT + 1
    assert taken < 400_000


def test_restored_process_continues_despite_another_boot_time() -> None:
    """The boot time is read in whole seconds: a later run may see the start a second later."""
    first = HolderHistory(SMALL)
    first.add(1000.0, machine(process(7, GIB), process(8, GIB)))
    rows, _ = first.written_since(0, 0)

    second = HolderHistory(SMALL)
    second.restore(([rows], []), first.titles())
    second.add(1020.0, machine(process(7, 2 * GIB, START + 1.0), process(8, GIB, START + 60.0)))

    assert values(second, "process.7.footprint_bytes") == [(1000.0, 1.0 * GIB), (1020.0, 2.0 * GIB)]
    assert values(second, "process.8.footprint_bytes") == [(1020.0, 1.0 * GIB)]
    assert second.titles()["process.8-1764115200"] == "job8"
    assert is_same_process("7-100", "7-102")
    assert not is_same_process("7-100", "7-103")
    assert not is_same_process("7-100", "8-100")
    assert not is_same_process("7-100", "7-x")


def test_restore_keeps_the_bound() -> None:
    """Files of a day may name more holders than are kept: the first ones are dropped."""
    parts = []
    for part in range(5):
        one = HolderHistory(SMALL)
        one.add(1000.0 + 10 * part, machine(*(process(100 * part + n, GIB) for n in range(1, 11))))
        parts.append(one.written_since(0, 0)[0])
    past = HolderHistory(SMALL)

    past.restore((parts, []), {})

    assert len(past.names()) == MAX_KEPT
    assert past.find("process.401.footprint_bytes").startswith("process.401-")
    assert past.find("process.1.footprint_bytes") == "process.1.footprint_bytes"


def test_written_rows_leave_out_series_that_have_ended() -> None:
    past = HolderHistory(SMALL)
    past.add(1000.0, machine(process(7, GIB), process(8, GIB)))
    _, coming = past.written_since(0, 0)
    past.add(1010.0, machine(process(7, GIB)))

    rows, _ = past.written_since(0, coming)

    assert list(rows.columns) == ["process.7-1764115200.footprint_bytes"]


def test_other_lengths_keep_the_rows() -> None:
    past = HolderHistory(SMALL)
    for step in range(10):
        past.add(1000.0 + 10 * step, machine(process(7, GIB)))

    past.resize((TierSpec(10.0, 50.0), TierSpec(300.0, 30_000.0)))

    assert len(values(past, "process.7.footprint_bytes")) == 5
