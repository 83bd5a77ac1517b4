"""The library inside any program: fork, spawn, threads, asyncio, signal handlers, and the end of the interpreter.

Each program prints what it found, and a traceback of any of its threads would be on stderr.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemon_process import RunningDaemon, running_daemon
from support.fork_server import installed_programs
from support.library_process import run_json, run_program
from support.waiting import MAX_WAIT_SECONDS

USE = """
import json, logging, os, sys, threading, time, warnings
import memwatch
logging.getLogger("memwatch").addHandler(logging.NullHandler())
logging.getLogger("memwatch").propagate = False
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork beside threads, since Python 3.12
def use(name="step"):
    with memwatch.track(name) as stats, memwatch.track("inner", exact=False):
        block = bytearray(1 << 20)
        line = memwatch.log_memory_usage(name)
    return bool(line) and stats.process.peak_bytes > 0 and stats.seconds >= 0
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture(params=[False, True], ids=["alone", "with daemon"])
def url(request: pytest.FixtureRequest, daemon: RunningDaemon) -> str | None:
    return daemon.url if request.param else None


def test_forked_child_measures_on_its_own(url: str | None) -> None:
    """The fork lies within blocks, a profiler and a guard of the parent, whose threads the child does not have."""
    code = """
with memwatch.MemoryProfiler(0.01) as profiler, memwatch.guard("1TiB"), memwatch.track("parent") as outer:
    use()
    child = os.fork()
    if not child:
        profiler.stage("child")
        os._exit(0 if use("child") and profiler.report().peaks and memwatch.machine().ram else 3)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps([code, use(), outer.exact]))
"""
    assert run_json(USE + code, url)[:2] == [0, True]


SLOW_IMPORT = """
import signal
class Slow:
    \"\"\"Makes the import of a module last 0.5 s in the library's threads.\"\"\"
    def find_spec(self, name, path=None, target=None):
        if name == SLOW and threading.current_thread() is not threading.main_thread():
            begun.set()
            time.sleep(0.5)
begun = threading.Event()
sys.meta_path.insert(0, Slow())
class Pool:
    backend_name, device = "mine", "cuda:0"
    def stats(self): return memwatch.PoolStats(1, 1)
    def total(self): return 1
    def free(self): return 0
    def pressure(self): return 1.0
    def clear(self): pass
    def shrink(self): return 0
memwatch.register_pool(Pool())
memwatch.log_memory_usage("load")
imports = begun.wait(SECONDS)
child = os.fork()
if not child:
    signal.alarm(60)  # ends it, if it hangs
    os._exit(0 if use("child") and memwatch.machine().ram else 3)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), imports]))
"""


@pytest.mark.parametrize(("module", "in_a_thread"), [("encodings.idna", False), ("memwatch.library.machine", True)])
def test_child_forked_during_an_import_of_the_library_does_not_hang(
    daemon: RunningDaemon, module: str, in_a_thread: bool
) -> None:
    """The lock of a module that a thread imports would stay locked in the child."""
    seconds = MAX_WAIT_SECONDS if in_a_thread else 1.0  # nothing tells that an import does not come
    code = f"SLOW, SECONDS = {module!r}, {seconds}\n{SLOW_IMPORT}"

    with installed_programs(True):
        assert run_json(USE + code, daemon.url) == [0, in_a_thread]


def test_child_forked_while_other_threads_measure_does_not_hang() -> None:
    """A lock that another thread held at the fork would stay locked in the child."""
    code = """
use()
end = threading.Event()
def work():
    while not end.is_set():
        use()
threads = [threading.Thread(target=work) for _ in range(4)]
[one.start() for one in threads]
codes = []
for _ in range(20):
    child = os.fork()
    if not child:
        os._exit(0 if use("child") else 3)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
end.set()
[one.join() for one in threads]
print(json.dumps(codes))
"""
    assert run_json(USE + code) == [0] * 20


def test_spawned_child_measures_on_its_own(tmp_path: Path) -> None:
    """multiprocessing imports the program again, and sends what it gives by pickle."""
    program = tmp_path / "program.py"
    program.write_text(
        USE
        + """
if __name__ == "__main__":
    import multiprocessing
    with memwatch.track("parent"), multiprocessing.get_context("spawn").Pool(2) as pool:
        print(json.dumps(pool.map(use, ["a", "b", "c"])))
"""
    )
    with installed_programs(True):
        assert run_json(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')") == [True] * 3


def test_threads_measure_at_the_same_time(url: str | None) -> None:
    code = """
found = []
threads = [threading.Thread(target=lambda: found.extend(use() for _ in range(30))) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
print(json.dumps([len(found), all(found)]))
"""
    assert run_json(USE + code, url) == [240, True]


def test_tasks_of_asyncio_have_blocks_that_overlap(url: str | None) -> None:
    """Blocks of tasks end in any order, and no call holds the event loop up for long."""
    code = """
import asyncio
longest = 0.0
async def task(number):
    with memwatch.track(f"task {number}") as stats:
        for _ in range(5):
            memwatch.log_memory_usage("task")
            await asyncio.sleep(0.001 * (number % 7))
    return stats.process.peak_bytes > 0
async def main():
    use()
    return await asyncio.gather(*[task(number) for number in range(50)], asyncio.to_thread(use))
print(json.dumps(asyncio.run(main())))
"""
    assert run_json(USE + code, url) == [True] * 51


def test_signal_handler_may_measure_within_a_call(url: str | None) -> None:
    """A handler runs between any two instructions of the library, with its locks held."""
    code = """
import signal
use()  # as any handler, it needs its modules loaded
found = []
def handler(*_):
    found.append(use("handler"))
    signal.setitimer(signal.ITIMER_REAL, 0.001 if len(found) < 100 else 0)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
until = time.monotonic() + 60
own = []
with memwatch.MemoryProfiler(0.01) as profiler:
    while len(found) < 100 and time.monotonic() < until:
        own.append(use())
        profiler.stage("step")
print(json.dumps([len(found) >= 100, all(found), all(own)]))
"""
    assert run_json(USE + code, url) == [True, True, True]


ENDS = {
    "normally": "",
    "by an exit within a block": "memwatch.track('open').__enter__(); sys.exit(0)",
    "in atexit": "import atexit; atexit.register(use, 'late')",
    "in a destructor": """
class Late:
    def __del__(self):
        memwatch.log_memory_usage("late")
late = Late()
""",
    "with a thread that measures": """
def work():
    while True:
        use()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_interpreter_ends_silently(end: str, url: str | None) -> None:
    """Beside threads of a profiler, a guard, a pressure watch and the sender of marks."""
    code = """
profiler = memwatch.MemoryProfiler(0.01)
profiler.start()
guard = memwatch.guard("1TiB")
watch = memwatch.on_pressure(print)
use()
"""
    with installed_programs(True):
        done = run_program(USE + code + ENDS[end], url)  # one that does not end is an error

    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_raises_into_a_step_without_memory_files(tmp_path: Path) -> None:
    """No /proc, no daemon, and a pool whose every call fails."""
    code = """
class Broken:
    backend_name, device = "Broken", "cuda:0"
    def stats(self):
        raise RuntimeError("illegal memory access")
    total = free = pressure = clear = shrink = stats
memwatch.register_pool(Broken())
with memwatch.track("step") as stats, memwatch.MemoryProfiler(0.01) as profiler:
    line = memwatch.log_memory_usage("step")
    profiler.stage("next")
    info = memwatch.memory_info("cuda:0")
    found = memwatch.autopsy(MemoryError("no"))
print(json.dumps([line is not None, info, stats.name]))
"""
    roots = {f"MEMWATCHD_{one}FS": str(tmp_path / "none") for one in ("PROC", "SYS", "ROOT")}
    done = run_program(USE + code, **roots)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [True, None, "step"]
