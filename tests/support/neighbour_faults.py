"""Faults of a followed machine, each injected into a daemon that was started for it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
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
