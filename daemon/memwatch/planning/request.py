"""Memory need of a request: a size in bytes or a checkpoint, for inference or training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from memwatch.planning.checkpoint import Checkpoint, read_checkpoint
from memwatch.planning.inference import inference_of
from memwatch.planning.sizes import SIZE, BadInput, bits_of, bytes_of
from memwatch.planning.training import TrainingPlan, estimate_training_memory
from memwatch.planning.transformer import Transformer

DEFAULT_CONTEXT = 8192
LEAST_CONTEXT = 2048
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


class Need(Struct, frozen=True):
    """Bytes needed and their parts; no parts if only a size was given. `note`: parts that are not counted."""

    subject: str
    bytes: int
    parts: Mapping[str, int]
    note: str = ""


class Change(Struct, frozen=True):
    """A change that reduces the need. `words` complete "it would fit with"; `flags` are the command's options for
    it, `use` the same as options of a request."""

    words: str
    flags: str
    use: Use
    need: Need


def is_size(text: str) -> bool:
    return SIZE.fullmatch(text.strip()) is not None


def need_of(subject: str, use: Use) -> Need:
    """Return the need of `subject`, a size or a path. Raises BadInput."""
    if is_size(subject):
        return Need(subject, bytes_of(subject), {})
    if not subject.strip() or subject.startswith("-") or (subject[:1].isdigit() and " " in subject):
        bytes_of(subject)
    return need_of_checkpoint(read_checkpoint(Path(subject)), use)


def need_of_checkpoint(checkpoint: Checkpoint, use: Use) -> Need:
    shape = checkpoint.transformer
    if shape is None:
        if use.training or checkpoint.weights_bytes is None:
            raise BadInput(f"{checkpoint.name}: its shape is not known; put its config.json in the same folder")
        note = "The model's shape is not known: its KV cache and activations are not counted."
        return replace(_need(checkpoint.name, {"weights": checkpoint.weights_bytes}), note=note)
    own = checkpoint.weights_bytes if not use.dtype else None
    dtype_bytes = bits_of(use.dtype) / 8 if use.dtype else checkpoint.dtype_bytes
    if use.training:
        plan = replace(
            use.training, dtype_bytes=dtype_bytes, batch_size=use.batch_size, seq_len=context_of(checkpoint, use)
        )
        return _training_need(checkpoint.name, shape, plan)
    kv_bytes = bits_of(use.kv_dtype) / 8 if use.kv_dtype else None
    found = inference_of(shape, context_of(checkpoint, use), dtype_bytes, use.batch_size, kv_bytes, own)
    parts = {
        "weights": found.weights_bytes,
        "kv_cache": found.kv_cache_bytes,
        "activations": found.activations_bytes,
    }
    return _need(checkpoint.name, parts)


def _training_need(name: str, shape: Transformer, plan: TrainingPlan) -> Need:
    found = estimate_training_memory(shape, plan)
    parts = {
        "weights": found.weights_bytes,
        "gradients": found.gradients_bytes,
        "optimizer": found.optimizer_bytes,
        "activations": found.activations_bytes,
        "waits_in_ram": -found.ram_bytes,
    }
    return _need(name, {key: value for key, value in parts.items() if value})


def _need(subject: str, parts: Mapping[str, int]) -> Need:
    whole = {**parts, "runtime": RUNTIME_BYTES}
    return Need(subject, sum(whole.values()), whole)


def context_of(checkpoint: Checkpoint, use: Use) -> int:
    return use.context or min(checkpoint.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def cheapest_change(checkpoint: Checkpoint, use: Use, room: int) -> Change | None:
    """Return the least costly change with which the need fits into `room` bytes, or None."""
    return next((change for change in changes_of(checkpoint, use) if change.need.bytes <= room), None)


def changes_of(checkpoint: Checkpoint, use: Use) -> Iterator[Change]:
    """Yield changes that reduce the need, the least costly first."""
    for words, flags, changed in (*_training_changes(use), *_running_changes(checkpoint, use)):
        with suppress(BadInput):
            yield Change(words, flags, changed, need_of_checkpoint(checkpoint, changed))


def _training_changes(use: Use) -> Iterator[tuple[str, str, Use]]:
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


def _running_changes(checkpoint: Checkpoint, use: Use) -> Iterator[tuple[str, str, Use]]:
    if use.training:
        return
    if use.batch_size > 1:
        half = use.batch_size // 2
        yield "half the batch", f"--batch {half}", replace(use, batch_size=half)
        use = replace(use, batch_size=1)
        yield "a batch of 1", "--batch 1", use
    context = context_of(checkpoint, use)
    while context > LEAST_CONTEXT:
        context //= 2
        yield f"a context of {context} tokens", f"--context {context}", replace(use, context=context)
    for dtype, words in (("int8", "8-bit"), ("int4", "4-bit")):
        if checkpoint.dtype_bytes > bits_of(dtype) / 8:
            yield f"{words} weights", f"--dtype {dtype}", replace(use, dtype=dtype)
            yield (
                f"{words} weights, a context of {LEAST_CONTEXT} tokens",
                f"--dtype {dtype} --context {LEAST_CONTEXT}",
                replace(use, dtype=dtype, context=LEAST_CONTEXT),
            )
