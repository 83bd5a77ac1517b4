"""Crash recorder of the daemon: after SIGKILL under critical pressure, it shows the last seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.api_schema import check_answer
from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import MAX_WAIT_SECONDS

CRITICAL = """MemTotal:       16000000 kB
MemFree:          200000 kB
MemAvailable:     300000 kB
Buffers:            1000 kB
Cached:            90000 kB
AnonPages:      15000000 kB
"""


def host_in(folder: Path) -> list[str]:
    """Create a host whose memory is nearly full; return its arguments with a state folder."""
    proc = folder / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/hostname").write_text("wedged-1\n")
    (proc / "sys/kernel/random/boot_id").write_text("5b4e1c1e-3c1f-4a7e-8a51-1f0a3c1f4a7e\n")
    (proc / "meminfo").write_text(CRITICAL)
    (folder / "sys").mkdir()
    return ["--procfs", str(proc), "--sysfs", str(folder / "sys"), "--state-dir", str(folder / "state")]


@pytest.fixture
def host(tmp_path: Path) -> list[str]:
    return host_in(tmp_path)


def kill(daemon: RunningDaemon) -> None:
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.process.wait(MAX_WAIT_SECONDS)


def test_kill_under_critical_pressure_keeps_served_ticks(tmp_path: Path, host: list[str]) -> None:
    """Five times SIGKILL: each start succeeds, history continues, and at most one served tick is missing."""
    seen: Any = {}
    began = time.time()
    for number in range(5):
        with running_daemon(tmp_path, *host, "--interval", "200ms") as daemon:
            daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] >= 8)
            if number:
                words = daemon.get("/api/v1/last-words").json
                assert words["unix"] >= seen["unix"] - 0.1
                assert words["last"]["pressure"][0]["level"] == "critical"
            time.sleep(0.05 * number)
            seen = daemon.snapshot()
            kill(daemon)

    with running_daemon(tmp_path, *host) as daemon:
        history = daemon.get(f"/api/v1/history?series=pool.ram.used_bytes&points=2000&from={began}").json["series"][
            0
        ]
        metrics = daemon.get("/metrics").text
        assert len([at for at, value in zip(history["unix"], history["max"], strict=True) if value]) >= 15
        assert "memwatch_history_damaged_records 0.0" in metrics


def test_last_words_match_the_contract_and_end_with_a_clean_stop(tmp_path: Path, host: list[str]) -> None:
    """JSON, page, event and the note on the overview agree. After SIGTERM there are none."""
    with running_daemon(tmp_path, *host) as daemon:
        none = daemon.get("/api/v1/last-words")
        daemon.wait_for("/api/v1/snapshot", lambda snapshot: snapshot["seq"] >= 3)
        kill(daemon)
    with running_daemon(tmp_path, *host) as daemon:
        answer = daemon.get("/api/v1/last-words")
        page, overview = daemon.get("/last-words").text, daemon.get("/").text
        events = daemon.get("/api/v1/events").json
        ticks = daemon.get("/api/v1/ticks")
        about = daemon.get("/about").text
        assert daemon.terminate() == 0
    with running_daemon(tmp_path, *host) as daemon:
        gone = daemon.get("/api/v1/last-words")

    check_answer(answer.body, "LastWords")
    assert "from 0 to 100% used, lines at 60, 80 and 95%" in page
    check_answer(ticks.body, "Tick[]")
    assert ticks.json
    assert [none.status, answer.status, gone.status] == [404, 200, 404]
    assert "ended cleanly" in gone.json["detail"]
    assert "ended unexpectedly" in overview
    assert '<h2 id="end-label">memwatchd crashed or was killed</h2>' in page
    assert [event["kind"] for event in events if event["kind"] == "unclean"] == ["unclean"]
    assert str(tmp_path / "state") in about


def test_kill_right_after_the_start_is_reported(tmp_path: Path, host: list[str]) -> None:
    """A run at low pressure that ended before its first batch has no samples, but its end is reported."""
    meminfo = Path(host[1]) / "meminfo"
    meminfo.write_text(CRITICAL.replace("MemAvailable:     300000", "MemAvailable:   15000000"))
    with running_daemon(tmp_path, *host) as daemon:
        kill(daemon)
    with running_daemon(tmp_path, *host) as daemon:
        words, page = daemon.get("/api/v1/last-words").json, daemon.get("/last-words").text
        overview = daemon.get("/").text

    assert (words["samples"], words["last"]) == ([], None)
    assert "no sample since the start at 20" in words["text"]
    assert "no sample since the start" in page
    assert "ended unexpectedly" in overview


def test_last_words_without_a_state_folder_name_the_option(tmp_path: Path, host: list[str]) -> None:
    """404 with the option, and no history metrics."""
    with running_daemon(tmp_path, *host[:4]) as daemon:
        answer = daemon.get("/api/v1/last-words")
        metrics = daemon.get("/metrics").text

    assert answer.status == 404
    assert "--state-dir" in answer.json["detail"]
    assert "memwatch_history_" not in metrics


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon for requests that change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    with running_daemon(folder, *host_in(folder)) as running:
        yield running


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("ticks?limit=0", "limit is '0'"),
        ("ticks?from=2&to=1", "from must be earlier than to"),
        ("ticks?from=yesterday", "from is 'yesterday': give Unix seconds or a time such as"),
        ("history?points=2001", "points is '2001'"),
    ],
)
def test_invalid_history_query_is_422_with_a_reason(shared_daemon: RunningDaemon, query: str, reason: str) -> None:
    """The error has the name, the value, and valid input."""
    answer = shared_daemon.get(f"/api/v1/{query}")

    assert answer.status == 422
    assert reason in answer.json["detail"]
