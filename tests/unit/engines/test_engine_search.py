"""Search for the processes of model servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from memwatch.core.linux.accounts import Accounts
from memwatch.core.linux.engine_processes import AGAIN_TURNS, MAX_AGAIN, MIN_HELD_BYTES, EngineProcesses
from memwatch.core.linux.files import kept_folder
from support.engine_host import EngineHost

PYTHON = "/usr/bin/python3"
VLLM = (PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-32B")
SCRIPT, LAUNCHER = ("/bin/sh", "start.sh"), (PYTHON, "launch.py")
ONE_ROUND = AGAIN_TURNS + 1


@pytest.fixture
def host(tmp_path: Path) -> EngineHost:
    return EngineHost(tmp_path / "host")


@pytest.fixture
def search(host: EngineHost) -> Iterator[EngineProcesses]:
    folder = kept_folder(host.proc)
    yield EngineProcesses(folder, Accounts(host.root))
    os.close(folder)


def replace_program(host: EngineHost, pid: int, argv: tuple[str, ...], name: str, resident_bytes: int) -> None:
    """Do what execve does: the process keeps its PID and its start."""
    shutil.rmtree(host.proc / str(pid))
    host.add(pid, argv, name=name, resident_bytes=resident_bytes)


def find_after(search: EngineProcesses, turns: int) -> list[int]:
    """Return the PIDs of the servers after this many turns."""
    found = [search.find() for _ in range(turns)]
    return [one.pid for one in found[-1]]


@pytest.mark.parametrize(
    ("before", "after", "resident_bytes"),
    [
        ((SCRIPT, "sh"), (VLLM, "python3"), 20480),
        ((LAUNCHER, "python3"), (VLLM, "python3"), MIN_HELD_BYTES),
    ],
    ids=["another name", "same name, and a model"],
)
def test_process_that_becomes_a_server_later_is_found(
    host: EngineHost,
    search: EngineProcesses,
    before: tuple[tuple[str, ...], str],
    after: tuple[tuple[str, ...], str],
    resident_bytes: int,
) -> None:
    """A script loads the model first, for minutes, and ends with execve."""
    host.add(500, before[0], name=before[1])
    for pid in range(600, 620):
        host.add(pid, SCRIPT, name="sh")
    assert find_after(search, 20) == []
    replace_program(host, 500, *after, resident_bytes)
    assert find_after(search, ONE_ROUND) == [500]


def test_command_line_of_a_process_that_stays_the_same_is_not_read_again(
    host: EngineHost, search: EngineProcesses
) -> None:
    """It may be swapped out, and reading it would load it."""
    folder = host.add(500, SCRIPT, name="sh")
    find_after(search, 2)
    (folder / "cmdline").write_bytes(b"\0".join(map(os.fsencode, VLLM)))
    assert find_after(search, 3 * ONE_ROUND) == []


def test_process_of_a_large_machine_waits_for_a_turn_more(host: EngineHost, search: EngineProcesses) -> None:
    count = AGAIN_TURNS * MAX_AGAIN + 1
    for pid in range(1000, 1000 + count):
        host.add(pid, SCRIPT, name="sh")
    find_after(search, 4)  # all are looked at twice, at most 1,024 in a turn
    replace_program(host, 1000 + count - 1, VLLM, "python3", 20480)
    assert find_after(search, ONE_ROUND + 1) == [1000 + count - 1]
