"""Test validation of NVML's answers: impossible ones are dropped, duplicates count once, absence stays absence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.drivers.nvml.records import GpuInstance, GpuMemory, GpuProcess
from memwatch.core.drivers.nvml.validation import (
    NO_INSTANCE,
    NVML_VALUE_NOT_AVAILABLE,
    AnswerValidator,
    ImplausibleAnswerError,
    Limits,
    Row,
    by_instance,
    capacity_of_instances,
    join_lists,
    merge_rows,
    plausible_memory,
    process_capacity,
)
from memwatch.core.model import Absent

MIB = 1 << 20
LIMITS = Limits(pid_max=32768, system_bytes=64 << 30)


def row(pid: int, used: int, instance: int = NO_INSTANCE) -> Row:
    return pid, used, instance


def test_process_in_two_lists_counts_once() -> None:
    """A PID with 500 MiB in the compute and in the graphics list holds 500 MiB."""
    rows = [row(7, 500 * MIB), row(7, 500 * MIB)]

    assert merge_rows(rows, LIMITS, None) == (GpuProcess(7, 500 * MIB),)


@given(st.permutations([row(7, 3), row(7, NVML_VALUE_NOT_AVAILABLE), row(7, 9), row(7, 0)]))
def test_greatest_known_use_of_a_process_wins(rows: list[Row]) -> None:
    """In any order of lists the greatest value counts, and NVML_VALUE_NOT_AVAILABLE loses to any."""
    assert merge_rows(rows, LIMITS, None) == (GpuProcess(7, 9),)


def test_process_without_a_value_keeps_its_row() -> None:
    """If the driver lists a process without its memory, the memory is absent and not zero."""
    assert merge_rows([row(7, NVML_VALUE_NOT_AVAILABLE)], LIMITS, 1) == (GpuProcess(7, Absent.NOT_AVAILABLE),)


def test_process_in_two_gpu_instances_has_two_rows() -> None:
    """Memory of different GPU instances is different memory."""
    found = merge_rows([row(7, 1, 2), row(7, 5, 3), row(7, 4, 2)], LIMITS, None)

    assert found == (GpuProcess(7, 4, 2), GpuProcess(7, 5, 3))


@pytest.mark.parametrize("bad", [row(0, 1), row(0xFFFFFFFF, 1), row(32769, 1), row(8, 101)])
def test_impossible_record_rejects_its_list(bad: Row) -> None:
    """PID 0, PID 4294967295, a PID above pid_max, or more bytes than exist: the whole list is rejected."""
    with pytest.raises(ImplausibleAnswerError, match="process_list"):
        merge_rows([row(7, 1), bad], LIMITS, capacity=100)


def test_limits_themselves_are_valid() -> None:
    """The greatest PID holding all of the memory is valid."""
    assert merge_rows([row(32768, 100)], LIMITS, capacity=100) == (GpuProcess(32768, 100),)


@pytest.mark.parametrize(("used", "free"), [(101, 101), (NVML_VALUE_NOT_AVAILABLE, NVML_VALUE_NOT_AVAILABLE)])
def test_two_parts_beyond_the_total_are_rejected(used: int, free: int) -> None:
    with pytest.raises(ImplausibleAnswerError, match="memory"):
        plausible_memory(GpuMemory(2, 100, used, free, Absent.NOT_SUPPORTED))


GIB = 1 << 30


@pytest.mark.parametrize(
    ("answer", "used", "free", "reserved"),
    [
        (GpuMemory(2, 80 * GIB, (1 << 64) - 5, 59 * GIB, GIB), 20 * GIB, 59 * GIB, GIB),
        (GpuMemory(2, 80 * GIB, 20 * GIB, (1 << 64) - 5, GIB), 20 * GIB, 59 * GIB, GIB),
        (GpuMemory(2, 80 * GIB, 20 * GIB, 59 * GIB, (1 << 64) - 5), 20 * GIB, 59 * GIB, Absent.INCONSISTENT),
        (GpuMemory(2, 80 * GIB, 70 * GIB, 80 * GIB, GIB), 70 * GIB, 9 * GIB, GIB),
        (GpuMemory(2, 80 * GIB, 20 * GIB, 0, GIB), 20 * GIB, 0, GIB),
    ],
    ids=["used", "free", "reserved", "sum above", "sum below"],
)
def test_part_that_the_others_refute_is_estimated(
    answer: GpuMemory, used: int, free: int, reserved: int | Absent
) -> None:
    """A wrapped `used`, which the pool is not made of, cost the whole pool. Free memory is never above the rest."""
    found = plausible_memory(answer)

    assert found == GpuMemory(2, 80 * GIB, used, free, reserved, is_estimated=True)


def test_sieve_counts_rejections() -> None:
    """Rejections are counted by kind, and the value becomes inconsistent."""
    sieve = AnswerValidator(LIMITS)

    answers = [
        sieve.memory(GpuMemory(2, 1, 2, 2, 0)),
        sieve.processes([row(0, 0)], None),
        sieve.processes([row(0, 0)], None),
    ]

    assert answers == [Absent.INCONSISTENT] * 3
    assert sieve.rejected == {"memory": 1, "process_list": 2}


def test_sieve_passes_absence_through() -> None:
    """An absent value keeps its reason and is not counted."""
    sieve = AnswerValidator(LIMITS)

    assert sieve.memory(Absent.NOT_PERMITTED) is Absent.NOT_PERMITTED
    assert sieve.processes(Absent.NOT_SUPPORTED, None) is Absent.NOT_SUPPORTED
    assert sieve.rejected == {}


@pytest.mark.parametrize(
    ("memory", "bar1", "capacity"),
    [
        (GpuMemory(2, 24 << 30, 0, 0, 0), 32 << 30, 24 << 30),  # discrete
        (GpuMemory(2, 24 << 30, 0, 0, 0), Absent.NOT_PERMITTED, 24 << 30),
        (Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED, 64 << 30),  # GB10
        (GpuMemory(2, 8 << 30, 0, 0, 0), Absent.NOT_SUPPORTED, 64 << 30),  # a carve-out
        (GpuMemory(2, 96 << 30, 0, 0, 0), Absent.NOT_SUPPORTED, 96 << 30),  # GH200
        (GpuMemory(2, 0, 0, 0, 0), 1, 64 << 30),
        (Absent.NOT_PERMITTED, 1, None),
        (Absent.NOT_AVAILABLE, 1, None),
        (Absent.INCONSISTENT, 1, None),
    ],
)
def test_capacity_is_the_memory_that_the_gpu_can_use(
    memory: GpuMemory | Absent, bar1: int | Absent, capacity: int | None
) -> None:
    """The GPU's own memory if it has some, the machine's if it has none, and no bound if that is unknown."""
    assert process_capacity(memory, bar1, LIMITS) == capacity


def test_unified_gpu_has_no_capacity_without_system_memory() -> None:
    """An unknown size is no bound."""
    assert process_capacity(Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED, Limits(1)) is None


@pytest.mark.parametrize(
    ("lists", "rows"),
    [
        ([[row(1, 1)], [row(2, 2)]], [row(1, 1), row(2, 2)]),
        ([[], []], []),
        ([[row(1, 1)], Absent.NOT_SUPPORTED], [row(1, 1)]),
        ([Absent.NOT_SUPPORTED, Absent.NOT_SUPPORTED], Absent.NOT_SUPPORTED),
        ([[row(1, 1)], Absent.NOT_AVAILABLE], Absent.NOT_AVAILABLE),
        ([Absent.NOT_PERMITTED, [row(1, 1)]], Absent.NOT_PERMITTED),
        ([Absent.NOT_SUPPORTED, Absent.NOT_PERMITTED], Absent.NOT_PERMITTED),
    ],
)
def test_lists_are_joined_only_if_none_is_missing(
    lists: list[list[Row] | Absent], rows: list[Row] | Absent
) -> None:
    """A list that the driver does not support is no loss; one that failed leaves the others incomplete."""
    assert join_lists(lists) == rows


def test_mig_devices_share_the_memory_of_their_gpu_instance() -> None:
    """Two compute instances of GPU instance 2 share one memory."""
    assert by_instance([(2, "a"), (2, "b"), (9, "c")]) == {2: ["a", "b"], 9: ["c"]}


def test_capacity_of_instances_needs_all_of_them() -> None:
    """A sum with a missing term is no capacity."""
    known = GpuInstance(1, (), GpuMemory(2, 40, 0, 0, 0))

    assert capacity_of_instances([known, known]) == 80
    assert capacity_of_instances([known, GpuInstance(2, (), Absent.NOT_PERMITTED)]) is None
    assert capacity_of_instances([]) is None


numbers = st.integers(0, NVML_VALUE_NOT_AVAILABLE)


@given(st.lists(st.tuples(st.integers(0, 0xFFFFFFFF), numbers, st.integers(0, 0xFFFFFFFF))), st.none() | numbers)
def test_arbitrary_list_is_merged_or_rejected(rows: list[Row], capacity: int | None) -> None:
    """Each process is listed once, with a value from the list, or the whole list is rejected."""
    sieve = AnswerValidator(LIMITS)

    found = sieve.processes(rows, capacity)

    if isinstance(found, Absent):
        assert sieve.rejected == {"process_list": 1}
        return
    assert len({(one.pid, one.instance) for one in found}) == len(found)
    for one in found:
        listed = [used for pid, used, _ in rows if pid == one.pid and used != NVML_VALUE_NOT_AVAILABLE]
        assert one.used_bytes in listed or one.used_bytes is Absent.NOT_AVAILABLE
