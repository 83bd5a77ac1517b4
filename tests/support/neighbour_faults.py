"""Faults of a followed machine, each injected into a daemon that was started for it, and a link that can be cut."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from support.daemon_process import RunningDaemon, running_daemon
from support.libc_faults import LibcFaults
from support.packet_loss import losing

DEMO = ("--demo", "rtx4090")
CLOCK_SECONDS = 300
MOUNT = 'truncate -s 64M "$0.img" && mkfs.ext4 -q "$0.img" && mount -o loop "$0.img" "$0" && exec "$@"'


class Victim(Struct):
    """A daemon, its fault, by how much its clock is ahead, and its state some seconds later."""

    daemon: RunningDaemon
    inject: Callable[[], None]
    clock_seconds: int = 0
    state: str = "silent"


Start = Callable[[ExitStack, Path], Victim]


def signalled(number: signal.Signals, state: str = "silent") -> Start:
    def start(stack: ExitStack, folder: Path) -> Victim:
        daemon = stack.enter_context(running_daemon(folder, *DEMO))
        stack.callback(_signal, daemon, signal.SIGCONT)
        return Victim(daemon, lambda: _signal(daemon, number), state=state)

    return start


def cut(stack: ExitStack, folder: Path) -> Victim:
    """Lose every segment from now on: nothing closes the connection."""
    daemon = stack.enter_context(running_daemon(folder, *DEMO))

    def inject() -> None:
        stack.enter_context(losing(daemon.port, 1.0))

    return Victim(daemon, inject)


def other_clock(stack: ExitStack, folder: Path) -> Victim:
    """Kill a daemon whose clock is five minutes ahead, or behind."""
    faults = LibcFaults.of(folder)
    seconds = CLOCK_SECONDS if folder.name[-1] in "02468" else -CLOCK_SECONDS
    faults.set_wall_clock(seconds)
    daemon = stack.enter_context(running_daemon(folder, *DEMO, environ=faults.environ))
    return Victim(daemon, lambda: _signal(daemon, signal.SIGKILL), seconds)


def frozen_disk(stack: ExitStack, folder: Path) -> Victim:
    """Freeze the file system with its history: the ticks go on."""
    state = folder / "state"
    state.mkdir()
    through = ("unshare", "--mount", "sh", "-c", MOUNT, str(state))
    daemon = stack.enter_context(running_daemon(folder, *DEMO, f"--state-dir={state}/memwatchd", through=through))

    def freeze(option: str) -> None:
        inside = ("nsenter", f"--target={daemon.pid}", "--mount")
        subprocess.run([*inside, "fsfreeze", option, str(state)], check=True, timeout=20.0)

    def inject() -> None:
        freeze("--freeze")
        stack.callback(freeze, "--unfreeze")

    return Victim(daemon, inject, state="up")


def _signal(daemon: RunningDaemon, number: signal.Signals) -> None:
    daemon.process.send_signal(number)


FAULTS: dict[str, Start] = {
    "kill": signalled(signal.SIGKILL),
    "stop": signalled(signal.SIGSTOP),
    "terminate": signalled(signal.SIGTERM, "stopped"),
    "cut": cut,
    "clock": other_clock,
    "disk": frozen_disk,
}


class Link:
    """A TCP proxy to a port of this machine. It can be cut, as a cable can."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener, self._port = listener, port
        self._open: list[socket.socket] = [listener]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Accept connections until the link is cut."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()

    def cut(self) -> None:
        """End all connections and accept no more."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError), source, target:
        while data := source.recv(65536):
            target.sendall(data)


@contextmanager
def link_to(port: int) -> Iterator[Link]:
    """Yield a link, which is cut at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(listener, port)
        threading.Thread(target=link.run, daemon=True).start()
        yield link
        link.cut()
