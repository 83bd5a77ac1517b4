"""PSS of one process on request: the right process, or the reason for a refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from memwatch.core.linux.files import ParseError, Roots
from memwatch.core.model import Absent, Process
from memwatch.core.processes.process_folder import PssError, PssReader, parse_rollup
from memwatch_web.api.services import RateLimiter
from support.api_schema import check_answer
from support.daemon_process import QUIET_MACHINE, RunningDaemon, running_daemon
from support.memory_holder import holder
from support.mutable_machine import MutableMachine
from support.process_folders import add_process, folder_of, stat_line
from support.zombie_leader import zombie_leader

MIB = 1 << 20
ROLLUP = b"00400000-7fff ---p 00000000 00:00 0    [rollup]\nRss:     900 kB\nPss:     700 kB\nPss_Anon:   600 kB\n"
OFTEN = '[processes]\ninterval = "1s"\n'


def simulated(tmp_path: Path, rollup: bytes | None = ROLLUP) -> tuple[PssReader, Process]:
    """Return a reader of simulated files, and process 42 as it was listed."""
    folder_of(tmp_path)
    files = {} if rollup is None else {"smaps_rollup": rollup}
    add_process(tmp_path, stat_line(42, start=500), **files)
    start = 1_700_000_000 + 500 / os.sysconf("SC_CLK_TCK")
    process = Process(42, start, "x", 1, 1, "rss", unit=None, container=None)
    return PssReader(Roots(tmp_path, tmp_path, tmp_path)), process


def test_parts_missing_on_old_kernels_are_absent() -> None:
    """Before Linux 5.4 there is only the sum: its parts are absent, not zero."""
    pss = parse_rollup(ROLLUP, 42)

    assert (pss.pss_bytes, pss.rss_bytes, pss.anonymous_bytes) == (700 << 10, 900 << 10, 600 << 10)
    assert pss.file_bytes is pss.shared_memory_bytes is pss.swap_bytes is Absent.NOT_SUPPORTED


@pytest.mark.parametrize("data", [b"", b"Rss: 5 kB\n", b"Pss:  %s kB\nRss: 1 kB\n" % (b"9" * 40), b"\xff\xfe"])
def test_invalid_smaps_rollup_is_rejected(data: bytes) -> None:
    with pytest.raises(ParseError, match="smaps_rollup"):
        parse_rollup(data, 42)


def test_pss_of_a_listed_process_is_read(tmp_path: Path) -> None:
    reader, process = simulated(tmp_path)

    assert reader.read(process).pss_bytes == 700 << 10


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda process: replace(process, pid=43), "process 43 .* has ended"),
        (lambda process: replace(process, start_time=process.start_time - 60), "process 42 .* has ended"),
    ],
)
def test_ended_or_reused_pid_is_rejected(
    tmp_path: Path, change: Callable[[Process], Process], sentence: str
) -> None:
    """A reused process id never gives the figures of another process."""
    reader, process = simulated(tmp_path)

    with pytest.raises(PssError, match=sentence):
        reader.read(change(process))


@pytest.mark.parametrize(
    ("rollup", "sentence"), [(None, "no smaps_rollup, which needs Linux 4.14"), (b"", "no lines Rss and Pss")]
)
def test_missing_or_empty_smaps_rollup_is_explained(tmp_path: Path, rollup: bytes | None, sentence: str) -> None:
    reader, process = simulated(tmp_path, rollup)

    with pytest.raises(PssError, match=sentence):
        reader.read(process)


def test_rate_limiter_admits_one_request_and_pauses() -> None:
    """No other request is admitted during one, nor for a second after it."""
    now = [0.0]
    limiter = RateLimiter(1.0, lambda: now[0])

    first, second = limiter.enter(), limiter.enter()
    now[0] = 5.0
    limiter.leave()
    third = limiter.enter()
    now[0] = 6.0
    fourth = limiter.enter()

    assert (first, second, third, fourth) == (True, False, False, True)


def beside(pid: int, folder: Path) -> list[str]:
    """Return the options for a quiet machine that also has this process."""
    machine = MutableMachine.of(QUIET_MACHINE.name, folder / "machine")
    machine.show(pid)
    return machine.arguments


def wait_until_listed(daemon: RunningDaemon, pid: int) -> None:
    daemon.wait_for("/api/v1/processes", lambda found: any(one["pid"] == pid for one in found))


def test_endpoint_agrees_with_psutil_and_rejects_invalid_requests(tmp_path: Path) -> None:
    """A second request within a second gets 429, an unknown process 404, and an invalid id 422."""
    with holder(100 * MIB) as pid, running_daemon(tmp_path, *beside(pid, tmp_path), config=OFTEN) as daemon:
        wait_until_listed(daemon, pid)

        answer = daemon.get(f"/api/v1/processes/{pid}/pss")
        name = Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
        again = daemon.get(f"/api/v1/processes/{pid}/pss")
        expected = psutil.Process(pid).memory_full_info().pss
        unknown = daemon.get("/api/v1/processes/2147483647/pss")
        invalid = [daemon.get(f"/api/v1/processes/{word}/pss").status for word in ("0", "-1", "x", "9" * 30)]

    assert answer.status == 200, answer.text
    check_answer(answer.body, "Pss")
    assert answer.json["pss_bytes"] == pytest.approx(expected, rel=0.1)
    assert answer.json["anonymous_bytes"] >= 100 * MIB
    assert answer.json["name"] == name
    assert (again.status, again.headers["retry-after"]) == (429, "1")
    assert unknown.status == 404
    assert "/api/v1/processes lists the available ones" in unknown.json["detail"]
    assert invalid == [422] * 4


def test_process_without_its_first_thread_has_pss() -> None:
    """Another thread provides its memory. Once that has ended as well, there is none."""
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


def test_process_of_another_user_needs_a_capability(tmp_path: Path) -> None:
    """If the kernel denies access, the error names the capability."""
    uid = 65534 if os.geteuid() == 0 else None
    with (
        holder(100 * MIB, uid=uid) as pid,
        running_daemon(tmp_path, *beside(pid, tmp_path), config=OFTEN, without_privileges=True) as daemon,
    ):
        wait_until_listed(daemon, pid)
        answer = daemon.get(f"/api/v1/processes/{pid}/pss")

    if uid is None:  # the holder runs as this user
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert "CAP_SYS_PTRACE" in answer.json["detail"]


def test_page_of_a_process_shows_its_oom_score(tmp_path: Path) -> None:
    with holder(100 * MIB) as pid, running_daemon(tmp_path, *beside(pid, tmp_path), config=OFTEN) as daemon:
        Path(f"/proc/{pid}/oom_score_adj").write_text("300")
        wait_until_listed(daemon, pid)
        page = daemon.get(f"/processes/{pid}")
        score = Path(f"/proc/{pid}/oom_score").read_text().strip()
        unknown = daemon.get("/processes/2147483647", Accept="text/html")

    assert page.status == 200
    assert f"{score} <span" in page.text
    assert "oom_score_adj 300" in page.text
    assert 'id="ended"' not in page.text
    assert unknown.status == 404
    assert "is not on this machine, and was not listed in the last hour" in unknown.text
