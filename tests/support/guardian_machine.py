"""A machine for the guardian: a /proc whose memory a test sets, real processes, and a daemon's socket file.

The guardian is a separate process. It reads the test's meminfo, and ends real children of the test.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import json
from msgspec.structs import replace

from memwatch.core.helper.process import python_child
from memwatch.core.model import Process
from memwatch.core.snapshot import CollectorStatus, Machine, Snapshot
from memwatch.reporting.render.json import snapshot_json
from memwatchd.guardian.journal import Record, read_journal
from memwatchd.guardian.loop import STATUS_NAME, Status
from memwatchd.guardian.records import Config, Limits, send
from support.sample_parts import GIB, snapshot, system_ram
from support.waiting import MAX_WAIT_SECONDS, wait_until

SIZE = 64 * GIB
# From `BEFORE` to `SHORT` less than 2 % are lost: too little for a forecast, which would shorten the steps.
ROOMY, BEFORE, SHORT = 20 * GIB, GIB + GIB // 4, GIB // 8
PROC = Path("/proc")
# Shell commands of victims: each reports that it is ready.
SLEEPS = "echo ready; exec sleep 600"
IGNORES_SIGTERM = "trap '' TERM; echo ready; while :; do sleep 1; done"
QUICK = Limits(
    hook_seconds=0.5,
    engine_seconds=0.5,
    reclaim_seconds=0.2,
    sigterm_seconds=0.5,
    sigkill_seconds=10.0,
    has_hook=False,
)


class GuardianMachine:
    """`answers`: what the daemon does: `in time`, `hang`, `late` by 3 s, or `gone`.

    `footprint`: what each victim holds at `SHORT`. It holds less by as much as more is available.

    `requests` asked for figures, `reports` told what the guardian did. Those may hang alone.
    """

    def __init__(self, folder: Path, size: int = SIZE) -> None:
        self._size = size
        self.proc, self.state = folder / "proc", folder / "state"
        self.run, self.sys = folder / "run", folder / "sys"
        self.answers = "in time"
        self.device_age = 0.0
        self.requests = self.reports = 0
        self.hangs_on_reports = False
        self.before_answer: Callable[[], None] = lambda: None
        self.footprint = 40 * GIB
        self._available = ROOMY
        self._victims: list[subprocess.Popen[str]] = []
        self._guardians: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []
        self._make_files()
        self._listen()
        self.config = Config(
            limits=QUICK,
            dry_run=False,
            daemon=f"unix:{self._socket_path}",
            procfs=str(self.proc),
            sysfs=str(self.sys),
            state_dir=str(self.state),
            run_dir=str(self.run),
        )

    def _make_files(self) -> None:
        for folder in (self.proc / "sys/kernel/random", self.proc / "pressure", self.state, self.run, self.sys):
            folder.mkdir(parents=True)
        for name in ("stat", "sys/kernel/random/boot_id"):
            (self.proc / name).symlink_to(PROC / name)
        stalls = "avg10=0.00 avg60=0.00 avg300=0.00 total=0"
        (self.proc / "pressure/memory").write_text(f"some {stalls}\nfull {stalls}\n")
        (self.proc / "meminfo").write_bytes(self._meminfo(ROOMY))
        (self.proc / "vmstat").touch()
        self.set_kills(0)

    def _meminfo(self, available: int) -> bytes:
        lines = {
            "MemTotal": self._size,
            "MemFree": available,
            "MemAvailable": available,
            "SwapTotal": 0,
            "SwapFree": 0,
        }
        return "".join(f"{name + ':':<16}{size >> 10:>8} kB\n" for name, size in lines.items()).encode()

    def set_available(self, available: int) -> None:
        """Set the available bytes, which the victim leaves. All texts have one length: none is read in part."""
        fd = os.open(self.proc / "meminfo", os.O_WRONLY)
        os.pwrite(fd, self._meminfo(available), 0)
        os.close(fd)
        self._available = available

    def set_kills(self, number: int) -> None:
        """Set the processes that the OOM killer killed since boot. All texts have one length."""
        with (self.proc / "vmstat").open("r+b") as file:
            file.write(b"nr_free_pages 1\noom_kill %3d\n" % number)

    def start_victim(self, script: str = SLEEPS) -> subprocess.Popen[str]:
        victim = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
        self._victims.append(victim)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        (self.proc / str(victim.pid)).symlink_to(PROC / str(victim.pid))
        return victim

    def free_on_end(self, victim: subprocess.Popen[str], roomy: int = ROOMY) -> None:
        """Set the memory to roomy once the victim ended, as the kernel does."""

        def wait() -> None:
            victim.wait()
            self.set_available(roomy)

        self._run(wait)

    def start(self, config: Config | None = None) -> subprocess.Popen[str]:
        """Start a guardian and wait until it has read the machine."""
        fd = send(config or self.config)
        with (self.state / "log").open("ab") as log:
            command = [*python_child("memwatchd.guardian.loop"), str(fd)]
            guardian = subprocess.Popen(command, pass_fds=(fd,), stderr=log, text=True)
        os.close(fd)
        self._guardians.append(guardian)
        wait_until(lambda: (self.run / STATUS_NAME).exists() or guardian.poll() is not None, describe=self.log)
        assert guardian.poll() is None, self.log()
        return guardian

    def start_and_fall(self, config: Config | None = None) -> subprocess.Popen[str]:
        """Start a guardian, and let the victim take the rest of memory."""
        self.set_available(BEFORE)
        guardian = self.start(config)
        self.fall()
        return guardian

    def fall(self) -> None:
        """Let the victim take the rest of memory once the guardian has seen it with less."""
        self.set_available(BEFORE)
        self.wait_for_requests(2)
        self.set_available(SHORT)

    def status(self) -> Status:
        return json.decode((self.run / STATUS_NAME).read_bytes(), type=Status)

    def log(self) -> str:
        return (self.state / "log").read_text()

    def records(self) -> list[Record]:
        return list(read_journal(self.state))

    def wait_for_record(self) -> Record:
        wait_until(self.records, describe=self.log)
        return self.records()[0]

    def wait_for_requests(self, more: int) -> None:
        """Wait until the guardian asked the daemon again: it has read and decided in between."""
        wanted = self.requests + more
        wait_until(lambda: self.requests >= wanted, describe=lambda: f"{self.requests} requests\n{self.log()}")

    def snapshot(self) -> Snapshot:
        held = max(0, self.footprint - self._available + SHORT)
        processes = tuple(
            Process(
                pid=victim.pid,
                start_time=start_of(victim.pid),
                name="victim",
                rss_bytes=min(GIB, held),
                footprint_bytes=held,
                footprint_basis="rss + device",
                user="ada",
                unit="serve.service",
                container=None,
                device_bytes={"ram": max(0, held - GIB)},
            )
            for victim in self._victims
            if victim.poll() is None
        )
        ram = system_ram(SIZE, ROOMY, SIZE - ROOMY - GIB, 0, GIB, 0)
        whole = snapshot("box", Machine("Board"), pools=(ram,))
        return replace(
            whole,
            unix=time.time() - (3.0 if self.answers == "late" else 0.0),
            boot_id=(PROC / "sys/kernel/random/boot_id").read_text().strip(),
            simulated=False,
            processes=processes,
            pressure=(),
            collectors=(
                CollectorStatus("processes", "ok", self.device_age),
                CollectorStatus("nvml", "ok", self.device_age),
            ),
        )

    def _listen(self) -> None:
        self._socket_path = self.run / "d.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._socket_path))
        self._socket.listen(64)
        self._run(self._serve)

    def leave(self) -> None:
        """End the daemon: its socket file remains, as that of a killed one."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        held = []
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                break
            if self.answers == "hang":
                self.requests += 1
                held.append(connected)
                continue
            request = b""
            with suppress(OSError):
                request = connected.recv(4096)
            if request.startswith(b"POST"):
                self.reports += 1
                if self.hangs_on_reports:
                    held.append(connected)
                    continue
            else:
                self.requests += 1
                self.before_answer()
            with connected, suppress(OSError):
                body = json.encode(snapshot_json(self.snapshot()))
                connected.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        for one in held:
            one.close()

    def close(self) -> None:
        for process in (*self._guardians, *self._victims):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        with suppress(OSError):
            self.leave()
        for thread in self._threads:
            thread.join(MAX_WAIT_SECONDS)


def start_of(pid: int) -> float:
    """Return when a process started, in seconds since the epoch, as the daemon reports it."""
    began = next(
        int(line.split()[1]) for line in (PROC / "stat").read_text().splitlines() if line.startswith("btime")
    )
    with suppress(OSError):
        return began + int((PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
            "SC_CLK_TCK"
        )
    return 0.0


@contextmanager
def guardian_machine(folder: Path, size: int = SIZE) -> Iterator[GuardianMachine]:
    machine = GuardianMachine(folder, size)
    try:
        yield machine
    finally:
        machine.close()
