"""POST requests to a running daemon, and the start time of this process."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from memwatch.core.linux.process_files import read_start_ticks
from support.daemon_process import RunningDaemon
from support.waiting import MAX_WAIT_SECONDS


def post(daemon: RunningDaemon, path: str, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def own_ticks() -> int:
    ticks = read_start_ticks(Path("/proc/self"))
    assert ticks is not None
    return ticks
