"""vLLM: takes a fraction of the total for everything, or an absolute size for the cache.

From vllm/v1/worker/gpu_worker.py, vllm/v1/worker/utils.py and vllm/v1/core/kv_cache_utils.py; several machines:
docs/serving/parallelism_scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from memwatch.core.model import find_system_ram
from memwatch.core.units import size
from memwatch.planning.device_totals import describe_total, pools_of, reported_total
from memwatch.planning.engines.placement import (
    HEAD,
    Flag,
    Launch,
    Placement,
    each_machine,
    format_flags,
    round_fraction,
    select_gpus,
    shared_flags,
    shell_line,
)
from memwatch.planning.inference import PIECE_TOKENS, layers_of_group
from memwatch.planning.transformer import MAX_DIMENSION, Transformer

BLOCK_TOKENS = 16
QUANTIZATIONS = {"fp8": "fp8", "nf4": "bitsandbytes"}
UNKNOWN = "{} (the most that HIP reports as total on an APU: it differs by version)"


def build(plan: Placement, dtype: str) -> Launch:
    """Return the line of vLLM for a plan on GPUs."""
    cache = count_cache(plan)
    if cache is not None:
        plan.check_room(cache, "vLLM")
    variables, notes = select_gpus(plan)
    formats = format_flags("vLLM", dtype, QUANTIZATIONS, plan.cache_dtype)
    flags = [*_sizes(plan), *formats, *_memory(plan, cache)]
    flags += shared_flags(plan, "--tensor-parallel-size", "--pipeline-parallel-size")
    if plan.machines > 1:
        why = "the first of these machines; without Ray"
        flags.append(Flag(f"--nnodes {plan.machines} --node-rank 0 --master-addr {HEAD}", why))
    notes += each_machine(plan, "--headless")
    return Launch(
        "vllm", shell_line(["vllm", "serve", plan.model], flags, variables), (*variables, *flags), (*notes,)
    )


def _sizes(plan: Placement) -> Iterator[Flag]:
    yield Flag(f"--max-model-len {plan.context}", "the plan's context; the model's own may be longer")
    yield Flag(f"--max-num-seqs {plan.batch}", "the plan's batch; vLLM's start measures memory with 256 or more")
    tokens = max(PIECE_TOKENS, plan.batch)
    yield Flag(f"--max-num-batched-tokens {tokens}", "the plan counts activations of this many tokens at a time")


def _memory(plan: Placement, cache: int | None) -> Iterator[Flag]:
    if cache is not None:
        yield Flag(
            f"--kv-cache-memory-bytes {cache}",
            f"{size(cache)} of cache on each GPU in whole blocks, whatever vLLM reads as free",
        )
    total, known = reported_total(plan.gpu, plan.snapshot), True
    if not isinstance(total, int):
        # HIP on an APU: at most its own pools and all of System RAM.
        known, ram = False, find_system_ram(plan.snapshot.pools)
        own = {pool.id: pool.size_bytes for pool in (*pools_of(plan.gpu, plan.snapshot), *([ram] if ram else []))}
        total = sum(own.values())
    beyond = 0 if cache is None else max(0, cache - plan.part("kv_cache"))
    need = plan.need + beyond
    fraction = round_fraction(need, total)
    if fraction * total > plan.room:
        fraction = math.floor(need / total * 1000) / 1000
    absolute = "vLLM ends at its start if less is free"
    why = absolute if cache is not None else "for weights, activations and cache"
    base = f"{size(total)} ({describe_total(plan.gpu, plan.snapshot)})" if known else UNKNOWN.format(size(total))
    yield Flag(f"--gpu-memory-utilization {fraction:.3f}", f"{size(need)} of {base}; {why}")


def count_cache(plan: Placement) -> int | None:
    """Return the bytes of the cache blocks that vLLM needs for the plan, None if its layout is not known.

    A windowed layer keeps its window and the tokens of one step. Layers are in groups of one size, and one block
    more than needed belongs to no sequence. State-space layers have pages of their own size.
    """
    shape = plan.shape
    if shape.linear_layers:
        return None
    tokens = -(-plan.context // BLOCK_TOKENS) * BLOCK_TOKENS + 2 * BLOCK_TOKENS
    if not shape.sliding_window:
        return plan.cache_of(shape, tokens)
    step = max(PIECE_TOKENS, plan.batch)
    window = min(shape.sliding_window + step + BLOCK_TOKENS, MAX_DIMENSION)
    full = plan.cache_of(replace(shape, sliding_window=1), tokens)
    near = plan.cache_of(replace(shape, sliding_window=window), tokens) - full
    more_full, more_near = _padding(shape)
    return math.ceil(full * more_full + near * more_near)


def _padding(shape: Transformer) -> tuple[float, float]:
    """Return by how much whole groups of full and of windowed layers are more than these layers.

    Groups are as large as the smaller number of both, or the larger if it is less than 1.25 times that.
    """
    full, owners = shape.full_layers, shape.with_attention - shape.shared_kv_layers
    near = owners - full
    if not full or not near:
        return 1.0, 1.0
    group = layers_of_group(shape)
    return -(-full // group) * group / full, -(-near // group) * group / near
