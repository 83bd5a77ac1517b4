"""Room: what has to go so that a size fits, over HTTP and on the command line, and on every simulated machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from memwatch.cli.room import read_asker
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from scripts.golden import RUN_HERE
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from support.api_schema import check_answer
from support.client_process import call_memwatch, memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.dead_address import dead_address
from support.http_site import http, site
from support.library_process import roots_environment
from support.machine_exports import export_of
from support.room_laws import broken_room_laws
from support.sample_snapshots import critical_gb10, simulated, stale_collector


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a simulated GB10."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        running.wait_for("/api/v1/processes", lambda processes: any(one["device_bytes"] for one in processes))
        yield running


def room(url: str, *arguments: str) -> Any:
    done = call_memwatch("--url", url, "room", *arguments, "--json")
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", RUN_HERE)
def test_machine_obeys_every_law(name: str) -> None:
    assert list(broken_room_laws(export_of(name).snapshot)) == []


@pytest.mark.parametrize("size", ["1GiB", "60GiB", "115GiB", "1TiB"])
@pytest.mark.parametrize("target", ["", "gpu0", "cpu"])
def test_command_and_api_have_the_answer_that_the_schema_describes(
    daemon: RunningDaemon, size: str, target: str
) -> None:
    answer = daemon.get(f"/api/v1/room?{urlencode({'bytes': size, **({'target': target} if target else {})})}")
    printed = room(daemon.url, size, *(("--device", target) if target else ()))

    assert answer.status == 200
    check_answer(answer.json, "Room")
    assert printed == answer.json
    assert [one["fit"]["device"] for one in printed["targets"]] == [target or "gpu0"]


def test_verdicts_are_those_of_fit(daemon: RunningDaemon) -> None:
    for size in ("1GiB", "60GiB", "1TiB"):
        fit = daemon.get(f"/api/v1/fit?bytes={size}").json
        found = daemon.get(f"/api/v1/room?bytes={size}").json

        assert [one["fit"] for one in found["targets"]] == fit["verdicts"][:1]


def test_steps_of_a_full_gb10_are_printed_with_their_commands(daemon: RunningDaemon) -> None:
    done = call_memwatch("--url", daemon.url, "room", "60GiB")
    (target,) = room(daemon.url, "60GiB")["targets"]
    step, *_ = target["steps"]

    assert done.returncode == 0
    assert done.stdout.startswith("Room for 60.0 GiB\n\n✗ gpu0, NVIDIA GB10 (")
    assert f"  1. {step['subject']} (" in done.stdout
    assert f"\n     {step['command']}\n     {step['cost']}" in done.stdout
    assert done.stdout.endswith("\nFits after these steps: use gpu0.\n")


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("", "bytes is missing: give it, for example bytes=40GiB"),
        ("bytes=0", 'bytes is "0", which is not a size above zero; for example "20GiB".'),
        ("bytes=-5GiB", 'bytes is "-5GiB", which is not a size above zero; for example "20GiB".'),
        ("bytes=many", 'bytes is "many", which is not a size above zero; for example "20GiB".'),
        ("bytes=2EiB", 'bytes is "2EiB", which is not below the limit of 1EiB; for example "20GiB".'),
        ("bytes=1&bytes=2", "bytes is given 2 times: give it once."),
        (
            "bytes=1GiB&target=gpu7",
            'target is "gpu7", which this machine does not have; use one of gpu0, ram, cpu.',
        ),
        ("bytes=1GiB&device=gpu0", "unknown parameter 'device' for /api/v1/room: use bytes, target, lease."),
        (f"bytes=1GiB&target={'a' * 81}", f"target is '{'a' * 76}…: string should have at most 80 characters"),
    ],
)
def test_invalid_query_is_refused_with_what_to_do(daemon: RunningDaemon, query: str, detail: str) -> None:
    answer = daemon.get(f"/api/v1/room?{query}")

    assert (answer.status, answer.json["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "memwatch: Missing argument 'SIZE'; see memwatch room --help"),
        (["0"], 'memwatch: size is "0", which is not a size above zero; for example "20GiB"'),
        (["2EiB"], 'memwatch: size is "2EiB", which is not below the limit of 1EiB; for example "20GiB"'),
        (["1GiB", "2GiB"], "memwatch: Got unexpected extra argument (2GiB)"),
        (["1GiB", "--device", "gpu7"], "memwatch: --device"),
    ],
)
def test_invalid_command_line_is_one_sentence(daemon: RunningDaemon, arguments: list[str], error: str) -> None:
    done = call_memwatch("--url", daemon.url, "room", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1


def snapshot_site(snapshot: Snapshot) -> Any:
    head = ["Memwatch-Simulated: true"] * snapshot.simulated
    return site(lambda _: http(to_bytes(snapshot_json(snapshot)), "application/json", "200 OK", *head))


@pytest.mark.parametrize(
    ("snapshot", "size", "code", "last"),
    [
        (critical_gb10(), "1GiB", 0, "Fits now: use gpu0."),
        (critical_gb10(), "1TiB", 1, "Does not fit."),
        (stale_collector(), "1GiB", 3, "Not known if it fits."),
    ],
)
def test_exit_code_follows_the_answer(snapshot: Snapshot, size: str, code: int, last: str) -> None:
    with snapshot_site(snapshot) as port:
        done = call_memwatch("--url", f"http://127.0.0.1:{port}", "room", size)

    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, last)


def test_simulated_machine_is_marked() -> None:
    with snapshot_site(simulated()) as port:
        found = room(f"http://127.0.0.1:{port}", "1GiB")

    assert found["simulated"] is True


def test_without_a_daemon_the_machine_is_read_within_the_limit_of_the_program() -> None:
    done = memwatch(
        "room", "20GiB", "--json", MEMWATCH_URL=f"http://{dead_address()}", **roots_environment("container-v2")
    )
    (target,) = json.loads(done.stdout)["targets"]

    assert done.returncode == 1
    assert target["fit"]["size_bytes"] == 12 << 30
    assert target["text"] == "Short by 8.0 GiB: its total is 12.0 GiB."


def test_asker_is_this_process_with_its_parents() -> None:
    found = read_asker(Path("/proc"))

    assert {os.getpid(), os.getppid()} <= found.pids
