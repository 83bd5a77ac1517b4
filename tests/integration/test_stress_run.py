"""Runs of `make test-stress` over a small folder of tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.stress import BUSY_LOOP, Plan, Stress, busy_loops
from support.cpu_cgroup import cpu_cgroup, homes, limits_of
from support.small_suite import WITHOUT_PLUGINS, SmallSuite
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallSuite:
    for name, value in WITHOUT_PLUGINS.items():
        monkeypatch.setenv(name, value)
    suite = SmallSuite(tmp_path / "checkout")
    suite.commit()
    return suite


def stress(suite: SmallSuite, **options: float) -> Stress:
    plan = Plan(["tests/test_x.py"], times=2, limit=options.get("limit", 600.0), marks="", resume=True)
    return Stress(suite.root, plan)


@pytest.mark.host
def test_each_run_is_logged_and_nothing_stays(suite: SmallSuite) -> None:
    patient = "def test_a(pytestconfig): assert float(pytestconfig.getini('faulthandler_timeout')) == 600\n"
    suite.write("tests/test_x.py", patient + "\ndef test_b(): assert 0\n")

    rows = stress(suite).run()
    assert [(row.passed, list(row.failed), row.reason) for row in rows] == [
        (["tests/test_x.py::test_a"], ["tests/test_x.py::test_b"], "")
    ] * 2
    assert stress(suite).rows() == rows
    assert not [child for child in psutil.Process().children() if BUSY_LOOP in child.cmdline()]


@pytest.mark.host
def test_run_above_its_limit_is_killed(suite: SmallSuite) -> None:
    suite.write("tests/test_x.py", "import time\n\ndef test_a(): time.sleep(3600)\n")

    assert {row.reason for row in stress(suite, limit=0.2).run()} == {"timed out"}


@pytest.mark.host
def test_product_of_this_checkout_is_run_in_an_environment_of_another(suite: SmallSuite) -> None:
    suite.write("daemon/memwatchd/__init__.py", "HERE = True\n")
    suite.write("tests/test_x.py", "import memwatchd\n\ndef test_a(): assert memwatchd.HERE\n")

    assert [list(row.failed) for row in stress(suite).run()] == [[], []]


@pytest.mark.host
def test_busy_loops_end_with_their_parent() -> None:
    starter = (
        "import sys, time; from scripts.stress import busy_loops\n"
        "with busy_loops(1) as (loop,): print(loop.pid, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        loop = psutil.Process(int(parent.stdout.readline()))
        assert loop.is_running()
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not loop.is_running() or loop.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.host
def test_loops_are_killed_at_the_end() -> None:
    with busy_loops(2) as loops:
        assert [loop.poll() for loop in loops] == [None, None]
    assert [loop.poll() for loop in loops] == [-signal.SIGKILL, -signal.SIGKILL]


def test_without_a_writable_hierarchy_there_is_no_group(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup {tmp_path}/cpu cgroup rw,cpu 0 0\ntmpfs /tmp tmpfs rw 0 0\n")

    with cpu_cgroup(0.5, mounts) as group:
        assert group is None


def test_hierarchies_that_limit_cpu_time_are_found(tmp_path: Path) -> None:
    for name, controllers in (("two", "cpu memory"), ("bare", "memory")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.subtree_control").write_text(controllers)
    mounts = tmp_path / "mounts"
    lines = ("two cgroup2 rw", "bare cgroup2 rw", "one cgroup rw,cpu,cpuacct", "memory cgroup rw,memory")
    mounts.write_text("".join(f"cgroup {tmp_path}/{line} 0 0\n" for line in lines))

    assert list(homes(mounts)) == [(tmp_path / "two", True), (tmp_path / "one", False)]


def test_half_a_core_is_written_as_each_version_expects() -> None:
    assert limits_of(0.5, is_version_2=True) == {"cpu.max": "50000 100000"}
    assert limits_of(0.5, is_version_2=False) == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
