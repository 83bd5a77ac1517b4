"""Test rows of processes that only a driver lists, and which processes without a parent are orphans."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.core.accounting.compose import Composer
from memwatch.core.drivers.nvml.records import GpuProcess, GpuReading, NvmlReading
from memwatch.core.findings import Findings
from memwatch.core.model import Absent, Process, Quality
from memwatch.core.owners import Owner, build_totals
from memwatch.core.snapshot import Machine, ProcessScan
from support.fakes import GIB, ram
from support.nvidia_accounting import SPARK, gb10, gpu, memory

CARD_MIB = 24564
KNOWN = Process(50, 1.0, "python3", GIB, GIB, "rss", unit="a.service", container=None, user="ada")


def card(*processes: GpuProcess) -> GpuReading:
    return gpu("NVIDIA A10", memory=memory(CARD_MIB, 400, 20400, CARD_MIB - 20800), processes=processes)


def found(
    reading: GpuReading,
    missing: frozenset[int] = frozenset({4242}),
    process: Process = KNOWN,
    scan: ProcessScan | None = None,
) -> Findings:
    return Composer().compose(
        [
            Findings(
                pools=(replace(ram(90 * GIB, SPARK), unattributed_bytes=80 * GIB, quality=Quality.DERIVED),),
                machine=Machine("test"),
                processes=(process,),
                process_scan=scan or ProcessScan(1, 0),
                missing_pids=missing,
            ),
            Findings(nvml=NvmlReading("580.126.09", "13.0", (reading,))),
        ]
    )


def test_missing_pid_is_a_row_with_its_bytes() -> None:
    """Its name and user are absent, and its footprint has a lower bound only."""
    whole = found(card(GpuProcess(50, GIB), GpuProcess(4242, 12 * GIB)))

    known, ghost = whole.processes
    assert (known.visible, known.note, known.device_bytes) == (True, None, {"gpu0": GIB})
    assert (ghost.pid, ghost.visible, ghost.device_bytes) == (4242, False, {"gpu0": 12 * GIB})
    assert {ghost.name, ghost.user, ghost.unit, ghost.start_time} == {Absent.NOT_AVAILABLE}
    assert ghost.footprint_range == (12 * GIB, Absent.NOT_AVAILABLE)
    assert "another PID namespace, or it ended" in str(ghost.note)


def test_device_with_a_missing_pid_has_a_partial_list() -> None:
    """Its bytes are explained, so that they are not part of unattributed memory."""
    whole = found(card(GpuProcess(50, GIB), GpuProcess(4242, 12 * GIB)))

    (device,) = whole.devices
    vram = next(pool for pool in whole.pools if pool.id == "gpu0")
    assert device.process_list == "partial"
    assert device.notes == ("12.0 GiB is held by 1 process that is not visible from here: see the process list.",)
    assert vram.unattributed_bytes == 20800 * (1 << 20) - 400 * (1 << 20) - 13 * GIB


def test_pid_that_is_not_confirmed_changes_nothing() -> None:
    whole = found(card(GpuProcess(50, GIB), GpuProcess(4242, GIB)), missing=frozenset())

    assert [process.pid for process in whole.processes] == [50]
    assert whole.devices[0].process_list == "complete"


def test_memory_of_a_reused_pid_is_not_that_of_the_new_process() -> None:
    whole = found(card(GpuProcess(50, 2 * GIB)), missing=frozenset({50}))

    known, ghost = whole.processes
    assert (known.visible, known.device_bytes, known.footprint_bytes) == (True, {}, GIB)
    assert (ghost.visible, ghost.device_bytes) == (False, {"gpu0": 2 * GIB})


def test_note_names_the_reason_if_processes_are_hidden() -> None:
    """In a container, the likeliest reason is known."""
    whole = found(card(GpuProcess(4242, GIB)), scan=ProcessScan(1, 0, "partial", "why"))

    assert "outside this container or is hidden" in str(whole.processes[-1].note)


def test_missing_pids_are_one_owner_of_their_own() -> None:
    """Their owners are not known, and their bytes are in the list of owners all the same."""
    whole = found(card(GpuProcess(4242, GIB), GpuProcess(4243, GIB)), missing=frozenset({4242, 4243}))

    totals = build_totals([Owner("unit", "a.service", 1, GIB)], whole.processes, "unit")
    (last,) = (total for total in totals if not total.visible)

    assert (last.visible, last.name, last.processes) == (False, Absent.NOT_AVAILABLE, 2)
    assert (last.rss_bytes, last.device_bytes) == (Absent.NOT_AVAILABLE, {"gpu0": 2 * GIB})


def test_process_without_parent_is_an_orphan_if_it_holds_a_tenth_of_a_pool() -> None:
    """Of System RAM on a unified machine. Others without a parent are none."""
    left = replace(KNOWN, orphan=True)
    small, large = GpuProcess(50, SPARK // 11), GpuProcess(50, SPARK // 9)

    (not_large,) = found(gb10(small), process=left).processes
    (orphan,) = found(gb10(large), process=left).processes

    assert (not_large.orphan, not_large.note) == (False, None)
    assert orphan.orphan
    assert "its parent process has ended" in str(orphan.note)
    assert "kill 50" in str(orphan.note)
