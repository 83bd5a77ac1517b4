"""LazyApp: metrics and health are answered at once; API and pages are loaded on demand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message

from memwatch.build_info import __version__
from memwatch_monitor.loop import Monitor
from memwatch_web.asgi.lazy_app import ALERTS_FIRST_SECONDS, AppLoader, LazyApp
from memwatch_web.asgi.problems import ProblemError
from support.daemon_process import WITHOUT_COVERAGE, RunningDaemon, rss_bytes, running_daemon
from support.waiting import MAX_WAIT_SECONDS, wait_until

# A machine with 91% used: high from the first tick.
FULL = "MemTotal: 8000000 kB\nMemFree: 300000 kB\nMemAvailable: 700000 kB\nBuffers: 0 kB\nCached: 400000 kB\n"


def loader_of(make: Callable[[], ASGIApp]) -> AppLoader:
    return AppLoader("the pages", make)


def lazy_app_of(
    make: Callable[[], ASGIApp], make_api: Callable[[], ASGIApp], monitor: Monitor | None = None
) -> LazyApp:
    """Create the app, by default without a monitor, which most of these tests do not need."""
    parts = loader_of(make), AppLoader("the API", make_api)
    found = monitor or SimpleNamespace(features=())
    return LazyApp(cast(Monitor, found), AppLoader("the metrics", lambda: PlainTextResponse("metrics")), *parts)


def has_loaded_pydantic(daemon: RunningDaemon) -> bool:
    return "pydantic_core" in Path(f"/proc/{daemon.pid}/maps").read_text()


def test_two_applications_are_loaded_one_after_the_other() -> None:
    """Each restores the switch interval that it found."""
    usual, running = sys.getswitchinterval(), []

    def make() -> ASGIApp:
        running.append(threading.get_ident())
        time.sleep(0.1)
        assert running[-1] == threading.get_ident()
        return PlainTextResponse("pages")

    async def ask() -> None:
        await asyncio.gather(loader_of(make).prepare(), loader_of(make).prepare())

    asyncio.run(ask())

    assert len(set(running)) == 2
    assert sys.getswitchinterval() == usual


def test_concurrent_requests_load_the_app_once() -> None:
    """Ten concurrent calls get the same app."""
    made: list[int] = []

    def make() -> ASGIApp:
        made.append(threading.get_ident())
        time.sleep(0.1)
        return PlainTextResponse("pages")

    async def ask() -> list[ASGIApp]:
        loader = loader_of(make)
        return [*await asyncio.gather(*(loader.prepare() for _ in range(10))), await loader.prepare()]

    found = asyncio.run(ask())

    assert len({id(one) for one in found}) == 1
    assert len(made) == 1
    assert made[0] != threading.get_ident()


def test_switch_interval_is_short_while_the_app_loads() -> None:
    """Other threads get the interpreter sooner. Afterwards, or after an error, the interval is restored."""
    usual = sys.getswitchinterval()
    seen: list[float] = []

    def make() -> ASGIApp:
        seen.append(sys.getswitchinterval())
        if len(seen) == 1:
            raise MemoryError
        return PlainTextResponse("pages")

    async def ask() -> None:
        loader = loader_of(make)
        with pytest.raises(ProblemError):
            await loader.prepare()
        seen.append(sys.getswitchinterval())
        await loader.prepare()

    asyncio.run(ask())

    assert seen[0] == seen[2] < usual / 5
    assert seen[1] == sys.getswitchinterval() == usual


def test_preloading_starts_after_a_delay_and_once() -> None:
    """Alerts of the same tick are sent before 300 modules are loaded."""
    made: list[tuple[str, float]] = []

    def make(name: str) -> ASGIApp:
        made.append((name, time.monotonic()))
        return PlainTextResponse(name)

    async def wait() -> float:
        lazy_app = lazy_app_of(lambda: make("pages"), lambda: make("API"))
        began = time.monotonic()
        lazy_app.prepare_soon(asyncio.get_running_loop())
        assert lazy_app.is_prepared
        await asyncio.sleep(ALERTS_FIRST_SECONDS + 0.3)
        await lazy_app.prepare()
        return began

    began = asyncio.run(wait())

    assert [name for name, _ in made] == ["pages", "API"]
    assert made[0][1] - began >= ALERTS_FIRST_SECONDS - 0.01


ASK_FOR_A_PATH = """
import asyncio, sys
from memwatch_web.metrics.endpoint import MetricsEndpoint
from memwatchd.daemon import Daemon
from memwatchd.http_server.server import create_lazy_app
from memwatchd.settings.schema import Settings

async def send(message):
    if "body" in message:
        sys.stdout.write(message["body"].decode())

async def receive():
    return {"type": "http.disconnect"}

async def ask():
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
    scope |= {"method": "GET", "path": sys.argv[1], "query_string": b"", "headers": []}
    await app(scope, receive, send)

daemon = Daemon(Settings(), lambda _: Settings())
app = create_lazy_app(daemon, MetricsEndpoint(daemon.monitor, daemon.exporter))
asyncio.run(ask())
app.close()
daemon.stop()
loaded = [name for name, module in sys.modules.items() if module is not None]
print(*(one for one in loaded if one.startswith(tuple(sys.argv[2:]))), file=sys.stderr)
"""


def ask_for(path: str, *modules: str) -> tuple[str, set[str]]:
    """Return the body of an answer, and which of these modules are loaded after it."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_FOR_A_PATH, path, *modules],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **WITHOUT_COVERAGE},
    )
    return done.stdout, set(done.stderr.split())


def test_description_of_the_api_needs_neither_its_generator_nor_pydantic_1() -> None:
    """They would take 5 MiB that stay in use."""
    body, loaded = ask_for("/openapi.json", "pydantic.v1", "memwatch_web.api.openapi")

    described = json.loads(body)
    assert described["info"]["version"] == __version__
    assert len(described["paths"]) > 30
    assert loaded == set()


def test_inquiries_of_the_api_are_loaded_with_it_and_not_with_pages() -> None:
    """The API has all of its modules before memory is short. A first page compiles none of these."""
    inquiries = {"memwatch.core.backends.finder", "memwatch.reporting.doctor.examiner"}

    page, loaded = ask_for("/runbooks", *inquiries)

    assert "<html" in page
    assert loaded == set()
    assert ask_for("/openapi.json", *inquiries)[1] == inquiries


def test_app_is_kept_if_the_first_client_disconnects() -> None:
    made: list[str] = []
    is_alone = threading.Event()

    def make() -> ASGIApp:
        assert is_alone.wait(MAX_WAIT_SECONDS)
        made.append("made")
        return PlainTextResponse("pages")

    async def ask() -> None:
        loader = loader_of(make)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loader.prepare(), 0.02)
        is_alone.set()
        await loader.prepare()
        await loader.prepare()

    asyncio.run(ask())

    assert made == ["made"]


def test_failed_loading_is_retried_by_the_next_request() -> None:
    """The first client gets an error."""
    tries: list[int] = []

    def make() -> ASGIApp:
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError
        return PlainTextResponse("pages")

    async def ask() -> ASGIApp:
        loader = loader_of(make)
        with pytest.raises(ProblemError, match="could not be loaded: MemoryError"):
            await loader.prepare()
        return await loader.prepare()

    assert isinstance(asyncio.run(ask()), PlainTextResponse)


@pytest.mark.parametrize("simulated", [True, False])
def test_loading_error_of_demo_data_is_marked_as_simulated(simulated: bool) -> None:
    def make() -> ASGIApp:
        raise MemoryError

    async def ask() -> list[Message]:
        monitor = cast(Monitor, SimpleNamespace(features=(), simulated=simulated))
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        lazy_app = lazy_app_of(make, make, monitor)
        await lazy_app({"type": "http", "method": "GET", "path": "/"}, receive, send)
        return sent

    start, body = asyncio.run(ask())

    assert start["status"] == 503
    assert json.loads(body["body"]).get("simulated", False) is simulated


PAGES = ("/processes", "/history", "/docs", "/alerts", "/about", "/fit", "/incidents")


def ask_for_all(daemon: RunningDaemon) -> None:
    """Have all modules and templates compiled that the test of memory needs: compiling takes memory as well."""
    for path in ("/metrics", "/healthz", "/readyz", "/", *PAGES, "/api/v1/snapshot"):
        assert daemon.get(path).status == 200, path


def test_scrapes_load_no_pages_and_pages_no_api(tmp_path: Path) -> None:
    """Scrapes and health checks leave the daemon small. Pages do not load FastAPI, the API does."""
    with running_daemon(tmp_path, installed=True) as daemon:
        ask_for_all(daemon)
    with running_daemon(tmp_path, installed=True) as daemon:
        for _ in range(5):
            assert daemon.get("/metrics").status == daemon.get("/healthz").status == daemon.get("/readyz").status
        small = rss_bytes(daemon)
        page = daemon.get("/")
        with_pages = rss_bytes(daemon)
        for path in PAGES:
            assert daemon.get(path).status == 200
        used, loaded_before = rss_bytes(daemon), has_loaded_pydantic(daemon)
        assert daemon.get("/api/v1/snapshot").status == 200
        with_api, loaded_after = rss_bytes(daemon), has_loaded_pydantic(daemon)

    assert page.status == 200
    assert b"</html>" in page.body
    assert (loaded_before, loaded_after) == (False, True)
    assert 2 << 20 < with_pages - small < 12 << 20
    assert used - with_pages < 4 << 20
    assert with_api - used > 8 << 20


def test_api_loads_no_pages(tmp_path: Path) -> None:
    """A program or a neighbour that reads the API alone: FastAPI, no Jinja2."""
    with running_daemon(tmp_path, installed=True) as daemon:
        assert daemon.get("/api/v1/snapshot").status == 200
        with_api = rss_bytes(daemon)
        assert daemon.get("/").status == 200
        with_pages = rss_bytes(daemon)

    assert with_pages - with_api > 3 << 20


def test_fast_paths_apply_the_host_allow_list(tmp_path: Path) -> None:
    """/metrics rejects a foreign host, and /healthz/ is not a fast path."""
    with running_daemon(tmp_path, installed=True) as daemon:
        foreign = daemon.get("/metrics", Host="evil.example")
        pages = daemon.get("/healthz/")

    assert foreign.status == 400
    assert pages.status in (307, 404)


def test_high_pressure_preloads_pages_and_api(tmp_path: Path) -> None:
    """No client has requested them, and loading them during a shortage would be too late."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(FULL)
    with running_daemon(tmp_path, "--procfs", str(tmp_path / "proc"), installed=True) as daemon:
        wait_until(lambda: has_loaded_pydantic(daemon), describe=daemon.log.read_text)
        level = daemon.get("/api/v1/pressure").json[0]["level"]

    assert level in ("high", "critical")


def test_sigterm_while_pages_load_exits_in_time(tmp_path: Path) -> None:
    """SIGTERM right after the first request for a page: exit code 0."""
    with running_daemon(tmp_path, installed=True) as daemon:
        requesting = threading.Thread(target=ask_quietly, args=(daemon,))
        requesting.start()
        time.sleep(0.05)
        code = daemon.terminate()
        requesting.join(MAX_WAIT_SECONDS)

    assert code == 0


def ask_quietly(daemon: RunningDaemon) -> None:
    try:
        daemon.get("/")
    except OSError:
        return  # the daemon has exited


@pytest.mark.host
def test_first_query_of_the_fit_page_delays_no_scrape(tmp_path: Path) -> None:
    """It imports pydantic in a thread: scrapes are answered meanwhile. The page itself needs none."""
    with running_daemon(tmp_path, installed=True) as daemon:
        assert daemon.get("/fit").status == 200
        empty = has_loaded_pydantic(daemon)
        asking = threading.Thread(target=daemon.get, args=("/fit?bytes=1GiB",))
        scrapes = 0
        asking.start()
        while asking.is_alive():
            assert daemon.get("/metrics").status == 200
            scrapes += 1
        answered = has_loaded_pydantic(daemon)

    assert (empty, answered) == (False, True)
    assert scrapes >= 5
