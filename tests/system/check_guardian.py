"""Test the unit of memwatchd-guardian with systemd: start, reload, and what each end does to a frozen program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import Machine, base_of, booted

ROOT = Path(__file__).parents[2]
UNIT = "memwatchd-guardian"
LOADER = "/sys/fs/cgroup/system.slice/loader.service"
NOTE = "/var/lib/memwatchd-guardian/frozen.json"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Machine]:
    """Run a machine with the package and control groups of version 2, which freezing needs."""
    work = ROOT / "out" / "system"
    work.mkdir(parents=True, exist_ok=True)
    with booted(base_of(work), work / "guarded", SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1") as running:
        (running.root / "root/memwatchd.deb").write_bytes((ROOT / "dist/memwatchd.deb").resolve().read_bytes())
        running.run("cd /root && apt-get install --yes ./memwatchd.deb")
        running.wait_until(running.answers)
        running.run("systemd-run --quiet --unit=loader sleep infinity")
        yield running


def show(machine: Machine, name: str) -> str:
    return machine.run(f"systemctl show --value --property={name} {UNIT}").strip()


def write_settings(machine: Machine, lines: str) -> None:
    (machine.root / "etc/memwatchd/memwatchd.toml").write_text(f"[guardian]\n{lines}\n")


def freeze(machine: Machine) -> None:
    """Freeze the loader as the guardian does, with its note."""
    note = json.dumps({"file": f"{LOADER}/cgroup.freeze", "title": "loader (7)", "since": 1.0, "until": 4.0})
    machine.run(f"umask 077; echo '{note}' >{NOTE}; echo 1 >{LOADER}/cgroup.freeze")
    machine.wait_until(lambda: is_frozen(machine))


def is_frozen(machine: Machine) -> bool:
    return "frozen 1" in machine.run(f"cat {LOADER}/cgroup.events")


def test_package_leaves_the_guardian_disabled(guarded: Machine) -> None:
    assert show(guarded, "UnitFileState") == "disabled"
    assert show(guarded, "ActiveState") == "inactive"


def test_guardian_starts_as_a_dry_run_in_the_slice_of_memwatchd(guarded: Machine) -> None:
    guarded.run(f"systemctl start {UNIT}")
    status = guarded.run("memwatch guardian status")

    assert f"The guardian runs as process {show(guarded, 'MainPID')}; dry run: it ends no process." in status
    assert show(guarded, "ControlGroup") == f"/memwatchd.slice/{UNIT}.service"
    guarded.wait_until(lambda: show(guarded, "StatusText") == "dry run")


def test_reload_applies_a_changed_setting(guarded: Machine) -> None:
    pid = show(guarded, "MainPID")
    write_settings(guarded, "dry_run = false")
    guarded.run(f"systemctl reload {UNIT}")

    guarded.wait_until(lambda: show(guarded, "StatusText") == "watching", 60)
    assert show(guarded, "MainPID") == pid


def test_reload_with_a_wrong_setting_fails_and_changes_nothing(guarded: Machine) -> None:
    pid = show(guarded, "MainPID")
    write_settings(guarded, "dryrun = true")
    refused = guarded.run(f"systemctl reload {UNIT} || echo refused", check=False)
    write_settings(guarded, "dry_run = false")

    assert "refused" in refused
    assert (show(guarded, "ActiveState"), show(guarded, "MainPID")) == ("active", pid)
    assert show(guarded, "StatusText") == "watching"
    assert "did you mean dry_run" in guarded.run(f"journalctl -u {UNIT} --no-pager -o cat")


def test_stop_thaws_what_is_frozen(guarded: Machine) -> None:
    freeze(guarded)
    guarded.run(f"systemctl stop {UNIT}")

    assert not is_frozen(guarded)
    assert not (guarded.root / NOTE.lstrip("/")).exists()
    assert show(guarded, "Result") == "success"


def test_guardian_that_is_killed_leaves_nothing_frozen(guarded: Machine) -> None:
    """Without a restart, so that only ExecStopPost= can thaw."""
    drop_in = guarded.root / f"etc/systemd/system/{UNIT}.service.d/once.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Service]\nRestart=no\n")
    guarded.run(f"systemctl daemon-reload && systemctl start {UNIT}")
    freeze(guarded)
    guarded.run(f"systemctl kill --kill-whom=main --signal=KILL {UNIT}")
    guarded.wait_until(lambda: show(guarded, "ActiveState") == "failed")

    assert not is_frozen(guarded)
    assert show(guarded, "Result") == "signal"


def test_guardian_that_was_killed_is_started_again(guarded: Machine) -> None:
    drop_in = guarded.root / f"etc/systemd/system/{UNIT}.service.d/once.conf"
    drop_in.unlink()
    guarded.run(f"systemctl daemon-reload && systemctl start {UNIT}")
    pid = show(guarded, "MainPID")
    guarded.run(f"systemctl kill --kill-whom=main --signal=KILL {UNIT}")

    guarded.wait_until(lambda: show(guarded, "ActiveState") == "active" and show(guarded, "MainPID") != pid)
