"""One process at a time with a pipe from its output: started, read with a deadline, ended, reaped."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

_READ_BYTES = 1 << 16
# Put before a program that is not ours: the kernel kills it with the thread that started it, stuck or not. It is
# what `preexec_fn` would do, which may deadlock in a process with threads. Python ignores SIGPIPE; programs do not.
_TIE = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def tied(argv: Sequence[str]) -> list[str]:
    """A command that never outlives the thread that starts it. Linux only; 20 ms more for each start."""
    return [sys.executable, "-I", "-S", "-c", _TIE, *argv]


def is_ready(descriptor: int, seconds: float) -> bool:
    """Whether within so many seconds there is something to read, or nothing ever will be.

    For any descriptor: `select` refuses those above 1,023, and a machine with a thousand processes has them.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class Child:
    """For one thread. A child that cannot be killed (a call stuck in the kernel) is left behind and reaped when
    the kernel lets go of it.

    `input` is the descriptor of the pipe to it, where it takes any input. What a `quiet` child complains of is
    for nobody; else it is for our log.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str] | None = None,
        takes_input: bool = False,
        quiet: bool = False,
    ) -> None:
        self.input = -1
        self._errors = subprocess.DEVNULL if quiet else None
        self._argv = list(argv)
        self._environ = environ
        self._takes_input = takes_input
        self._output = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._left_behind: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Raises OSError, and leaves nothing open, when there is no such program."""
        self._reap(0.0)
        theirs: list[int] = []
        try:
            self._output, theirs_out = os.pipe()
            theirs.append(theirs_out)
            theirs_in, self.input = os.pipe() if self._takes_input else (os.open(os.devnull, os.O_RDONLY), -1)
            theirs.append(theirs_in)
            self._process = subprocess.Popen(  # noqa: S603
                self._argv, stdin=theirs_in, stdout=theirs_out, stderr=self._errors, env=self._environ
            )
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def stop(self, seconds: float = 0.2) -> None:
        """End it at once; its descriptors, and so a driver's, are closed by the kernel.

        It is waited for so long, and left to the kernel if it is not gone then.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        self._close()
        self._left_behind.append(process)
        self._reap(seconds)

    def read(self, seconds: float) -> bytes | None:
        """What it wrote; None if nothing came for so long, b"" if nothing ever will."""
        if self._output < 0:
            return b""
        return os.read(self._output, _READ_BYTES) if is_ready(self._output, seconds) else None

    def last_words(self) -> str:
        """How it ended, to follow its name. One that closed its pipe is given a second to end."""
        if self._process is None:
            return "was stopped"
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe and was killed"
        return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def _close(self) -> None:
        for descriptor in (self.input, self._output):
            if descriptor >= 0:
                os.close(descriptor)
        self.input = self._output = -1

    def _reap(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            self._left_behind = [process for process in self._left_behind if process.poll() is None]
            if not self._left_behind or time.monotonic() >= until:
                return
            time.sleep(0.005)
