"""Test the commands of the guardian, and the settings that its process gets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import json
from msgspec.structs import replace

from memwatchd.guardian.journal import Journal
from memwatchd.guardian.load_guard import FROZEN_NAME, Frozen
from memwatchd.guardian.outcome import Outcome
from memwatchd.guardian.records import Adjustment, Match, receive, send
from memwatchd.guardian_cli import load_config
from support.daemon_process import run_program
from support.guardian_machine import GuardianMachine, guardian_machine
from support.guardian_states import GIB
from support.hostile_folder import HostileFolder
from support.waiting import wait_until

PROGRAM = (str(Path(sys.executable).with_name("memwatchd-guardian")),)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardianMachine]:
    with guardian_machine(tmp_path) as machine:
        yield machine


def run(box: GuardianMachine, *words: str, settings: str = "") -> subprocess.CompletedProcess[str]:
    file = box.state / "memwatchd.toml"
    file.write_text(
        f'[guardian]\nstate_dir = "{box.state}"\n{settings}\n'
        f'[sampling]\nprocfs = "{box.proc}"\nsysfs = "{box.sys}"\n'
        '[web.auth]\nbearer_token = "file:/etc/memwatchd/not-readable"\n'
    )
    variables = {"MEMWATCH_URL": box.config.daemon, "RUNTIME_DIRECTORY": str(box.run)}
    return run_program(*PROGRAM, "--config", file, *words, **variables)


def test_settings_are_read_without_those_of_the_daemon_and_reach_the_process(tmp_path: Path) -> None:
    file = tmp_path / "memwatchd.toml"
    file.write_text(
        '[guardian]\ndry_run = false\nnever = ["unit:postgres*.service", "command:a b"]\nhook = ["/bin/x", "-y"]\n'
        'sigterm_time = "10s"\n'
        '[pressure]\ncritical_percent = 97\n[pressure.targets.ram]\nresident = "8GiB"\n'
        '[web.auth]\nbearer_token = "file:/not/there"\n'
    )

    config = receive(send(load_config(str(file), {})))

    assert not config.dry_run
    assert config.limits.never == (Match("unit", "postgres*.service"), Match("command", "a b"))
    assert (config.limits.has_hook, config.hook) == (True, ("/bin/x", "-y"))
    assert config.limits.sigterm_seconds == 10.0
    assert config.adjustment == Adjustment(0.97, 8 * GIB)


def test_it_is_a_dry_run_without_settings(tmp_path: Path) -> None:
    file = tmp_path / "memwatchd.toml"
    file.touch()

    assert load_config(str(file), {}).dry_run


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('never = ["postgres"]', "never"),
        ('never = "unit:x"', "never"),
        ('never = ["name:x"]', "KIND:PATTERN"),
        ('hook = ["free"]', "absolute path of a program"),
        ('sigkill_time = "2m"', "sigkill_time"),
        ("dryrun = false", "did you mean dry_run"),
    ],
)
def test_wrong_setting_ends_it_with_a_sentence(box: GuardianMachine, line: str, says: str) -> None:
    done = run(box, settings=line)

    assert done.returncode == 78
    assert says in done.stderr


def test_daemon_of_another_machine_is_refused(box: GuardianMachine) -> None:
    box.config = replace(box.config, daemon="http://gpu7:6360")

    assert "MEMWATCH_URL is http://gpu7:6360, which is not a daemon of this machine" in run(box).stderr


def test_test_names_the_victim_and_why_others_stay(box: GuardianMachine) -> None:
    victim = box.start_victim()
    done = run(box, "test")

    assert done.returncode == 0, done.stderr
    assert "Mode: dry run: it ends no process." in done.stdout
    assert "Daemon: in time." in done.stdout
    assert "Now: nothing is done: ram is OK: 20.0 GiB are available." in done.stdout
    assert f"victim ({victim.pid}) holds 20.1 GiB, 19.1 GiB of devices among them" in done.stdout
    assert "Steps: engine" not in done.stdout
    assert "Steps: sigterm (5 s), sigkill (5 s)." in done.stdout
    assert "Not reclaim: no swap is free, and file cache counts as available already." in done.stdout

    done = run(box, "test", settings='never = ["unit:serve*"]')
    assert f"Not victim ({victim.pid}), 20.1 GiB: never has unit:serve*." in done.stdout
    assert victim.poll() is None


def test_test_without_a_daemon_says_so(box: GuardianMachine) -> None:
    box.leave()
    done = run(box, "test")

    assert f"Daemon: {box.config.daemon} gives no figures: connection refused." in done.stdout
    assert "No process is known that could end." in done.stdout


def test_history_and_status_have_the_words_of_a_decision(box: GuardianMachine) -> None:
    assert "No decision is recorded" in run(box, "history").stdout
    assert "the guardian does not run; start it with: systemctl start" in run(box, "status").stderr

    victim = box.start_victim()
    guardian = box.start_and_fall(replace(box.config, dry_run=True))
    box.wait_for_record()

    shown = run(box, "history").stdout
    assert f"(dry run): ram is critical: 128.0 MiB of 64.0 GiB are available; victim ({victim.pid}) holds" in shown
    assert "  sigterm: would be taken; 128.0 MiB available" in shown
    assert "  not judged yet" in shown
    journal = Journal(box.state)
    evidence = "memory recovered by itself 7.0 s later and the kernel killed no process"
    journal.append(Outcome(box.records()[0].unix + 17, box.records()[0].unix, "needless", evidence))
    journal.close()
    shown = run(box, "history").stdout
    assert f"  that end would have been needless: {evidence}\n" in shown
    assert shown.endswith("Dry runs that were judged: 1 needless.\n")
    status = run(box, "status").stdout
    assert f"The guardian runs as process {guardian.pid}; dry run: it ends no process." in status
    guardian.terminate()
    guardian.wait()
    assert "the guardian does not run; it was last seen" in run(box, "status").stderr


def test_program_becomes_the_guardian(box: GuardianMachine, tmp_path: Path) -> None:
    """The process that read the settings is the guardian, so that systemd watches the right one.

    An administrator may start it in a folder of another user: it imports nothing from there.
    """
    folder = HostileFolder.of(tmp_path)
    file = box.state / "memwatchd.toml"
    file.write_text(f'[guardian]\nstate_dir = "{box.state}"\n[sampling]\nprocfs = "{box.proc}"\n')
    variables = {**os.environ, "MEMWATCH_URL": box.config.daemon, "RUNTIME_DIRECTORY": str(box.run)}
    with subprocess.Popen(
        [*PROGRAM, "--config", str(file)], stderr=subprocess.PIPE, text=True, env=variables, cwd=folder.path
    ) as one:
        assert one.stderr is not None
        line = ""
        while "the guardian watches" not in line:
            line = one.stderr.readline()
            assert line
        command = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        status = Path(f"/proc/{one.pid}/status").read_text()
        one.terminate()

    assert b"memwatchd.guardian.loop" in command
    # A huge page would add 2 MiB to its 20.
    assert "THP_enabled:\t0\n" in status
    assert folder.imports() == []
    assert "dry run: it ends no process" in line


def test_reload_applies_right_settings_and_keeps_those_in_force_otherwise(box: GuardianMachine) -> None:
    file = box.state / "memwatchd.toml"
    variables = {**os.environ, "MEMWATCH_URL": box.config.daemon, "RUNTIME_DIRECTORY": str(box.run)}

    def write(lines: str, state_dir: Path = box.state) -> None:
        sources = f'[sampling]\nprocfs = "{box.proc}"\nsysfs = "{box.sys}"\n'
        file.write_text(f'[guardian]\nstate_dir = "{state_dir}"\n{lines}\n{sources}')

    def check() -> subprocess.CompletedProcess[str]:
        return run_program(*PROGRAM, "--config", file, "check")

    write("")
    with (box.state / "log").open("ab") as log:
        guardian = subprocess.Popen([*PROGRAM, "--config", str(file)], stderr=log, text=True, env=variables)
    try:
        wait_until(lambda: "the guardian watches System RAM; dry run" in box.log(), describe=box.log)
        write("dry_run = false", box.run)
        assert check().stdout == "The settings are right; it may end processes.\n"
        guardian.send_signal(signal.SIGHUP)
        wait_until(lambda: "were read again; it may end processes" in box.log(), describe=box.log)
        assert "state_dir of the new settings: used from the next start on" in box.log()

        write("dryrun = true")
        assert check().returncode == 78
        guardian.send_signal(signal.SIGHUP)
        wait_until(lambda: "the settings stay as they are" in box.log(), describe=box.log)
        assert "did you mean dry_run" in box.log().rpartition("stay as they are")[2]
        wait_until(lambda: not box.status().dry_run)
    finally:
        guardian.terminate()
        guardian.wait()
    assert guardian.returncode == 0


def test_thaw_ends_what_a_dead_guardian_left_frozen(box: GuardianMachine) -> None:
    """The unit runs it after each end, also of a guardian that wrong settings ended."""
    file = box.state / "cgroup.freeze"
    file.write_text("1")
    (box.state / FROZEN_NAME).write_bytes(json.encode(Frozen(str(file), "ollama (12)", 1.0, 4.0)))

    assert run(box, "thaw").stdout == "ollama (12), which was frozen by the last guardian: thawed\n"
    assert file.read_text() == "0"
    assert run(box, "thaw").stdout == ""
    assert run(box, "thaw", settings="dryrun = true").returncode == 0


def test_client_runs_the_program_beside_it(box: GuardianMachine) -> None:
    """`memwatch guardian` is the same command: users look for it there."""
    folder = box.state / "bin"
    folder.mkdir()
    for name, module in (("memwatch", "memwatch.cli.cli"), ("memwatchd-guardian", "memwatchd.guardian_cli")):
        (folder / name).write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        (folder / name).chmod(0o755)
    variables = {**os.environ, "MEMWATCHD_GUARDIAN_STATE_DIR": str(box.state), "PATH": "/usr/bin:/bin"}
    command = [str(folder / "memwatch"), "guardian", "history"]

    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.stdout == f"No decision is recorded in {box.state}.\n", done.stderr

    (folder / "memwatchd-guardian").unlink()
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 1
    assert "memwatchd-guardian is not installed" in done.stderr
