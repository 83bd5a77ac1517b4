"""History of the largest processes, units and containers: API, `memwatch history`, and restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.client_process import memwatch
from support.container_host import MIB, OFTEN, simulated
from support.daemon_process import running_daemon
from support.fakes import GIB
from support.monitors import history
from support.store_machine import BOOTS, HOG, Machine, Running
from support.waiting import wait_until

FOOTPRINT = "process.4242-1.footprint_bytes"
CONTAINER = "container.c0ffeec0ffee.footprint_bytes"


def values(run: Running, name: str = FOOTPRINT) -> list[float]:
    return [value for _, value in history(run.monitor).holders.history.since(name, -1e12)]


def hold(run: Running, size: int, ticks: int = 10, start: float = 1.0) -> None:
    """Let the process hold this much for some ticks of one second: a reading for each ten."""
    hog = replace(HOG, rss_bytes=size, footprint_bytes=size, start_time=start)
    run.memory.findings = replace(run.memory.findings, processes=(hog,))
    for _ in range(ticks):
        run.tick(GIB)


def test_curve_continues_after_a_restart_with_its_title(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "state")
    first = machine.start()
    for size in (1, 2, 3):
        hold(first, size * GIB)
    first.keeper.stop(30.0)
    machine.clock.now += 30.0

    again = machine.start()
    restored = values(again)
    hold(again, 4 * GIB)

    assert restored == [1.0 * GIB, 2.0 * GIB, 3.0 * GIB]
    assert values(again) == [*restored, 4.0 * GIB]
    assert history(again.monitor).holders.titles()["process.4242-1"] == "hog"
    buckets = history(again.monitor).series.query(FOOTPRINT, 0.0, machine.clock.now, 1000)
    assert [bucket.average for bucket in buckets].count(None) == 1


def test_reused_process_id_after_a_reboot_is_another_curve(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "state")
    first = machine.start()
    hold(first, 5 * GIB)
    first.keeper.stop(30.0)
    machine.reboot()

    again = machine.start()
    hold(again, 1 * GIB, start=5000.0)

    assert values(again) == [5.0 * GIB]
    assert values(again, "process.4242-5000.footprint_bytes") == [1.0 * GIB]
    assert history(again.monitor).series.find("process.4242.footprint_bytes") == "process.4242-5000.footprint_bytes"


def fill(run: Running, sizes: range) -> None:
    """Have a reading of each size, and all that is due on disk."""
    for size in sizes:
        hold(run, size * GIB)
    run.flush()


def test_kill_loses_five_minutes_at_most(tmp_path: Path) -> None:
    """30 readings of ten seconds are written with rows of the machine, and by the next run in a record."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    fill(first, range(1, 30))
    assert first.keeper._holders_kept == 0
    fill(first, range(30, 36))
    written = first.keeper._holders_kept
    assert (first.keeper._next_holders[0], written >= 30) == (0, True)
    first.kill()

    again = machine.start()
    restored = values(again)
    again.tick(GIB)
    again.flush()

    assert restored == [float(size * GIB) for size in range(1, written + 1)]
    assert history(again.monitor).holders.titles()["process.4242-1"] == "hog"
    wait_until(lambda: again.keeper._next_holders[0] >= written)


def test_half_an_hour_of_holders_is_a_record_that_continues_those_in_other_rows(tmp_path: Path) -> None:
    """Versions that do not know of rows of holders in other rows find all but the last half hour."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    for start in range(1, 200, 33):
        fill(first, range(start, start + 33))
    own = first.keeper._next_holders[0]
    assert own >= 180
    fill(first, range(232, 268))
    kept = first.keeper._holders_kept
    assert first.keeper._next_holders[0] == own < kept
    first.kill()

    again = machine.start()

    assert values(again) == [float(size * GIB) for size in range(1, kept + 1)]


def test_ring_that_is_soon_overwritten_does_not_keep_holders_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "state")
    first = machine.start()
    first.keeper._fine_blocks = first.keeper.files.ring_set.rings["fine"].blocks // 2
    fill(first, range(1, 36))
    first.kill()

    again = machine.start()

    assert first.keeper._next_holders[0] == first.keeper._holders_kept >= 30
    assert len(values(again)) >= 30


def test_rows_of_the_machine_are_restored_beside_those_of_holders(tmp_path: Path) -> None:
    """Both are in the files of the coarser tiers, in records of their own kind."""
    machine = Machine(tmp_path / "state")
    first = machine.start()
    for size in range(1, 62):
        hold(first, size * GIB)
    first.keeper.stop(30.0)

    again = machine.start()

    rings = again.keeper.files.ring_set
    assert rings.complaints == []
    assert [len(tier) for tier in history(again.monitor).tiers.tiers] == [
        len(tier) for tier in history(first.monitor).tiers.tiers
    ]
    assert [len(tier) for tier in history(again.monitor).holders.history.tiers] == [61, 2]


def query(name: str) -> str:
    return f"/api/v1/history?series={name}&points=20"


def test_series_are_served_by_full_and_by_short_name(tmp_path: Path) -> None:
    """The values are those of the process list; a series that is not known is refused with those that are."""
    host = simulated(tmp_path)
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text(f"{BOOTS[0]}\n")
    with running_daemon(tmp_path, *host, f"--state-dir={tmp_path / 'state'}", config=OFTEN) as daemon:
        daemon.wait_for(query("process.77.footprint_bytes"), lambda found: "series" in found)
        (process,) = (one for one in daemon.get("/api/v1/processes").json if one["pid"] == 77)
        (series,) = daemon.get(query("process.77.footprint_bytes")).json["series"]
        (container,) = daemon.get(query(CONTAINER)).json["series"]
        refused = daemon.get(query("process.4000000.footprint_bytes"))
        shown = memwatch("history", "--series", "process.77.footprint_bytes", "--url", daemon.url)
        assert daemon.terminate() == 0

    name = f"process.77-{round(process['start_time'])}.footprint_bytes"
    assert (series["name"], series["unit"]) == (name, "bytes")
    assert set(series["max"]) - {None} == {512.0 * MIB}
    assert set(container["max"]) - {None} == {512.0 * MIB}
    assert refused.status == 422
    assert name in refused.json["detail"]
    assert "process.77-" in shown.stdout
    assert "512.0 MiB" in shown.stdout

    with running_daemon(tmp_path, *host, f"--state-dir={tmp_path / 'state'}", config=OFTEN) as daemon:
        (again,) = daemon.get(query(name)).json["series"]
        page = daemon.get(f"/history?series={name}&series={CONTAINER}").text
        link = f'<a href="history?series={CONTAINER}"'
        wait_until(lambda: link in daemon.get("/processes?by=container").text)

    assert again["unix"][0] == pytest.approx(series["unix"][0], abs=0.1)
    assert "serve (PID 77)" in page
    assert json.dumps(name) in page
