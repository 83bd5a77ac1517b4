"""Test that commands, `memwatchd --once` and programs with the library report the figures of a running daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.model import Absent
from scripts.golden import NO_ALERTS, host_of
from support.client_process import call_memwatch
from support.daemon_process import running_daemon, sample_once
from support.library_process import roots_environment, run_json
from support.one_answer import Cell, Cells, Comparison, complaints, read_table, truth
from support.one_answer_runs import PROCESS_METRICS
from support.surfaces import ALONE, SURFACES, View, decoded, snapshot_cells, status_cells, tree_cells

MACHINES = ("gb10", "strix-halo", "gh200-numa", "h100-mig", "container-v2", "rtx-4090", "n1x-carveout")
MIN_FIGURES = 100
WIDE = {"COLUMNS": "200"}
# Prints the answers of the functions for each GPU, once the driver has answered.
PROGRAM = """
import json, memwatch, time
until = time.monotonic() + 60
while True:
    infos = {one.id: memwatch.memory_info(one.id) for one in memwatch.machine().devices}
    if len(infos) == COUNT or time.monotonic() > until:
        break
    time.sleep(0.3)
known = {name: info for name, info in infos.items() if info}
found = {
    name: [
        memwatch.get_device_memory_bytes(name),
        memwatch.is_unified_memory_gpu(name),
        one.headroom_bytes,
        one.headroom_after_reclaim_bytes,
    ]
    for name, one in known.items()
}
print(json.dumps(found, default=lambda reason: reason.value))
"""


@contextmanager
def machine(name: str, scratch: Path) -> Iterator[tuple[View, str, Mapping[str, str], list[str]]]:
    """Yield a machine's view by a running daemon, its address, the environment of its drivers, and its folders."""
    host = host_of(name, scratch)
    with running_daemon(scratch, *host.roots, environ={**host.environ, **NO_ALERTS, **PROCESS_METRICS}) as daemon:
        for collector in host.waits_for:
            daemon.wait_until_ok(collector)
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))

        def get(path: str) -> str:
            return daemon.get(path).text

        view = View(decoded(View(None, get)), get)  # type: ignore[arg-type]
        yield view, daemon.url, host.environ, host.roots


def of_program(answer: Mapping[str, list[Any]]) -> Cells:
    quantities = ("capacity", "unified", "headroom", "after reclaim")
    return {
        Cell(name, quantity): Absent(value) if isinstance(value, str) else value
        for name, values in answer.items()
        for quantity, value in zip(quantities, values, strict=True)
    }


@pytest.mark.parametrize("name", MACHINES)
def test_processes_report_what_the_daemon_does(name: str, tmp_path: Path) -> None:
    """The surfaces of SURFACES are read from the running daemon, the others by commands and programs."""
    found = Comparison()
    with machine(name, tmp_path) as (view, url, drivers, roots):
        known, snapshot = truth(view.snapshot), view.snapshot
        for surface in SURFACES.keys() - ALONE:
            found.add(name, surface, known, SURFACES[surface](view))
        text, tree, sent = (
            call_memwatch("--url", url, *options, **WIDE).stdout
            for options in (("status",), ("status", "--tree"), ("--json", "status"))
        )
        found.add(name, "status", known, status_cells(text, snapshot))
        found.add(name, "status --tree", known, tree_cells(tree, snapshot))
        found.add(name, "snapshot", known, snapshot_cells(sent))
        program = PROGRAM.replace("COUNT", str(len(snapshot.devices)))
        found.add(name, "memory_info", known, of_program(run_json(program, url)))
        alone = run_json(program, **roots_environment(name), **drivers)
        found.add(name, "memory_info", known, of_program(alone))
        found.add(name, "snapshot", known, snapshot_cells(json.dumps(sample_once(*roots, **drivers))))

    assert list(complaints(found, read_table(), every=False)) == []
    assert found.compared.total() >= MIN_FIGURES
