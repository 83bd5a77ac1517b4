"""Test if the PIDs of a driver's list are taken for those of a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memwatch.core.linux.process_owners import PidLists, holds_gpu
from support.process_folders import add_process, stat_line

NONE: frozenset[int] = frozenset()


class Scans:
    """Scans of a container in which some processes have a GPU open (True) or not; None: unreadable."""

    def __init__(self, **states: bool | None) -> None:
        self.states = {int(name.removeprefix("p")): state for name, state in states.items()}
        self.lists = PidLists()

    def judge(self, *pids: int, confirmed: frozenset[int] = NONE) -> frozenset[int]:
        starts = {pid: 7 for pid in pids if pid in self.states}
        missing = [pid for pid in pids if pid not in self.states]
        return self.lists.judge({"nvml": frozenset(pids)}, starts, missing, confirmed, self.states.get)


def test_list_whose_processes_have_a_gpu_open_is_of_this_namespace() -> None:
    scans = Scans(p10=True, p11=True, p12=None)

    assert [scans.judge(10, 11, 12) for _ in range(3)] == [NONE] * 3
    assert not scans.lists.are_unconfirmed


def test_process_without_a_gpu_is_at_once_not_the_listed_one() -> None:
    """The others in the list were verified before, or are in doubt. In the next scan, all of it is foreign."""
    scans = Scans(p10=True, p11=False, p12=None)
    scans.judge(10)

    assert scans.judge(10, 11, 12) == {11, 12}
    assert scans.lists.are_unconfirmed
    assert scans.judge(10, 11, 12) == {10, 11, 12}
    assert Scans(p10=True, p11=False).judge(10, 11) == {10, 11}


def test_missing_pid_makes_the_list_foreign_once_confirmed() -> None:
    scans = Scans(p10=True)
    scans.judge(10)

    assert scans.judge(10, 4242) == NONE
    assert scans.judge(10, 4242, confirmed=frozenset({4242})) == {10, 4242}


def test_process_that_ended_with_its_memory_says_nothing_about_the_others() -> None:
    scans = Scans(p10=True, p11=True)
    scans.judge(10, 11)
    del scans.states[11]

    assert scans.judge(10, 11) == NONE
    assert scans.judge(10, 11, confirmed=frozenset({11})) == {11}


def test_pid_of_an_ended_process_that_is_reused_is_read_again() -> None:
    scans = Scans(p10=True)
    scans.judge(10)
    scans.states[10] = False

    assert scans.judge(10) == NONE  # the same start: the same process
    assert scans.lists.judge({"nvml": frozenset({10})}, {10: 8}, [], NONE, scans.states.get) == {10}


def test_one_list_says_nothing_about_another() -> None:
    lists = {"nvml": frozenset({10}), "amdgpu": frozenset({11})}
    states = {10: False, 11: True}
    judged = PidLists()

    found = [judged.judge(lists, {10: 1, 11: 1}, [], NONE, states.get) for _ in range(2)]

    assert found == [{10}, {10}]


@pytest.mark.parametrize(
    ("target", "holds"),
    [("/dev/nvidia0", True), ("/dev/dri/renderD128", True), ("/dev/kfd", True), ("/dev/null", False), ("", None)],
)
def test_open_descriptors_tell_if_a_process_has_a_gpu_open(target: str, holds: bool | None, tmp_path: Path) -> None:
    """None without descriptors: those of a process whose first thread has ended are not listed."""
    add_process(tmp_path, stat_line(10))
    (tmp_path / "10/fd").mkdir()
    if target:
        (tmp_path / "10/fd/3").symlink_to(target)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert holds_gpu(folder, 10) is holds
        assert holds_gpu(folder, 11) is None
    finally:
        os.close(folder)
