"""Waiting for memory where a container's limit leaves less than the machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memwatch.library.cgroup_limit import CgroupLimit
from memwatchd.client.headroom import PlaceHeadroom
from support.client_process import memwatch
from support.daemon_process import free_port, running_daemon
from support.library_process import roots_environment, run_json, run_program

GIB = 1 << 30
# Used are 700,000,256 bytes less 270,004,224 of file cache and reclaimable slab.
LEFT_IN_V2 = "11.6 GiB"


def alone(*arguments: str, machine: str) -> tuple[int, str, str]:
    """Without a daemon, on a machine of tests/machines."""
    url = f"http://127.0.0.1:{free_port()}"
    done = memwatch("--url", url, "wait", *arguments, **roots_environment(machine))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("machine", "limit", "missing"),
    [
        ("container-v2", "container limit is 12.0 GiB", "8.0 GiB"),
        ("container-v1", "container limit is 4.0 GiB", "16.0 GiB"),
        ("container-nested", "container limit is 6.0 GiB", "14.0 GiB"),
    ],
)
def test_nobody_waits_for_more_than_the_limit(machine: str, limit: str, missing: str) -> None:
    """System RAM has room for it, and the kernel would have killed at the limit. Nothing is run."""
    code, out, error = alone("--free", "20GiB", "--", "echo", "started", machine=machine)

    assert (code, out) == (2, "")
    assert error.endswith(f'memwatch: --free is "20GiB", but the {limit}: short by {missing}\n')


def test_what_can_be_had_is_what_the_limit_leaves() -> None:
    """What fits is run at once; what could be had later is waited for."""
    ready = alone("--free", "11GiB", "--", "echo", "started", machine="container-v2")
    late = alone("--free", "11.9GiB", "--timeout", "1s", machine="container-v2")
    shown = alone("--free", "1GiB", machine="container-v2")

    assert (ready[0], ready[1]) == (0, "started\n")
    assert late[0] == 1
    assert f"{LEFT_IN_V2} available within the container limit" in late[2]
    assert shown[1] == f"{LEFT_IN_V2} available within the container limit\n"


def test_another_machine_is_not_under_our_limit(tmp_path: Path) -> None:
    """Its System RAM is all that counts; on the machine of the limit the daemon's figure is within it."""
    here = roots_environment("container-v2")
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    with running_daemon(tmp_path / "there", environ=roots_environment("numa-server-2tib")) as there:
        far = memwatch("--url", there.url, "wait", "--free", "20GiB", **here)
    with running_daemon(tmp_path / "here", environ=here) as daemon:
        near = memwatch("--url", daemon.url, "wait", "--free", "1GiB", **here)

    assert (far.returncode, near.returncode) == (0, 0)
    assert "limit" not in far.stdout
    assert near.stdout == f"{LEFT_IN_V2} available within the container limit\n"


def test_the_library_waits_within_the_limit_too() -> None:
    """A machine without a limit, and one whose limit leaves less than System RAM has."""
    code = (
        "import json, memwatch; "
        "print(json.dumps([memwatch.wait_for(size, timeout=0.02, interval=0.01) for size in ('11GiB', '20GiB')]))"
    )

    assert run_json(code, **roots_environment("container-v2")) == [True, False]
    assert run_json(code, **roots_environment("numa-server-2tib")) == [True, True]


def test_a_limit_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    """No cgroups, as on a Mac, or nonsense in their files: System RAM is all that is known."""
    code = "from memwatch.library.cgroup_limit import own_limit; print(own_limit())"
    (tmp_path / "self").mkdir()
    nowhere = run_program(code, MEMWATCHD_PROCFS=str(tmp_path))
    (tmp_path / "self/cgroup").write_bytes(b"\xff\n")
    (tmp_path / "self/mountinfo").write_bytes(b"nonsense\n")
    nonsense = run_program(code, MEMWATCHD_PROCFS=str(tmp_path))

    assert (nowhere.stdout, nonsense.stdout) == ("None\n", "None\n")
    assert nowhere.stderr == nonsense.stderr == ""


@pytest.mark.parametrize(
    ("room", "left", "whole"),
    [
        (PlaceHeadroom("System RAM", 8 * GIB, 16 * GIB), 1 * GIB, "the unit limit is 4.0 GiB"),
        (PlaceHeadroom("System RAM", GIB // 2, 16 * GIB), GIB // 2, "the unit limit is 4.0 GiB"),
        (PlaceHeadroom("System RAM", 1 * GIB, 2 * GIB), 1 * GIB, "System RAM has 2.0 GiB in total"),
        (PlaceHeadroom("System RAM", None, None), None, "the unit limit is 4.0 GiB"),
    ],
    ids=["less within", "less in the machine", "no limit below it", "a machine that does not say"],
)
def test_a_limit_bounds_what_there_is(room: PlaceHeadroom, left: int | None, whole: str) -> None:
    """Never more than either leaves, and a figure that is not known stays so."""
    found = room.limit_to(CgroupLimit("unit limit", 4 * GIB, 1 * GIB))

    assert found.left_bytes == left
    assert found.whole_words == whole
    assert json.dumps(found.left_bytes)
