"""Large history queries leave the event loop: other requests are answered meanwhile, and the queue is bounded."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from support.budget import within
from support.daemon_process import Answer, RunningDaemon, running_daemon
from support.full_state import SIZE_SETTING, write_full_state
from support.sample_history import SERIES

ROUNDS = 3
PROBE = """
import http.client, select, sys, time
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
longest = 0.0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    began = time.perf_counter()
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    longest = max(longest, time.perf_counter() - began)
print(longest, flush=True)
"""


class FullDaemon(Struct, frozen=True):
    """Daemon with thirty days of history, which ends at Unix time `ended`."""

    daemon: RunningDaemon
    ended: float

    def query(self, days: float, count: int = 20, points: int = 2000, more: str = "") -> str:
        bounds = f"from={self.ended - days * 86400:.0f}&to={self.ended:.0f}"
        return f"/api/v1/history?series={','.join(SERIES[:count])}&{bounds}&points={points}{more}"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullDaemon]:
    folder: Path = tmp_path_factory.mktemp("full")
    ended = write_full_state(folder / "state")
    config = f'[history]\ndisk_size = "{SIZE_SETTING}"\n'
    with running_daemon(folder, f"--state-dir={folder / 'state'}", config=config) as daemon:
        daemon.get("/history")  # imports the pages and the API
        yield FullDaemon(daemon, ended)


@contextmanager
def probing(daemon: RunningDaemon) -> Iterator[list[float]]:
    """Request /healthz all the time, in another process. The list then has the longest wait in seconds."""
    longest: list[float] = []
    command = [sys.executable, "-c", PROBE, str(daemon.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield longest
        longest.append(float(process.communicate("\n")[0]))


def timed(daemon: RunningDaemon, path: str) -> tuple[float, Answer]:
    began = time.perf_counter()
    answer = daemon.get(path)
    return time.perf_counter() - began, answer


def build_path(full: FullDaemon, kind: str) -> str:
    page = f"/history?range=30d&series={','.join(SERIES[:20])}"
    csv = full.query(29, more="&format=csv")
    return {"json": full.query(1), "csv": csv, "page": page, "ticks": "/api/v1/ticks?from=0&limit=500"}[kind]


@pytest.mark.measure
@pytest.mark.parametrize("kind", ["json", "csv", "page", "ticks"])
def test_large_query_delays_no_other_request(full: FullDaemon, kind: str) -> None:
    """It takes 0.1 to 0.4 s. In the event loop, every other client waited for all of it."""
    with probing(full.daemon) as longest:
        found = [timed(full.daemon, build_path(full, kind)) for _ in range(ROUNDS)]

    assert [answer.status for _, answer in found] == [200] * ROUNDS
    assert min(len(answer.body) for _, answer in found) > 100_000
    within("longest delay beside a large query", longest[0], 0.75 * min(seconds for seconds, _ in found), "s")


def test_full_queue_rejects_queries_with_a_time_to_retry(full: FullDaemon) -> None:
    """Of 40 different queries, 16 wait. The others are told when to come back, and the daemon serves the rest."""
    paths = [full.query(1, count=5, points=2000 - number) for number in range(40)]
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(full.daemon.get, paths))

    rejected = [answer for answer in answers if answer.status != 200]
    assert len(answers) - len(rejected) >= 16
    assert {(answer.status, answer.headers["retry-after"]) for answer in rejected} == {(503, "5")}
    assert "too many queries are waiting; retry later." in rejected[0].text
    assert full.daemon.get(paths[0]).status == 200


def test_equal_queries_share_one_result(full: FullDaemon) -> None:
    """Forty clients with the same query are more than may wait, and all are answered alike."""
    path = full.query(7)
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(full.daemon.get, [path] * 40))

    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1


def test_daemon_stops_during_queries(tmp_path: Path) -> None:
    """Waiting queries do not delay the end: it comes before they are answered."""
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon, ThreadPoolExecutor(30) as pool:
        names = daemon.get("/api/v1/history?series=x").json["detail"].rpartition(": ")[2].rstrip(".").split(", ")
        paths = [
            f"/api/v1/history?series={','.join(names[:15])}&points={2000 - number}&from=0" for number in range(30)
        ]
        asked = [pool.submit(daemon.get, path) for path in paths]
        wait(asked, return_when=FIRST_COMPLETED)
        status = daemon.terminate()

    assert status == 0
    assert any(isinstance(one.exception(), ConnectionError) for one in asked)
