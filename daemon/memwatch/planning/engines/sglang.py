"""SGLang: takes a fraction of the memory that is free at its start for weights and cache, up to a number of tokens.

From mem_cache/kv_cache_configurator.py, model_executor/pool_configurator.py and utils/common.py of SGLang 0.5.23.
Several machines: docs/references/multi_node_deployment/multi_node.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from memwatch.core.units import size
from memwatch.planning.device_totals import reported_total
from memwatch.planning.engines.placement import (
    CACHES,
    HEAD,
    Flag,
    Launch,
    NoLaunchError,
    Placement,
    each_machine,
    format_flags,
    round_fraction,
    select_gpus,
    shared_flags,
    shell_line,
)
from memwatch.planning.inference import PIECE_TOKENS
from memwatch.planning.transformer import MAX_DIMENSION

PAGE_TOKENS = 64
WINDOWS = (
    "SGLang knows the windows of gpt-oss, Llama 4, Gemma 4, MiMo V2, Step 3.5 and DeepSeek V4; for other families "
    "this memory holds fewer tokens."
)
QUANTIZATIONS = {"fp8": "fp8"}
CACHE_NAMES = {**CACHES, "fp8": "fp8_e4m3"}


def build(plan: Placement, dtype: str) -> Launch:
    """Return the line of SGLang for a plan on GPUs."""
    if not isinstance(reported_total(plan.gpu, plan.snapshot), int):
        raise NoLaunchError("the free memory that SGLang reads on this GPU is not known")
    variables, notes = select_gpus(plan)
    formats = format_flags("SGLang", dtype, QUANTIZATIONS, plan.cache_dtype, CACHE_NAMES)
    flags = [*_sizes(plan), *formats, *_memory(plan), *shared_flags(plan, "--tp-size", "--pp-size")]
    if plan.machines > 1:
        where = f"--nnodes {plan.machines} --node-rank 0 --dist-init-addr {HEAD}:20000"
        flags.append(Flag(where, "the first of these machines, at a free port"))
    notes += each_machine(plan)
    notes += [] if _keeps_all(plan) else [WINDOWS]
    words = ["python", "-m", "sglang.launch_server", "--model-path", plan.model]
    return Launch("sglang", shell_line(words, flags, variables), (*variables, *flags), (*notes,))


def _sizes(plan: Placement) -> Iterator[Flag]:
    yield Flag(f"--context-length {plan.context}", "the plan's context; the model's own may be longer")
    yield Flag(f"--max-running-requests {plan.batch}", "the plan's batch; graphs are captured up to this number")
    yield Flag(
        f"--chunked-prefill-size {PIECE_TOKENS}", "the plan counts activations of this many tokens at a time"
    )


def _tokens(plan: Placement) -> int:
    return -(-plan.context // PAGE_TOKENS) * PAGE_TOKENS + PAGE_TOKENS


def _whole_cache(plan: Placement) -> int:
    """Return the bytes of a cache in which all layers keep all tokens, as in families without known windows."""
    return plan.cache_of(replace(plan.shape, sliding_window=0), _tokens(plan))


def _keeps_all(plan: Placement) -> bool:
    """Return True if that cache fits too, so that the family does not matter."""
    windowed = plan.shape.sliding_window > 0
    return not windowed or plan.need - plan.part("kv_cache") + _whole_cache(plan) <= plan.room


def _memory(plan: Placement) -> Iterator[Flag]:
    shape, each = plan.shape, _tokens(plan)
    if shape.sliding_window:
        ratio = round_fraction(shape.sliding_window + PIECE_TOKENS + PAGE_TOKENS, each, 2)
        if not _keeps_all(plan):
            shape = replace(shape, sliding_window=min(MAX_DIMENSION, math.ceil(ratio * each)))
        yield Flag(
            f"--swa-full-tokens-ratio {ratio:.2f}",
            "windowed layers keep their window and one chunk; by default 0.8 of all tokens",
        )
    cache = _whole_cache(plan) if _keeps_all(plan) else plan.cache_of(shape, each)
    plan.check_room(cache, "SGLang")
    if not shape.linear_layers:
        yield Flag(
            f"--max-total-tokens {each * plan.batch}", "tokens in the cache, an absolute limit in whole pages"
        )
    free = plan.room + plan.use.reserve_bytes - plan.part("runtime")
    fraction = round_fraction(plan.part("weights") + cache, free)
    if (1 - fraction) * free < plan.part("activations"):
        fraction = math.floor((plan.part("weights") + cache) / free * 1000) / 1000
    source = "MemAvailable" if plan.is_unified else "free memory of the GPU"
    yield Flag(
        f"--mem-fraction-static {fraction:.3f}",
        f"{size(plan.part('weights') + cache)} for weights and cache of {size(free)} ({source}, less a context)",
    )
