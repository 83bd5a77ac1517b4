"""Ollama: runs llama-server with the context, the slots and the layers that it is given.

From llm/llama_server.go, envconfig/config.go and docs/modelfile.mdx of Ollama.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

from memwatch.planning.engines.llama_cpp import cache_format, gpu_layers, refuse_conversion
from memwatch.planning.engines.placement import Flag, Launch, NoLaunchError, Placement, select_gpus

CACHE_DTYPES = ("", "f16", "q8_0", "q4_0")
SERVICE = "Variables belong to the server; of a service: sudo systemctl edit ollama, then restart it."


def build(plan: Placement, dtype: str) -> Launch:
    """Return the lines of Ollama: the server with its variables, and a model with its parameters."""
    refuse_conversion(dtype)
    if plan.use.offload_kv:
        raise NoLaunchError("Ollama has no option for a cache in System RAM; use layers on the CPU")
    gpus, notes = select_gpus(plan)
    variables = [*gpus, *_variables(plan)]
    parameters = [
        Flag(f"num_ctx {plan.context}", "the plan's context of one request; by default it depends on the memory"),
        Flag(f"num_gpu {gpu_layers(plan)}", _why_layers(plan)),
    ]
    name = re.sub(r"[^a-z0-9._-]+", "-", PurePath(plan.model).stem.lower()).strip("-.") or "model"
    text = "".join(f"PARAMETER {one.flag}\\n" for one in parameters)
    command = "\n".join(
        [
            f"{' '.join(one.flag for one in variables)} ollama serve &",
            f"printf 'FROM %s\\n{text}' {shlex.quote(plan.model)} > Modelfile",
            f"ollama create {name} -f Modelfile && ollama run {name}",
        ]
    )
    return Launch("ollama", command, (*variables, *parameters), (*notes, SERVICE))


def _variables(plan: Placement) -> Iterator[Flag]:
    yield Flag(
        f"OLLAMA_NUM_PARALLEL={plan.batch}", "the plan's batch; the cache is num_ctx for each of these requests"
    )
    word = cache_format(plan)
    if word not in CACHE_DTYPES:
        raise NoLaunchError(f"Ollama has no {word} cache; use q8_0")
    if word and word != "f16":
        yield Flag("OLLAMA_FLASH_ATTENTION=1", "a quantized cache needs flash attention")
        yield Flag(f"OLLAMA_KV_CACHE_TYPE={word}", "the plan counts a cache of this format")
    if plan.count > 1:
        yield Flag("OLLAMA_SCHED_SPREAD=1", "the plan divides the layers among these GPUs")


def _why_layers(plan: Placement) -> str:
    if not plan.gpus:
        return "the plan is for the CPU"
    if plan.is_unified:
        return "layers on the GPU and the output, in place of Ollama's reading of free memory"
    return "layers on the GPU, and the output as one more"
