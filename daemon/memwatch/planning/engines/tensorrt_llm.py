"""TensorRT-LLM: the cache takes a fraction of what is free after weights and activations, or a number of tokens.

From tensorrt_llm/commands/serve.py and the reference of KvCacheConfig.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.core.units import size
from memwatch.planning.engines.placement import (
    Flag,
    Launch,
    NoLaunchError,
    Placement,
    cache_name,
    refuse_conversion,
    round_fraction,
    select_gpus,
    shared_flags,
    shell_line,
)
from memwatch.planning.inference import PIECE_TOKENS

BLOCK_TOKENS = 32
FILE = "trtllm.yaml"


def build(plan: Placement, dtype: str) -> Launch:
    """Return the lines of TensorRT-LLM for a plan on NVIDIA GPUs: its configuration file, and the command."""
    if dtype:
        raise refuse_conversion("TensorRT-LLM", dtype)
    variables, notes = select_gpus(plan)
    settings = list(_settings(plan))
    flags = [*_sizes(plan), *shared_flags(plan, "--tp_size", "--pp_size")]
    flags.append(Flag(f"--extra_llm_api_options {FILE}", "the settings of the cache that have no option"))
    text = "\\n  ".join(["kv_cache_config:", *(one.flag for one in settings)])
    line = shell_line(["trtllm-serve", plan.model], flags, variables)
    return Launch(
        "tensorrt-llm",
        f"printf '{text}\\n' > {FILE}\n{line}",
        (*variables, *flags, *settings),
        (*notes,),
    )


def _sizes(plan: Placement) -> Iterator[Flag]:
    yield Flag(f"--max_seq_len {plan.context}", "the plan's context; the model's own may be longer")
    yield Flag(f"--max_batch_size {plan.batch}", "the plan's batch")
    tokens = max(PIECE_TOKENS, plan.batch)
    yield Flag(f"--max_num_tokens {tokens}", "the plan counts activations of this many tokens at a time")
    yield Flag("--enable_chunked_prefill", "a longer prompt is computed in parts of that size")


def _settings(plan: Placement) -> Iterator[Flag]:
    varies = bool(plan.shape.sliding_window or plan.shape.linear_layers)
    cached = cache_name("TensorRT-LLM", plan.cache_dtype)
    if varies and plan.is_unified:
        raise NoLaunchError(
            "TensorRT-LLM counts page cache as used on unified memory, and layers that keep different numbers of "
            "tokens have no absolute size of the cache"
        )
    if cached:
        yield Flag(f"dtype: {cached}", "the plan counts a cache of this format")
    each = -(-plan.context // BLOCK_TOKENS) * BLOCK_TOKENS + BLOCK_TOKENS
    if not varies:
        plan.check_room(plan.cache_of(plan.shape, each), "TensorRT-LLM")
        yield Flag(f"max_tokens: {each * plan.batch}", "tokens in the cache, an absolute limit in whole blocks")
    if not plan.is_unified:
        cache = plan.cache_of(plan.shape, each)
        left = plan.room + plan.use.reserve_bytes - plan.need + plan.part("kv_cache")
        fraction = min(1.0, round_fraction(cache, left))
        why = f"{size(cache)} of the {size(left)} that are free after weights and activations"
        yield Flag(f"free_gpu_memory_fraction: {fraction:.3f}", why)
