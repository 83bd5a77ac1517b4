"""The process that reads NVML, through its interface to the daemon: one command in, one line out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from memwatch.core.drivers.nvml.records import GpuReading, NvmlFailure, NvmlReading
from memwatch.core.helper.codec import from_line
from simulators.nvml_machine import Simulator
from support.daemon_process import clean_environment
from support.paths import MACHINES
from support.waiting import MAX_WAIT_SECONDS

Outcome = NvmlReading | NvmlFailure


class Child(Struct, frozen=True):
    """Running `python -m memwatch.core.drivers.nvml.child`."""

    process: subprocess.Popen[bytes]

    def ask(self, command: str = "read") -> Outcome:
        self.send(command)
        return self.answer()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> Outcome:
        assert self.process.stdout is not None
        kind, _, record = self.process.stdout.readline().partition(b" ")
        return from_line(NvmlReading, record) if kind == b"reading" else from_line(NvmlFailure, record)

    def reading(self) -> NvmlReading:
        outcome = self.ask()
        assert isinstance(outcome, NvmlReading), outcome
        return outcome

    def failure(self) -> NvmlFailure:
        outcome = self.ask()
        assert isinstance(outcome, NvmlFailure), outcome
        return outcome

    def gpu(self, index: int = 0) -> GpuReading:
        return self.reading().gpus[index]

    def until(self, happened: Callable[[Outcome], bool], seconds: float = MAX_WAIT_SECONDS) -> Outcome:
        """Read every 0.05 s until an outcome shows it."""
        ends = time.monotonic() + seconds
        while not happened(outcome := self.ask()):
            assert time.monotonic() < ends, f"still {outcome}"
            time.sleep(0.05)
        return outcome

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def wait_until_listening(simulator: Simulator, child: Child) -> None:
    """Wait until the child has read once and waits for events."""
    child.ask()
    ends = time.monotonic() + MAX_WAIT_SECONDS
    while "nvmlEventSetWait_v2" not in {call.function for call in simulator.calls()}:
        assert time.monotonic() < ends, "the child does not wait for events"
        time.sleep(0.02)


@contextmanager
def running_child(simulator: Simulator, *options: str, environ: Mapping[str, str] | None = None) -> Iterator[Child]:
    """Start a child on this machine. It retries 0.2 s after a failure, unless `options` change that."""
    procfs = MACHINES / (simulator.host or "") / "proc"
    command = [sys.executable, "-W", "error", "-m", "memwatch.core.drivers.nvml.child", f"--procfs={procfs}"]
    with (simulator.folder / "stderr").open("ab") as stderr:
        process = subprocess.Popen(
            [*command, "--retry-seconds=0.2", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=clean_environment(**simulator.environ, **(environ or {})),
        )
    with process:
        try:
            yield Child(process)
        finally:
            process.kill()
