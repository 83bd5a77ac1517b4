"""Marks of a program reach the daemon, even if the daemon is slow and the program exits at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.budget import within
from support.http_site import http, site
from support.library_process import run_program

ONE_MARK = 'import memwatch; memwatch.log_memory_usage("Before VAE Load")'


@contextmanager
def slow_server(seconds: float) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that answers only this time after the first request; yield its URL and answered requests."""
    answered: list[bytes] = []
    first: list[float] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            request = connection.recv(65536)
            while b"\r\n\r\n" not in request or (request.startswith(b"POST") and not request.endswith(b"}")):
                request += connection.recv(65536)
            first.append(time.monotonic())
            time.sleep(max(0.0, first[0] + seconds - time.monotonic()))
            connection.settimeout(0.2)
            try:
                if connection.recv(1) == b"":
                    return  # the client has closed the connection
            except TimeoutError:
                connection.sendall(http(b"{}"))
                answered.append(request)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", answered
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("seconds", [0.0, 1.2, 3.0])
def test_last_mark_of_a_program_arrives(seconds: float) -> None:
    """An idle daemon loads its API at the first request: half a second, on a small board several."""
    with slow_server(seconds) as (url, answered):
        done = run_program(ONE_MARK, url)

    assert done.returncode == 0, done.stderr
    assert [request.split()[1] for request in answered if request.startswith(b"POST")] == [b"/api/v1/marks"]


@pytest.mark.measure
@pytest.mark.parametrize("daemon", ["hangs", "refuses"])
def test_silent_daemon_delays_the_exit_by_five_seconds_at_most(daemon: str) -> None:
    """A refused connection delays nothing."""
    began = time.monotonic()
    if daemon == "hangs":
        with site(None) as port:
            done = run_program(ONE_MARK, f"http://127.0.0.1:{port}")
    else:
        done = run_program(ONE_MARK)
    took = time.monotonic() - began

    assert done.returncode == 0, done.stderr
    budget = 6.0 if daemon == "hangs" else 1.0  # with the start of Python
    within(f"program with a daemon that {daemon}", took, budget, "s")
