"""Prometheus and its Alertmanager from Debian, as processes with the shipped configuration files."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from support.bound_process import start_bound
from support.daemon_process import get
from support.free_ports import free_port
from support.paths import DEPLOY
from support.waiting import MAX_WAIT_SECONDS

NEEDED_PROGRAMS = ("prometheus-alertmanager", "amtool", "prometheus", "promtool")


class Engine(Struct, frozen=True):
    """Server that has reported to be ready."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, path: str, **parameters: str) -> Any:
        answer = get(self.port, path + ("?" + urllib.parse.urlencode(parameters) if parameters else ""))
        assert answer.status == 200, f"{path} {parameters}: {answer.text}"
        return answer.json

    def post(self, path: str, body: Any) -> None:
        request = urllib.request.Request(
            f"http://{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=MAX_WAIT_SECONDS) as answer:
            assert answer.status == 200

    def query(self, expression: str) -> list[Any]:
        return list(self.ask("/api/v1/query", query=expression)["data"]["result"])

    def wait_for(self, expression: str, seconds: float = MAX_WAIT_SECONDS) -> list[Any]:
        """Return the result of a query as soon as it has one."""
        until = time.monotonic() + seconds
        while not (result := self.query(expression)):
            assert time.monotonic() < until, f"{expression} has no result; the log: {self.log.read_text()[-2000:]}"
            time.sleep(0.2)
        return result


def shipped(path: str, changes: Mapping[str, str]) -> str:
    """Return a file of deploy/ with addresses and waiting times replaced; each must occur in it."""
    text = (DEPLOY / path).read_text()
    for old, new in changes.items():
        assert old in text, f"deploy/{path} has no {old}"
        text = text.replace(old, new)
    return text


@contextmanager
def running(name: str, command: list[str], port: int, ready: str, folder: Path) -> Iterator[Engine]:
    """Run a server until it is ready, and end it with SIGTERM."""
    log = folder / f"{name}-{port}.log"
    with log.open("wb") as output:
        process = start_bound(command, output, output, cwd=folder)
    engine = Engine(process, port, log)
    try:
        _wait_until_ready(engine, ready)
        yield engine
    finally:
        process.terminate()
        process.wait(MAX_WAIT_SECONDS)


def _wait_until_ready(engine: Engine, path: str) -> None:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        assert engine.process.poll() is None, f"it exited: {engine.log.read_text()}"
        try:
            if get(engine.port, path).status == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < until, f"it does not answer: {engine.log.read_text()}"
        time.sleep(0.05)


@contextmanager
def prometheus(folder: Path, configuration: str, *arguments: str, agent: bool = False) -> Iterator[Engine]:
    """Run a Prometheus with this configuration, checked by promtool before."""
    port = free_port()
    file = folder / f"prometheus-{port}.yml"
    file.write_text(configuration)
    check = ["promtool", "check", "config", *(["--agent"] if agent else []), str(file)]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    storage = "agent" if agent else "tsdb"
    command = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.{storage}.path={folder / f'data-{port}'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *(["--enable-feature=agent"] if agent else []),
        *arguments,
    ]
    with running("prometheus", command, port, "/-/ready", folder) as engine:
        yield engine


@contextmanager
def alertmanager(folder: Path, configuration: str) -> Iterator[Engine]:
    port = free_port()
    file = folder / "alertmanager.yml"
    file.write_text(configuration)
    checked = subprocess.run(["amtool", "check-config", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    command = [
        "prometheus-alertmanager",
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running("alertmanager", command, port, "/-/ready", folder) as engine:
        yield engine


def scrape(*targets: str, interval: str = "1s", labels: Mapping[str, str] | None = None) -> str:
    """Return a configuration that scrapes these addresses and nothing else."""
    static = json.dumps([{"targets": list(targets), "labels": dict(labels or {})}])
    return (
        f"global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}\n"
        f"scrape_configs: [{{job_name: memwatchd, static_configs: {static}}}]\n"
    )
