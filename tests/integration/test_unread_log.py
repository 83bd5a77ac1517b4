"""A log whose reader has stopped, or is gone, stops neither alerts nor requests nor the end of the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from support.alert_machine import AlertMachine, quick_config, wait_for_deliveries
from support.daemon_process import RunningDaemon, running_daemon
from support.unread_log import close, fill, pipe, stopped_terminal
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Site, receiving

# SIGTERM ends a daemon within 5 s (docs/quality/faults.md, case 22), with half a second for an unread log.

CHATTY = r"""
import os, sys
for _ in range(100):
    try:
        os.write(2, b"noise" * 1000)
    except BlockingIOError:
        pass
sys.stdin.readline()
print("answer", flush=True)
"""
ASK_CHATTY_HELPER = """
import sys
from memwatch.core.helper.supervisor import Helper
helper = Helper([sys.executable, "-c", sys.argv[1]], 5.0, 0.0)
print(helper.ask(b"ask").decode(), flush=True)
helper.stop()
"""


def assert_alert_arrives(daemon: RunningDaemon, machine: AlertMachine, site: Site) -> None:
    """Fill the memory; the notification arrives although nothing reads the log, and health is answered."""
    machine.fill()
    first = wait_for_deliveries(site, 1)[0]
    assert json.loads(first.body)["event"] == "pressure.critical"
    assert daemon.get("/healthz").status == 200


def assert_ends(daemon: RunningDaemon) -> None:
    """A daemon that waits for the reader of its log would never end."""
    daemon.process.terminate()
    assert daemon.process.wait(MAX_WAIT_SECONDS) == 0


def test_full_pipe_stops_no_alert(tmp_path: Path) -> None:
    """The notification arrives, health is answered, SIGTERM ends the daemon."""
    machine = AlertMachine.of(tmp_path)
    with (
        pipe() as (_, stderr),
        receiving() as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site), stderr=stderr) as daemon,
    ):
        fill(stderr)
        assert_alert_arrives(daemon, machine, site)
        assert_ends(daemon)


def test_full_pipe_at_the_start_stops_no_alert(tmp_path: Path) -> None:
    """The first lines, which wait for the reader, are written as soon as it reads."""
    machine = AlertMachine.of(tmp_path)
    with pipe() as (reader, stderr), receiving() as site:
        filled = fill(stderr)
        with running_daemon(tmp_path, *machine.arguments, config=quick_config(site), stderr=stderr) as daemon:
            assert_alert_arrives(daemon, machine, site)
            text = read_bytes(reader, filled + 100)[filled:]
            assert_ends(daemon)

    assert b"Z WARNING every user of this machine can read" in text


def test_terminal_stopped_with_ctrl_s_stops_no_alert(tmp_path: Path) -> None:
    machine = AlertMachine.of(tmp_path)
    with (
        stopped_terminal() as stderr,
        receiving() as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site), stderr=stderr) as daemon,
    ):
        assert_alert_arrives(daemon, machine, site)
        assert_ends(daemon)


def test_closed_pipe_stops_no_alert_and_lost_lines_are_counted(tmp_path: Path) -> None:
    machine = AlertMachine.of(tmp_path)
    with (
        pipe() as (reader, stderr),
        receiving() as site,
        running_daemon(tmp_path, *machine.arguments, config=quick_config(site), stderr=stderr) as daemon,
    ):
        close(reader)
        assert_alert_arrives(daemon, machine, site)
        wait_until(lambda: dropped_lines(daemon) > 0)
        assert_ends(daemon)


def test_last_lines_are_written_before_the_end(tmp_path: Path) -> None:
    with pipe() as (reader, stderr):
        with running_daemon(tmp_path, stderr=stderr) as daemon:
            assert_ends(daemon)
        close(stderr)
        text = os.read(reader, 1 << 16)

    assert text.splitlines()[-1].endswith(b"memwatchd stopped")


def test_helper_does_not_wait_for_the_reader_of_the_log() -> None:
    """A driver library that prints much to a full pipe would block the helper, and thus its answer."""
    with pipe() as (_, stderr):
        fill(stderr)
        done = subprocess.run(
            [sys.executable, "-c", ASK_CHATTY_HELPER, CHATTY],
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=MAX_WAIT_SECONDS,
            check=False,
        )

    assert done.stdout == b"answer\n"


def dropped_lines(daemon: RunningDaemon) -> float:
    lines = daemon.get("/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("memwatch_log_lines_dropped_total "))


def read_bytes(descriptor: int, count: int) -> bytes:
    data, until = b"", time.monotonic() + MAX_WAIT_SECONDS
    while len(data) < count and time.monotonic() < until:
        data += os.read(descriptor, 1 << 16)
    return data
