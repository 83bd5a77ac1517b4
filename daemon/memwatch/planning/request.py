"""Memory need of a request: a size in bytes or a checkpoint, for inference or training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.planning.checkpoint import Checkpoint, read_checkpoint
from memwatch.planning.inference import compute_weights, estimate_inference
from memwatch.planning.number_formats import NumberFormat, bits_per_cached_number, bits_per_weight, parse_format
from memwatch.planning.sizes import SIZE, InvalidInputError, parse_bytes
from memwatch.planning.training import TrainingPlan, estimate_training_memory
from memwatch.planning.transformer import Transformer

DEFAULT_CONTEXT = 8192
MIN_CONTEXT = 2048
# Labels of the parts of a need.
PARTS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "waits_in_ram": "offloaded to System RAM",
    "runtime": "runtime (CUDA context and kernels)",
}
# Overhead of a process on a GPU beyond its allocations: CUDA context and kernels, 0.3 to 0.6 GiB.
RUNTIME_BYTES = 512 << 20


class Use(Struct, frozen=True):
    """Options of a request. `context` 0: the model's own, at most 8,192 tokens. `dtype` empty: the checkpoint's."""

    context: int = 0
    batch_size: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    training: TrainingPlan | None = None


class MemoryNeed(Struct, frozen=True):
    """Bytes needed and their parts; no parts if only a size was given. `note`: parts that are not counted."""

    subject: str
    bytes: int
    parts: Mapping[str, int]
    note: str = ""


class Reduction(Struct, frozen=True):
    """A change that reduces the need. `words` complete "it would fit with"; `flags` are the command's options for
    it, `use` the same as options of a request."""

    words: str
    flags: str
    use: Use
    need: MemoryNeed


def is_size(text: str) -> bool:
    return SIZE.fullmatch(text.strip()) is not None


def compute_need(subject: str, use: Use) -> MemoryNeed:
    """Return the need of `subject`, a size or a path. Raises InvalidInputError."""
    if is_size(subject):
        return MemoryNeed(subject, parse_bytes(subject), {})
    if not subject.strip() or subject.startswith("-") or (subject[:1].isdigit() and " " in subject):
        parse_bytes(subject)
    return compute_checkpoint_need(read_checkpoint(Path(subject)), use)


def compute_checkpoint_need(checkpoint: Checkpoint, use: Use) -> MemoryNeed:
    shape = checkpoint.transformer
    if shape is None:
        if use.training or checkpoint.weights_bytes is None:
            raise InvalidInputError(
                f"{checkpoint.name}: its shape is not known{_clause(checkpoint)}; "
                "put its config.json in the same folder"
            )
        why = _clause(checkpoint)
        note = f"The model's shape is not known{why}: its KV cache and activations are not counted."
        return replace(_need(checkpoint.name, {"weights": checkpoint.weights_bytes}), note=note)
    form = parse_format(use.dtype) if use.dtype else NumberFormat(checkpoint.dtype_bytes * 8, checkpoint.scope)
    weights = None if use.dtype else checkpoint.weights_bytes
    if weights is None:
        if checkpoint.problem and not use.dtype:
            raise InvalidInputError(f"{checkpoint.name}: {checkpoint.problem}")
        weights = compute_weights(shape, form.bytes, form.scope)
    if use.training:
        plan = replace(
            use.training,
            dtype_bytes=form.bytes,
            batch_size=use.batch_size,
            seq_len=choose_context(checkpoint, use),
        )
        return _training_need(checkpoint.name, shape, plan, weights if plan.lora_rank else None)
    kv_bytes = bits_per_cached_number(use.kv_dtype) / 8 if use.kv_dtype else None
    context = choose_context(checkpoint, use)
    found = estimate_inference(shape, context, form.bytes, use.batch_size, kv_bytes, weights)
    parts = {
        "weights": found.weights_bytes,
        "kv_cache": found.kv_cache_bytes,
        "activations": found.activations_bytes,
    }
    return _need(checkpoint.name, parts)


def _clause(checkpoint: Checkpoint) -> str:
    return f" ({checkpoint.note})" if checkpoint.note else ""


def _training_need(name: str, shape: Transformer, plan: TrainingPlan, weights: int | None) -> MemoryNeed:
    found = estimate_training_memory(shape, plan, weights)
    parts = {
        "weights": found.weights_bytes,
        "gradients": found.gradients_bytes,
        "optimizer": found.optimizer_bytes,
        "activations": found.activations_bytes,
        "waits_in_ram": -found.ram_bytes,
    }
    return _need(name, {key: value for key, value in parts.items() if value})


def _need(subject: str, parts: Mapping[str, int]) -> MemoryNeed:
    whole = {**parts, "runtime": RUNTIME_BYTES}
    return MemoryNeed(subject, sum(whole.values()), whole)


def choose_context(checkpoint: Checkpoint, use: Use) -> int:
    return use.context or min(checkpoint.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def cheapest_reduction(checkpoint: Checkpoint, use: Use, room: int) -> Reduction | None:
    """Return the least costly change with which the need fits into `room` bytes, or None."""
    return next((change for change in list_reductions(checkpoint, use) if change.need.bytes <= room), None)


def list_reductions(checkpoint: Checkpoint, use: Use) -> Iterator[Reduction]:
    """Yield changes that reduce the need, the least costly first."""
    for words, flags, changed in (*_training_reductions(use), *_inference_reductions(checkpoint, use)):
        with suppress(InvalidInputError):
            yield Reduction(words, flags, changed, compute_checkpoint_need(checkpoint, changed))


def _training_reductions(use: Use) -> Iterator[tuple[str, str, Use]]:
    plan = use.training
    if plan is None:
        return
    if not plan.checkpointing:
        plan = replace(plan, checkpointing=True)
        yield "activation checkpointing", "--checkpointing", replace(use, training=plan)
    if use.batch_size > 1:
        use = replace(use, batch_size=1)
        yield "activation checkpointing and a batch of 1", "--batch 1", replace(use, training=plan)
    if plan.optimizer == "adamw":
        plan = replace(plan, optimizer="adamw_8bit")
        yield "checkpointing and 8-bit AdamW", "--optimizer adamw_8bit", replace(use, training=plan)
    if not plan.lora_rank:
        plan = replace(plan, lora_rank=16, optimizer="adamw")
        yield "checkpointing and LoRA", "--lora 16", replace(use, training=plan)
    changed = replace(use, training=plan, dtype="nf4")
    yield "checkpointing, LoRA and 4-bit weights", f"--lora {plan.lora_rank} --dtype nf4", changed


def _inference_reductions(checkpoint: Checkpoint, use: Use) -> Iterator[tuple[str, str, Use]]:
    if use.training:
        return
    if use.batch_size > 1:
        half = use.batch_size // 2
        yield "half the batch", f"--batch {half}", replace(use, batch_size=half)
        use = replace(use, batch_size=1)
        yield "a batch of 1", "--batch 1", use
    context = choose_context(checkpoint, use)
    while context > MIN_CONTEXT:
        context //= 2
        yield f"a context of {context} tokens", f"--context {context}", replace(use, context=context)
    for dtype, words in (("int8", "8-bit"), ("int4", "4-bit")):
        if checkpoint.dtype_bytes > bits_per_weight(dtype) / 8:
            yield f"{words} weights", f"--dtype {dtype}", replace(use, dtype=dtype)
            yield (
                f"{words} weights, a context of {MIN_CONTEXT} tokens",
                f"--dtype {dtype} --context {MIN_CONTEXT}",
                replace(use, dtype=dtype, context=MIN_CONTEXT),
            )
