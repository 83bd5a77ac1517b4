"""A program within its own limit waits for what that leaves it, and plans with that."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.client_process import memwatch
from support.daemon_process import running_daemon
from support.dead_address import dead_address
from support.library_process import roots_environment, run_json, run_program
from support.paths import MACHINES

GIB = 1 << 30
# 12 GiB minus usage: 700,000,256 bytes without 270,004,224 bytes of page cache and reclaimable slab.
LEFT_IN_V2 = "11.6 GiB"


def wait_without_daemon(*arguments: str, machine: str) -> tuple[int, str, str]:
    """Run `memwatch wait` without a daemon, on a machine of tests/machines."""
    url = f"http://{dead_address()}"
    done = memwatch("wait", *arguments, MEMWATCH_URL=url, **roots_environment(machine))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("machine", "limit", "missing"),
    [
        ("container-v2", "container limit is 12.0 GiB", "8.0 GiB"),
        ("container-v1", "container limit is 4.0 GiB", "16.0 GiB"),
        ("container-nested", "container limit is 6.0 GiB", "14.0 GiB"),
    ],
)
def test_wait_rejects_more_than_the_limit(machine: str, limit: str, missing: str) -> None:
    """System RAM has enough, but the kernel would kill the program at the limit. It is not run."""
    code, out, error = wait_without_daemon("--free", "20GiB", "--", "echo", "started", machine=machine)

    assert (code, out) == (2, "")
    assert error.endswith(f'memwatch: --free is "20GiB", but the {limit}: short by {missing}\n')


def test_available_memory_is_that_within_the_limit() -> None:
    """A size that fits starts the program at once. One that may fit later waits."""
    ready = wait_without_daemon("--free", "11GiB", "--", "echo", "started", machine="container-v2")
    late = wait_without_daemon("--free", "11.9GiB", "--timeout", "1s", machine="container-v2")
    shown = wait_without_daemon("--free", "1GiB", machine="container-v2")

    assert (ready[0], ready[1]) == (0, "started\n")
    assert late[0] == 1
    assert f"{LEFT_IN_V2} available within the container limit" in late[2]
    assert shown[1] == f"{LEFT_IN_V2} available within the container limit\n"


def test_local_limit_does_not_apply_to_another_machine(tmp_path: Path) -> None:
    """There only its System RAM counts. For a daemon on this machine the limit applies."""
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


def test_library_waits_within_the_limit() -> None:
    """A machine whose limit leaves less than System RAM, and one without a limit."""
    code = (
        "import json, memwatch; "
        "print(json.dumps([memwatch.wait_for(size, timeout=0.02, interval=0.01) for size in ('11GiB', '20GiB')]))"
    )

    assert run_json(code, **roots_environment("container-v2")) == [True, False]
    assert run_json(code, **roots_environment("numa-server-2tib")) == [True, True]


def test_library_counts_only_free_memory_if_asked() -> None:
    """A GB10 with 44.3 GiB available and 13.4 GiB of it free."""
    code = (
        "import json, memwatch; info = memwatch.memory_info(); "
        "waits = [memwatch.wait_for(40 << 30, timeout=0.02, interval=0.01, certain=one) for one in (False, True)]; "
        "print(json.dumps([waits, info.headroom_bytes >> 30, info.headroom_after_reclaim_bytes >> 30]))"
    )

    assert run_json(code, **roots_environment("gb10")) == [[True, False], 13, 44]


def test_unreadable_limit_is_none(tmp_path: Path) -> None:
    """No cgroups, as on macOS, or invalid files: only System RAM is known."""
    code = "from memwatch.library.host import own_limit; print(own_limit())"
    (tmp_path / "self").mkdir()
    missing = run_program(code, MEMWATCHD_PROCFS=str(tmp_path))
    (tmp_path / "self/cgroup").write_bytes(b"\xff\n")
    (tmp_path / "self/mountinfo").write_bytes(b"nonsense\n")
    invalid = run_program(code, MEMWATCHD_PROCFS=str(tmp_path))

    assert (missing.stdout, invalid.stdout) == ("None\n", "None\n")
    assert missing.stderr == invalid.stderr == ""


LIBRARY = """
import json, memwatch
cpu = next(one for one in memwatch.fit("1KiB").fit.verdicts if one.device == "cpu")
found = next(one for one in memwatch.discover_backends().backends if one.name == "cpu").devices[0]
waits = [memwatch.wait_for(size, timeout=0.02, interval=0.01) for size in (%d, %d)]
print(json.dumps([[one.size_bytes, one.headroom_after_reclaim_bytes] for one in (cpu, found)] + [waits]))
"""


@pytest.mark.parametrize(
    ("machine", "limit", "left"),
    [
        ("container-v2", 12 << 30, (12 << 30) - 400_001_024),
        ("headless-server", 256 << 20, (256 << 20) - 44_000_000),
        ("numa-server-2tib", None, None),
    ],
    ids=["container", "unit with MemoryMax", "none"],
)
@pytest.mark.parametrize("by_daemon", [True, False], ids=["daemon", "no daemon"])
def test_program_and_command_have_what_their_own_limit_leaves(
    tmp_path: Path, machine: str, limit: int | None, left: int | None, by_daemon: bool
) -> None:
    """A daemon reports on the machine: a unit's limit is not that of another program that asks."""
    here = roots_environment(machine)
    expected = json.loads((MACHINES / machine / "expected.json").read_text())
    (pool,) = expected["collectors"]["meminfo"]["pools"]
    whole, room = limit or pool["size_bytes"], left or pool["available_bytes"]
    with ExitStack() as stack:
        url = f"http://{dead_address()}"
        if by_daemon:
            daemon = stack.enter_context(running_daemon(tmp_path, environ=here))
            url = daemon.url
            verdict = daemon.get("/api/v1/fit?bytes=1KiB").json["verdicts"][-1]
        done = json.loads(memwatch("fit", "1KiB", "--json", MEMWATCH_URL=url, **here).stdout)["verdicts"][-1]
        alone = run_json(LIBRARY % (room, room + 1), **here)

    assert (done["size_bytes"], done["headroom_after_reclaim_bytes"]) == (whole, room)
    assert alone == [[whole, room], [whole, room], [True, False]]
    if by_daemon and machine == "headless-server":
        assert verdict["size_bytes"] == pool["size_bytes"]
