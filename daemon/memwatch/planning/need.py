"""Memory need of a plan: a size in bytes or a checkpoint, for inference or training."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.arguments import SIZE, InvalidInputError, UnknownModelError, parse_bytes, quote
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.diffusion import Pipeline, PipelineNeed, plan_images, plan_training
from memwatch.planning.fit import Demand, has_context, shares_memory
from memwatch.planning.inference import choose_cache_bytes, compute_kv_cache, compute_weights, estimate_inference
from memwatch.planning.number_formats import (
    FILE_BITS,
    OFFERED_FILES,
    NumberFormat,
    bits_per_cached_number,
    bits_per_weight,
    canonical_name,
    list_narrower_files,
    parse_format,
)
from memwatch.planning.request import RUNTIME_BYTES, Use, choose_context
from memwatch.planning.training import TrainingEstimate, estimate_training_memory
from memwatch.planning.transformer import Transformer

MIN_CONTEXT = 2048
# 70B, 0.6b: a size of a model in its name.
PARAMETER_COUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*[bB]", re.ASCII)
MAX_BILLIONS = 10_000
# Labels of the parts of a need.
PARTS = {
    "weights": "weights",
    "denoiser": "denoiser (UNet or transformer)",
    "text_encoders": "text encoders",
    "vae": "VAE",
    "adapters": "LoRA adapters",
    "kv_cache": "KV cache",
    "activations": "activations",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "apart": "memory of activations, reused by gradients",
    "waits_in_ram": "moved to System RAM",
    "runtime": "runtime (GPU context and kernels)",
    "processes": "processes of the engine, in System RAM",
}
RUNTIME_SOURCE = "typical value: a context takes 107 to 555 MiB, by GPU (llama.cpp#23604), and kernels more"
MEASURED_SOURCE = "measured: a context without kernels"


class MemoryNeed(Struct, frozen=True):
    """Bytes needed on one GPU and their parts; no parts if only a size was given. `note`: parts that are not
    counted, so that the bytes are a lower bound.

    `moves`: bytes of each part that the plan puts into System RAM in place of the GPU; the part `waits_in_ram` is
    their sum, negative; `apart` is negative as well. `bytes` is what remains on the GPU. `runtime_source`: source
    of the part `runtime`. `ram_peak_bytes`: the most that waits in System RAM, if that is not at the GPU's peak.
    `host`: what the engine's processes take; the part `processes` where it is in the same memory.
    """

    subject: str
    bytes: int
    parts: Mapping[str, int]
    note: str = ""
    moves: Mapping[str, int] = {}
    runtime_source: str = ""
    ram_peak_bytes: int = 0
    host: HostMemory | None = None

    @property
    def demand(self) -> Demand:
        runtime, moved = self.parts.get("runtime", 0), sum(self.moves.values())
        host, counted = self.host.bytes if self.host else 0, self.parts.get("processes", 0)
        return Demand(
            self.bytes - runtime - counted, max(moved, self.ram_peak_bytes), runtime, moved, host_bytes=host
        )


class Reduction(Struct, frozen=True):
    """A change that reduces the need. `words` complete "it would fit with"; `flags` are the command's options for
    it, `use` the same as options of a request."""

    words: str
    flags: str
    use: Use
    need: MemoryNeed


def is_size(text: str) -> bool:
    return SIZE.fullmatch(text.strip()) is not None


def parse_need(value: object, name: str = "size") -> int:
    """Parse a size. Raises InvalidInputError also for 70B: 70 bytes, but to most readers 70 billion parameters."""
    match = PARAMETER_COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) < MAX_BILLIONS:
        return parse_bytes(value, name)
    count = float(match[1])
    narrow = count * bits_per_weight("q4_k") / 8
    raise InvalidInputError(
        f"{name} is {quote(value)}, which would be {count:g} bytes. For {count:g} GB of memory: memwatch fit "
        f"{count:g}GB. For the weights of {count:g} billion parameters: memwatch fit {2 * count:g}GB in 16 bits, "
        f"memwatch fit {narrow:.3g}GB in 4; for a model with its cache, give its name, ORG/NAME"
    )


def compute_checkpoint_need(checkpoint: Checkpoint, use: Use, gpus: int = 1) -> MemoryNeed:
    """Return the need on the fullest of `gpus` GPUs. Raises InvalidInputError."""
    shape = checkpoint.transformer
    if checkpoint.pipeline:
        return replace(_pipeline_need(checkpoint.name, checkpoint.pipeline, use, gpus), note=checkpoint.unknown)
    if shape is None:
        if use.training or checkpoint.weights_bytes is None:
            raise UnknownModelError(
                f"{checkpoint.name}: its shape is not known{_clause(checkpoint)}; "
                "put its config.json in the same folder"
            )
        why = _clause(checkpoint)
        note = f"The model's shape is not known{why}: its KV cache and activations are not counted."
        part = -(-checkpoint.weights_bytes // gpus)
        return replace(_need(checkpoint.name, {"weights": part}, {}, use), note=note)
    form = parse_format(use.dtype) if use.dtype else NumberFormat(checkpoint.dtype_bytes * 8, checkpoint.scope)
    weights = None if use.dtype else checkpoint.weights_bytes
    if weights is None:
        if checkpoint.problem and not use.dtype:
            raise UnknownModelError(f"{checkpoint.name}: {checkpoint.problem}")
        weights = compute_weights(shape, form.bytes, form.scope)
    if use.training:
        plan = replace(
            use.training,
            dtype_bytes=form.bytes,
            batch_size=use.batch_size,
            seq_len=choose_context(checkpoint, use),
        )
        found = estimate_training_memory(shape, plan, weights if plan.lora_rank else None)
        return replace(_training_need(checkpoint.name, found, shape.n_layers, gpus, use), note=checkpoint.unknown)
    number = bits_per_cached_number(use.kv_dtype) / 8 if use.kv_dtype else choose_cache_bytes(form.bytes)
    context = choose_context(checkpoint, use)
    served = estimate_inference(shape, context, form.bytes, use.batch_size, number, weights)
    parts = {
        "weights": served.weights_bytes,
        "kv_cache": served.kv_cache_bytes,
        "activations": served.activations_bytes,
    }
    moves = _inference_moves(shape, use, parts)
    how = choose_parallel_kind(shape, use.parallel, gpus)
    rank = compute_kv_cache(shape, context, use.batch_size, number, gpus if how == "tensor" else 1)
    shares = shares_of(shape, how, gpus, served.weights_bytes, rank / max(1, served.kv_cache_bytes))
    need = _need(checkpoint.name, _scaled(parts, shares), _scaled(moves, shares), use)
    return replace(need, note=checkpoint.unknown)


def compute_need_here(checkpoint: Checkpoint, use: Use, snapshot: Snapshot, gpus: int = 1) -> MemoryNeed:
    """Return the need on one of `gpus` GPUs of a machine: with the engine's processes where they take the same
    memory, and without the cost of a GPU context where no GPU has one. Raises InvalidInputError.
    """
    need = compute_checkpoint_need(checkpoint, use, gpus)
    host = find_host_memory(checkpoint, use, snapshot)
    parts = dict(need.parts)
    if "runtime" in parts and not any(has_context(device) for device in snapshot.devices):
        need = replace(need, runtime_source="")
        del parts["runtime"]
    if host:
        parts["processes"] = host.bytes
    return replace(need, bytes=sum(parts.values()), parts=parts, host=host)


def _pipeline_need(name: str, pipe: Pipeline, use: Use, gpus: int) -> MemoryNeed:
    if gpus > 1:
        raise InvalidInputError("a diffusion model is not split over several GPUs: each makes its own images")
    refuse_text_options(use)
    images, batch = use.images, use.batch_size
    found: PipelineNeed = (
        plan_training(pipe, images, batch, use.dtype, use.training)
        if use.training
        else plan_images(pipe, images, batch, use.dtype)
    )
    need = _need(name, _scaled(found.parts, {}), found.moves, use)
    return replace(need, ram_peak_bytes=found.ram_peak_bytes)


def refuse_text_options(use: Use) -> None:
    """Raise InvalidInputError for options that a diffusion model does not have."""
    given = {
        "context": use.context,
        "kv_dtype": use.kv_dtype,
        "offload_kv": use.offload_kv,
        "cpu_layers": use.cpu_layers,
        "gpus": use.gpus > 1,
        "parallel": use.parallel,
    }
    names = ", ".join(name for name, value in given.items() if value)
    if names:
        raise InvalidInputError(f"{names}: not for a diffusion model; use width, height, batch, offload or dtype")


def _inference_moves(shape: Transformer, use: Use, parts: Mapping[str, int]) -> dict[str, int]:
    if use.cpu_layers > shape.n_layers:
        raise InvalidInputError(
            f"cpu_layers is {use.cpu_layers}, but the model has {shape.n_layers} layers; "
            f"for example {shape.n_layers // 2}"
        )
    part = use.cpu_layers / shape.n_layers
    layers = parts["weights"] * shape.matrix_parameters / shape.parameters
    cache = 1 if use.offload_kv else part
    return {"weights": int(layers * part), "kv_cache": int(parts["kv_cache"] * cache)}


def choose_parallel_kind(shape: Transformer, wanted: str, gpus: int) -> str:
    """Return tensor or pipeline. Tensor parallelism needs a number of GPUs that divides the heads."""
    return wanted or ("pipeline" if shape.n_heads % gpus else "tensor")


def shares_of(shape: Transformer, how: str, gpus: int, weights: int, cache: float) -> dict[str, float]:
    """Return the part of weights and cache on the fullest GPU. Activations are not divided.

    Tensor: `cache` is the part of the cache. Pipeline: whole layers, and on the fullest one table of embeddings.
    """
    if gpus == 1:
        return {}
    if how == "tensor":
        return {"weights": 1 / gpus, "kv_cache": cache}
    layers = min(1.0, -(-shape.n_layers // gpus) / shape.n_layers)
    table = min(1.0, shape.vocab_size * shape.hidden_size * 2 / max(1, weights))
    tables = min(1.0, table * (1 if shape.tied_embeddings else 2))
    return {"weights": min(1.0, (1 - tables) * layers + table), "kv_cache": layers}


def _clause(checkpoint: Checkpoint) -> str:
    return f" ({why})" if (why := checkpoint.why_shapeless) else ""


def _training_need(name: str, found: TrainingEstimate, layers: int, gpus: int, use: Use) -> MemoryNeed:
    """Return the need on each GPU. ZeRO 1 divides the optimizer states, 2 also gradients, 3 also weights, of which
    one layer is gathered (arXiv 1910.02054). Several GPUs keep their gradients, in buckets, at all times."""
    parts = {
        "weights": found.weights_bytes,
        "gradients": found.gradients_bytes,
        "optimizer": found.optimizer_bytes,
        "activations": found.activations_bytes,
        "apart": -found.apart_bytes if gpus == 1 else 0,
    }
    divided = {"optimizer": 1, "gradients": 2, "weights": 3}
    shares = {part: 1 / gpus for part, stage in divided.items() if use.zero >= stage}
    if gpus > 1 and "weights" in shares:
        shares["weights"] += (1 - 1 / gpus) / layers
    return _need(name, _scaled(parts, shares), _scaled(found.moves, shares), use)


def _scaled(parts: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    return {name: math.ceil(size * shares.get(name, 1)) for name, size in parts.items() if size}


def _need(subject: str, parts: Mapping[str, int], moves: Mapping[str, int], use: Use) -> MemoryNeed:
    moved = sum(moves.values())
    runtime = use.runtime_bytes or RUNTIME_BYTES
    whole = {**parts, **({"waits_in_ram": -moved} if moved else {}), "runtime": runtime}
    source = MEASURED_SOURCE if use.runtime_bytes else RUNTIME_SOURCE
    return MemoryNeed(subject, sum(whole.values()), whole, moves=moves, runtime_source=source)


def cheapest_reduction(checkpoint: Checkpoint, use: Use, has_room: Callable[[Use], bool]) -> Reduction | None:
    """Return the least costly change after which there is room, or None."""
    return next((change for change in list_reductions(checkpoint, use) if has_room(change.use)), None)


def list_reductions(checkpoint: Checkpoint, use: Use) -> Iterator[Reduction]:
    """Yield changes that reduce the need, the least costly first."""
    if checkpoint.pipeline:
        options = list_image_reductions(use)
    else:
        options = (*_training_reductions(use), *_inference_reductions(checkpoint, use))
    for words, flags, changed in options:
        with suppress(InvalidInputError):
            need = compute_checkpoint_need(checkpoint, changed)
            yield Reduction(*_with_earlier(words, flags, use, changed), changed, need)


def _with_earlier(words: str, flags: str, use: Use, changed: Use) -> tuple[str, str]:
    """Return words and flags of a change, with those of the cheaper changes that it builds on."""
    earlier = []
    if changed.batch_size != use.batch_size and "--batch" not in flags:
        earlier.append((f"a batch of {changed.batch_size:,}", f"--batch {changed.batch_size}"))
    before, after = use.training, changed.training
    if before and after and after.optimizer != before.optimizer and "--optimizer" not in flags:
        word = "8-bit AdamW" if after.optimizer == "adamw_8bit" else after.optimizer
        earlier.append((word, f"--optimizer {after.optimizer}"))
    named = f"{words}, with {' and '.join(word for word, _ in earlier)}" if earlier else words
    if before and after and after.checkpointing and not before.checkpointing and "--checkpointing" not in flags:
        earlier.insert(0, ("", "--checkpointing"))  # the words have it
    return named, " ".join([*(flag for _, flag in earlier), flags])


def list_image_reductions(use: Use) -> Sequence[tuple[str, str, Use]]:
    """Return changes that reduce the need for images, the least costly first."""
    if use.training:
        return [one for one in _training_reductions(use) if "4-bit" not in one[0]]
    images, found = use.images, []
    if use.batch_size > 1:
        use = replace(use, batch_size=1)
        found.append(("a batch of 1", "--batch 1", use))
    tiled = replace(images, vae_tiling=True, vae_slicing=True)
    found.append(("VAE tiling and slicing", "--vae-tiling --vae-slicing", replace(use, images=tiled)))
    changes = [("model offloading", "--offload model", replace(use, images=replace(tiled, offload="model")))]
    for words, dtype in (("fp8", "fp8"), ("4-bit", "nf4")):
        changes.append((f"{words} weights", f"--dtype {dtype}", replace(use, dtype=dtype, images=tiled)))
    last = replace(use, images=replace(tiled, offload="sequential"))
    changes.append(("sequential offloading", "--offload sequential", last))
    return [*found, *((words, f"{flags} --vae-tiling --vae-slicing", changed) for words, flags, changed in changes)]


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
        yield f"a context of {context:,} tokens", f"--context {context}", replace(use, context=context)
    narrower = _list_narrower(checkpoint)
    for dtype, words in narrower.items():
        yield words, f"--dtype {dtype}", replace(use, dtype=dtype)
        yield (
            f"{words}, a context of {MIN_CONTEXT:,} tokens",
            f"--dtype {dtype} --context {MIN_CONTEXT}",
            replace(use, dtype=dtype, context=MIN_CONTEXT),
        )
    yield "the KV cache in System RAM", "--offload-kv", replace(use, offload_kv=True)
    half = checkpoint.transformer.n_layers // 2 if checkpoint.transformer else 0
    yield "half of the layers on the CPU", f"--cpu-layers {half}", replace(use, cpu_layers=half)
    for dtype in [*narrower][-1:]:
        changed = replace(use, dtype=dtype, cpu_layers=half)
        flags = f"--dtype {dtype} --cpu-layers {half}"
        yield f"{narrower[dtype]}, half of the layers on the CPU", flags, changed


def _list_narrower(checkpoint: Checkpoint) -> dict[str, str]:
    """Return narrower formats of the weights with their words, the widest first: those to which engines convert
    them at load, or of a GGUF file other files, whose sizes are averages."""
    if checkpoint.file_format:
        files = list_narrower_files(checkpoint.file_format)
        return {one: f"a {OFFERED_FILES[one]} file, whose size is estimated" for one in files}
    words = {"int8": "8-bit weights", "int4": "4-bit weights"}
    return {one: word for one, word in words.items() if checkpoint.dtype_bytes > bits_per_weight(one) / 8}


# Memory of an engine's processes in System RAM, beside the GPU's: counted where both are one memory.

SAFETENSORS, GGUF = "safetensors", "gguf"


class HostMemory(Struct, frozen=True):
    """Bytes of the processes of one engine, and where the figure is from: a clause. Estimates begin so."""

    bytes: int
    source: str


# By the kind of files that engines load. The most that was measured counts: a yes has to hold.
ESTIMATES = {
    SAFETENSORS: HostMemory(
        int(6.7 * (1 << 30)), "estimated: the most of 5.4 to 6.7 GiB with vLLM on a DGX Spark (llamastash#81)"
    ),
    GGUF: HostMemory(
        int(2.1 * (1 << 30)), "estimated: as llama-server took on a DGX Spark, 2.1 GiB (llama.cpp#28933)"
    ),
}
# Engines whose resident memory is a measure. That of llama.cpp and Ollama also has pages of the mapped file, and
# layers on the CPU.
MEASURED = frozenset({"vllm", "sglang", "tensorrt-llm"})


def file_kind(checkpoint: Checkpoint, dtype: str) -> str:
    """Return the kind of a model's files. A format of llama.cpp is only in GGUF files."""
    if checkpoint.source == "GGUF" or checkpoint.file_format:
        return GGUF
    in_file = canonical_name(dtype) in FILE_BITS or checkpoint.scope == "file"
    return GGUF if in_file and checkpoint.source != "safetensors" else SAFETENSORS


def find_host_memory(checkpoint: Checkpoint, use: Use, snapshot: Snapshot) -> HostMemory | None:
    """Return what an engine's processes take beside the plan: as much as those that run here, else an estimate.

    None where no GPU shares its memory with the CPU, and where no figure is known: of training, of images, and of
    safetensors files on GPUs that vLLM does not run on.
    """
    unified = [device for device in snapshot.devices if shares_memory(device, snapshot)]
    # A format of llama.cpp means its files, whatever was read.
    kind = GGUF if canonical_name(use.dtype) in FILE_BITS else file_kind(checkpoint, use.dtype)
    if not unified or use.training or checkpoint.pipeline:
        return None
    if kind == SAFETENSORS and not any(has_context(device) for device in unified):
        return None
    running = max(_list_running(snapshot), key=lambda one: one.bytes, default=None) if kind == SAFETENSORS else None
    return running or ESTIMATES[kind]


def _list_running(snapshot: Snapshot) -> Iterator[HostMemory]:
    for engine in snapshot.engines:
        taken = _count_host(engine)
        if engine.kind in MEASURED and engine.sleeping is not True and taken is not None and taken > 0:
            yield HostMemory(taken, f"{size(taken)}, as those of {engine.title} ({engine.id}) take here")


def _count_host(engine: Engine) -> int | None:
    """Return the memory of an engine's processes without that of GPUs, None if a figure is not known."""
    held = list(engine.held_bytes.values())
    known = [one for one in held if isinstance(one, int)]
    if not isinstance(engine.footprint_bytes, int) or not held or len(known) != len(held):
        return None
    return engine.footprint_bytes - sum(known)
