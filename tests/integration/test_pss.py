"""The proportional set size of one process: when asked, of the right one, or why not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from pydantic import TypeAdapter

from memwatch.linux.files import ParseError, Roots
from memwatch.model import Absent, Process
from memwatch.processes.pss import PssError, PssReader, parse_rollup
from memwatch_web.api import schema_owners as contract_who
from memwatch_web.api.services import RateLimiter
from support.daemon_process import RunningDaemon, running_daemon
from support.memory_holder import holder
from support.process_folders import add_process, folder_of, stat_line
from support.zombie_leader import zombie_leader

MIB = 1 << 20
ROLLUP = b"00400000-7fff ---p 00000000 00:00 0    [rollup]\nRss:     900 kB\nPss:     700 kB\nPss_Anon:   600 kB\n"
OFTEN = '[processes]\ninterval = "1s"\n'


def simulated(tmp_path: Path, rollup: bytes | None = ROLLUP) -> tuple[PssReader, Process]:
    """Process 42 as it was listed, and a reader of its folder."""
    folder_of(tmp_path)
    files = {} if rollup is None else {"smaps_rollup": rollup}
    add_process(tmp_path, stat_line(42, start=500), **files)
    start = 1_700_000_000 + 500 / os.sysconf("SC_CLK_TCK")
    process = Process(42, start, "x", 1, 1, "rss", unit=None, container=None)
    return PssReader(Roots(tmp_path, tmp_path, tmp_path)), process


def test_parts_that_this_kernel_does_not_have() -> None:
    """Before Linux 5.4 there is one sum: its parts are absent, not zero."""
    pss = parse_rollup(ROLLUP, 42)

    assert (pss.pss_bytes, pss.rss_bytes, pss.anonymous_bytes) == (700 << 10, 900 << 10, 600 << 10)
    assert pss.file_bytes is pss.shared_memory_bytes is pss.swap_bytes is Absent.NOT_SUPPORTED


@pytest.mark.parametrize("data", [b"", b"Rss: 5 kB\n", b"Pss:  %s kB\nRss: 1 kB\n" % (b"9" * 40), b"\xff\xfe"])
def test_nonsense_is_refused(data: bytes) -> None:
    """A file without the sum is refused and quoted."""
    with pytest.raises(ParseError, match="smaps_rollup"):
        parse_rollup(data, 42)


def test_a_listed_process(tmp_path: Path) -> None:
    """The figure is of the process that was listed."""
    reader, process = simulated(tmp_path)

    assert reader.read(process).pss_bytes == 700 << 10


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda process: replace(process, pid=43), "process 43 .* has ended"),
        (lambda process: replace(process, start_time=process.start_time - 60), "process 42 .* has ended"),
    ],
)
def test_another_process_with_that_number(
    tmp_path: Path, change: Callable[[Process], Process], sentence: str
) -> None:
    """A number that passed to another process answers nothing about the first."""
    reader, process = simulated(tmp_path)

    with pytest.raises(PssError, match=sentence):
        reader.read(change(process))


@pytest.mark.parametrize(
    ("rollup", "sentence"), [(None, "no smaps_rollup, which needs Linux 4.14"), (b"", "no lines Rss and Pss")]
)
def test_kernels_without_it(tmp_path: Path, rollup: bytes | None, sentence: str) -> None:
    """An old kernel and an empty file each have their sentence."""
    reader, process = simulated(tmp_path, rollup)

    with pytest.raises(PssError, match=sentence):
        reader.read(process)


def test_one_at_a_time_and_a_pause() -> None:
    """While one is read nobody else is let in, nor for a second after it."""
    now = [0.0]
    turnstile = RateLimiter(1.0, lambda: now[0])

    first, second = turnstile.enter(), turnstile.enter()
    now[0] = 5.0
    turnstile.leave()
    third = turnstile.enter()
    now[0] = 6.0
    fourth = turnstile.enter()

    assert (first, second, third, fourth) == (True, False, False, True)


def listed(daemon: RunningDaemon, pid: int) -> None:
    daemon.wait_for("/api/v1/processes", lambda found: any(one["pid"] == pid for one in found))


def test_a_real_process(tmp_path: Path) -> None:
    """Through the daemon: what psutil says, a second question refused for a second, and a stranger unknown."""
    with holder(100 * MIB) as pid, running_daemon(tmp_path, config=OFTEN) as daemon:
        listed(daemon, pid)

        answer = daemon.get(f"/api/v1/processes/{pid}/pss")
        name = Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
        again = daemon.get(f"/api/v1/processes/{pid}/pss")
        witness = psutil.Process(pid).memory_full_info().pss
        stranger = daemon.get("/api/v1/processes/2147483647/pss")
        nonsense = [daemon.get(f"/api/v1/processes/{word}/pss").status for word in ("0", "-1", "x", "9" * 30)]

    assert answer.status == 200, answer.text
    TypeAdapter(contract_who.Pss).validate_json(answer.body, strict=True)
    assert answer.json["pss_bytes"] == pytest.approx(witness, rel=0.1)
    assert answer.json["anonymous_bytes"] >= 100 * MIB
    assert answer.json["name"] == name
    assert (again.status, again.headers["retry-after"]) == (429, "1")
    assert stranger.status == 404
    assert "not among those" in stranger.json["detail"]
    assert nonsense == [422] * 4


def test_a_process_whose_first_thread_has_ended() -> None:
    """Its memory is told by a thread that goes on; once that has ended too there is none."""
    with zombie_leader(64) as one:
        start = psutil.Process(one.pid).create_time()
        one.end_first_thread()
        process = Process(one.pid, start, "x", 1, 1, "rss", unit=None, container=None)
        found = PssReader(Roots()).read(process)
        one.end()
        with pytest.raises(PssError, match="has ended"):
            PssReader(Roots()).read(process)

    assert found.pid == one.pid
    assert found.pss_bytes > 64 * MIB


def test_another_users_process(tmp_path: Path) -> None:
    """Where the kernel refuses, the answer says so and what would help."""
    uid = 65534 if os.geteuid() == 0 else None
    daemon_without_rights = running_daemon(tmp_path, config=OFTEN, without_privileges=True)
    with holder(100 * MIB, uid=uid) as pid, daemon_without_rights as daemon:
        listed(daemon, pid)
        answer = daemon.get(f"/api/v1/processes/{pid}/pss")

    if uid is None:  # then the holder is this user's own
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert "CAP_SYS_PTRACE" in answer.json["detail"]
