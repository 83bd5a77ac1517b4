"""A real Prometheus scrapes the daemon, and a query answers."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from daemon_process import free_port, get, running_daemon

ROOT = Path(__file__).parent.parent


def query(port: int, expression: str) -> list[Any]:
    answer = get(port, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    return list(json.loads(answer.body)["data"]["result"])


def wait_for_result(port: int, expression: str, seconds: float = 30.0) -> list[Any]:
    until = time.monotonic() + seconds
    while True:
        try:
            result = query(port, expression)
        except OSError:
            result = []
        if result:
            return result
        assert time.monotonic() < until, f"{expression} has no result"
        time.sleep(0.2)


@pytest.mark.xdist_group("prometheus")
def test_prometheus_scrapes_us_and_a_query_answers(tmp_path: Path) -> None:
    """The scrape configuration we ship works, and the pools add up to this machine's memory."""
    port = free_port()
    with running_daemon(tmp_path) as daemon:
        shipped = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
        assert "127.0.0.1:6360" in shipped
        configuration = tmp_path / "prometheus.yml"
        configuration.write_text(
            shipped.replace("127.0.0.1:6360", f"127.0.0.1:{daemon.port}").replace("15s", "1s").replace("10s", "1s")
        )
        checked = subprocess.run(
            ["promtool", "check", "config", str(configuration)], capture_output=True, check=False
        )
        assert checked.returncode == 0, checked.stderr.decode()
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={configuration}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            size = wait_for_result(port, "sum(memwatch_pool_size_bytes)")
            parts = wait_for_result(port, "sum(memwatch_pool_used_bytes) + sum(memwatch_pool_available_bytes)")
            up = wait_for_result(port, 'up{job="memwatchd"} == 1')
            level = wait_for_result(port, 'memwatch_pressure{target="ram"} == 1')
            pool = daemon.get("/api/v1/pools").json[0]
        finally:
            server.terminate()
            server.wait(20)

    assert up
    assert float(size[0]["value"][1]) == float(parts[0]["value"][1]) == pool["size_bytes"]
    assert level[0]["metric"]["level"] in {"low", "medium", "high", "critical"}
