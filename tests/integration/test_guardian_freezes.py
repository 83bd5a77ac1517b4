"""Test the load guard: files of a cgroup tree, a guardian that ends in every way, and a real cgroup."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatchd.guardian.load_guard import FROZEN_NAME, MAX_GROUPS, FreezeError, Freezer, find_hierarchy, thaw_noted
from memwatchd.guardian.records import Candidate, LoadLimits, Match
from support.guardian_machine import ROOMY, SHORT, GuardianMachine, guardian_machine
from support.guardian_states import GIB, candidate
from support.waiting import wait_until

UNIT = "system.slice/serve.service"
NO_PIDS: frozenset[int] = frozenset()
LOAD = LoadLimits(True, (Match("unit", "serve*"),), 8 * GIB, freeze_seconds=1.0, total_seconds=30.0)
PROC = Path("/proc")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardianMachine]:
    with guardian_machine(tmp_path) as machine:
        yield machine


def build_tree(folder: Path, pids: tuple[int, ...] = ()) -> Path:
    """Make a cgroup v2 tree with one unit, and return the control file of the unit."""
    unit = folder / UNIT
    unit.mkdir(parents=True)
    (folder / "cgroup.controllers").write_text("memory\n")
    (unit / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    (unit / "cgroup.freeze").write_text("0")
    return unit / "cgroup.freeze"


def loader(pid: int = 10) -> Candidate:
    return candidate(pid, cgroup=f"/{UNIT}")


def freezer(tmp_path: Path) -> Freezer:
    return Freezer(tmp_path, PROC, tmp_path)


def test_frozen_unit_is_noted_and_thawed(tmp_path: Path) -> None:
    file = build_tree(tmp_path)
    one = freezer(tmp_path)

    one.freeze(loader(), time.monotonic(), 5.0, NO_PIDS)
    assert file.read_text() == "1"
    assert (tmp_path / FROZEN_NAME).exists()

    assert one.thaw() == "thawed"
    assert (file.read_text(), one.frozen, (tmp_path / FROZEN_NAME).exists()) == ("0", None, False)


def test_next_guardian_thaws_what_the_last_one_froze(tmp_path: Path) -> None:
    """It was killed, and so was the shell: nothing else thaws."""
    file = build_tree(tmp_path)
    one = freezer(tmp_path)
    one.freeze(loader(), time.monotonic(), 600.0, NO_PIDS)
    one._end_shell()

    assert freezer(tmp_path).thaw_last_run() == "python3 (10), which was frozen by the last guardian: thawed"
    assert file.read_text() == "0"
    assert freezer(tmp_path).thaw_last_run() is None


def test_shell_thaws_if_the_guardian_does_not(tmp_path: Path) -> None:
    file = build_tree(tmp_path)
    one = freezer(tmp_path)
    one.freeze(loader(), time.monotonic(), 0.1, NO_PIDS)

    wait_until(lambda: file.read_text().strip() == "0")
    one.thaw()


def test_unit_that_is_gone_needs_no_thawing(tmp_path: Path) -> None:
    file = build_tree(tmp_path)
    one = freezer(tmp_path)
    one.freeze(loader(), time.monotonic(), 5.0, NO_PIDS)
    file.unlink()

    assert one.thaw() == "thawed"
    assert not file.exists()


def test_cgroup_v1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()

    with pytest.raises(FreezeError, match="is cgroup v1, and freezing needs cgroup v2"):
        freezer(tmp_path).freeze(loader(), 0.0, 1.0, NO_PIDS)


def test_unit_with_the_guardian_or_a_login_in_it_is_refused(tmp_path: Path, box: GuardianMachine) -> None:
    """Also below its own cgroup: a session has a login beside its programs."""
    victim = box.start_victim()
    file = build_tree(tmp_path, (victim.pid,))
    below = file.parent / "payload"
    below.mkdir()
    (below / "cgroup.procs").write_text("1\n")

    with pytest.raises(FreezeError, match=r"\(1\) is in the same cgroup, and is never frozen"):
        freezer(tmp_path).freeze(loader(), 0.0, 1.0, NO_PIDS)
    (below / "cgroup.procs").write_text("")
    with pytest.raises(FreezeError, match=rf"\({victim.pid}\) is in the same cgroup"):
        freezer(tmp_path).freeze(loader(), 0.0, 1.0, frozenset({victim.pid}))
    assert file.read_text() == "0"


def test_unit_with_more_cgroups_than_are_looked_at_is_refused(tmp_path: Path) -> None:
    file = build_tree(tmp_path)
    for number in range(MAX_GROUPS):
        (file.parent / str(number)).mkdir()
        (file.parent / f"{number}/cgroup.procs").touch()

    with pytest.raises(FreezeError, match="it has 256 cgroups or more"):
        freezer(tmp_path).freeze(loader(), 0.0, 1.0, NO_PIDS)
    assert file.read_text() == "0"


def test_unit_that_an_operator_froze_is_left_alone(tmp_path: Path) -> None:
    file = build_tree(tmp_path)
    file.write_text("1\n")

    with pytest.raises(FreezeError, match="it is frozen already"):
        freezer(tmp_path).freeze(loader(), 0.0, 1.0, NO_PIDS)
    assert thaw_noted(tmp_path / FROZEN_NAME) is None
    assert file.read_text() == "1\n"


def start_load(box: GuardianMachine, *, dry_run: bool = False, load: LoadLimits = LOAD) -> tuple[Path, int, int]:
    """Let a program load to below the floor. Return the control file, the guardian and the program."""
    victim = box.start_victim()
    (box.proc / str(victim.pid)).unlink()
    real, fake = PROC / str(victim.pid), box.proc / str(victim.pid)
    fake.mkdir()
    for name in ("stat", "statm", "comm"):
        (fake / name).symlink_to(real / name)
    (fake / "cgroup").write_text(f"0::/{UNIT}\n")
    box.sys.joinpath("fs").mkdir()
    file = build_tree(box.sys / "fs/cgroup", (victim.pid,))
    guardian = box.start(replace(box.config, dry_run=dry_run, load=load))
    seen = box.requests
    box.set_available(ROOMY - 2 * GIB)
    wait_until(lambda: box.requests >= seen + 2, describe=box.log)
    box.set_available(6 * GIB)
    return file, guardian.pid, victim.pid


def test_loader_is_frozen_and_thawed_and_goes_on(box: GuardianMachine) -> None:
    file, _, pid = start_load(box)
    wait_until(lambda: file.read_text().strip() == "1", describe=box.log)
    box.set_available(12 * GIB)
    wait_until(lambda: file.read_text().strip() == "0", describe=box.log)
    wait_until(box.records, describe=box.log)

    record = box.records()[0]
    assert record.victim is not None
    assert (record.decision, record.victim.pid, record.helped) == ("freeze", pid, True)
    assert "6.0 GiB were free or reclaimable, 12.0 GiB are now" in record.steps[0].result
    assert is_running(pid)


def test_loader_is_thawed_after_its_time_if_nothing_helps(box: GuardianMachine) -> None:
    file, _, _ = start_load(box, load=replace(LOAD, total_seconds=1.0))
    wait_until(box.records, describe=box.log)

    record = box.records()[0]
    assert (record.helped, file.read_text().strip()) == (False, "0")
    assert record.steps[0].seconds >= 1.0
    wait_until(lambda: "in this load, and more than that" in (box.status().load or ""), describe=box.log)
    assert len(box.records()) == 1


def test_dry_run_freezes_nothing_and_says_so_once(box: GuardianMachine) -> None:
    file, _, pid = start_load(box, dry_run=True)
    wait_until(box.records, describe=box.log)
    box.wait_for_requests(2)

    (record,) = box.records()
    assert (record.dry_run, record.steps[0].result) == (True, "would be frozen")
    assert file.read_text() == "0"
    assert f"victim ({pid}) would be frozen for 1.0 s" in box.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
def test_loader_is_thawed_however_the_guardian_ends(box: GuardianMachine, number: signal.Signals) -> None:
    """At its end by itself. A shell thaws after a kill and while the guardian is stopped, at the latest in time."""
    file, guardian, _ = start_load(box)
    wait_until(lambda: file.read_text().strip() == "1", describe=box.log)
    os.kill(guardian, number)

    wait_until(lambda: file.read_text().strip() == "0", describe=box.log)


def test_load_guard_is_off_by_default(box: GuardianMachine) -> None:
    file, _, _ = start_load(box, load=replace(LOAD, enabled=False))
    box.wait_for_requests(3)

    assert (file.read_text(), box.records()) == ("0", [])


def test_memory_that_is_critical_thaws_first(box: GuardianMachine) -> None:
    """A frozen process runs no handler of SIGTERM."""
    file, _, _ = start_load(box, load=replace(LOAD, freeze_seconds=600.0, total_seconds=600.0))
    wait_until(lambda: file.read_text().strip() == "1", describe=box.log)
    box.set_available(SHORT)
    wait_until(lambda: file.read_text().strip() == "0", describe=box.log)


@pytest.mark.host
def test_real_cgroup_is_frozen_and_thawed(tmp_path: Path, box: GuardianMachine) -> None:
    """On a machine on which no test may make a cgroup, the own one is refused: the test itself is in it."""
    victim = box.start_victim()
    cgroups = Path("/sys/fs/cgroup")
    one = Freezer(cgroups, PROC, tmp_path)
    try:
        folder = find_hierarchy(cgroups) / f"memwatch-test-{os.getpid()}"
        folder.mkdir()
    except (FreezeError, OSError):
        own = candidate(victim.pid, cgroup="/" + Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip())
        with pytest.raises(FreezeError):
            one.freeze(own, time.monotonic(), 5.0, frozenset({os.getpid()}))
        return
    try:
        (folder / "cgroup.procs").write_text(str(victim.pid))
        one.freeze(candidate(victim.pid, cgroup=f"/{folder.name}"), time.monotonic(), 30.0, NO_PIDS)
        wait_until(lambda: "frozen 1" in (folder / "cgroup.events").read_text())

        assert one.thaw() == "thawed"
        wait_until(lambda: "frozen 0" in (folder / "cgroup.events").read_text())
        assert victim.poll() is None
    finally:
        one.thaw()
        victim.kill()
        victim.wait()
        wait_until(lambda: "populated 0" in (folder / "cgroup.events").read_text())
        folder.rmdir()


def is_running(pid: int) -> bool:
    return " Z " not in (PROC / f"{pid}/stat").read_text()
