"""Test full and failing disks: only persistence is lost, and only for that time."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fault_oracle import back_in_time, survived
from msgspec import Struct

from support.alert_machine import FULL_KIB, AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, running_daemon
from support.libc_faults import LibcFaults
from support.waiting import wait_until
from support.webhook_receiver import Site, receiving

# Both disks try again after a minute at the latest; the rest is for a busy machine.
RECOVERS_SECONDS = 75.0
TOTAL_KIB, BEFORE_KIB = 65_048_212, 29_656_604
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


class Patient(Struct):
    """A daemon on its own simulated machine. `injure` breaks its disk, `heal` repairs it."""

    name: str
    scratch: Path
    machine: AlertMachine
    site: Site
    daemon: RunningDaemon
    injure: Callable[[], None]
    heal: Callable[[], None]

    @property
    def arguments(self) -> list[str]:
        return [*self.machine.arguments, f"--state-dir={self.scratch / 'state'}"]

    def is_refused(self) -> bool:
        """Return True if the disk has refused both the history and the outbox."""
        return min(self.figure("history_errors_total"), self.figure("outbox_errors_total")) >= 1

    def figure(self, name: str) -> float:
        """Return a metric without labels."""
        lines = self.daemon.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"memwatch_{name} ")).split()[1])


@contextmanager
def patient(scratch: Path, name: str, write: int, sync: int) -> Iterator[Patient]:
    """A healthy daemon with the fault library between it and the disk."""
    faults = LibcFaults.of(scratch)
    state = scratch / "state"
    machine = AlertMachine.of(scratch)
    with (
        receiving(200) as site,
        running_daemon(
            scratch,
            *machine.arguments,
            f"--state-dir={state}",
            config=quick_config(site),
            environ=faults.environ,
        ) as daemon,
    ):
        yield Patient(name, scratch, machine, site, daemon, lambda: faults.refuse(state, write, sync), faults.heal)


@contextmanager
def patient_on_small_disk(scratch: Path) -> Iterator[Patient]:
    """A daemon with a state folder of 64 KiB. Without mount rights the fault library reports ENOSPC instead."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        with patient(scratch, "simulated ENOSPC", errno.ENOSPC, 0) as found:
            yield found
        return
    state = scratch / "state"
    state.mkdir(mode=0o700)
    mount = f'mount -t tmpfs -o size=64k,mode=700 tmpfs {state} && exec "$@"'
    machine = AlertMachine.of(scratch)
    with (
        receiving(200) as site,
        running_daemon(
            scratch,
            *machine.arguments,
            f"--state-dir={state}",
            config=quick_config(site),
            through=[*NAMESPACE, "sh", "-c", mount, "sh"],
        ) as daemon,
    ):
        enter = ["nsenter", f"--target={daemon.pid}", "--mount"]
        if os.geteuid():
            enter += ["--user", "--preserve-credentials"]

        def make_room() -> None:
            subprocess.run([*enter, "mount", "-o", "remount,size=100m", str(state)], check=True)

        yield Patient("64 KiB", scratch, machine, site, daemon, lambda: None, make_room)


@pytest.mark.long
def test_failing_disk_stops_no_sample_and_no_alert_and_is_used_again(tmp_path: Path) -> None:
    """64 KiB in total, ENOSPC, write errors and fsync errors, in parallel for a minute."""
    for name in ("small", "full", "write", "sync"):
        (tmp_path / name).mkdir()
    with ExitStack() as stack:
        patients = [
            stack.enter_context(patient_on_small_disk(tmp_path / "small")),
            stack.enter_context(patient(tmp_path / "full", "ENOSPC", errno.ENOSPC, 0)),
            stack.enter_context(patient(tmp_path / "write", "EIO of write", errno.EIO, 0)),
            stack.enter_context(patient(tmp_path / "sync", "EIO of fsync", 0, errno.EIO)),
        ]
        time.sleep(1.0)
        for one in patients:
            with survived(one.daemon):
                one.injure()
                one.machine.fill()
                wait_for_deliveries(one.site, 1)
                wait_until(one.is_refused)
            assert one.figure("outbox_durable") == 0, one.name
            assert "cannot write history" in one.daemon.get("/about").text, one.name
        for one in patients:
            one.heal()
        healed = time.monotonic()
        for one in patients:
            left = RECOVERS_SECONDS - (time.monotonic() - healed)
            one.daemon.wait_for_log("writing history to", left)
            one.daemon.wait_for_log("alerts are saved to disk again", left)
            assert one.figure("outbox_durable") == 1
            assert "cannot write history" not in one.daemon.get("/about").text, one.name
    for one in patients[1:]:
        assert_only_what_was_is_remembered(one)


def test_file_system_without_fallocate_is_filled_with_zeros(tmp_path: Path) -> None:
    """posix_fallocate fails, as with musl on a file system without it: space is reserved by writing zeros."""
    faults, machine = LibcFaults.of(tmp_path), AlertMachine.of(tmp_path)
    state = tmp_path / "state"
    faults.refuse(state, allocate=errno.EOPNOTSUPP)
    arguments = [*machine.arguments, f"--state-dir={state}"]
    with running_daemon(tmp_path, *arguments, environ=faults.environ) as daemon:
        machine.fill()
        daemon.wait_for("/api/v1/pressure", lambda found: found[0]["level"] == "critical")
        time.sleep(0.5)
        about = daemon.get("/about").text

    rings = [path.stat() for path in state.glob("*.ring")]
    assert "cannot write history" not in about
    assert sum(ring.st_size for ring in rings) > 60 << 20
    assert sum(ring.st_blocks * 512 for ring in rings) >= sum(ring.st_size for ring in rings)


def assert_only_what_was_is_remembered(one: Patient) -> None:
    """After a restart the history has the two values that the machine had, and no other."""
    with back_in_time(one.scratch, *one.arguments) as daemon:
        (series,) = daemon.get("/api/v1/history?series=pool.ram.used_bytes&points=2000").json["series"]
        known = [value for value in (*series["min"], *series["max"]) if value is not None]
    shown = {round(value / 1024 / 1000) for value in known}
    assert shown <= {round((TOTAL_KIB - kib) / 1000) for kib in (FULL_KIB, BEFORE_KIB)}, one.name
