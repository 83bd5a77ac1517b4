"""Test the bounds of a process's part of a memory in which clients share buffers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.accounting.device_memory import ClientPart, bound, sum_parts
from memwatch.core.model import Absent

UNKNOWN = Absent.NOT_SUPPORTED


def test_two_clients_of_one_process_with_the_same_buffers() -> None:
    """2 × 3400 of which 3000 are shared: from 3800 to 6800."""
    parts = [ClientPart((1,), 3400, 3000), ClientPart((1,), 3400, 3000)]

    assert bound(parts, UNKNOWN) == (3800, 6800)
    assert bound(parts, 5000) == (3800, 5000)
    assert bound(parts, 3500) == (3500, 3500)  # less than the part of each client that seems to be its own
    assert bound(parts, 100) == (3400, 3400)  # the use is newer: one client is certain


def test_use_of_others_bounds_a_process_from_above() -> None:
    found = sum_parts([ClientPart((1,), 60, 50), ClientPart((1,), 60, 50), ClientPart((2,), 10)], used=100)

    assert (found.by_pid, found.most_by_pid) == ({1: 70, 2: 10}, {1: 90})
    assert found.total == 80


def test_client_of_several_processes_counts_once_in_the_total() -> None:
    found = sum_parts([ClientPart((1, 2), 60, 50)], UNKNOWN)

    assert (found.total, found.by_pid, found.most_by_pid) == (60, {1: 60, 2: 60}, {})


sizes = st.integers(0, 1 << 40)
buffers = st.lists(st.tuples(sizes, st.sets(st.integers(0, 3), min_size=1)), max_size=8)


@given(held=buffers, beyond=sizes)
def test_truth_is_within_the_bounds(held: list[tuple[int, set[int]]], beyond: int) -> None:
    """Each buffer belongs to some of four clients: 0 and 1 of process 10, 2 and 3 of 20 and 30."""
    pids = (10, 10, 20, 30)
    parts = [
        ClientPart(
            (pids[client],),
            sum(size for size, owners in held if client in owners),
            sum(size for size, owners in held if client in owners and len(owners) > 1),
        )
        for client in range(4)
    ]
    used = sum(size for size, _ in held) + beyond

    for known in (used, UNKNOWN):
        found = sum_parts(parts, known)
        for pid in (10, 20, 30):
            mine = {client for client in range(4) if pids[client] == pid}
            truth = sum(size for size, owners in held if owners & mine)
            least = found.by_pid.get(pid, 0)
            assert least <= truth <= max(least, found.most_by_pid.get(pid, 0))
