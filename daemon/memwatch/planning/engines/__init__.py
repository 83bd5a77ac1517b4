"""Launch lines for a plan that fits: the engines that can load its files, and why others cannot run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.snapshot import Snapshot
from memwatch.planning.arguments import InvalidInputError, quote
from memwatch.planning.checkpoint import CONFIG, Checkpoint
from memwatch.planning.engines import llama_cpp, sglang, tensorrt_llm, transformers, vllm
from memwatch.planning.engines.placement import (
    Launch,
    NoLaunchError,
    Placement,
    converted_dtype,
    place,
)
from memwatch.planning.fit import Fit
from memwatch.planning.need import GGUF, SAFETENSORS, file_kind
from memwatch.planning.request import Use

GPU_VENDORS = ("NVIDIA", "AMD")
ALL = "all"


class Engine(Struct, frozen=True):
    """`files`: kind of files that it loads. `vendors`: those of GPUs it runs on, empty for any, and also the CPU.
    `layers_only`: it divides a model among GPUs by layers. `offloads`: it can keep layers in System RAM.
    `spans`: its line can be for several machines."""

    title: str
    build: Callable[[Placement, str], Launch]
    files: str = SAFETENSORS
    vendors: tuple[str, ...] = ()
    layers_only: bool = False
    offloads: bool = False
    spans: bool = False


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine("vLLM", vllm.build, vendors=GPU_VENDORS, spans=True),
    "sglang": Engine("SGLang", sglang.build, vendors=GPU_VENDORS, spans=True),
    "tensorrt-llm": Engine("TensorRT-LLM", tensorrt_llm.build, vendors=("NVIDIA",)),
    "transformers": Engine("Transformers", transformers.build, layers_only=True),
    "llama.cpp": Engine("llama.cpp", llama_cpp.build, GGUF, layers_only=True, offloads=True, spans=True),
    "ollama": Engine("Ollama", llama_cpp.build_ollama, GGUF, layers_only=True, offloads=True),
}


class Launches(Struct, frozen=True):
    """Lines of the engines that can run a plan, and a clause for each that cannot."""

    lines: tuple[Launch, ...] = ()
    refused: Mapping[str, str] = {}


def build_launches(
    names: Sequence[str], checkpoint: Checkpoint, use: Use, snapshot: Snapshot, check: Callable[[Use], Fit]
) -> Launches:
    """Return the lines for a plan. `check`: verdicts for a use, which engines that divide by layers ask again."""
    found = {name: _build_or_refuse(ENGINES[name], checkpoint, use, snapshot, check) for name in names}
    lines = tuple(one for one in found.values() if isinstance(one, Launch))
    return Launches(lines, {name: one for name, one in found.items() if isinstance(one, str)})


def _build_or_refuse(
    engine: Engine, checkpoint: Checkpoint, use: Use, snapshot: Snapshot, check: Callable[[Use], Fit]
) -> Launch | str:
    try:
        return _build(engine, checkpoint, use, snapshot, check)
    except NoLaunchError as error:
        return str(error)


def _build(
    engine: Engine, checkpoint: Checkpoint, use: Use, snapshot: Snapshot, check: Callable[[Use], Fit]
) -> Launch:
    if use.training:
        raise NoLaunchError("training has no launch line")
    kind = file_kind(checkpoint, use.dtype)
    if kind != engine.files:
        raise NoLaunchError(f"{engine.title} loads {FILES[engine.files]}, and the model is {FILES[kind]}")
    if (use.cpu_layers or use.offload_kv) and not engine.offloads:
        moved = "layers with their cache" if use.cpu_layers else "the KV cache"
        raise NoLaunchError(f"{engine.title} has no option that moves {moved} to System RAM")
    fit = check(use)
    if engine.layers_only and fit.split:
        use = replace(use, parallel="pipeline")
        fit = check(use)
    if fit.best is None and fit.split is None:
        raise NoLaunchError("the plan does not fit")
    plan = place(model_path(checkpoint, kind), checkpoint, use, snapshot, fit)
    if engine.vendors and not (plan.gpus and plan.vendors <= set(engine.vendors)):
        where = "the CPU" if not plan.gpus else f"{plan.gpu.vendor} GPUs"
        raise NoLaunchError(
            f"the plan is for {where}, and {engine.title} is for {' and '.join(engine.vendors)} GPUs"
        )
    if plan.machines > 1 and not engine.spans:
        raise NoLaunchError(f"the plan is for {plan.machines} machines, and its line is for one")
    return engine.build(
        plan, "" if kind == GGUF and checkpoint.source != "GGUF" else converted_dtype(checkpoint, use)
    )


FILES = {SAFETENSORS: "a folder with safetensors files", GGUF: "a GGUF file"}
PLACEHOLDER = {SAFETENSORS: "MODEL", GGUF: "MODEL.gguf"}


def model_path(checkpoint: Checkpoint, kind: str) -> str:
    """Return the path that an engine loads: the folder of safetensors files, or the first GGUF file."""
    if checkpoint.source == "shape" or (checkpoint.source == CONFIG and kind == GGUF):
        return PLACEHOLDER[kind]
    path = PurePath(checkpoint.name)
    is_file = kind == SAFETENSORS and path.suffix in (".json", ".safetensors")
    return str(path.parent) if is_file else checkpoint.name


def select_engines(wanted: str) -> tuple[str, ...]:
    """Return the engines of an option: one name, `all`, or none if it is empty. Raises InvalidInputError."""
    if wanted not in ("", ALL, *ENGINES):
        raise InvalidInputError(f"launch is {quote(wanted)}, which is not one of {ALL}, {', '.join(ENGINES)}")
    return tuple(ENGINES) if wanted == ALL else (wanted,) if wanted else ()
