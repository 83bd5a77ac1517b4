"""Switch a followed machine off: python tests/system/switch_offs.py, in its own network namespace.

A Debian machine with a separate kernel runs in QEMU, emulated, so the processor need not support it. A daemon of
the host follows the daemon in it over a tap interface. `quit` on the monitor ends the machine: nothing closes its
connections, and the host's segments are lost. Needs root. Exits with 77 if it cannot run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from core_delays import most_lost, recorded_delays
from kernel_machine import (
    BOOT_SECONDS,
    NOT_RUN,
    ROOT,
    WORK,
    command_of,
    find_obstacle,
    install,
    keep_kernel,
    make_disk,
    systemctl,
)
from msgspec import Struct, field, to_builtins

from support.daemon_process import RunningDaemon, running_daemon
from support.neighbours import neighbours, wait_for_state
from support.packet_loss import own_network
from support.webhook_receiver import Site, receiving
from support.webhook_samples import SECRET

REPEATS, MAX_REPEATS = int(os.environ.get("N", "5")), 20
MAX_TICK_AGE_SECONDS = 1.5
# After the silence: a second event or notification would be there.
AFTERWARDS_SECONDS = 20.0
OFFSET_SECONDS = 8.0
# TEST-NET-1 of RFC 5737, in the namespace only.
HOST, GUEST = "192.0.2.1", "192.0.2.2"
TAP = "tap0"
SETTINGS = f'[web]\nlisten = ["0.0.0.0:6360"]\nhosts = ["{GUEST}"]\ninsecure = true\n'
NETWORK = f"[Match]\nType=ether\n[Network]\nAddress={GUEST}/24\nLinkLocalAddressing=no\n"
FSTAB = "/dev/vda / ext4 defaults 0 1\n"
BOOT = WORK / "switch-offs-boot"


class SwitchOff(Struct, frozen=True):
    """One switch-off, in seconds, and how often the follower reported the silence.

    `longest_gap` of its ticks before. `lost`: part of `tick_age` in which the machine or the follower was runnable
    without a core.
    """

    tick_age: float
    longest_gap: float
    lost: float
    silent_after: float
    clock_offset: float
    clock_drift: float
    events: int
    notifications: int
    text: str

    @property
    def line(self) -> str:
        return (
            f"{'✗' if self.faults else '✓'} last tick {self.tick_age:.2f} s before the switch-off "
            f"({self.lost:.2f} s without a core, ticks at most {self.longest_gap:.2f} s apart), silent after "
            f"{self.silent_after:.1f} s, events {self.events}, notifications {self.notifications}: "
            f"{'; '.join(self.faults) or self.text}"
        )

    @property
    def faults(self) -> list[str]:
        wanted = {
            f"the last tick is {self.tick_age:.2f} s old": self.tick_age - self.lost <= MAX_TICK_AGE_SECONDS,
            f"{self.events} events of its silence": self.events == 1,
            f"{self.notifications} notifications": self.notifications == 1,
        }
        return [text for text, is_met in wanted.items() if not is_met]


class Guest(Struct):
    """The running machine. `offsets`: host's clock minus its clock, and the delay of the serial port, by time."""

    process: subprocess.Popen[bytes]
    monitor: Path
    ready: threading.Event = field(default_factory=threading.Event)
    offsets: list[tuple[float, float]] = field(default_factory=list)

    def wait_until_ready(self, log: Path) -> None:
        until = time.monotonic() + BOOT_SECONDS
        while not self.ready.wait(1.0):
            assert self.process.poll() is None, f"QEMU ended with exit code {self.process.returncode}"
            assert time.monotonic() < until, f"memwatchd did not answer in the machine: see {log}"

    def read_clock(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now = time.time()
            name, _, content = line.decode("utf-8", "replace").strip().partition(" ")
            if name == "clock":
                self.offsets.append((now, now - float(json.loads(content)["unix"])))
                self.ready.set()

    def offset_at(self, unix: float) -> float:
        """Return the least offset of the last seconds: an emulated clock may drift."""
        return min(offset for at, offset in self.offsets if unix - OFFSET_SECONDS <= at <= unix)

    def quit(self) -> float:
        """Switch the machine off. Return the time at which QEMU reports it."""
        with socket.socket(socket.AF_UNIX) as monitor, monitor.makefile("rw") as lines:
            monitor.connect(str(self.monitor))
            lines.readline()
            for command in ("qmp_capabilities", "quit"):
                lines.write(json.dumps({"execute": command}) + "\n")
                lines.flush()
            while (message := json.loads(lines.readline())).get("event") != "SHUTDOWN":
                pass
            self.process.wait(20.0)
            at = message["timestamp"]
            return float(at["seconds"] + at["microseconds"] / 1e6)


def make_machine(package: Path) -> Path:
    """Create the disk of a machine whose daemon listens on its network."""
    root = WORK / "switch-offs"
    install(root, package, SETTINGS, "clock.py", FSTAB)
    (root / "etc/systemd/network/lan.network").write_text(NETWORK)
    systemctl(root, "enable", "systemd-networkd")
    systemctl(root, "mask", "systemd-networkd-wait-online.service")
    disk = make_disk(WORK / "switch-offs.img", "2000M", root)
    keep_kernel(root, BOOT)
    shutil.rmtree(root)
    return disk


def make_tap() -> None:
    """Create the cable between host and machine, once for all of its boots."""
    for command in (
        ("tuntap", "add", "dev", TAP, "mode", "tap"),
        ("addr", "add", f"{HOST}/24", "dev", TAP),
        ("link", "set", TAP, "up"),
    ):
        subprocess.run(["ip", *command], check=True)


@contextmanager
def booted(disk: Path, log: Path) -> Iterator[Guest]:
    """Boot the machine and wait until its daemon answers."""
    network = ("-nic", f"tap,ifname={TAP},script=no,downscript=no,model=virtio-net-pci")
    with tempfile.TemporaryDirectory() as folder:
        monitor = Path(folder, "monitor")
        command = [*command_of(BOOT, [disk], log, network), "-qmp", f"unix:{monitor},server,nowait"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            guest = Guest(process, monitor)
            reader = threading.Thread(target=guest.read_clock, daemon=True)
            reader.start()
            try:
                guest.wait_until_ready(log)
                yield guest
            finally:
                process.kill()
                reader.join(20.0)


def switch_off(guest: Guest, folder: Path) -> SwitchOff:
    """Follow the machine, switch it off at a random moment of its interval, and ask the follower."""
    with ExitStack() as stack:
        site = stack.enter_context(receiving())
        hook = f'[[alerts.webhooks]]\nname = "ops"\nurl = "{site.url}"\nsecret = "{SECRET}"\n'
        config = neighbours({"guest": f"http://{GUEST}:6360"}) + hook + 'events = ["neighbour.silent"]\n'
        daemon = stack.enter_context(running_daemon(folder, config=config))
        daemon.wait_for("/api/v1/machines/guest", lambda found: len(found["recent"]) >= 10)
        delays = stack.enter_context(recorded_delays(guest.process.pid, daemon.pid))
        time.sleep(random.random())
        off_unix = guest.quit()
        found = wait_for_state(daemon, "guest", "silent")
        silent_after = time.time() - off_unix
        offset = guest.offset_at(off_unix)
        tick_unix = found["last_tick_unix"] + offset
        ticks = [one["unix"] for one in found["recent"]]
        lost = most_lost(delays, tick_unix, off_unix)
        time.sleep(AFTERWARDS_SECONDS)
        events, notifications = count_events(daemon), count_notifications(site)
        return SwitchOff(
            off_unix - tick_unix,
            max(later - earlier for earlier, later in pairwise(ticks)),
            lost,
            silent_after,
            offset,
            offset - guest.offsets[0][1],
            events,
            notifications,
            str(found["text"]),
        )


def count_events(daemon: RunningDaemon) -> int:
    events = daemon.get("/api/v1/events?limit=100").json
    return sum(one["kind"] == "neighbour.silent" for one in events)


def count_notifications(site: Site) -> int:
    return len([delivery for delivery in site.deliveries if json.loads(delivery.body)["target"] == "guest"])


def main() -> int:
    if reason := find_obstacle():
        print(f"NOT RUN: {reason}")
        return NOT_RUN
    assert own_network(), "the addresses are for a network namespace: run make test-incidents"
    assert 1 <= REPEATS <= MAX_REPEATS, f"N is {REPEATS}: choose 1 to {MAX_REPEATS}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    disk = make_machine((ROOT / "dist/memwatchd.deb").resolve())
    make_tap()
    found = []
    for number in range(REPEATS):
        with (
            tempfile.TemporaryDirectory() as folder,
            booted(disk, WORK / f"switch-offs-{number}.log") as guest,
        ):
            found.append(switch_off(guest, Path(folder)))
        one = found[-1]
        print(one.line, flush=True)
    (WORK / "switch-offs.json").write_text(json.dumps(to_builtins(found), indent=1))
    print(f"{len(found)} switch-offs, oldest last tick {max(one.tick_age for one in found):.2f} s")
    return 1 if any(one.faults for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
