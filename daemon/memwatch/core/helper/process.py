"""Child process with a pipe from its output: start, read with a deadline, kill, reap.

`python -m` puts the working directory first on the import path, where any user may have left an argparse.py. With
`-I`, Python uses neither that directory nor PYTHON* variables nor the user's packages, so the parent passes its own
import path.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# Arguments: the module, the number of folders, the folders, and the module's own arguments. The module is thus
# visible in /proc/PID/cmdline. Its `main` is called as if by `python -m`.
_BOOT = (
    "import sys; from importlib import import_module; module, end = sys.argv[1], 3 + int(sys.argv[2]); "
    "sys.path[:] = sys.argv[3:end]; sys.argv[:end] = [module]; sys.exit(import_module(module).main())"
)
# The folder of the package memwatch.
_PACKAGES = str(Path(__file__).parents[3])


def python_child(module: str, path: Iterable[str] | None = None) -> list[str]:
    """Return the command that calls `main` of a module. `path` is its import path, that of this process by default.

    Start it with `/` as the working directory: libraries may also be found relative to it.
    """
    folders = list(import_path() if path is None else path)
    return [sys.executable, "-I", *_flags(), "-c", _BOOT, module, str(len(folders)), *folders]


def import_path() -> list[str]:
    """Return the import path of this process without the working directory and folders relative to it.

    Python puts the working directory there for `python -m` and `python -c`, and makes relative and empty entries of
    PYTHONPATH absolute. Folders that PYTHONPATH names by an absolute path count.
    """
    text = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    named = {_PACKAGES, *filter(os.path.isabs, text.split(os.pathsep))}
    relative = {_real_path(one) for one in (".", *text.split(os.pathsep)) if not os.path.isabs(one)}
    kept = [one for one in sys.path if os.path.isabs(one) and (one in named or _real_path(one) not in relative)]
    return list(dict.fromkeys([*kept, _PACKAGES]))


def _real_path(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # the working directory was removed
        return path


def _flags() -> list[str]:
    """Return options for the place of compiled modules: `-I` ignores their environment variables."""
    flags = ["-B"] if sys.dont_write_bytecode else []
    return [*flags, "-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else flags


_READ_BYTES = 1 << 16
_MAX_ERROR_LETTERS = 200
# Wrapper of a program that is not part of memwatchd: the kernel kills the program when the thread that started it
# ends, even if it is stuck. `preexec_fn` would do the same, but may deadlock in a process with threads. Python
# ignores SIGPIPE; the program gets the default action.
_TIE = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def bind_to_parent(argv: Sequence[str]) -> list[str]:
    """Return a command that never outlives the thread that starts it. Linux only. Each start takes 20 ms longer."""
    return [sys.executable, "-I", "-S", "-c", _TIE, *argv]


def is_ready(descriptor: int, seconds: float) -> bool:
    """Wait up to `seconds` and return True if there is data or the end of the file.

    It uses `poll`, because `select` fails for descriptors above 1,023, which exist on a machine with a thousand
    processes.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class Child:
    """A child process in the working directory `/`. Not thread-safe.

    A child that cannot be killed at once (a call stuck in the kernel) is left behind and reaped when it ends.
    `input` is the descriptor of the pipe to its stdin, or -1. The stderr of a `quiet` child is discarded. That of
    others goes to a pipe that never blocks: it keeps the first 64 KiB, and `how_it_ended` quotes the last line.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str] | None = None,
        takes_input: bool = False,
        quiet: bool = False,
    ) -> None:
        self.input: int = -1
        self._quiet = quiet
        self._errors = -1
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
        """Start the child. If the program does not exist, raise OSError and leave no descriptor open."""
        self._reap(0.0)
        theirs: list[int] = []
        try:
            self._output, theirs_out = os.pipe()
            theirs.append(theirs_out)
            theirs_in, self.input = os.pipe() if self._takes_input else (os.open(os.devnull, os.O_RDONLY), -1)
            theirs.append(theirs_in)
            errors = subprocess.DEVNULL if self._quiet else self._open_errors()
            theirs += [] if self._quiet else [errors]
            self._process = subprocess.Popen(  # noqa: S603
                self._argv, stdin=theirs_in, stdout=theirs_out, stderr=errors, env=self._environ, cwd="/"
            )
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def stop(self, seconds: float = 0.2) -> None:
        """Kill the child, and wait up to `seconds` for its end. After that it is left behind and reaped later.

        The kernel closes its descriptors, including those of drivers.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        self._close()
        self._left_behind.append(process)
        self._reap(seconds)

    def read(self, seconds: float) -> bytes | None:
        """Return the child's next output. None after `seconds` without any, b"" at the end of its output."""
        if self._output < 0:
            return b""
        return os.read(self._output, _READ_BYTES) if is_ready(self._output, seconds) else None

    def count_left_behind(self) -> int:
        """Return how many killed children have not ended yet."""
        self._reap(0.0)
        return len(self._left_behind)

    def how_it_ended(self) -> str:
        """Return how the child ended, as a predicate. A child that closed its pipe has one second to exit."""
        if self._process is None:
            return "was stopped"
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe and was killed"
        ending = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        last_line = self._last_error_line()
        return f"{ending}: {last_line}" if last_line else ending

    def _open_errors(self) -> int:
        """Open the pipe of stderr and return its writing end.

        The child must not wait for a reader of its messages. O_NONBLOCK belongs to the pipe, not to the descriptor
        (fcntl(2)), so the child inherits it: a write to the full pipe fails with EAGAIN.
        """
        self._errors, theirs = os.pipe()
        os.set_blocking(theirs, False)
        return theirs

    def _last_error_line(self) -> str:
        """Return the last line that the child wrote to stderr, cut and without control characters."""
        if self._errors < 0 or not is_ready(self._errors, 0.0):
            return ""
        lines = os.read(self._errors, _READ_BYTES).decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(letter if letter.isprintable() else "?" for letter in last[:_MAX_ERROR_LETTERS])

    def _close(self) -> None:
        for descriptor in (self.input, self._output, self._errors):
            if descriptor >= 0:
                os.close(descriptor)
        self.input = self._output = self._errors = -1

    def _reap(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            self._left_behind = [process for process in self._left_behind if process.poll() is None]
            if not self._left_behind or time.monotonic() >= until:
                return
            time.sleep(0.005)
