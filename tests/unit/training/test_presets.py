"""Test presets: settings by purpose and machine, with reasons; nothing is set unless asked."""

from __future__ import annotations

import os
import sys
import types
from itertools import product

import pytest

import memwatch
from memwatch.core.model import Architecture
from memwatch.library import program_safety
from memwatch.library.advice import Advice
from memwatch.planning.arguments import InvalidInputError
from memwatch.training.presets import PRESETS, build_preset
from support.advice_machine import machine

DISCRETE, UNIFIED = Architecture.DISCRETE, Architecture.UNIFIED
RTX, GB10, V100 = "NVIDIA GeForce RTX 4090", "NVIDIA GB10", "Tesla V100-SXM2-16GB"


@pytest.mark.process
def test_preset_of_this_machine_changes_nothing() -> None:
    before = dict(os.environ)

    found = memwatch.preset("inference")

    assert found.settings["inference_mode"] == "True"
    assert dict(os.environ) == before


def test_each_setting_has_a_reason_and_a_source() -> None:
    """Of every preset, on machines of every vendor and architecture."""
    cases = list(product(PRESETS, ("nvidia", "amd", "intel"), Architecture))
    presets = {case: build_preset(case[0], machine(*case[1:])) for case in cases}

    names = {case: [one.name for one in found.advice] for case, found in presets.items()}
    assert [case for case in cases if len(set(names[case])) != len(names[case])] == []
    assert [case for case in cases if not {"dtype", "batch_size"} <= set(presets[case].settings)] == []
    assert [(case, one.name) for case in cases for one in presets[case].advice if not is_founded(one)] == []


def is_founded(advice: Advice) -> bool:
    known = ("https://", "memwatchd: ", "memwatch: ")
    return bool(advice.reason and advice.sources) and all(source.startswith(known) for source in advice.sources)


@pytest.mark.parametrize(
    ("vendor", "gpu", "gfx", "dtype"),
    [
        ("nvidia", RTX, "", "bfloat16"),
        ("nvidia", V100, "", "float16"),
        ("amd", "", "gfx90a", "bfloat16"),
        ("amd", "", "gfx1030", "float16"),
        ("intel", "", "", "bfloat16"),
    ],
)
def test_dtype_is_one_in_which_the_gpu_computes(vendor: str, gpu: str, gfx: str, dtype: str) -> None:
    found = build_preset("training", machine(vendor, DISCRETE, gpu=gpu, gfx=gfx))

    assert found.settings["dtype"] == dtype


def test_inference_has_no_settings_of_a_data_loader() -> None:
    inference, training = (build_preset(name, machine("nvidia", DISCRETE)) for name in ("inference", "training"))

    assert {"num_workers", "pin_memory"} <= set(training.settings)
    assert not {"num_workers", "pin_memory", "prefetch_factor"} & {one.name for one in inference.advice}


def test_constrained_machine_offloads_only_to_other_memory() -> None:
    """On a unified machine that would copy within the same memory."""
    discrete, unified = (build_preset("constrained", machine("nvidia", one)) for one in (DISCRETE, UNIFIED))

    assert (discrete.settings["cpu_offload"], unified.settings["cpu_offload"]) == ("True", "False")
    assert (discrete.settings["dtype"], discrete.settings["batch_size"]) == ("4bit", "1")
    assert discrete.settings["gradient_checkpointing"] == "True"


def test_constrained_settings_of_the_loader_fit_together() -> None:
    """PyTorch refuses persistent_workers and prefetch_factor without worker processes."""
    found = build_preset("constrained", machine("nvidia", DISCRETE))

    assert found.settings["num_workers"] == "0"
    assert not {"persistent_workers", "prefetch_factor"} & {one.name for one in found.advice}


def test_apply_sets_only_what_is_not_set() -> None:
    found = build_preset("constrained", machine("nvidia", DISCRETE, gpu=RTX))
    environ = {"MALLOC_ARENA_MAX": "4", "HOME": "/root"}

    new = found.apply(environ)

    assert new == {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    assert environ == {"MALLOC_ARENA_MAX": "4", "HOME": "/root", **new}
    assert found.apply(environ) == {}


def test_contested_settings_are_not_applied() -> None:
    """They are in `advice` only."""
    found = build_preset("training", machine("nvidia", UNIFIED, gpu=GB10))

    assert "PYTORCH_CUDA_ALLOC_CONF" not in found.environment
    assert "pin_memory" not in found.settings
    assert {"PYTORCH_CUDA_ALLOC_CONF", "pin_memory"} <= {one.name for one in found.advice}


def test_apply_after_the_import_of_a_framework_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program_safety, "_logged", set())
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

    build_preset("training", machine("nvidia", DISCRETE)).apply({})

    assert caplog.messages == [
        "preset training: PYTORCH_CUDA_ALLOC_CONF are set after the import of torch, which may have read them "
        "already; call apply() first"
    ]


@pytest.mark.process
def test_unknown_preset_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        InvalidInputError, match=r'preset is "fast", which is not one of inference, training, constr'
    ):
        memwatch.preset("fast")
