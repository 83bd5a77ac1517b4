"""Memory of an engine's processes, where CPU and GPU share it: counted once, in every answer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.cli.machines import Need, place
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import FitAnswer, answer_model, answer_request
from memwatch.planning.checkpoint import describe_config
from memwatch.planning.fit import CPU
from memwatch.planning.huggingface import parse_config
from memwatch.planning.model_table import list_runnable
from memwatch.planning.named_machines import read_machine
from memwatch.planning.need import ESTIMATES, GGUF, SAFETENSORS
from memwatch.planning.request import Use, write_request
from memwatch.planning.training import TrainingPlan
from memwatch.reporting.answers import ListedMachine, MachinePool
from memwatch.reporting.render.fit_json import fit_json
from memwatch_web.api.fit_query import parse_query
from scripts.published_models import MODELS
from support.sample_fleet import listed_machine, listed_tick
from support.sample_snapshots import simulated

LLAMA = describe_config(parse_config(next(one.config for one in MODELS if one.name == "Llama 3 8B"), "config.json"))
GIB = 1 << 30


def answer(snapshot: Snapshot, use: Use | None = None) -> FitAnswer:
    return answer_model(LLAMA, use or Use(), snapshot, ("vllm",))


def serving(**changes: Any) -> Snapshot:
    known = {"footprint_bytes": 69 * GIB, "held_bytes": {"cuda0": 64 * GIB}, **changes}
    engine = Engine("vllm-8000", known.pop("kind", "vllm"), "vLLM", "http://127.0.0.1:8000", **known)
    return replace(simulated(), engines=(engine,))


def test_engine_that_runs_here_is_the_measure() -> None:
    """Its processes hold 69 GiB, of which 64 are the GPU's."""
    found = answer(serving())

    assert found.need.parts["processes"] == 5 * GIB
    assert found.need.host is not None
    assert found.need.host.source == "5.0 GiB, as those of vLLM (vllm-8000) take here"
    assert fit_json(found)["processes_source"] == found.need.host.source


def test_gguf_file_has_the_processes_of_its_engines_by_its_query() -> None:
    """The daemon counted those of vLLM, which the command without a daemon did not."""
    file = replace(LLAMA, source="GGUF", weights_bytes=8 * GIB, file_format="q8_0")
    here = answer_model(file, Use(), serving()).need.host
    sent = answer_request(parse_query(write_request(file, Use())), serving()).need.host

    assert here == sent == ESTIMATES[GGUF]


@pytest.mark.parametrize(
    "change",
    [
        {"sleeping": True},
        {"kind": "llama.cpp"},
        {"footprint_bytes": Absent.NOT_PERMITTED},
        {"held_bytes": {}},
        {"held_bytes": {"cuda0": Absent.NOT_AVAILABLE}},
    ],
)
def test_engine_without_a_figure_is_no_measure(change: dict[str, Any]) -> None:
    """llama.cpp's resident memory has pages of the mapped file. Of others it is what was measured elsewhere."""
    found = answer(serving(**change))

    assert found.need.host == ESTIMATES[SAFETENSORS]
    assert found.need.host.source.startswith("estimated: ")


def test_processes_are_counted_once() -> None:
    """On the GPU, on the CPU, in the sum, and not in the room that vLLM's line has."""
    found = answer(read_machine("gb10"))
    host = ESTIMATES[SAFETENSORS].bytes
    alone = sum(size for name, size in found.need.parts.items() if name != "processes")

    assert found.need.bytes == alone + host == found.fit.bytes
    assert [one.need_bytes - one.host_bytes for one in found.fit.verdicts] == [
        alone,
        alone - found.need.parts["runtime"],
    ]
    assert {one.host_bytes for one in found.fit.verdicts} == {host}
    flag = next(one for one in found.launches.lines[0].flags if "utilization" in one.flag)
    assert flag.reason.startswith("16.7 GiB of ")


@pytest.mark.parametrize("machine", ["rtx4090 + 64GiB", "4x rtx3060"])
def test_gpus_of_their_own_memory_have_none(machine: str) -> None:
    found = answer(read_machine(machine))

    assert (found.need.host, {one.host_bytes for one in found.fit.verdicts}) == (None, {0})


def test_files_of_llama_cpp_have_its_estimate() -> None:
    """Also of a model that was read from safetensors files."""
    read = replace(LLAMA, source="safetensors", weights_bytes=16 * GIB)

    for model in (LLAMA, read):
        found = answer_model(model, Use(dtype="q4_k"), read_machine("gb10"))
        assert found.need.host == ESTIMATES[GGUF]


def test_gpus_without_vllm_have_no_figure_for_its_files() -> None:
    """Apple's: llama.cpp runs there."""
    machine = read_machine("gb10")
    apple = replace(machine, devices=(replace(machine.devices[0], vendor="Apple"),))

    assert answer(apple).need.host is None
    assert answer(apple, Use(dtype="q4_k")).need.host == ESTIMATES[GGUF]


def test_change_onto_the_cpu_says_so() -> None:
    """Of 24 GiB on the GPU and 60 beside it, the CPU has room for a model of 131 GiB in 4 bits."""
    large = describe_config(parse_config(next(one.config for one in MODELS if one.name == "Llama 3 70B"), ""))
    found = answer_model(large, Use(), read_machine("rtx4090 + 64GiB"))

    assert found.change is not None
    assert (found.change.words, found.change.flags) == ("4-bit weights, on the CPU", "--dtype int4")


def test_training_counts_none() -> None:
    """There is no figure for it."""
    found = answer_model(LLAMA, Use(training=TrainingPlan()), read_machine("gb10"))

    assert "processes" not in found.need.parts


def test_several_machines_have_processes_each() -> None:
    found = answer(read_machine("2x gb10"), Use(gpus=2))
    alone = answer(read_machine("2x rtx4090"), Use(gpus=2))

    assert found.fit.split is not None
    assert alone.fit.split is not None
    assert found.fit.split.bytes - alone.fit.split.bytes == ESTIMATES[SAFETENSORS].bytes


def test_plan_that_only_the_processes_make_too_large_says_so() -> None:
    machine = read_machine("gb10")
    room = machine.devices[0].headroom_after_reclaim_bytes
    assert isinstance(room, int)
    alone = answer(machine).need.bytes - ESTIMATES[SAFETENSORS].bytes
    verdicts = answer(machine, Use(reserve_bytes=room - alone - GIB)).fit.verdicts

    assert verdicts[0].fits is False
    assert verdicts[0].reason.endswith("; its engine's processes are 6.7 GiB of it")


def test_list_of_what_fits_counts_them() -> None:
    rows = list_runnable(read_machine("gb10"), Use(context=4096))
    by_format = {one.dtype: one.bytes for one in rows if one.model == rows[0].model}

    assert rows
    assert all(one.bytes > ESTIMATES[GGUF if one.dtype else SAFETENSORS].bytes for one in rows)
    assert by_format


def test_other_machines_count_them_if_they_have_one_memory() -> None:
    """The need of this machine is without them."""

    def machine(name: str, *names: str) -> ListedMachine:
        pools = tuple(MachinePool(one, one, 24 * GIB, 4 * GIB, 20 * GIB, "low") for one in names)
        room = {"headroom_after_reclaim_bytes": 20 * GIB, "headroom_size_bytes": 24 * GIB}
        return listed_machine(name, listed_tick(pools=pools, **room))

    machines = [machine("spark", "ram"), machine("tower", "ram", "vram0")]
    placed = {one.name: one for one in place(Need(16 * GIB, host_bytes=6 * GIB), machines, None)}

    assert (placed["spark"].fits, placed["spark"].short_bytes) == (False, 2 * GIB)
    assert placed["tower"].fits is True
    assert CPU not in placed
