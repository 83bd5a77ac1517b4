"""Plans for training, caches and swapped blocks beside the memory that PyTorch uses."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import Any

import torch
from msgspec.structs import replace

import memwatch
from hardware.comparison import Row
from hardware.torch_llama import (
    HEADS,
    KV_HEADS,
    LAYERS,
    WIDE,
    WIDTH,
    Layer,
    Llama,
    make_cache,
    saved_bytes,
    shape_of,
    train_steps,
)
from hardware.torch_rows import GPU, MIB, ROUNDING_BYTES, Rows, beside, settle, yes
from memwatch.planning.training import layer_bytes

# A plan is an estimate: activations of kernels that PyTorch chooses, and blocks that its allocator splits.
PLAN_PART = 0.12


def check_training() -> Rows:
    """A plan for training against the peak of three steps, for full training, checkpoints and adapters."""
    yield from starmap(_compare_plan, PLANS.items())


PLANS: Mapping[str, Mapping[str, Any]] = {
    "all weights": {},
    "batch 4": {"batch_size": 4},
    "accumulation, batch 4": {"batch_size": 4, "accumulate": True},
    "checkpoints, batch 8": {"batch_size": 8, "checkpointing": True},
    "16 bits only, batch 4": {"batch_size": 4, "master_weights": False},
    "SGD, 16 bits only, batch 4": {"batch_size": 4, "optimizer": "sgd", "master_weights": False},
    "LoRA 16, batch 4": {"lora_rank": 16, "batch_size": 4},
    "LoRA 16, checkpoints, batch 8": {"lora_rank": 16, "checkpointing": True, "batch_size": 8},
}


def _compare_plan(name: str, options: Mapping[str, Any]) -> Row:
    settle()
    plan = memwatch.TrainingPlan(**{"seq_len": 1024, **options})
    base = torch.cuda.memory_allocated()
    with memwatch.track(name) as stats:
        train_steps(plan, GPU)
    found, peak = memwatch.estimate_training_memory(shape_of(), plan), stats.allocator.peak_bytes
    parts = (found.weights_bytes, found.gradients_bytes, found.optimizer_bytes, found.activations_bytes)
    note = "weights, gradients, optimizer, activations: " + ", ".join(f"{part / MIB:.0f}" for part in parts)
    row = beside(f"plan, {name}", "GPU memory", found.device_bytes, peak - base, PLAN_PART * (peak - base))
    return replace(row, note=note)


def check_cache() -> Rows:
    """Size of the keys and values of a batch, and what one layer saves for the backward pass."""
    settle()
    planned = memwatch.estimate_kv_cache(LAYERS, KV_HEADS, WIDTH // HEADS, 4096, batch_size=2)
    base = torch.cuda.memory_allocated()
    kept = make_cache(2, 4096, GPU)
    yield beside("KV cache", "size", planned, torch.cuda.memory_allocated() - base, ROUNDING_BYTES)
    del kept
    layers = torch.nn.Sequential(*[Layer(WIDTH, WIDE, HEADS, KV_HEADS) for _ in range(2)]).to(GPU, torch.bfloat16)
    given = torch.randn(2, 1024, WIDTH, dtype=torch.bfloat16, device=GPU, requires_grad=True)
    saved, planned = round(saved_bytes(layers, given) / (2 * 1024 * 2)), round(layer_bytes(shape_of(), 2))
    yield beside("layer", "saved for a token, bytes", planned, saved, 0.02 * saved, "")


def check_swap() -> Rows:
    """Blocks that are swapped to System RAM: memory of the resident ones only, and the same result."""
    settle()
    model = Llama().to(torch.bfloat16)
    given = torch.randint(0, 1000, (1, 128))
    with torch.no_grad():
        expected = model.to(GPU)(given.to(GPU)).float().cpu()
    model.to("cpu")
    settle()
    rest = [model.embedding, model.norm, model.head]
    for one in rest:
        one.to(GPU)
    base = torch.cuda.memory_allocated()
    block = sum(one.numel() * 2 for one in model.layers[0].parameters())
    with memwatch.swap_blocks(model.layers, GPU, resident=2), torch.no_grad():
        torch.cuda.reset_peak_memory_stats()
        found = model(given.to(GPU)).float().cpu()
        peak = torch.cuda.max_memory_allocated() - base
    yield yes("swap", "same result", torch.equal(found, expected), f"{(found - expected).abs().max():.3g} off")
    yield yes("swap", "at most four blocks on the GPU", peak < 4 * block + 64 * MIB, f"{peak / block:.1f} blocks")
