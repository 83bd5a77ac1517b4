"""Measure what a process's CUDA context takes of a GPU's memory.

One child process holds a context and reads free memory, while others open one. Nothing else may tell: NVML's free
memory is another figure than CUDA's, and a context's own process cannot read it before.
"""

from __future__ import annotations

import os
import statistics
import time

from msgspec import Struct

from memwatch.core.helper.process import Child, python_child

CHILD = "memwatch.core.backends.cuda_context_child"
# Opening a context takes 0.2 to 3 s on a machine with eight GPUs.
ANSWER_SECONDS = 20.0
ROUNDS = 3
# The driver returns the memory of a process after its end.
RETURN_SECONDS = 2.0
RETURN_BYTES = 8 << 20
MAX_CONTEXT_BYTES = 8 << 30


class ContextNotMeasuredError(Exception):
    """The cost of a context could not be measured; the message has the reason."""


class ContextCost(Struct, frozen=True):
    """Bytes that the context of one process takes, and the GPU on which it was measured."""

    bytes: int
    gpu: str


def measure_context() -> ContextCost:
    """Return the cost of a context on the first GPU, the median of three. Raises ContextNotMeasuredError."""
    watcher = _Asked()
    try:
        gpu = watcher.ask("open")
        costs = [_measure_once(watcher) for _ in range(ROUNDS)]
    finally:
        watcher.stop()
    cost = int(statistics.median(costs))
    if not 0 < cost < MAX_CONTEXT_BYTES:
        raise ContextNotMeasuredError(f"free memory changed by {cost} bytes at the same time; try again")
    return ContextCost(cost, gpu)


def _measure_once(watcher: _Asked) -> int:
    subject = _Asked()
    try:
        subject.ask("load")
        before = int(watcher.ask("free"))
        subject.ask("open")
        after = int(watcher.ask("free"))
    finally:
        subject.stop()
    until = time.monotonic() + RETURN_SECONDS
    while int(watcher.ask("free")) < before - RETURN_BYTES and time.monotonic() < until:
        time.sleep(0.05)
    return before - after


class _Asked:
    """A child that answers one line for each command."""

    def __init__(self) -> None:
        environ = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._child = Child(python_child(CHILD), environ, takes_input=True)
        try:
            self._child.start()
        except OSError as error:
            raise ContextNotMeasuredError(f"a process cannot be started ({error.strerror})") from None

    def ask(self, command: str) -> str:
        """Send a command and return the text of the answer."""
        try:
            os.write(self._child.input, f"{command}\n".encode())
        except BrokenPipeError:
            raise ContextNotMeasuredError(f"the process that opens it {self._child.how_it_ended()}") from None
        found = b""
        while not found.endswith(b"\n"):
            more = self._child.read(ANSWER_SECONDS)
            if more is None:
                raise ContextNotMeasuredError(f"the driver did not answer within {ANSWER_SECONDS:g} s")
            if not more:
                raise ContextNotMeasuredError(f"the process that opens it {self._child.how_it_ended()}")
            found += more
        word, _, text = found.decode("utf-8", "replace").strip().partition(" ")
        if word != "ok":
            raise ContextNotMeasuredError(text)
        return text

    def stop(self) -> None:
        self._child.stop()
