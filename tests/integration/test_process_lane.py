"""The process lane and its second look, run over a small folder of tests."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.process_lane import Lane, Report
from support.disturbed import parse
from support.small_suite import WITHOUT_PLUGINS, SmallSuite, fork_pytest

pytestmark = pytest.mark.process

# Fails at its first run, as a test that load disturbs.
ONCE = """
from pathlib import Path

import pytest

def runs(name):
    file = Path(__file__).with_name("count-" + name)
    count = len(file.read_text()) if file.exists() else 0
    file.write_text("x" * (count + 1))
    return count

@pytest.fixture
def number():
    return runs("fixture")

@pytest.mark.parametrize("n", [1, 2])
def test_disturbed(n):
    assert runs(f"disturbed{n}") > 0

def test_in_setup(number):
    pass

def test_sound():
    pass
"""
WRONG = "def test_wrong(tmp_path):\n    assert 1 == 2\n"


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallSuite:
    monkeypatch.setenv("CHANGE_BASE", "base")
    for name, value in WITHOUT_PLUGINS.items():
        monkeypatch.setenv(name, value)
    return SmallSuite(tmp_path / "checkout")


def run(suite: SmallSuite, *arguments: str) -> Report:
    return Lane(suite.root, wait_for_quiet=lambda: None, start=fork_pytest).run(["-q", "-n", "0", *arguments])


def written(suite: SmallSuite) -> Any:
    return json.loads((suite.root / "out/ci/second-look.json").read_text())


def test_disturbed_test_passes_alone_and_is_printed(suite: SmallSuite, capfd: pytest.CaptureFixture[str]) -> None:
    suite.write("tests/test_once.py", ONCE)
    suite.commit()
    suite.git("tag", "base")

    report = Lane(suite.root, wait_for_quiet=lambda: None).run(["-q", "-n", "0"])
    printed = capfd.readouterr().out
    assert report.exit_code == 0
    (look,) = written(suite)["looks"]
    assert (look["name"], look["verdict"]) == ("tests/test_once.py::test_disturbed", "PASSED ALONE")
    assert [attempt["passed"] for attempt in look["attempts"]] == [True, True]
    assert len(re.findall(r"load [\d.]+, PSI", printed)) >= 4  # at two first failures, and alone
    assert printed.endswith(f"changes since {report.base}\nsecond look: 1 of 6 used\n")
    (entry,) = parse(printed[printed.index("[[disturbed]]") : printed.index("\nchanges since")])
    assert (entry.test, entry.seen) == ("tests/test_once.py::test_disturbed", 1)


def test_test_that_always_fails_fails_the_lane(suite: SmallSuite, capfd: pytest.CaptureFixture[str]) -> None:
    suite.write("tests/test_once.py", ONCE)
    suite.write("tests/test_wrong.py", WRONG)
    suite.commit()
    suite.git("tag", "base")

    report = run(suite)
    assert report.exit_code == 1
    assert [(look.name, look.verdict) for look in report.looks] == [
        ("tests/test_once.py::test_disturbed", "PASSED ALONE"),
        ("tests/test_wrong.py::test_wrong", "FAILED"),
    ]
    assert [attempt.passed for attempt in report.looks[1].attempts] == [False, False]
    assert capfd.readouterr().out.endswith("second look: 2 of 6 used\n")


@pytest.mark.parametrize(
    ("failures", "code", "passes"),
    [("0", 0, 10 * [True]), ("0, 4", 1, [True, True, True, False])],
    ids=["disturbed once", "fails alone as well"],
)
def test_changed_test_has_to_pass_ten_times_alone(
    suite: SmallSuite, failures: str, code: int, passes: list[bool]
) -> None:
    always = ONCE.replace('runs(f"disturbed{n}") > 0', f'runs(f"disturbed{{n}}") not in ({failures},)')
    suite.write("tests/test_once.py", always.replace("[1, 2]", "[1, 2, 3]"))
    suite.commit()
    suite.git("tag", "base")
    suite.write("tests/test_once.py", always)

    report = run(suite)
    (look,) = report.looks
    assert (report.exit_code, report.used) == (code, 1)
    assert look.reason == f"alone, {sum(passes)} of {len(passes)} runs passed (its body changed)"
    assert [attempt.passed for attempt in look.attempts] == passes


def test_changed_fixture_of_another_file_counts_as_a_change(suite: SmallSuite) -> None:
    fixture = "import pytest\n\n@pytest.fixture(autouse=True)\ndef inner():\n    return 1\n"
    suite.write("tests/conftest.py", fixture)
    suite.write("tests/test_wrong.py", WRONG)
    suite.commit()
    suite.git("tag", "base")
    suite.write("tests/conftest.py", fixture.replace("return 1", "return 2"))

    (look,) = run(suite).looks
    assert look.reason == "alone, 0 of 1 runs passed (its fixture inner in tests/conftest.py changed)"


def test_green_run_prints_its_unused_budget(suite: SmallSuite, capfd: pytest.CaptureFixture[str]) -> None:
    suite.write("tests/test_once.py", ONCE)
    suite.commit()
    suite.git("tag", "base")

    assert run(suite, "-k", "sound").exit_code == 0
    assert capfd.readouterr().out.endswith("second look: 0 of 6 used\n")
    assert written(suite)["used"] == 0


@pytest.mark.parametrize(
    ("text", "workers", "code", "reason"),
    [
        ("import nothing_of_this_name\n", "0", 2, "pytest ended with exit code 2: not all tests were run"),
        ("import os\ndef test_crash(): os._exit(3)\n", "1", 1, "the worker crashed"),
        ("import os\ndef test_crash(): os._exit(0)\n", "0", 1, "pytest was stopped before all tests were run"),
    ],
    ids=["collection error", "crashed worker", "pytest ended by a test"],
)
def test_run_that_did_not_end_gets_no_second_look(
    suite: SmallSuite, text: str, workers: str, code: int, reason: str
) -> None:
    suite.write("tests/test_x.py", text)
    suite.commit()
    suite.git("tag", "base")

    report = run(suite, "-n", workers, "--max-worker-restart=0")
    assert (report.exit_code, report.used) == (code, 0)
    assert {report.reason, *(look.reason for look in report.looks)} - {""} == {reason}


def test_failed_test_explains_itself(suite: SmallSuite) -> None:
    suite.write("tests/test_wrong.py", WRONG)

    command = [sys.executable, "-m", "pytest", "-n", "1", "tests"]
    done = subprocess.run(command, cwd=suite.root, capture_output=True, text=True, check=False)
    section = done.stdout.partition("machine when the test failed")[2]
    assert re.search(r"^load [\d.]+, PSI ", section, re.MULTILINE)
    assert re.search(r"^tmp_path: /.*test_wrong0$", section, re.MULTILINE)
    assert "run it alone: .venv/bin/python -m pytest tests/test_wrong.py::test_wrong\n" in section


def test_run_without_tests_is_told_from_a_failure(suite: SmallSuite) -> None:
    """Changed files may have no long tests."""
    suite.write("tests/test_sound.py", "def test_sound():\n    pass\n")
    suite.commit()
    suite.git("tag", "base")

    assert run(suite, "-k", "nothing").exit_code == pytest.ExitCode.NO_TESTS_COLLECTED


# The daemon of this test is its log only.
HANGS = """
import time
from pathlib import Path

from support.started_daemons import STARTED, StartedDaemon

def test_before():
    pass

def test_hangs(tmp_path):
    first = not Path(__file__).with_name("count-hangs").exists()
    Path(__file__).with_name("count-hangs").touch()
    log = tmp_path / "log"
    log.write_text("the last word of the daemon\\n")
    STARTED.append(StartedDaemon(("memwatchd", "--demo"), log))
    if first:
        while True:
            try:
                time.sleep(3600)
            except Exception:
                pass

def test_after():
    pass
"""
# As a build: a program of a program computes, a third of the time, until 7 s after the test has begun.
BUILDS = """
import subprocess
import sys
import time

def test_builds():
    end = time.monotonic() + 7
    busy = f'''
import time
while time.monotonic() < {end}:
    used = time.process_time()
    while time.process_time() < used + 0.03: pass
    time.sleep(0.06)
'''
    build = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    subprocess.run([sys.executable, "-c", build])
"""
# As C code that never returns: the interpreter gets no signal.
STUCK = """
import signal
import time

import pytest

def test_stuck():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(3600)

@pytest.mark.parametrize("n", range(3))
def test_left_over(n):
    pass
"""
DISTRIBUTED = """
def pytest_xdist_make_scheduler(config, log):
    from support.scheduling import Scheduling
    config.option.loadscopereorder = False
    return Scheduling(config, log)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_hung_test_is_named_with_its_stack_and_daemon_and_the_others_run(
    suite: SmallSuite, capfd: pytest.CaptureFixture[str], workers: str
) -> None:
    suite.write("tests/test_hangs.py", HANGS)
    suite.write("tests/test_sound.py", "def test_sound():\n    pass\n")
    suite.commit()
    suite.git("tag", "base")

    # The deadline is 4 s. At 10 the worker would end, and with it the run.
    report = run(suite, "-n", workers, "--max-worker-restart=0", "-o", "faulthandler_timeout=10", "-rA")
    printed, said = capfd.readouterr()
    assert (report.exit_code, report.used) == (0, 1)
    (look,) = report.looks
    assert (look.name, look.verdict) == ("tests/test_hangs.py::test_hangs", "PASSED ALONE")
    (failure,) = look.failures
    assert failure.message.endswith(
        "HungError: hung: the call had no end after 4 s, at tests/test_hangs.py:19 in test_hangs"
    )
    assert failure.daemons == [["memwatchd --demo", "the last word of the daemon"]]
    assert "test_hangs: time.sleep(3600)" in "\n".join(failure.stacks)
    assert "HUNG tests/test_hangs.py::test_hangs in call: no end after 4 s; load " in said
    assert {"test_before", "test_after", "test_sound"} <= set(re.findall(r"PASSED \S+::(\w+)", printed))


def test_test_whose_programs_compute_has_longer(suite: SmallSuite) -> None:
    suite.write("tests/test_builds.py", BUILDS)
    suite.commit()
    suite.git("tag", "base")

    # The deadline is 6 s, and 10.5 for what computes.
    report = run(suite, "-n", "0", "-o", "faulthandler_timeout=15")
    assert (report.exit_code, report.looks) == (0, [])


def test_worker_that_cannot_be_interrupted_is_ended_and_its_other_tests_run(
    suite: SmallSuite, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.write("tests/conftest.py", DISTRIBUTED)
    suite.write("tests/test_a.py", STUCK)
    suite.write("tests/test_b.py", "def test_sound():\n    pass\n")
    suite.commit()
    suite.git("tag", "base")

    timeout = ("-o", "faulthandler_timeout=10", "-o", "faulthandler_exit_on_timeout=true")
    report = run(suite, "-n", "2", "--max-worker-restart=3", "-rA", *timeout)
    printed, said = capfd.readouterr()
    assert report.exit_code == 1
    assert [(look.name, look.reason) for look in report.looks] == [
        ("tests/test_a.py::test_stuck", "the worker crashed")
    ]
    assert len(re.findall(r"PASSED \S+::test_left_over\[\d\]", printed)) == 3
    assert "in test_stuck" in said


BUSY = """
import subprocess, sys, time

WORK = "import time\\nwhile time.process_time() < {}: pass"

def test_own():
    exec(WORK.format(time.process_time() + 0.2))

def test_of_a_process_that_has_ended():
    subprocess.run([sys.executable, "-c", WORK.format(0.4)], check=True)

def test_of_a_process_that_runs():
    code = WORK.format(0.3) + "\\nprint('done', flush=True)\\ninput()"
    one = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    one.stdout.readline()
    test_of_a_process_that_runs.kept = one
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_cpu_seconds_of_a_file_include_its_processes(suite: SmallSuite, workers: str) -> None:
    suite.write("tests/test_busy.py", BUSY)
    suite.write("tests/test_idle.py", "def test_idle():\n    pass\n")
    suite.commit()
    suite.git("tag", "base")

    assert run(suite, "-n", workers).exit_code == 0
    found = json.loads((suite.root / "out/ci/cpu.json").read_text())
    busy, idle = (f"tests/test_{name}.py" for name in ("busy", "idle"))
    assert found["seconds"][busy] >= 0.85  # /proc counts hundredths
    assert 0.2 <= found["of_worker"][busy] < 0.9
    assert found["seconds"][idle] < 0.2
    of_worker = found["of_worker"]["(start, collection and end)"]
    assert found["seconds"]["(start, collection and end)"] == pytest.approx(of_worker, abs=0.05)


# As a browser: it is killed with processes that nothing waits for.
VANISHES = """
import os
import signal
import subprocess
import sys

import pytest

WORK = "import time\\nwhile time.process_time() < 0.4: pass\\nprint(flush=True)\\ninput()"
START = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"

@pytest.fixture(scope="session")
def browser():
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", START], start_new_session=True, **pipes) as one:
        yield one
        os.killpg(one.pid, signal.SIGKILL)

def test_shown(browser):
    browser.stdout.readline()
"""


def test_cpu_seconds_of_a_browser_that_ends_with_the_last_file_are_counted(suite: SmallSuite) -> None:
    suite.write("tests/test_shown.py", VANISHES)
    suite.commit()
    suite.git("tag", "base")

    assert run(suite).exit_code == 0
    found = json.loads((suite.root / "out/ci/cpu.json").read_text())
    assert found["seconds"]["tests/test_shown.py"] >= 0.35
