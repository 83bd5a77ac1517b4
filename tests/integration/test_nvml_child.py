"""The NVML helper process answers each command with one line, prints nothing else, and exits cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memwatch.core.drivers.nvml.records import NvmlFailure, NvmlReading
from simulators.nvml_child import running_child
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Holder, Trouble
from simulators.sample_nvml import EIGHT_H100, RTX_4090
from simulators.sample_nvml_integrated import GB10
from support.daemon_process import clean_environment
from support.waiting import MAX_WAIT_SECONDS, wait_until

NEEDED_PROGRAMS = ("cc",)

PRINTS = r"""
#include <stdio.h>
int nvmlInitWithFlags(unsigned flags) { (void)flags; puts("reading {}"); fflush(stdout); return 9; }
"""


def test_every_command_gets_one_line(tmp_path: Path) -> None:
    """Commands may be sent ahead. One line answers each, in order, invalid commands included."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        for command in ("read", "raed", "", "read"):
            child.send(command)
        answers = [child.answer() for _ in range(4)]

    assert [type(answer) for answer in answers] == [NvmlReading, NvmlFailure, NvmlFailure, NvmlReading]
    assert answers[1] == NvmlFailure("failed", r"unknown command b'raed\n': there are 'read' and 'reopen'")


def test_output_of_the_library_goes_to_stderr(tmp_path: Path) -> None:
    """Text that a library prints to stdout must not look like an answer of the helper."""
    source, library = tmp_path / "prints.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(PRINTS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)

    done = subprocess.run(
        [sys.executable, "-m", "memwatch.core.drivers.nvml.child"],
        input=b"read\n",
        capture_output=True,
        env=clean_environment(LD_LIBRARY_PATH=str(tmp_path)),
        check=True,
    )

    assert done.stdout.startswith(b"failure {")
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b"reading {}\n"


def test_helper_exits_at_end_of_stdin(tmp_path: Path) -> None:
    """It calls nvmlShutdown and exits with 0."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        child.reading()
        assert child.process.stdin is not None
        child.process.stdin.close()
        code = child.process.wait(timeout=MAX_WAIT_SECONDS)

    assert code == 0
    assert simulator.calls()[-1].function == "nvmlShutdown"
    assert (simulator.folder / "stderr").read_text() == ""


def test_helper_exits_cleanly_on_sigterm(tmp_path: Path) -> None:
    """It calls nvmlShutdown and exits with 0."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        child.reading()
        child.process.send_signal(signal.SIGTERM)
        code = child.process.wait(timeout=MAX_WAIT_SECONDS)

    assert code == 0
    assert simulator.calls()[-1].function == "nvmlShutdown"
    assert (simulator.folder / "stderr").read_text() == ""


def test_helper_exits_cleanly_when_its_reader_is_gone(tmp_path: Path) -> None:
    """A closed stdout leads to exit code 0 without a traceback."""
    simulator = Simulator.of(tmp_path, RTX_4090)

    with running_child(simulator) as child:
        child.reading()
        assert child.process.stdout is not None
        child.process.stdout.close()
        child.send("read")
        code = child.process.wait(timeout=MAX_WAIT_SECONDS)

    assert code == 0
    assert (simulator.folder / "stderr").read_text() == ""


def test_helper_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """A killed parent ends it, even stuck in a call and with stdin still held open by another process."""
    simulator = Simulator.of(tmp_path, RTX_4090)
    simulator.show(RTX_4090.with_gpu(0, troubles={"nvmlDeviceGetMemoryInfo_v2": Trouble(latency_ms=60_000)}))
    parent_code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'memwatch.core.drivers.nvml.child'], stdin=0)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    read, write = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code],
        stdin=read,
        stdout=subprocess.PIPE,
        env=clean_environment(**simulator.environ),
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.write(write, b"read\n")
        wait_until(lambda: "nvmlDeviceGetMemoryInfo_v2" in {call.function for call in simulator.calls()})

        parent.kill()

        wait_until(lambda: not is_running(child))
    os.close(read)
    os.close(write)


def test_oom_score_of_the_helper_is_that_of_the_daemon(tmp_path: Path) -> None:
    """The unit's oom_score_adj also protects the helper: the OOM killer does not take the GPU's figures first."""
    simulator = Simulator.of(tmp_path, GB10)
    own = Path("/proc/self/oom_score_adj").read_text()

    with running_child(simulator) as child:
        child.ask()
        score = Path(f"/proc/{child.process.pid}/oom_score_adj").read_text()

    assert score == own


def test_helper_imports_only_pynvml_msgspec_and_few_own_modules(tmp_path: Path) -> None:
    code = (
        "import sys, json; before = set(sys.modules); import memwatch.core.drivers.nvml.child;"
        "print(json.dumps([[n, getattr(m, '__file__', None)] for n, m in sys.modules.items() if n not in before]))"
    )

    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=tmp_path).stdout
    modules = dict(json.loads(output))

    assert {"argparse", "gettext"}.isdisjoint(modules)
    foreign = {name.partition(".")[0] for name, file in modules.items() if file and "site-packages" in file}
    ours = {name for name in modules if name.startswith("memwatch")}
    assert foreign - {"typing_extensions"} == {"pynvml", "msgspec"}
    assert {name for name in ours if not name.startswith("memwatch.core.drivers.nvml")} == {
        "memwatch",
        "memwatch.core",
        "memwatch.core.drivers",
        "memwatch.core.helper",
        "memwatch.core.runtime",
        "memwatch.core.helper.bootstrap",
        "memwatch.core.linux",
        "memwatch.core.linux.cgroup_mounts",
        "memwatch.core.linux.cgroups",
        "memwatch.core.linux.dmem",
        "memwatch.core.owners",
        "memwatch.core.doc",
        "memwatch.core.linux.files",
        "memwatch.core.linux.pci",
        "memwatch.core.model",
        "memwatch.core.printable",
        "memwatch.core.runtime.worker",
        "memwatch.core.runtime.regular_file",
        "memwatch.core.helper.codec",
        "memwatch.core.wire",
    }


@pytest.mark.parametrize(
    "option", ["--retry-seconds=soon", "--slow-seconds=", "--system-memory=64GiB", "--colour=blue"]
)
def test_invalid_option_is_named_in_the_error(option: str) -> None:
    """Exit code 2 and the option on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "memwatch.core.drivers.nvml.child", option], capture_output=True, check=False
    )

    assert done.returncode == 2
    assert option.partition("=")[0] in done.stderr.decode()


def test_long_answer_arrives_whole(tmp_path: Path) -> None:
    """The answer is larger than a pipe buffer and the reader is slow."""
    machine = EIGHT_H100
    for gpu in range(8):
        machine = machine.with_gpu(gpu, compute=tuple(Holder(pid, 1) for pid in range(1, 900)))
    simulator = Simulator.of(tmp_path, machine)

    with running_child(simulator) as child:
        child.send("read")
        time.sleep(0.5)
        answer = child.answer()

    assert isinstance(answer, NvmlReading)
    assert [gpu.processes for gpu in answer.gpus].count(answer.gpus[0].processes) == 8
    assert len(answer.gpus[0].processes) == 899  # type: ignore[arg-type]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
