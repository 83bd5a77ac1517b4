"""Programs that print lines for as long as they run: ends, pauses between starts, and lines that are too long."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memwatch.core.collectors.journal import Collector as Journal
from memwatch.core.kernel_log import ServiceKill
from memwatch.core.linux.files import ParseError, Roots
from memwatch.core.linux.line_program import LineProgram
from memwatch.core.runtime.worker import Backoff
from support.waiting import MAX_WAIT_SECONDS

KILL = (
    '{"_SYSTEMD_UNIT": "earlyoom.service", "__REALTIME_TIMESTAMP": "1800000000000000",'
    ' "MESSAGE": "sending SIGTERM to process 12 uid 0 \\"a\\": badness 1, VmRSS 5 MiB"}'
)
FORCED = f"Container {'a' * 64} failed to exit within 10s of signal 15 - using the force"


@contextmanager
def running(script: str, backoff: Backoff) -> Iterator[LineProgram]:
    program = LineProgram("test", ["/bin/sh", "-c", script], 100, backoff)
    try:
        yield program
    finally:
        program.stop()


def lines_until_end(program: LineProgram) -> tuple[list[bytes], str]:
    found: list[bytes] = []
    try:
        program.ensure_running()
        while True:
            found += program.read(MAX_WAIT_SECONDS) or []
    except ParseError as error:
        return found, str(error)


def test_program_that_ended_is_started_again_after_its_pause() -> None:
    """Its lines and its last error are returned; during the pause only the error."""
    backoff = Backoff(3600.0)
    with running("echo one; echo gone >&2; exit 4", backoff) as program:
        first = lines_until_end(program)
        during = lines_until_end(program)
        backoff.end()
        second = lines_until_end(program)

    trouble = "test exited with code 4: gone; it will be restarted after a pause"
    assert first == second == ([b"one\n"], trouble)
    assert during == ([], trouble)


def test_pause_grows_until_the_program_works() -> None:
    """Pauses of 1, 2 and 1 s, read right after each start."""
    backoff, pauses = Backoff(1.0, 100.0), []
    with running("echo one", backoff) as program:
        for works in (False, True, False):
            time.sleep(backoff.seconds_left(time.monotonic()))
            program.ensure_running()
            pauses.append(backoff.seconds_left(time.monotonic()))
            if works:
                program.reset_pause()
            lines_until_end(program)

    assert [round(pause + 0.4) for pause in pauses] == [1, 2, 1]


def test_end_is_left_to_the_next_read_on_request() -> None:
    with running("echo one", Backoff(0.01)) as program:
        program.ensure_running()
        first = program.read(MAX_WAIT_SECONDS)
        kept = program.read(MAX_WAIT_SECONDS, keep_end=True)

        assert (first, kept) == ([b"one\n"], None)
        with pytest.raises(ParseError, match="exited with code 0"):
            program.read(MAX_WAIT_SECONDS)


def test_long_lines_are_counted_once() -> None:
    with running("head -c 5000 /dev/zero; echo; echo short; exec sleep 60", Backoff(1.0)) as program:
        program.ensure_running()
        found: list[bytes] = []
        until = time.monotonic() + MAX_WAIT_SECONDS
        while not found and time.monotonic() < until:
            found += program.read(1.0) or []

        assert found == [b"short\n"]
        assert (program.take_cut(), program.take_cut()) == (1, 0)


def test_journal_that_ends_keeps_its_kills_and_names_the_error(tmp_path: Path) -> None:
    program = tmp_path / "journalctl"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{KILL}\nEND\nsleep 0.5\necho no permission >&2\nexit 1\n")
    program.chmod(0o755)
    collector = Journal(Roots(), str(program))
    kills: set[int | None] = set()
    error = ""
    while not error:
        try:
            kills |= {kill.pid for kill in collector.collect().service_kills or ()}
        except ParseError as found:
            error = str(found)
        time.sleep(0.05)
    collector.close()

    assert kills == {12}
    assert error == "journalctl exited with code 1: no permission; it will be restarted after a pause"


def test_output_of_a_container_in_the_journal_is_no_kill(tmp_path: Path) -> None:
    """Docker's driver `journald` writes it as a line of docker.service, with the id of the container."""
    own = json.dumps({**json.loads(KILL), "_SYSTEMD_UNIT": "docker.service", "MESSAGE": FORCED})
    of_container = json.dumps({**json.loads(own), "CONTAINER_ID": "0123456789ab"})
    program = tmp_path / "journalctl"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{of_container}\n{own}\n{KILL}\nEND\nsleep 60\n")
    program.chmod(0o755)
    collector = Journal(Roots(), str(program))
    kills: tuple[ServiceKill, ...] = ()
    until = time.monotonic() + MAX_WAIT_SECONDS
    while not kills and time.monotonic() < until:
        kills = tuple(collector.collect().service_kills or ())
        time.sleep(0.05)
    collector.close()

    assert [one.source for one in kills] == ["runtime", "earlyoom"]
