"""The holder from outside: start it, have it allocate, and end or kill it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from msgspec import json

from hardware.holder import APIS, Reply, Request
from hardware.native import DriverApiError, GpuFacts

END_SECONDS = 20.0


class HolderProcess:
    """A running holder. `facts` are those of its last answer."""

    def __init__(self, api: str, index: int) -> None:
        """Start a holder. Raises `DriverApiError` if its API finds no such GPU."""
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "hardware.holder", api, str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.api = api
        try:
            reply = self._reply()
        except DriverApiError:
            self.end()
            raise
        self.facts: GpuFacts = _required(reply.facts)
        self.kinds = reply.kinds

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def allocate(self, kind: str, size_bytes: int) -> None:
        self._do(Request("allocate", kind, size_bytes))

    def free(self) -> None:
        self._do(Request("free"))

    def refresh(self) -> GpuFacts:
        self._do(Request("facts"))
        return self.facts

    def end(self) -> None:
        """Close its input, so that it exits; kill it if it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(END_SECONDS)

    def _do(self, request: Request) -> None:
        stdin = _required(self._process.stdin)
        stdin.write(json.encode(request).decode() + "\n")
        stdin.flush()
        self.facts = _required(self._reply().facts)

    def _reply(self) -> Reply:
        line = _required(self._process.stdout).readline()
        if not line:
            raise DriverApiError(f"the process that uses {self.api} ended, code {self._process.wait(END_SECONDS)}")
        reply = json.decode(line, type=Reply)
        if reply.error:
            raise DriverApiError(reply.error)
        return reply


def _required(part: Any) -> Any:
    assert part is not None
    return part


def open_holder(apis: Sequence[str], index: int) -> HolderProcess:
    """Start a holder with the first API that has a GPU. Raises `DriverApiError` with the reason of each."""
    problems = []
    for api in apis or tuple(APIS):
        try:
            return HolderProcess(api, index)
        except DriverApiError as error:  # noqa: PERF203  the next one is tried
            problems.append(f"{api}: {error}")
    raise DriverApiError("; ".join(problems))
