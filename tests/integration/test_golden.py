"""Every simulated machine: golden output, and laws that hold for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memwatchd.otlp import Span, conventional_metrics
from scripts.golden import (
    ALWAYS,
    HELP,
    NO_ALERTS,
    RUN_HERE,
    by_family,
    exported,
    golden_file,
    host_of,
    roots_arguments,
    stable_part,
    with_help,
)
from support.daemon_process import MEMWATCHD, run_program, running_daemon
from support.exposition import contents_and_sizes, count_series, families_of, permitted_series, points_of
from support.machine_exports import Export, export_of
from support.machine_folders import NAMES, machine_folder
from support.null_reasons import figures_without_a_reason
from support.paths import MACHINES

# One of each kind: integrated by NVIDIA and AMD, coherent, divided, and a container.
WITH_A_DAEMON = ("gb10", "strix-halo", "gh200-numa", "h100-mig", "container-v2")
# Inside LXC, System RAM is that of the host. Its contents are not visible there.
WITHOUT_CONTENTS = {"lxc-alpine"}
SPAN = Span(1, 2)

Law = Callable[[str, Export], None]


def metrics_match_the_golden_file(name: str, export: Export) -> None:
    """All of /metrics with HELP lines, except times and the daemon's own usage."""
    assert stable_part(export.metrics) == with_help(golden_file(name).read_text())


def machine_is_within_its_series_budget(_: str, export: Export) -> None:
    """At most 150 series without a GPU, 240 with one, and 130 plus 60 per GPU with more; 14 per cgroup limit."""
    assert count_series(export.metrics) <= permitted_series(export.metrics)


def contents_add_up_to_the_size_of_each_pool(name: str, export: Export) -> None:
    """sum without (content) is memwatch_pool_size_bytes, to the byte."""
    contents, sizes = contents_and_sizes(export.metrics)

    assert contents == {pool: sizes[pool] for pool in contents}
    assert ("ram" in contents) == (name not in WITHOUT_CONTENTS)


def system_memory_by_state_adds_up_to_its_limit(_: str, export: Export) -> None:
    """In a push over OTLP, used, cached and free memory are the whole System RAM if all three are known."""
    families = families_of(export.metrics)
    limits = points_of(conventional_metrics(families, SPAN, {}), "system.memory.limit")
    usage = points_of(conventional_metrics(families, SPAN, {}), "system.memory.usage")

    assert len(limits) <= 1
    if len(usage) == 3:
        assert sum(usage.values()) == pytest.approx(sum(limits.values()), rel=0.02)
    else:
        assert sum(usage.values()) <= sum(limits.values())


def gpu_memory_is_that_of_pools_with_a_device(_: str, export: Export) -> None:
    """In a push over OTLP, a GPU that uses System RAM has no separate memory, and so no figure under this name."""
    families = families_of(export.metrics)
    sizes = [line for line in export.metrics.splitlines() if line.startswith("memwatch_pool_size_bytes")]

    limits = points_of(conventional_metrics(families, SPAN, {}), "hw.gpu.memory.limit")
    usage = points_of(conventional_metrics(families, SPAN, {}), "hw.gpu.memory.usage")

    assert len(limits) == sum('device=""' not in line for line in sizes)
    for attributes, used in usage.items():
        assert used <= limits[attributes]
        assert dict(attributes).keys() == {"hw.id", "hw.type"}


def json_has_the_machines_memory(name: str, export: Export) -> None:
    """System RAM matches, and all pools add up to the machine's memory, where /proc alone describes it."""
    if name in MEMORY_IN_PROC:
        check_memory(name, export.json)


def json_has_the_figures_of_a_jetson(name: str, export: Export) -> None:
    """Pool, CUDA Pool inside it, free blocks, utilization and the GPU memory of each process."""
    if name in NAMES and machine_folder(name).report:
        check_jetson(name, export.json)


def every_null_has_a_reason(_: str, export: Export) -> None:
    """A null in JSON is listed under `absent` beside it, with the reason."""
    assert figures_without_a_reason(export.json) == []


LAWS: tuple[Law, ...] = (
    every_null_has_a_reason,
    metrics_match_the_golden_file,
    machine_is_within_its_series_budget,
    contents_add_up_to_the_size_of_each_pool,
    system_memory_by_state_adds_up_to_its_limit,
    gpu_memory_is_that_of_pools_with_a_device,
    json_has_the_machines_memory,
    json_has_the_figures_of_a_jetson,
)


def complaints(name: str, export: Export) -> Iterator[str]:
    """Yield each law that the export breaks, with the assertion that failed."""
    yield from filter(None, (complaint_of(law, name, export) for law in LAWS))


def complaint_of(law: Law, name: str, export: Export) -> str:
    try:
        law(name, export)
    except Exception as error:  # a law may also stumble over what it reads
        return f"{law.__name__}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", RUN_HERE)
def test_machine_obeys_every_law(name: str) -> None:
    """One export of the machine, and all questions about it."""
    broken = list(complaints(name, export_of(name)))

    assert not broken, "\n\n".join(broken)


def test_law_that_a_machine_breaks_is_named() -> None:
    """A machine with another machine's export breaks the laws about its own files, and only these."""
    broken = [one.partition(":")[0] for one in complaints("workstation", export_of("jetson-tx2"))]

    assert broken == ["metrics_match_the_golden_file", "json_has_the_machines_memory"]


@pytest.mark.parametrize("name", WITH_A_DAEMON)
def test_metrics_match_the_golden_file(name: str, tmp_path: Path) -> None:
    """The same metrics from a daemon as a process, with its threads and the helper of the driver."""
    host = host_of(name, tmp_path)
    environ = {**host.environ, **NO_ALERTS}
    with running_daemon(tmp_path, "--interval", "200ms", *host.roots, environ=environ) as daemon:
        found = exported(daemon, host.waits_for)

    assert without_past(found) == without_past(with_help(host.golden.read_text()))


def without_past(exposition: str) -> dict[str, str]:
    """Return the families without those that remember the time before the driver answered, on a busy machine."""
    past = {"memwatch_collector_errors_total", "memwatch_pressure_changes_total"}
    families = by_family(exposition)
    return {name: text for name, text in families.items() if name not in past and 'window="1m"' not in text}


def test_each_help_line_belongs_to_an_exported_family() -> None:
    """A family that is no longer exported leaves no HELP line behind."""
    samples = [by_family(file.read_text()) for file in MACHINES.glob("*/metrics*.txt")]

    assert set(by_family(HELP.read_text())) == ALWAYS.union(*samples)


def test_every_machine_has_a_golden_file() -> None:
    """No golden file is left of a machine that is gone."""
    assert set(MACHINES.glob("*/metrics*.txt")) == set(map(golden_file, RUN_HERE))


def without_gpus() -> Iterator[str]:
    """Yield the machines whose memory is described by /proc alone."""
    for name in RUN_HERE:
        is_described = name in NAMES and name not in ("lxc-alpine", "rx-580-linux-4.19")
        if is_described and "amdgpu" not in machine_folder(name).expected:
            yield name


MEMORY_IN_PROC = tuple(without_gpus())


@pytest.mark.parametrize("name", ["workstation", "zram-laptop"])
def test_once_json_has_the_machines_memory(name: str) -> None:
    """--once --json on a folder, as a command."""
    done = run_program(MEMWATCHD, "--once", "--json", *roots_arguments(name))

    assert (done.returncode, done.stderr) == (0, "")
    check_memory(name, json.loads(done.stdout))


def check_memory(name: str, snapshot: Any) -> None:
    found = machine_folder(name).expected
    (ram,) = (pool for pool in snapshot["pools"] if pool["kind"] == "system_ram")
    expected_ram = with_zram(found["meminfo"]["pools"][0], found.get("zram", {}).get("zram"))
    for field in ("id", "label", "size_bytes", "used_bytes", "available_bytes", "free_bytes"):
        assert ram[field] == expected_ram[field] or ram["absent"].get(field) == expected_ram[field]
    assert unattributed(ram) == expected_ram["unattributed_bytes"]
    assert snapshot["total"]["size_bytes"] == sum(pool["size_bytes"] for pool in snapshot["pools"])


def unattributed(ram: dict[str, Any]) -> int | str:
    """Return unattributed memory including GPU buffers, which meminfo alone does not attribute."""
    rest: int | None = ram["unattributed_bytes"]
    why: str = ram["absent"].get("unattributed_bytes", "")
    devices: int = ram["contents"].get("devices_bytes", 0)
    return why if rest is None else rest + devices


def with_zram(pool: dict[str, Any], zram: dict[str, int] | None) -> dict[str, Any]:
    """Subtract zram's pages, which no line of meminfo contains, from unattributed memory."""
    return pool | {"unattributed_bytes": pool["unattributed_bytes"] - zram["memory_bytes"]} if zram else pool


def check_jetson(name: str, found: Any) -> None:
    expected = machine_folder(name).report
    (pool,), (share,), (device,) = found["pools"], found["shares"], found["devices"]
    assert held_in(found) == expected["held_bytes"]
    assert pool["size_bytes"] == found["total"]["size_bytes"]
    for figure in ("used_bytes", "available_bytes", "unattributed_bytes"):
        assert pool[figure] == expected[figure]
    assert (share["relation"], share["used_bytes"]) == ("CUDA Pool ⊂ System RAM", expected["cuda_pool_bytes"])
    assert pool["contents"]["devices_bytes"] == share["used_bytes"]
    assert found["tegrastats"] == {
        key: expected[key] for key in ("largest_free_block_bytes", "largest_free_blocks")
    }
    assert [device[key] for key in ("id", "process_list", "architecture")] == ["gpu0", "complete", "unified"]
    assert (device["busy_ratio"], device["memory_busy_ratio"]) == (
        expected["busy_ratio"],
        expected["memory_busy_ratio"],
    )
    assert found["machine"]["details"]["soc"] == machine_folder(name).expected["tegra"]["tegra"]["soc"]
    assert found["machine"]["explanation"].startswith("GPU memory is part of System RAM on this board")


def held_in(snapshot: Any) -> dict[str, int]:
    return {str(one["pid"]): one["device_bytes"]["cuda0"] for one in snapshot["processes"] if one["device_bytes"]}
