"""Test the protocols of systemd with systemd 257: a program on libsystemd, and calls by varlinkctl."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import Machine, base_of, booted

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("pressure_client.c")
EXAMPLES, DROP_INS = "usr/share/doc/memwatchd/examples", "usr/share/doc/memwatchd/drop-ins"
# System RAM is always this full.
SETTINGS = "[pressure]\nmedium_percent = 0.001\nhigh_percent = 0.01\n"
OUTPUT = "/root/output"
WORKER = f"[Service]\nExecStart=/usr/local/bin/pressure_client\nStandardOutput=file:{OUTPUT}\n"
HOOK = "/run/systemd/oomd.prekill.hook/memwatchd"


@pytest.fixture(scope="module")
def modern() -> Iterator[Machine]:
    """Run Debian 13 with the package installed. sd_event_add_memory_pressure(3) needs systemd 254."""
    work = ROOT / "out" / "system"
    work.mkdir(parents=True, exist_ok=True)
    base = base_of(work, "trixie", "systemd-oomd", "libsystemd-dev", "gcc", "libc6-dev")
    # Without it systemd-nspawn offers the control groups of the host, which may be of version 1.
    with booted(base, work / "modern", SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1") as running:
        (running.root / "root/memwatchd.deb").write_bytes((ROOT / "dist/memwatchd.deb").resolve().read_bytes())
        (running.root / "root" / CLIENT.name).write_bytes(CLIENT.read_bytes())
        running.run(f"cc -o /usr/local/bin/pressure_client /root/{CLIENT.name} -lsystemd")
        running.run("cd /root && apt-get install --yes ./memwatchd.deb")
        (running.root / "etc/memwatchd/memwatchd.toml").write_text(SETTINGS)
        running.run("systemctl restart memwatchd")
        yield running


def copy(machine: Machine, file: str, folder: str) -> None:
    """Copy a shipped file as the page says."""
    (machine.root / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(machine.root / file, machine.root / folder)


def notifications(machine: Machine) -> int:
    output = machine.root / OUTPUT.lstrip("/")
    return output.read_text().count("pressure") if output.exists() else 0


def test_memwatchd_watches_its_own_control_group(modern: Machine) -> None:
    """systemd names the file and lets the sandboxed service write to it."""
    modern.wait_until(modern.answers)
    group = modern.property_of("ControlGroup")
    files = modern.run(f"ls -l /proc/{modern.property_of('MainPID')}/fd")

    assert f"/sys/fs/cgroup{group}/memory.pressure" in files


def test_program_with_libsystemd_is_notified_by_memwatchd(modern: Machine) -> None:
    """With the shipped drop-ins, and without a change of the program."""
    copy(modern, f"{DROP_INS}/pressure-sockets.conf", "etc/systemd/system/memwatchd.service.d")
    (modern.root / "etc/systemd/system/worker.service").write_text(WORKER)
    copy(modern, f"{EXAMPLES}/memory-pressure.conf", "etc/systemd/system/worker.service.d")
    modern.run("systemctl daemon-reload && systemctl restart memwatchd && systemctl start worker")

    modern.wait_until(lambda: notifications(modern) == 1)
    modern.wait_until(lambda: notifications(modern) == 2)  # after ten seconds, as the level lasts
    assert "FileDescriptorStoreMax" not in modern.journal()


def test_restart_and_stop_of_memwatchd_do_not_disturb_the_program(modern: Machine) -> None:
    """systemd keeps the connection. Without that, libsystemd would call the handler 95,000 times a second."""
    modern.run("systemctl stop memwatchd")
    stopped = notifications(modern)
    time.sleep(3)
    after = notifications(modern)
    modern.run("systemctl start memwatchd")
    modern.wait_until(lambda: notifications(modern) == stopped + 1)
    modern.run(f"kill -9 {modern.property_of('MainPID')}")
    modern.wait_until(lambda: notifications(modern) == stopped + 2, 30)

    assert after == stopped
    assert int(modern.property_of("NFileDescriptorStore")) == 1


def test_end_of_the_program_ends_its_entry_in_the_store(modern: Machine) -> None:
    """systemd drops a connection whose peer has hung up."""
    modern.run("systemctl stop worker")

    modern.wait_until(lambda: modern.property_of("NFileDescriptorStore") == "0")


def test_prekill_hook_is_served_on_the_socket_of_systemd(modern: Machine) -> None:
    """The steps of the page, then a call as systemd-oomd 260 makes it: an incident names the group's process."""
    copy(modern, f"{EXAMPLES}/memwatchd-oomd.socket", "etc/systemd/system")
    copy(modern, f"{DROP_INS}/oomd-prekill.conf", "etc/systemd/system/memwatchd.service.d")
    modern.run("systemctl daemon-reload && systemctl restart memwatchd && systemctl start worker")
    modern.wait_until(modern.answers)
    pid = modern.run("systemctl show --value --property=MainPID worker").strip()
    modern.wait_until(lambda: "pressure_client" in modern.run("curl -s localhost:6360/api/v1/processes"))

    place = '{"cgroup": "/system.slice/worker.service"}'
    modern.run(f"varlinkctl call {HOOK} io.systemd.oom.Prekill.Notify '{place}'")
    modern.wait_until(lambda: "systemd_oomd" in modern.run("curl -s localhost:6360/api/v1/incidents"))
    found = json.loads(modern.run("curl -s localhost:6360/api/v1/incidents"))

    (killer,) = [one["killer"] for one in found if one["killer"] and one["killer"]["kind"] == "systemd_oomd"]
    assert f"about to kill /system.slice/worker.service: pressure_client (PID {pid}) holds" in killer["evidence"]
    assert "method Notify" in modern.run(f"varlinkctl introspect {HOOK} io.systemd.oom.Prekill")


def test_prekill_hook_is_for_systemd_oomd_only(modern: Machine) -> None:
    """Another user cannot connect, and memwatchd got no right for the folder."""
    denied = modern.run(f"setpriv --reuid=65534 --clear-groups varlinkctl info {HOOK}", check=False)

    assert "Permission denied" in denied
    assert modern.run(f"stat -c '%U %a' {HOOK}").strip() == "systemd-oom 600"
