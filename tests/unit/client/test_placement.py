"""Placement of a need among machines: where it fits, and which processes would have to move."""

from __future__ import annotations

from typing import Any

import pytest

from memwatch.cli.fit import ANSWERS, read_answer
from memwatch.cli.machines import Need, Placement, machine_lines, place, placement_lines, read_machines
from memwatch.core.model import Absent
from memwatch.reporting.answers import ListedMachine, MachineHolder, MachinePool, MachineTick
from memwatch_monitor.neighbours.machines import list_machines
from memwatch_monitor.neighbours.tick import build_tick
from memwatch_web.api.machines import MACHINES, build_machine
from support.fakes import GIB
from support.sample_fleet import listed_machine, listed_tick
from support.sample_snapshots import critical_gb10

UNKNOWN = Absent.NOT_AVAILABLE


def machine(name: str, **fields: Any) -> ListedMachine:
    """Return a machine with 40 of 128 GiB free and two processes of 20 and 50 GiB."""
    pools = (MachinePool("ram", "System RAM", 128 * GIB, 88 * GIB, 40 * GIB, "low"),)
    ticks = {"pools": pools, "holders": (holder("vllm", 50), holder("comfyui", 20))}
    ticks |= {key: value for key, value in fields.items() if key in MachineTick.__struct_fields__}
    others = {key: value for key, value in fields.items() if key not in ticks}
    return listed_machine(name, **{"last_tick": listed_tick(**ticks), **others})


def holder(name: str, held: int, beside: int = 0) -> MachineHolder:
    """Return a process with GiB on the device in question, and beside it."""
    return MachineHolder(name, (held + beside) * GIB, held * GIB)


def judge(need: Need, found: ListedMachine, fits_here: bool | None = None) -> Placement:
    return place(need, [found], fits_here)[0]


@pytest.mark.parametrize(
    ("need", "moved"),
    [
        (50, ["comfyui"]),  # short by 10: the smallest that is enough
        (60, ["comfyui"]),
        (61, ["vllm"]),
        (100, ["vllm", "comfyui"]),
        (111, []),
    ],
)
def test_fewest_processes_that_are_enough_are_named(need: int, moved: list[str]) -> None:
    found = judge(Need(need * GIB), machine("spark-2"))

    assert found.fits is False
    assert found.short_bytes == (need - 40) * GIB
    assert [one.name for one in found.moved] == moved
    assert ("would have to go elsewhere" in found.reason) == bool(moved)
    assert ("hold 70.0 GiB together, which is not enough" in found.reason) == (not moved)


def test_placements_are_read_as_the_command_prints_them() -> None:
    """With and without processes that would have to move. Its tuples were no JSON, so it refused its answer."""
    placed = place(Need(50 * GIB), [machine("spark-2"), machine("ember", state="silent")], None)
    found = {"bytes": 50 * GIB, "best": None, "verdicts": [], "machines": ANSWERS.encode_all(placed)}

    assert read_answer(found).machines == tuple(placed)
    assert [len(one.moved) for one in placed] == [0, 1]


def test_need_beyond_the_device_moves_no_process() -> None:
    """Also if another pool of that machine is large enough."""
    found = judge(Need(60 * GIB), machine("ember", headroom_of="RTX 4090", headroom_size_bytes=24 * GIB))

    assert (found.fits, found.moved) == (False, ())
    assert found.reason == "short by 20.0 GiB on RTX 4090, which has 24.0 GiB in total"
    assert "not enough" in judge(Need(200 * GIB), machine("spark-2", headroom_size_bytes=UNKNOWN)).reason


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        (11, "comfyui (4.0 GiB) would have to go elsewhere"),
        (20, "vllm (14.0 GiB) would have to go elsewhere"),
        (24, "vllm (14.0 GiB), comfyui (4.0 GiB) would have to go elsewhere"),
    ],
)
def test_processes_are_named_by_their_memory_on_the_device(need: int, reason: str) -> None:
    """Half of what they hold is System RAM, which frees no VRAM. A database has no VRAM at all."""
    holders = (holder("postgres", 0, 40), holder("vllm", 14, 14), holder("comfyui", 4, 4))
    ember = machine("ember", headroom_after_reclaim_bytes=8 * GIB, headroom_size_bytes=24 * GIB, holders=holders)

    assert judge(Need(need * GIB), ember).reason.endswith(f"; {reason}")


@pytest.mark.parametrize(
    ("holders", "reason"),
    [
        ([], "it reports no process that holds memory there"),
        ([holder("postgres", 0, 40)], "it reports no process that holds memory there"),
        ([holder("vllm", 9), holder("postgres", 0, 40)], "its largest process holds 9.0 GiB, which is not enough"),
    ],
)
def test_processes_that_are_not_enough_are_counted(holders: list[MachineHolder], reason: str) -> None:
    found = judge(Need(23 * GIB), machine("ember", headroom_after_reclaim_bytes=8 * GIB, holders=tuple(holders)))

    assert (found.fits, found.moved) == (False, ())
    assert found.reason.endswith(reason)


def test_reserve_is_left_free() -> None:
    assert judge(Need(40 * GIB), machine("spark-2")).fits is True
    assert judge(Need(40 * GIB, reserve_bytes=1), machine("spark-2")).fits is False


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"state": "silent", "age_seconds": 90.0}, "it is silent; its last figures are 1 min 30 s old"),
        ({"state": "starting", "last_tick": UNKNOWN}, "unknown: it is starting"),
        ({"headroom_after_reclaim_bytes": UNKNOWN}, "it reports no headroom"),
    ],
)
def test_placement_is_unknown_without_current_figures(fields: dict[str, Any], reason: str) -> None:
    found = judge(Need(GIB), machine("spark-2", **fields))

    assert found.fits is None
    assert reason in found.reason


@pytest.mark.parametrize(("ram", "fits"), [(40, True), (41, False)])
def test_part_in_system_ram_is_checked_against_it(ram: int, fits: bool) -> None:
    assert judge(Need(GIB, ram_bytes=ram * GIB), machine("spark-2")).fits is fits


def test_part_in_system_ram_is_unknown_if_that_pool_is_not_sent() -> None:
    assert judge(Need(GIB, ram_bytes=1), machine("spark-2", pools=())).fits is None


def test_answer_about_this_machine_is_kept_and_fitting_machines_are_first() -> None:
    listed = [
        machine("here", is_self=True),
        machine("spark-2"),
        machine("ember", headroom_after_reclaim_bytes=90 * GIB),
    ]
    placed = place(Need(60 * GIB), listed, fits_here=False)

    assert [(one.name, one.fits) for one in placed] == [("ember", True), ("here", False), ("spark-2", False)]
    assert place(Need(60 * GIB), listed[:1], fits_here=True)[0].fits is True
    assert list(placement_lines(placed))[1] == "✓ ember: 90.0 GiB can be allocated on NVIDIA GB10"
    assert "No neighbours" in "\n".join(placement_lines(placed[:1]))


def test_command_reads_the_machine_that_the_api_writes() -> None:
    (own,) = list_machines(build_tick(critical_gb10(), "run"), ())
    written = build_machine(own)
    sent = MACHINES.encode(written)

    assert read_machines([sent]) == (written,)
    assert list(machine_lines([written]))[1].split()[:2] == [written.name, "critical"]


def test_machine_of_an_early_daemon_is_listed() -> None:
    """Without reasons for what is null, and without parts that no command needs."""
    sent = MACHINES.encode(machine("spark-2", headroom_bytes=UNKNOWN, clock_offset_seconds=UNKNOWN))
    for one in (sent, sent["last_tick"]):
        del one["absent"]
    for name in ("left_out", "levels", "events"):
        del sent["last_tick"][name]
    (found,) = read_machines([sent])

    assert list(machine_lines([found]))[1].split() == ["spark-2", "OK", "40.0", "GiB", "1.0", "s", "ago"]
    assert place(Need(GIB), [found], None)[0].fits is True
