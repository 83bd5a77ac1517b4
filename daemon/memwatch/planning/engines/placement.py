"""Devices, sizes and free memory of one plan, as an engine reads them on this machine."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Architecture, Device, PoolKind
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.device_totals import pools_of
from memwatch.planning.fit import CPU, Fit
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.need import choose_parallel_kind, compute_checkpoint_need
from memwatch.planning.number_formats import bits_per_cached_number, canonical_name, parse_format
from memwatch.planning.request import Use, choose_context, describe_long_context
from memwatch.planning.transformer import Transformer


class NoLaunchError(Exception):
    """An engine cannot run a plan. The message is a clause with the reason."""


class Flag(Struct, frozen=True):
    """Option or variable of a launch line, as written there, and its reason: a sentence without a full stop."""

    flag: Annotated[str, Doc("Option, variable or parameter, as in the command.")]
    reason: str


# Formats to which engines of safetensors files convert weights while they load them, by the same names.
FLOATS = ("bfloat16", "float16", "float32")
# The names that most engines have for formats of a cache, empty for their own choice.
CACHES = {"fp8": "fp8", "bfloat16": "", "float16": ""}


def cache_name(engine: str, wanted: str, names: Mapping[str, str] = CACHES) -> str:
    """Return an engine's name of a cache's format, empty for its own choice. Raises NoLaunchError."""
    if wanted and wanted not in names:
        raise NoLaunchError(f"{engine} has no {wanted} cache; use fp8")
    return names.get(wanted, "")


def refuse_conversion(engine: str, dtype: str) -> NoLaunchError:
    """Return the error for weights of a format that an engine does not make."""
    return NoLaunchError(f"{engine} does not convert weights to {dtype} at load; give files in that format")


def format_flags(
    engine: str, dtype: str, quantizations: Mapping[str, str], cache: str, caches: Mapping[str, str] = CACHES
) -> Iterator[Flag]:
    """Yield the options for the formats of weights and cache. Raises NoLaunchError.

    `dtype`: what the plan counts in place of the file's format, or empty. `quantizations`: the engine's names of
    formats that it converts to.
    """
    if dtype in FLOATS:
        yield Flag(f"--dtype {dtype}", "the plan counts weights of this format")
    elif dtype in quantizations:
        yield Flag(f"--quantization {quantizations[dtype]}", f"the plan counts {dtype} weights, converted at load")
    elif dtype:
        raise refuse_conversion(engine, dtype)
    if name := cache_name(engine, cache, caches):
        yield Flag(f"--kv-cache-dtype {name}", "the plan counts a cache of this format")


class Launch(Struct, frozen=True):
    """Launch line of one engine. `command`: lines to copy, for a shell or (`language`) Python."""

    engine: str
    command: Annotated[str, Doc("Lines to copy.")]
    flags: tuple[Flag, ...]
    notes: tuple[str, ...] = ()
    language: Annotated[str, Doc(values=("sh", "python"))] = "sh"


def _is_in_ram(gpu: Device, snapshot: Snapshot) -> bool:
    return any(pool.kind is PoolKind.SYSTEM_RAM for pool in pools_of(gpu, snapshot))


def is_machine(gpu: Device, snapshot: Snapshot) -> bool:
    """Return True for one of several machines with one memory each, which a user named: 2x gb10."""
    return gpu.architecture is Architecture.UNIFIED and not _is_in_ram(gpu, snapshot)


class Placement(Struct, frozen=True):
    """A plan that fits, and where. `gpus` is empty for the CPU. `parallel`: tensor or pipeline, empty for one GPU.

    `parts`: bytes on the fullest GPU, `room`: bytes that it can allocate beside the reserve and the engine's
    processes. `alias`, `projector`: see Checkpoint.
    """

    model: str
    shape: Transformer
    use: Use
    context: int
    gpus: tuple[Device, ...]
    parallel: str
    parts: Mapping[str, int]
    whole_cache: int
    room: int
    snapshot: Snapshot
    alias: str = ""
    projector: str = ""

    @property
    def batch(self) -> int:
        return self.use.batch_size

    @property
    def count(self) -> int:
        return len(self.gpus)

    @property
    def gpu(self) -> Device:
        return self.gpus[0]

    @property
    def vendors(self) -> set[str]:
        return {gpu.vendor.upper() for gpu in self.gpus}

    @property
    def is_unified(self) -> bool:
        """True if the GPU's memory is System RAM, of which CUDA reports page cache as used."""
        return is_machine(self.gpu, self.snapshot) or _is_in_ram(self.gpu, self.snapshot)

    @property
    def machines(self) -> int:
        return max(1, self.count) if all(is_machine(gpu, self.snapshot) for gpu in self.gpus) else 1

    @property
    def need(self) -> int:
        return sum(self.parts.values())

    @property
    def cache_dtype(self) -> str:
        return canonical_name(self.use.kv_dtype)

    def part(self, name: str) -> int:
        return self.parts.get(name, 0)

    def cache_of(self, shape: Transformer, tokens: int) -> int:
        """Return the bytes on the fullest GPU of a cache with `tokens` for each sequence."""
        number = bits_per_cached_number(self.use.kv_dtype) / 8 if self.use.kv_dtype else 2.0
        if self.parallel == "tensor":
            return compute_kv_cache(shape, tokens, self.batch, number, self.count)
        whole = compute_kv_cache(shape, tokens, self.batch, number)
        return math.ceil(whole * self.part("kv_cache") / self.whole_cache)

    def check_room(self, cache: int, engine: str) -> None:
        """Raise NoLaunchError if the engine's own rounding of the cache needs more than there is."""
        missing = self.need - self.part("kv_cache") + cache - self.room
        if missing > 0:
            raise NoLaunchError(
                f"{engine} needs {size(cache)} for the cache of this plan, which is {size(missing)} too much; "
                "ask for a smaller context"
            )


def place(model: str, checkpoint: Checkpoint, use: Use, snapshot: Snapshot, fit: Fit) -> Placement:
    """Return where a plan that fits runs. Raises NoLaunchError if there is no line for it."""
    shape = checkpoint.transformer
    if shape is None:
        raise NoLaunchError("the model's shape is not known")
    if checkpoint.unknown:
        raise NoLaunchError("the size of its cache is not known")
    if shape.shared_kv_layers >= shape.n_layers:
        raise NoLaunchError("it is an encoder; there are lines for models that generate text")
    if describe_long_context(checkpoint.context, use.context):
        raise NoLaunchError(f"the model's own maximum is {checkpoint.context} tokens; ask for a smaller context")
    names = fit.split.devices if fit.split else () if fit.best in (None, CPU) else (fit.best,)
    gpus = tuple(gpu for name in names for gpu in snapshot.devices if gpu.id == name)
    parts = compute_checkpoint_need(checkpoint, use, max(1, len(gpus))).parts
    whole = compute_checkpoint_need(checkpoint, use).parts.get("kv_cache", 0)
    rooms = [
        verdict.headroom_after_reclaim_bytes - verdict.host_bytes
        for verdict in fit.verdicts
        if verdict.device in (names or (CPU,)) and isinstance(verdict.headroom_after_reclaim_bytes, int)
    ]
    room = min(rooms, default=0) - use.reserve_bytes
    how = choose_parallel_kind(shape, use.parallel, len(gpus)) if len(gpus) > 1 else ""
    context = choose_context(checkpoint, use)
    return Placement(
        model, shape, use, context, gpus, how, parts, max(1, whole), room, snapshot, checkpoint.alias,
        checkpoint.projector,
    )  # fmt: skip


def round_fraction(part: float, whole: float, digits: int = 3) -> float:
    """Return `part` / `whole`, rounded up so that the part fits into the fraction, at most 1."""
    scale: int = 10**digits
    return min(scale, max(1, math.ceil(part / whole * scale))) / scale if whole > part else 1.0


def select_gpus(plan: Placement) -> tuple[list[Flag], list[str]]:
    """Return the variables that make an engine use the plan's GPUs, and notes if that is not known."""
    if not plan.gpus or len(plan.snapshot.devices) == 1 or is_machine(plan.gpu, plan.snapshot):
        return [], _mig_notes(plan)
    chosen = " and ".join(gpu.id for gpu in plan.gpus) if plan.count < 3 else f"{plan.count} GPUs"
    if _mig_notes(plan):
        return [], _mig_notes(plan)
    order = _cuda_order(plan.snapshot)
    if plan.vendors != {"NVIDIA"} or not {gpu.id for gpu in plan.gpus} <= set(order):
        return [], [f"Select {', '.join(gpu.id for gpu in plan.gpus)} with the variable of the GPU's API."]
    indexes = ",".join(str(order.index(gpu.id)) for gpu in plan.gpus)
    return [
        Flag("CUDA_DEVICE_ORDER=PCI_BUS_ID", "numbers GPUs as nvidia-smi does; CUDA's own order is by speed"),
        Flag(f"CUDA_VISIBLE_DEVICES={indexes}", f"the plan is for {chosen}"),
    ], []


def _mig_notes(plan: Placement) -> list[str]:
    instances = {share.id for share in plan.snapshot.shares if share.kind.value == "mig_instance"}
    if any(instances & set(gpu.allocates_from) for gpu in plan.gpus):
        return ["Set CUDA_VISIBLE_DEVICES to the UUID of the largest MIG instance (nvidia-smi -L)."]
    return []


def _cuda_order(snapshot: Snapshot) -> list[str]:
    known = [(gpu.pci, gpu.id) for gpu in snapshot.devices if gpu.vendor.upper() == "NVIDIA"]
    return [] if any(isinstance(pci, Absent) for pci, _ in known) else [name for _, name in sorted(known)]


def shell_line(words: Sequence[str], flags: Sequence[Flag], variables: Sequence[Flag] = ()) -> str:
    """Return a command that runs in a shell, one option per line."""
    first = " ".join([*(one.flag for one in variables), *map(shlex.quote, words)])
    return " \\\n  ".join([first, *(one.flag for one in flags)])


def converted_dtype(checkpoint: Checkpoint, use: Use) -> str:
    """Return the format that the plan counts in place of the file's, empty if it is the file's own."""
    if not use.dtype:
        return ""
    form = parse_format(use.dtype)
    same = abs(form.bytes - checkpoint.dtype_bytes) < 1e-6 and form.scope == checkpoint.scope
    return "" if same else canonical_name(use.dtype)


# Address of the first of several machines, to be replaced.
HEAD = "HEAD_ADDRESS"


def each_machine(plan: Placement, further: str = "") -> list[str]:
    """Return the note for a line that runs on each of several machines. `further`: an option on the others."""
    if plan.machines == 1:
        return []
    last = plan.machines - 1
    ranks = "--node-rank 1" if last == 1 else f"--node-rank 1 to {last}"
    also = f" and {further}" if further else ""
    return [f"Run it on each of {plan.machines} machines, on the others with {ranks}{also}; {HEAD} is the first."]


def shared_flags(plan: Placement, tensor: str, pipeline: str) -> Iterator[Flag]:
    """Yield the option for several GPUs."""
    if plan.parallel == "tensor":
        yield Flag(f"{tensor} {plan.count}", "each GPU holds its part of every matrix")
    elif plan.parallel == "pipeline":
        yield Flag(f"{pipeline} {plan.count}", "each GPU holds some of the layers")
