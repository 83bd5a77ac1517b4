"""Start programs of the product, and those with its library, by fork from a process that has their modules.

A daemon that answers an API request has imported 600 modules, 0.5 s of CPU time; a forked one has them at once. It
runs the same entry point with its own arguments, environment, session and files. Tests of the start, tests marked
`measure` or `long`, runs that measure coverage, and programs other than pytest start the installed program.

This module is also the program of the server: one for each test process, started at its first use. Another server
has imported pytest, for tests of its plugins and of the lanes.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from memwatch.core.snapshot import Snapshot

# Entry points, and what they import later.
PROGRAMS = {
    "memwatchd": "memwatchd.cli",
    "memwatch": "memwatch.cli.cli",
    "memwatchd-guardian": "memwatchd.guardian_cli",
}
PYTEST = ("pytest", "xdist.plugin", "support.failures", "support.deadline", "support.cpu_use")
# First words of a command whose last word is a program in Python.
CODE = (sys.executable, "-W", "error", "-c")
PRELOADED = (
    *PROGRAMS.values(),
    "encodings.idna",
    "memwatch.core.accounting.gpu_limits",
    "memwatch.core.accounting.nvidia",
    "memwatch_monitor.notify.sqlite_store",
    "memwatch_web.api.openapi",
    "memwatch_web.api_app",
    "memwatch_web.asgi.static_files",
    "memwatch_web.metrics.families",
    "memwatch_web.pages_app",
    "memwatchd.recording.player",
    "memwatchd.wiring",
    "memwatchd.logging_setup",
    "memwatchd.run",
    "memwatchd.web_app",
    "pydantic.v1",
    "starlette.middleware.gzip",
    "tomllib" if sys.version_info >= (3, 11) else "tomli",
    "uvicorn.lifespan.off",
)
# Read by the interpreter, the dynamic linker or the C library when a program starts, not later. LD_LIBRARY_PATH is
# too, but only helper processes, which are not forked, load a driver's library.
READ_AT_START = ("COVERAGE_", "GLIBC_", "LD_PRELOAD", "MALLOC_", "PYTHON")
MAX_REQUEST_BYTES = 1 << 20


class _Choice:
    # Benchmarks, the soak run and other programs measure the daemon.
    always_installed = True


@contextmanager
def installed_programs(wanted: bool) -> Iterator[None]:
    """Start the installed programs meanwhile if `wanted`, else forked ones."""
    before, _Choice.always_installed = _Choice.always_installed, wanted
    try:
        yield
    finally:
        _Choice.always_installed = before


def can_fork(environ: Mapping[str, str]) -> bool:
    """Check that `environ` differs from this process's only by variables that programs read later."""
    if _Choice.always_installed or os.environ.get("COVERAGE_PROCESS_CONFIG"):
        return False
    names = environ.keys() | os.environ.keys()
    differing = (name for name in names if environ.get(name) != os.environ.get(name))
    return not any(name.startswith(READ_AT_START) for name in differing)


class ForkedProcess:
    """Program started by the server, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self.pid = int(self._receive())
        self.returncode: int | None = None

    def _receive(self) -> bytes:
        message = self._status.recv(32)
        assert message, "the fork server has ended"
        return message

    def poll(self) -> int | None:
        return self._reap(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._reap(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _reap(self, timeout: float | None) -> int | None:
        from support.waiting import wait_readable  # the server and its children do without psutil

        if self.returncode is None and wait_readable(self._status, timeout):
            self.returncode = int(self._receive())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A server of this test process. `preloaded`: modules of its programs; by default those of the product."""

    def __init__(self, preloaded: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.fork_server", str(theirs.fileno()), *preloaded],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._control.close()
        self._process.wait()

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        folder: Path | None = None,
    ) -> ForkedProcess:
        """Start a program of `PROGRAMS`, or pytest, in a new session."""
        return self._send(command, environ, [stdout, stderr], folder)

    def start_in_terminal(self, command: Sequence[str], environ: Mapping[str, str], terminal: int) -> ForkedProcess:
        """Start a program of `PROGRAMS` in a new session with this controlling terminal."""
        return self._send(command, environ, [terminal] * 3)

    def _send(
        self, command: Sequence[str], environ: Mapping[str, str], files: Sequence[int], folder: Path | None = None
    ) -> ForkedProcess:
        request = json.dumps([str(folder or Path.cwd()), dict(environ), list(command)], ensure_ascii=True).encode()
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._control, [request], [theirs.fileno(), *files])
        return ForkedProcess(status)


@functools.cache
def fork_server() -> ForkServer:
    from support.open_things import kept_open  # the server and its children do without

    with kept_open():
        return ForkServer()


def run_forked(
    command: Sequence[str], environ: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program of `PROGRAMS` to its end, and return its output."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = fork_server().start(command, environ, stdout.fileno(), stderr.fileno())
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = [_text(one.fileno()) for one in (stdout, stderr)]
    return subprocess.CompletedProcess(command, code, *texts)


def _text(fd: int) -> str:
    with open(fd, encoding="utf-8", closefd=False) as file:
        file.seek(0)
        return file.read()


class _Server:
    """Loop of the server: fork a child for each request, and report its PID and later its exit code."""

    def __init__(self, control: socket.socket, keep_demo: Callable[[str], None] | None = None) -> None:
        self._control = control
        self._keep_demo = keep_demo
        self._children: dict[int, tuple[int, socket.socket]] = {}  # PID and status socket by pidfd

    def serve(self) -> tuple[Any, ...] | None:
        """Return None when the test process has ended, and in each child the request."""
        control = self._control.fileno()
        while True:
            readable, _, _ = select.select([control, *self._children], [], [])
            for pidfd in self._children.keys() & readable:
                self._report(pidfd)
            if control in readable:
                message, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, 4)
                if not message:
                    self._kill_children()
                    return None
                request: list[Any] = json.loads(message)
                self._prepare(request[2])
                if self._is_child(fds):
                    return tuple(request)

    def _prepare(self, command: Sequence[str]) -> None:
        """Decode the demo of a command here, if it has one, for those that follow as well."""
        if self._keep_demo and "--demo" in command[:-1]:
            self._keep_demo(command[command.index("--demo") + 1])

    def _kill_children(self) -> None:
        """End what a killed test process could not: children not reported yet keep their PID."""
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)

    def _is_child(self, fds: list[int]) -> bool:
        status = socket.socket(fileno=fds[0])
        pid = os.fork()
        if pid:
            for fd in fds[1:]:
                os.close(fd)
            status.send(str(pid).encode())
            self._children[os.pidfd_open(pid)] = (pid, status)
            return False
        for number, fd in zip((2, 1, 0), reversed(fds[1:]), strict=False):
            os.dup2(fd, number)
        for fd in (*self._children, *fds[1:]):
            os.close(fd)
        for one in (self._control, status, *(other for _, other in self._children.values())):
            one.close()
        return True

    def _report(self, pidfd: int) -> None:
        pid, status = self._children.pop(pidfd)
        os.close(pidfd)
        _, code = os.waitpid(pid, 0)
        with status:
            status.send(str(os.waitstatus_to_exitcode(code)).encode())


def _become(folder: str, environ: dict[str, str], command: list[str]) -> int:
    os.setsid()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # Those of the server may be files that can seek.
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    name = Path(command[0]).name
    Path("/proc/self/comm").write_text(name)
    if tuple(command[:-1]) == CODE:
        return _run_code(command[-1])
    sys.argv[:] = command
    code: int = sys.modules[PROGRAMS.get(name, name)].main()
    return code


def _run_code(code: str) -> int:
    """Run a program as `python -W error -c` does. It imports the library, which reads the environment then."""
    sys.argv[:] = ["-c"]
    sys.path[0:0] = [""]
    warnings.simplefilter("error")
    for name in [name for name in sys.modules if name.startswith("memwatch.library")]:
        del sys.modules[name]
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), program.__dict__)
    except SystemExit as end:
        return _exit_code(end)
    except BaseException as error:
        trace = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _preloaded() -> Iterator[str]:
    yield from PRELOADED
    client = importlib.import_module("memwatch.cli")
    for module in pkgutil.iter_modules(client.__path__, "memwatch.cli."):
        if not module.name.endswith("__main__"):
            yield module.name


def _fill_caches() -> None:
    """Do once what each daemon does at its start or first page: describe settings, load templates."""
    from memwatch_web.pages.template_environment import shared_environment
    from memwatchd.settings.load import variables

    variables()
    templates = shared_environment()
    for name in templates.list_templates(("html", "svg")):
        templates.get_template(name)


def _keeping_demos() -> Callable[[str], None]:
    """Return a function that decodes the recording of a demo once: half of the CPU time of its start."""
    from memwatchd.recording import demos, player
    from memwatchd.settings.schema import DEMOS

    kept: dict[Path, list[Snapshot]] = {}
    read = player.read_frames

    def read_frames(path: Path, on_unreadable: Callable[[], object] = lambda: None) -> Iterator[Snapshot]:
        return iter(kept[path]) if path in kept else read(path, on_unreadable)

    def keep(demo: str) -> None:
        if demo in DEMOS and (path := demos.path_of(demo)) not in kept:
            kept[path] = list(read(path))
            gc.freeze()

    player.read_frames = read_frames
    return keep


def _main() -> NoReturn:
    others = sys.argv[2:]
    for name in others or _preloaded():
        importlib.import_module(name)
    keep_demo = None
    if not others:
        _fill_caches()
        keep_demo = _keeping_demos()
    gc.collect()
    gc.freeze()
    request = _Server(socket.socket(fileno=int(sys.argv[1])), keep_demo).serve()
    if request is None:
        sys.exit(0)
    _exit(_become(*request))


def _exit(code: int) -> NoReturn:
    """End as the interpreter does, except that it would also take down 900 modules: 40 ms and 60 MB of memory."""
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
