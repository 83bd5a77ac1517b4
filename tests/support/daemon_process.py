"""memwatchd as a process with a command line, accessed over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from support.bound_process import start_bound
from support.fork_server import CODE, ForkedProcess, can_fork, fork_server, run_forked
from support.free_ports import free_port
from support.lanes import is_a_test_running, may_watch_this_machine
from support.paths import MACHINES
from support.short_json import short_json
from support.started_daemons import STARTED, StartedDaemon, mark_ended
from support.waiting import MAX_WAIT_SECONDS, wait_until

MEMWATCHD = str(Path(sys.executable).with_name("memwatchd"))
# Prefix of a command: root without the capabilities that bypass file permissions. It is not another user, who
# might have no access to the folder of this checkout.
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
# Coverage costs a daemon 6 MiB and 0.1 s, so tests that measure its cost run without.
WITHOUT_COVERAGE = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}
# Called with every daemon at the end of its test, while it still runs: `make faults` adds its checks here.
WITNESSES: list[Callable[[RunningDaemon], None]] = []
# Machine of tests that are about something else: no GPU, no kernel log, System RAM at 54 %, and nothing changes.
# Processes, kills and stalls of other programs on the machine that runs the tests would be ticks and alerts.
QUIET_MACHINE = MACHINES / "headless-server"
ROOTS = {"procfs": "proc", "sysfs": "sys", "rootfs": "root"}
_NAMES_A_MACHINE = ("--procfs", "--sysfs", "--rootfs", "--demo", "--replay")


class Answer(Struct, frozen=True):
    """HTTP answer with its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


class RunningDaemon(Struct):
    """Daemon that has answered once."""

    process: subprocess.Popen[bytes] | ForkedProcess
    port: int
    log: Path
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def get(self, path: str, **headers: str) -> Answer:
        return get(self.port, path, headers, tls=self.tls)

    def snapshot(self) -> Any:
        return self.get("/api/v1/snapshot").json

    def wait_for(
        self,
        path: str,
        wanted: Any,
        seconds: float = MAX_WAIT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Poll until `wanted(json)` is true; fail with the last answer after `seconds`.

        A request costs both sides 5 ms of CPU time, so that a longer wait asks less often.
        """
        until, pause = time.monotonic() + seconds, 0.02
        while True:
            answer = self.get(path, **(headers or {})).json
            if wanted(answer):
                return answer
            assert time.monotonic() < until, (
                f"{path} did not reach the expected state; last answer:\n{short_json(answer)}"
            )
            time.sleep(pause)
            pause = min(1.25 * pause, 0.1)

    def read_log(self) -> str:
        """Return the log so far. A line that is being written may end within a character."""
        return self.log.read_text(errors="replace")

    def wait_for_log(self, words: str, seconds: float = MAX_WAIT_SECONDS) -> None:
        """Wait until the log contains these words."""
        wait_until(
            lambda: words in self.read_log(),
            seconds,
            describe=lambda: f"{words!r} is missing in the log: {self.read_log()}",
        )

    def wait_until_ok(self, collector: str) -> None:
        """Wait until the state of this collector is ok."""
        self.wait_for(
            "/api/v1/collectors",
            lambda found: any((one["name"], one["state"]) == (collector, "ok") for one in found),
        )

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(MAX_WAIT_SECONDS)


def get(
    port: int,
    path: str,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    tls: ssl.SSLContext | None = None,
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT_SECONDS)
    if tls is not None:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=MAX_WAIT_SECONDS, context=tls)
    try:
        names = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        connection.request(method, path, headers=names)
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())
    finally:
        connection.close()


def clean_environment(**extra: str) -> dict[str, str]:
    """Return this environment without settings of a memwatchd that may run here, plus `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MEMWATCHD_", "NOTIFY_"))}
    return {**kept, **extra}


def run_program(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run memwatchd or memwatch to its end. The first argument is the installed program, which is forked."""
    words, environment = list(map(str, command)), clean_environment(**environ)
    if can_fork(environment):
        return run_forked(words, environment, MAX_WAIT_SECONDS)
    return subprocess.run(
        words, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, env=environment, check=False
    )


def sample_once(*arguments: str, **environ: str) -> Any:
    """Return the sample of `memwatchd --once`; repeat it if a driver took more than its two seconds to start."""
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        done = run_program(MEMWATCHD, "--once", "--json", *arguments, **environ)
        assert (done.returncode, done.stderr) == (0, "")
        sample = json.loads(done.stdout)
        if all(one["state"] != "starting" for one in sample["collectors"]) or time.monotonic() > until:
            return sample


def open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    names = []
    for entry in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed since it was listed, such as that of the listing itself
            names.append(os.readlink(folder / entry))
    return names


def kept_files(pid: int) -> int:
    """Return the number of process files that the daemon keeps open."""
    return sum(name.endswith("/statm") and name != f"/proc/{pid}/statm" for name in open_files(pid))


def rss_bytes(daemon: RunningDaemon) -> int:
    """Return the resident memory of a daemon."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def descriptors(pid: int) -> int:
    """Return the number of open descriptors without process files, whose number varies with the processes."""
    return len(open_files(pid)) - kept_files(pid)


@contextmanager
def running_daemon(
    tmp_path: Path,
    *arguments: str,
    config: str = "",
    environ: Mapping[str, str] | None = None,
    without_privileges: bool = False,
    tls: ssl.SSLContext | None = None,
    through: Sequence[str] = (),
    stderr: int | None = None,
    installed: bool = False,
    watches_this_machine: bool = False,
    prelude: str = "",
) -> Iterator[RunningDaemon]:
    """Start memwatchd on a free port, wait for its first snapshot, and end it with SIGTERM.

    Without roots, a demo or a recording in `arguments` or `config`, a daemon of a test watches a quiet machine.
    With `watches_this_machine` it watches the one that runs the tests; such tests are marked `host`. Benchmarks and
    other programs than tests always watch this machine.

    `through` is a command that replaces itself by the one given to it, such as `unshare --mount`. `stderr` is a
    descriptor for the log; without it, `log` is read. `installed` starts the installed program, for tests of
    its start or of its imports; usually the daemon is forked with its modules, see `fork_server`. `prelude` is code
    that the process runs before the daemon, such as an audit hook.
    """
    settings = tmp_path / "memwatchd.toml"
    settings.write_text(config)
    log = tmp_path / "log"
    if is_a_test_running() and not (watches_this_machine or _names_a_machine(arguments, config, environ or {})):
        arguments = (*arguments, *quiet_machine())
    assert not watches_this_machine or may_watch_this_machine(), "mark the test `host`: it is about this machine"
    prefix = [*(POWERLESS if without_privileges else ()), *through]
    environment = clean_environment(**(environ or {}))
    is_forked = not (prefix or installed or WITNESSES) and can_fork(environment)

    port = free_port()
    words = [MEMWATCHD, "--config", str(settings), "--listen", f"127.0.0.1:{port}", *arguments]
    command = [*prefix, *(_after(prelude, words) if prelude else words)]
    STARTED.append(StartedDaemon(tuple(command), log))
    with log.open("wb") as output:
        errors = output.fileno() if stderr is None else stderr
        process = (
            fork_server().start(command, environment, output.fileno(), errors)
            if is_forked
            else start_bound(command, output, errors, environment)
        )
    daemon = RunningDaemon(process, port, log, tls)
    try:
        _wait_until_ready(daemon)
        yield daemon
        for witness in WITNESSES if process.poll() is None else ():
            witness(daemon)
    finally:
        mark_ended(log)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(MAX_WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(MAX_WAIT_SECONDS)
                raise


def _after(prelude: str, words: Sequence[str]) -> list[str]:
    """Return the command of a Python that runs code, and then memwatchd with these words."""
    start = f"from memwatchd.cli import main\nsys.argv[:] = {list(words)}\nsys.exit(main())\n"
    return [*CODE, f"import sys\n{prelude}\n{start}"]


def quiet_machine(**other: str) -> list[str]:
    """Return the options that make the daemon watch the quiet machine, with `other` roots such as rootfs="/"."""
    roots = {name: str(QUIET_MACHINE / folder) for name, folder in ROOTS.items()} | other
    return [f"--{name}={folder}" for name, folder in roots.items()]


def _names_a_machine(arguments: Sequence[str], config: str, environ: Mapping[str, str]) -> bool:
    named = any(one.partition("=")[0] in _NAMES_A_MACHINE for one in arguments)
    return named or "procfs" in config or "MEMWATCHD_PROCFS" in environ


def _wait_until_ready(daemon: RunningDaemon) -> None:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        assert daemon.process.poll() is None, f"memwatchd exited: {daemon.read_log()}"
        try:
            if daemon.get("/readyz").status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < until, f"memwatchd does not answer: {daemon.read_log()}"
        time.sleep(0.02)
