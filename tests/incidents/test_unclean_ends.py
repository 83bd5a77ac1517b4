"""Test the explanation of runs that did not end cleanly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.core.linux.files import Roots
from memwatch.core.linux.kmsg_parser import find_crash_records
from memwatch.reporting.history.last_run import Sample as LastSample
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.history.notable_ticks import Holder, PoolUse, TargetPressure, Tick
from memwatch_monitor.incidents.assemble import build_unclean, close_cut_off, explain_end
from support.sample_incident import GIB, INCIDENT


def words(level: int, restarted: bool, rise: bool = True) -> UncleanShutdown:
    """Return last words in which a server took the memory of a GB10 in nine seconds."""
    ticks = []
    for second in range(10):
        held = (90 + 2.8 * second if rise else 20) * GIB
        used = int(held) + 4 * GIB
        pool = PoolUse("ram", "System RAM", 122 * GIB, used, 122 * GIB - used)
        holder = Holder(3921, "vllm", "ada", None, None, int(held), int(held))
        verdict = TargetPressure("ram", "System RAM", level, used / (122 * GIB), ())
        ticks.append(Tick(second, 5000.0 + second, 100.0 + second, (pool,), (verdict,), (holder,)))
    samples = tuple(LastSample(one.boottime, one.unix, {}) for one in ticks)
    return UncleanShutdown(5009.0, restarted, samples, ticks[-1], tuple(ticks))


@pytest.mark.parametrize("place", ["gpu0.vram", "gpu0.mig1"])
def test_unclean_end_counts_no_memory_of_a_discrete_gpu_as_system_ram(place: str) -> None:
    """System RAM filled while a server filled its GPU, or its MIG instance, whose share is in no tick."""
    last = words(3, True)
    vram = PoolUse("gpu0.vram", "VRAM", 141 * GIB, 20 * GIB, 121 * GIB)
    ticks = tuple(
        replace(one, pools=(*one.pools, vram), processes=(on_gpu(one.processes[0], place),)) for one in last.ticks
    )

    found = build_unclean(replace(last, ticks=ticks, last=ticks[-1]), ())

    assert found is not None
    assert (found.cause, found.candidates) == (None, ())
    assert set(found.samples[-1].holders.values()) == {GIB}


def on_gpu(holder: Holder, place: str) -> Holder:
    """Return the holder with all but 1 GiB of its footprint on a GPU."""
    held = replace(holder, rss_bytes=GIB)
    return replace(held, device_bytes={place: holder.footprint_bytes})


@pytest.mark.parametrize(
    ("level", "restarted", "crash", "kind", "text"),
    [
        (3, True, (), "unknown", "a freeze and a loss of power look the same"),
        (0, True, (), "power", "System RAM was OK"),
        (3, True, ("dmesg-efi-1: Kernel panic - not syncing: x",), "unknown", "Kernel panic - not syncing: x"),
        (3, False, (), "unknown", "memwatchd crashed or was killed"),
    ],
    ids=["wedge", "power loss", "panic", "daemon killed"],
)
def test_unclean_end_is_explained_by_boot_level_and_crash_record(
    level: int, restarted: bool, crash: tuple[str, ...], kind: str, text: str
) -> None:
    killer, _ = explain_end(words(level, restarted), crash)

    assert killer.kind == kind
    assert text in killer.evidence


def test_last_words_of_a_frozen_machine_name_the_cause() -> None:
    """The ticks before the end are on disk, with their holders."""
    found = build_unclean(words(3, True), ())

    assert found is not None
    assert found.cause is not None
    assert found.cause.pid == 3921
    assert found.sentence.startswith("vllm (PID 3921) took 25.2 GiB in ")
    assert found.ended == 5009.0
    assert found.came_back_bytes is None


def test_power_loss_at_low_pressure_blames_no_process() -> None:
    found = build_unclean(words(0, True, rise=False), ())

    assert found is not None
    assert (found.cause, found.candidates) == (None, ())
    assert "the machine lost power or was reset" in found.sentence


def test_daemon_killed_at_low_pressure_is_no_incident() -> None:
    assert build_unclean(words(0, False, rise=False), ()) is None


def test_incident_that_was_cut_off_ends_at_its_last_data() -> None:
    closed = close_cut_off(replace(INCIDENT, ended=None), words(3, True), ())

    assert closed.kind == "unclean_end"
    assert closed.ended == 5009.0
    assert closed.killer == INCIDENT.killer
    assert "stopped, by a freeze or a reset" in closed.sentence


def test_crash_record_counts_only_if_it_is_newer_than_the_last_sample(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/pstore"
    folder.mkdir(parents=True)
    record = folder / "dmesg-efi-1"
    record.write_text("<0>Kernel panic - not syncing: Fatal exception\n<4>more\n")
    roots = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)
    now = time.time()

    assert find_crash_records(roots, now - 60) == ("dmesg-efi-1: Kernel panic - not syncing: Fatal exception",)
    assert find_crash_records(roots, now + 60) == ()
    assert find_crash_records(Roots(tmp_path / "proc", tmp_path / "none", tmp_path / "none"), 0.0) == ()
