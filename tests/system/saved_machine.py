"""The machine of the collapses in QEMU: booted once, saved, and started from there as often as needed."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from kernel_machine import QEMU, WORK

Record = dict[str, Any]
BOOT = WORK / "collapses-boot"
DISK = WORK / "collapses.img"
MEMORY = "2048"
# Typed into the shell. It reads a line, starts a program and tells the time, five times a second.
LOOP = "while :; do read -t 0.2 said; /bin/true; read up rest </proc/uptime; echo alive $up; done\n"
# Of the host.
BOOT_SECONDS, TYPE_SECONDS, CONNECT_SECONDS = 1800.0, 3.0, 120.0


class Line:
    """A serial line of the machine, a socket. `lines` returns what has come since the last call."""

    def __init__(self, path: Path) -> None:
        until = time.monotonic() + CONNECT_SECONDS
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        self._rest = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def lines(self) -> list[str]:
        content = self._socket.recv(1 << 16)
        if not content:
            raise EOFError("the machine has ended")
        *whole, self._rest = (self._rest + content).split(b"\n")
        return [line.decode("utf-8", "replace").strip() for line in whole]


class Machine:
    """The booted machine: one line to its agent, one to a shell. `alive`: when the shell answered, by its clock.

    `pid`: the emulator. `console`: the file with what the kernel wrote.
    """

    def __init__(self, pid: int, console: Path, agent: Line, shell: Line, monitor: Line) -> None:
        self._pid, self.console = pid, console
        self._agent, self._shell, self._monitor = agent, shell, monitor
        self._ask("qmp_capabilities")
        self.alive: list[float] = []
        self._typed = 0.0
        self._received: list[Record] = []

    def receive(self, seconds: float) -> Record:
        """Return the next message of the agent. Raises TimeoutError if the machine sends nothing, and EOFError."""
        until = time.monotonic() + seconds
        while not self._received:
            if time.monotonic() > until:
                raise TimeoutError
            if time.monotonic() > self._typed + TYPE_SECONDS:
                self._typed = time.monotonic()
                self._shell.write(LOOP)
            for one in select.select([self._agent, self._shell], [], [], 0.2)[0]:
                if one is self._shell:
                    for line in self._shell.lines():
                        if match := re.fullmatch(r"alive (\d+\.\d+)", line):
                            self.alive.append(float(match[1]))
                else:
                    self._received += [json.loads(line) for line in self._agent.lines() if line.startswith("{")]
        return self._received.pop(0)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the emulator."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def save(self, state: Path) -> None:
        """Stop the machine, and write its memory to a file. Raises RuntimeError."""
        self._ask("stop")
        self._ask("migrate", uri=f"exec:cat > {state}")
        while (status := self._ask("query-migrate").get("status")) != "completed":
            if status == "failed":
                raise RuntimeError(f"the machine is not saved: {status}")
            time.sleep(1)

    def go_on(self) -> None:
        """Run on, once the memory has been read."""
        while self._ask("query-status")["status"] == "inmigrate":
            time.sleep(0.2)
        self._ask("cont")

    def _ask(self, command: str, **arguments: str) -> Record:
        self._monitor.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        while True:
            for line in self._monitor.lines():
                answer = json.loads(line)
                if "error" in answer:
                    raise RuntimeError(f"{command}: {answer['error']}")
                if "return" in answer:
                    return dict(answer["return"]) if isinstance(answer["return"], dict) else {}

    def send(self, job: Record) -> None:
        self._agent.write(json.dumps(job) + "\n")


@contextmanager
def booted(*more: str) -> Iterator[Machine]:
    """Start the machine. Its power is cut at the end."""
    paths = [WORK / f"{name}-{os.getpid()}.sock" for name in ("agent", "shell", "monitor")]
    for path in paths:
        path.unlink(missing_ok=True)
    console = WORK / f"collapses-{os.getpid()}.log"
    command = [
        *(QEMU, "-accel", "tcg", "-icount", "shift=0,sleep=on", "-cpu", "max", "-m", MEMORY, "-smp", "1"),
        *("-kernel", str(BOOT / "vmlinuz"), "-initrd", str(BOOT / "initrd.img")),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off"),
        *(
            "-display",
            "none",
            "-nic",
            "none",
            "-no-reboot",
            "-serial",
            f"file:{console}",
        ),
        *(word for path in paths[:2] for word in ("-serial", f"unix:{path},server=on,wait=off")),
        *("-qmp", f"unix:{paths[2]},server=on,wait=off", *more),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as machine:
        try:
            yield Machine(machine.pid, console, *map(Line, paths))
        finally:
            machine.kill()
            for path in paths:
                path.unlink(missing_ok=True)


def boot() -> AbstractContextManager[Machine]:
    """Boot the machine, on a new layer of its disk."""
    add_layer("booted", DISK, "raw")
    return booted("-drive", f"file={layer_of('booted')},format=qcow2,if=virtio")


@contextmanager
def restore(name: str, drive: Path | None = None) -> Iterator[Machine]:
    """Start the machine as it was saved. What it writes to its disk is lost, unless it gets a new layer."""
    disk = f"file={drive},format=qcow2" if drive else f"file={layer_of(name)},format=qcow2,snapshot=on"
    with booted("-drive", f"{disk},if=virtio", "-incoming", f"exec:cat {state_of(name)}") as machine:
        machine.go_on()
        yield machine


def layer_of(name: str) -> Path:
    return WORK / f"collapses-{name}.qcow2"


def state_of(name: str) -> Path:
    return WORK / f"collapses-{name}.state"


def add_layer(name: str, below: Path, kind: str) -> Path:
    layer = layer_of(name)
    layer.unlink(missing_ok=True)
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", kind, layer], check=True)
    return layer


def make_ready() -> None:
    """Boot the machine once, and save it: its disk as a layer, its memory in a file."""
    for state in WORK.glob("collapses-*.state"):
        state.unlink()
    with boot() as machine:
        print(machine.receive(BOOT_SECONDS), flush=True)
        machine.save(state_of("booted"))
