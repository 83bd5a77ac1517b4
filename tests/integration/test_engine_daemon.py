"""A running daemon and a real process that is named and answers like llama.cpp's server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memwatch.core.engines.exchange import OVERDUE
from support import engine_texts as texts
from support.client_process import call_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.engine_servers import engine_site
from support.libc_faults import SOURCE, built_library
from support.paths import TESTS
from support.waiting import wait_until

SERVER = """
import json, sys
sys.path.insert(0, {tests!r})
from support import engine_texts
from support.engine_servers import EngineSite

listed = {{"id": "tiny.gguf", "meta": {{"size": 1 << 20}}}}
site = EngineSite({{**engine_texts.llama_cpp(), "/models": json.dumps({{"data": [listed]}}).encode()}})
print(site.port, flush=True)
site.server.serve_forever(0.05)
"""


@contextmanager
def llama_server(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a script with the name of the server. Yield its PID and port."""
    script = folder / "llama-server"
    script.write_text(SERVER.format(tests=str(TESTS)))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def find(daemon: RunningDaemon, port: int) -> dict[str, object] | None:
    """Return the record of the server at a port, if it was asked already."""
    listed = daemon.get("/api/v1/engines").json
    return next((one for one in listed if one["url"] == f"http://127.0.0.1:{port}"), None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    with llama_server(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.mark.host
def test_server_is_found_shown_and_exported(tmp_path: Path, server: tuple[int, int]) -> None:
    pid, port = server
    with running_daemon(tmp_path, watches_this_machine=True) as daemon:
        wait_until(lambda: find(daemon, port))
        found = find(daemon, port)
        assert found is not None
        assert (found["pid"], found["kind"], found["weights_bytes"]) == (pid, "llama.cpp", 1 << 20)
        assert found["requests_waiting"] == 4
        metrics = daemon.get("/metrics").text
        assert f'memwatch_engine_requests{{engine="llama.cpp-{port}",state="waiting"}} 4.0' in metrics
        assert "llama.cpp tiny.gguf" in daemon.get("/").text
        shown = call_memwatch("--url", daemon.url, "engines", "--json")
        assert port in [int(str(one["url"]).rpartition(":")[2]) for one in json.loads(shown.stdout) if one["url"]]


def test_name_that_does_not_resolve_delays_no_other_server(tmp_path: Path) -> None:
    """getaddrinfo(3) of the first takes a minute."""
    library = built_library(SOURCE.with_name("slow_names.c"))
    with engine_site(texts.vllm()) as site:
        config = "".join(
            f'[[engines]]\nname = "{name}"\nkind = "vllm"\nurl = "http://{address}"\n'
            for name, address in (("slow", "slow.example:8000"), ("good", f"127.0.0.1:{site.port}"))
        )
        with running_daemon(
            tmp_path, config=config, environ={"LD_PRELOAD": str(library)}, installed=True
        ) as daemon:
            found = daemon.wait_for("/api/v1/engines", lambda listed: len(listed) == 2)
    slow, good = found
    assert OVERDUE in slow["notes"][0]
    assert (good["id"], good["requests_running"]) == ("good", 3)


@pytest.mark.host
def test_discovery_that_is_off_finds_no_server(tmp_path: Path, server: tuple[int, int]) -> None:
    with running_daemon(
        tmp_path, config="[collectors.engines]\ndiscover = false\n", watches_this_machine=True
    ) as daemon:
        states = {one["name"]: one["state"] for one in daemon.get("/api/v1/collectors").json}
        assert states["engines"] == "unavailable"
        assert find(daemon, server[1]) is None
