"""What is asked most is answered at once; the API and the pages are made when somebody wants them."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message

from memwatch.monitor.loop import Monitor
from memwatch_web.asgi.lazy_app import ALERTS_FIRST_SECONDS, LazyApp
from memwatch_web.asgi.problems import ProblemError
from support.daemon_process import RunningDaemon, running_daemon
from support.waiting import MAX_WAIT_SECONDS, Stopwatch

# A machine of which nine tenths are used: high from the first tick.
FULL = "MemTotal: 8000000 kB\nMemFree: 300000 kB\nMemAvailable: 700000 kB\nBuffers: 0 kB\nCached: 400000 kB\n"


def front_of(make: object) -> LazyApp:
    """No tick is needed: the monitor is not asked."""
    return LazyApp(cast(Monitor, None), PlainTextResponse("metrics"), cast("type[ASGIApp]", make))


def rss_bytes(daemon: RunningDaemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def test_it_is_made_once_for_all_who_ask() -> None:
    """Ten at the same time get the same one."""
    made: list[int] = []

    def make() -> ASGIApp:
        made.append(threading.get_ident())
        time.sleep(0.1)
        return PlainTextResponse("pages")

    async def ask() -> list[ASGIApp]:
        lazy_app = front_of(make)
        return [*await asyncio.gather(*(lazy_app.prepare() for _ in range(10))), await lazy_app.prepare()]

    found = asyncio.run(ask())

    assert len({id(one) for one in found}) == 1
    assert len(made) == 1
    assert made[0] != threading.get_ident()


def test_others_come_first_while_it_is_made() -> None:
    """A thread that needs the interpreter gets it ten times as soon; afterwards, or after an error, as ever."""
    usual = sys.getswitchinterval()
    seen: list[float] = []

    def make() -> ASGIApp:
        seen.append(sys.getswitchinterval())
        if len(seen) == 1:
            raise MemoryError
        return PlainTextResponse("pages")

    async def ask() -> None:
        lazy_app = front_of(make)
        with pytest.raises(ProblemError):
            await lazy_app.prepare()
        seen.append(sys.getswitchinterval())
        await lazy_app.prepare()

    asyncio.run(ask())

    assert seen[0] == seen[2] < usual / 5
    assert seen[1] == sys.getswitchinterval() == usual


def test_what_is_made_ahead_is_made_once_and_not_at_once() -> None:
    """The alerts that the same tick causes are on their way before 300 modules are loaded."""
    made: list[float] = []

    def make() -> ASGIApp:
        made.append(time.monotonic())
        return PlainTextResponse("pages")

    async def wait() -> float:
        lazy_app = front_of(make)
        began = time.monotonic()
        lazy_app.prepare_soon(asyncio.get_running_loop())
        assert lazy_app.is_requested
        await asyncio.sleep(ALERTS_FIRST_SECONDS + 0.3)
        await lazy_app.prepare()
        return began

    began = asyncio.run(wait())

    assert len(made) == 1
    assert made[0] - began >= ALERTS_FIRST_SECONDS - 0.01


def test_it_is_kept_though_nobody_waited_for_it() -> None:
    """Who asks first may leave before it is made."""
    made: list[str] = []

    def make() -> ASGIApp:
        time.sleep(0.1)
        made.append("made")
        return PlainTextResponse("pages")

    async def ask() -> None:
        lazy_app = front_of(make)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(lazy_app.prepare(), 0.02)
        await asyncio.sleep(0.3)
        await lazy_app.prepare()

    asyncio.run(ask())

    assert made == ["made"]


def test_what_could_not_be_made_is_tried_again() -> None:
    """A sentence for who asked, and another try for who asks next."""
    tries: list[int] = []

    def make() -> ASGIApp:
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError
        return PlainTextResponse("pages")

    async def ask() -> ASGIApp:
        lazy_app = front_of(make)
        with pytest.raises(ProblemError, match="could not be loaded: MemoryError"):
            await lazy_app.prepare()
        return await lazy_app.prepare()

    assert isinstance(asyncio.run(ask()), PlainTextResponse)


@pytest.mark.parametrize("simulated", [True, False])
def test_that_it_could_not_be_made_is_marked_where_all_is(simulated: bool) -> None:
    """503 of a simulated machine says so."""

    def make() -> ASGIApp:
        raise MemoryError

    async def ask() -> list[Message]:
        monitor = cast(Monitor, SimpleNamespace(simulated=simulated))
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        lazy_app = LazyApp(monitor, PlainTextResponse("metrics"), make)
        await lazy_app({"type": "http", "method": "GET", "path": "/"}, receive, send)
        return sent

    start, body = asyncio.run(ask())

    assert start["status"] == 503
    assert json.loads(body["body"]).get("simulated", False) is simulated


def test_who_only_scrapes_never_pays_for_the_pages(tmp_path: Path) -> None:
    """Scrapes and health checks leave the daemon small; the first page is whole, and makes it larger once."""
    with running_daemon(tmp_path) as daemon:
        for _ in range(5):
            assert daemon.get("/metrics").status == daemon.get("/healthz").status == daemon.get("/readyz").status
        small = rss_bytes(daemon)
        page = daemon.get("/")
        large = rss_bytes(daemon)
        daemon.get("/api/v1/snapshot")
        daemon.get("/processes")
        after = rss_bytes(daemon)

    assert page.status == 200
    assert b"</html>" in page.body
    assert large - small > 8 << 20
    assert after - large < 4 << 20


def test_what_is_answered_at_once_is_refused_like_the_rest(tmp_path: Path) -> None:
    """Another method, another host: the same sentences as everywhere."""
    with running_daemon(tmp_path) as daemon:
        foreign = daemon.get("/metrics", Host="evil.example")
        pages = daemon.get("/healthz/")

    assert foreign.status == 400
    assert pages.status in (307, 404)


def test_memory_that_gets_tight_has_the_pages_made(tmp_path: Path) -> None:
    """When they are needed most it would be too late to load them; nobody has asked yet."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(FULL)
    with running_daemon(tmp_path, "--procfs", str(tmp_path / "proc")) as daemon:
        until = time.monotonic() + MAX_WAIT_SECONDS
        before = rss_bytes(daemon)
        while rss_bytes(daemon) < 56 << 20:
            assert time.monotonic() < until, (before, daemon.log.read_text())
            time.sleep(0.1)
        level = daemon.get("/api/v1/pressure").json[0]["level"]

    assert level in ("high", "critical")


def test_it_ends_while_its_pages_are_being_made(tmp_path: Path) -> None:
    """SIGTERM right after the first request for a page: out in time, with code 0."""
    with running_daemon(tmp_path) as daemon:
        asking = threading.Thread(target=ask_quietly, args=(daemon,))
        asking.start()
        time.sleep(0.05)
        watch = Stopwatch()
        code = daemon.terminate()
        took = watch.seconds
        asking.join(MAX_WAIT_SECONDS)

    assert code == 0
    assert took < 5


def ask_quietly(daemon: RunningDaemon) -> None:
    try:
        daemon.get("/")
    except OSError:
        return  # it has left
