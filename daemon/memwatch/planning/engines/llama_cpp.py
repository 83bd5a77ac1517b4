"""llama.cpp's llama-server: sizes are absolute, so that it only has to be kept from changing them.

From tools/server/README.md and common/fit.cpp. The context is that of all slots together. Ollama runs llama-server
with the context, the slots and the layers that it is given: from its llm/llama_server.go, envconfig/config.go and
docs/modelfile.mdx.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

from memwatch.planning.engines.placement import Flag, Launch, NoLaunchError, Placement, select_gpus, shell_line
from memwatch.planning.number_formats import CACHE_BITS

CACHE_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", **{name: name for name in CACHE_BITS}}
OLLAMA_CACHES = ("", "f16", "q8_0", "q4_0")
SERVICE = "Variables belong to the server; of a service: sudo systemctl edit ollama, then restart it."


def build(plan: Placement, dtype: str) -> Launch:
    """Return the line of llama-server for a plan on GPUs or on the CPU."""
    refuse_conversion(dtype)
    variables, notes = select_gpus(plan)
    flags = [*_tower(plan), *_sizes(plan), *_formats(plan), *_devices(plan)]
    words = ["llama-server", "-m", plan.model]
    return Launch("llama.cpp", shell_line(words, flags, variables), (*variables, *flags), (*notes,))


def refuse_conversion(dtype: str) -> None:
    if dtype:
        raise NoLaunchError(f"the file has another format than {dtype}; convert it with llama-quantize first")


def cache_format(plan: Placement) -> str:
    """Return the cache's format as llama.cpp names it, empty for its default, f16."""
    word = plan.cache_dtype
    if word and word not in CACHE_DTYPES:
        raise NoLaunchError(f"llama.cpp has no {plan.use.kv_dtype} cache; use q8_0")
    return CACHE_DTYPES.get(word, "")


def gpu_layers(plan: Placement) -> int:
    """Return the number of layers on GPUs. llama.cpp counts the output as one more."""
    return plan.shape.n_layers + 1 - plan.use.cpu_layers if plan.gpus else 0


def _tower(plan: Placement) -> Iterator[Flag]:
    if plan.projector:
        yield Flag(f"--mmproj {shlex.quote(plan.projector)}", "the vision tower, which the plan counts")
        if not plan.gpus:
            yield Flag("--no-mmproj-offload", "keeps it off the GPU")


def _sizes(plan: Placement) -> Iterator[Flag]:
    slots = f", for {plan.batch} slots together" if plan.batch > 1 else ""
    yield Flag(f"-c {plan.context * plan.batch}", f"the plan's context{slots}; by default that of the model")
    yield Flag(f"-np {plan.batch}", "the plan's batch; the context is divided by it, and the default is four slots")


def _formats(plan: Placement) -> Iterator[Flag]:
    word = cache_format(plan)
    if word and word != "f16":
        yield Flag(f"-ctk {word} -ctv {word}", "the plan counts a cache of this format")
        if word in CACHE_BITS:
            yield Flag("-fa on", "a quantized cache of values needs flash attention")


def _devices(plan: Placement) -> Iterator[Flag]:
    if not plan.gpus:
        yield Flag("-ngl 0", "the plan is for the CPU")
        yield Flag("--device none", "opens no GPU, whose context would take memory")
        return
    where = f"all but {plan.use.cpu_layers} layers" if plan.use.cpu_layers else "all layers and the output"
    yield Flag(f"-ngl {gpu_layers(plan)}", f"{where} on the GPU")
    if plan.use.offload_kv:
        yield Flag("-nkvo", "the plan has the cache in System RAM")
    if plan.count > 1:
        yield Flag("--split-mode layer", "each GPU holds some of the layers and their cache")
    if plan.machines > 1:
        others = ",".join(f"MACHINE_{at}:50052" for at in range(2, plan.machines + 1))
        yield Flag(f"--rpc {others}", "the others run rpc-server -H 0.0.0.0 -p 50052 (a build with GGML_RPC)")
    if plan.is_unified and plan.vendors <= {"NVIDIA", "AMD"}:
        yield Flag(
            "-fit off",
            "its own reading of free memory on unified memory is not the limit of an allocation (llama.cpp#24626)",
        )


def build_ollama(plan: Placement, dtype: str) -> Launch:
    """Return the lines of Ollama: the server with its variables, and a model with its parameters."""
    refuse_conversion(dtype)
    if plan.use.offload_kv:
        raise NoLaunchError("Ollama has no option for a cache in System RAM; use layers on the CPU")
    gpus, notes = select_gpus(plan)
    variables = [*gpus, *_ollama_variables(plan)]
    parameters = [
        Flag(f"num_ctx {plan.context}", "the plan's context of one request; by default it depends on the memory"),
        Flag(f"num_gpu {gpu_layers(plan)}", _why_ollama_layers(plan)),
    ]
    # A model of the store keeps its template and its vision tower by its name.
    word = PurePath(plan.alias).name if plan.alias else PurePath(plan.model).stem
    name = re.sub(r"[^a-z0-9._-]+", "-", word.lower()).strip("-.") or "model"
    text = "".join(f"PARAMETER {one.flag}\\n" for one in parameters)
    command = "\n".join(
        [
            f"{' '.join(one.flag for one in variables)} ollama serve &",
            f"printf 'FROM %s\\n{text}' {shlex.quote(plan.alias or plan.model)} > Modelfile",
            f"ollama create {name} -f Modelfile && ollama run {name}",
        ]
    )
    return Launch("ollama", command, (*variables, *parameters), (*notes, SERVICE))


def _ollama_variables(plan: Placement) -> Iterator[Flag]:
    yield Flag(
        f"OLLAMA_NUM_PARALLEL={plan.batch}", "the plan's batch; the cache is num_ctx for each of these requests"
    )
    word = cache_format(plan)
    if word not in OLLAMA_CACHES:
        raise NoLaunchError(f"Ollama has no {word} cache; use q8_0")
    if word and word != "f16":
        yield Flag("OLLAMA_FLASH_ATTENTION=1", "a quantized cache needs flash attention")
        yield Flag(f"OLLAMA_KV_CACHE_TYPE={word}", "the plan counts a cache of this format")
    if plan.count > 1:
        yield Flag("OLLAMA_SCHED_SPREAD=1", "the plan divides the layers among these GPUs")


def _why_ollama_layers(plan: Placement) -> str:
    if not plan.gpus:
        return "the plan is for the CPU"
    if plan.is_unified:
        return "layers on the GPU and the output, in place of Ollama's reading of free memory"
    return "layers on the GPU, and the output as one more"
