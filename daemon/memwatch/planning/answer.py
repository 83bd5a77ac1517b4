"""Answer to "does it fit": the need, the verdicts, several GPUs, the cheapest change, and the greatest that fits.

The command, the API and the page call it, so they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.doc import Doc
from memwatch.core.snapshot import Snapshot
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.demand import Demand
from memwatch.planning.fit import CPU, Fit, compute_fit, doubt, has_context
from memwatch.planning.inference import MAX_TOKENS
from memwatch.planning.launch import Launches, build_launches
from memwatch.planning.number_formats import bits_per_weight
from memwatch.planning.parallel import choose_parallel_kind
from memwatch.planning.request import (
    MemoryNeed,
    Reduction,
    Use,
    cheapest_reduction,
    choose_context,
    compute_checkpoint_need,
)
from memwatch.planning.sizes import InvalidInputError

MAX_BATCH = 1 << 16
# Formats from the widest to the narrowest.
LADDER = ("bfloat16", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k")


class Greatest(Struct, frozen=True):
    """The greatest context, batch and format of the weights that fit, each with the other options as asked."""

    context: Annotated[int | None, Doc("Null if none fits, and for a diffusion model.")] = None
    batch: Annotated[int | None, Doc("Null if none fits.")] = None
    dtype: Annotated[
        str | None,
        Doc(
            "Widest format of the weights, if their own does not fit; null if it does, if none does, for training, "
            "and for a diffusion model."
        ),
    ] = None


def greatest_sentence(found: Greatest) -> str:
    """Return the greatest that fits as a sentence, empty if nothing does."""
    known = (
        f"a context of {found.context} tokens" if found.context else "",
        f"a batch of {found.batch}" if found.batch else "",
        f"{found.dtype} weights" if found.dtype else "",
    )
    words = [one for one in known if one]
    return f"Greatest that fits, other options as asked: {', or '.join(words)}." if words else ""


class FitAnswer(Struct, frozen=True):
    """Need, verdicts, the cheapest change if it fits nowhere, the greatest that fits, and launch lines."""

    need: MemoryNeed
    fit: Fit
    change: Annotated[
        Reduction | None,
        Doc(
            "Cheapest change that makes the model fit, if it fits nowhere; null if it fits, or no change is known."
        ),
    ] = None
    greatest: Annotated[
        Greatest | None, Doc("The greatest that fits; null for a size, and for a model of unknown shape.")
    ] = None
    launches: Launches = Launches()

    @property
    def fits(self) -> bool:
        """True for a certain yes. Without one, `fit.unknown` is the reason if it is no certain no."""
        return self.fit.is_yes


def answer_size(need: int, subject: str, snapshot: Snapshot, reserve: int = 0) -> FitAnswer:
    return FitAnswer(MemoryNeed(subject, need, {}), compute_fit(need, snapshot, reserve))


def answer_model(checkpoint: Checkpoint, use: Use, snapshot: Snapshot, engines: Sequence[str] = ()) -> FitAnswer:
    """Check a model, with the launch lines of `engines`. Raises InvalidInputError."""

    def check(changed: Use) -> Fit:
        demand = compute_checkpoint_need(checkpoint, changed).demand
        splits = list_splits(checkpoint, changed, len(snapshot.devices))
        return compute_fit(demand, snapshot, changed.reserve_bytes, splits, changed.gpus > 1)

    need = without_context(compute_checkpoint_need(checkpoint, use), snapshot)
    found = replace(check(use), bytes=need.bytes)

    def has_room(changed: Use) -> bool:
        with suppress(InvalidInputError):
            return check(changed).is_yes
        return False

    fits = has_room(use)
    change = None if fits else cheapest_reduction(checkpoint, use, has_room)
    launches = build_launches(engines, checkpoint, use, snapshot, check)
    if need.note:
        return FitAnswer(need, doubt(found, need.note), None, None, launches)
    return FitAnswer(need, found, change, find_greatest(checkpoint, use, _same_place(check, found)), launches)


def _same_place(check: Callable[[Use], Fit], found: Fit) -> Callable[[Use], bool]:
    """Return a test for room on a GPU, or on the CPU if that was the answer."""

    def has_room(changed: Use) -> bool:
        with suppress(InvalidInputError):
            fit = check(changed)
            return fit.split is not None or (fit.best is not None and (fit.best != CPU or found.best == CPU))
        return False

    return has_room


def without_context(need: MemoryNeed, snapshot: Snapshot) -> MemoryNeed:
    """Leave out the cost of a GPU context on machines where no GPU has one."""
    if any(has_context(device) for device in snapshot.devices) or "runtime" not in need.parts:
        return need
    parts = {name: part for name, part in need.parts.items() if name != "runtime"}
    return replace(need, bytes=sum(parts.values()), parts=parts, runtime_source="")


def list_splits(checkpoint: Checkpoint, use: Use, devices: int) -> Iterator[tuple[int, str, Demand]]:
    """Yield the demands on each of two and more GPUs, the smallest number first."""
    shape = checkpoint.transformer
    if checkpoint.pipeline:
        return
    for count in [use.gpus] if use.gpus else range(2, devices + 1):
        if count < 2 or count > devices:
            continue
        if use.training:
            how = f"data parallel, ZeRO {use.zero}" + (" (FSDP)" if use.zero == 3 else "")
        else:
            how = f"{choose_parallel_kind(shape, use.parallel, count) if shape else 'tensor'} parallel"
        if shape and use.parallel == "tensor" and shape.n_heads % count:
            continue
        yield count, how, compute_checkpoint_need(checkpoint, use, count).demand


def find_greatest(checkpoint: Checkpoint, use: Use, has_room: Callable[[Use], bool]) -> Greatest:
    """Search the greatest context up to the model's own, the greatest batch, and the widest format that fit."""
    if checkpoint.pipeline:
        return Greatest(batch=_greatest(MAX_BATCH, lambda count: has_room(replace(use, batch_size=count))))
    most = max(checkpoint.context or MAX_TOKENS, choose_context(checkpoint, use))
    context = _greatest(most, lambda tokens: has_room(replace(use, context=tokens)))
    batch = _greatest(MAX_BATCH, lambda count: has_room(replace(use, batch_size=count)))
    widest = checkpoint.dtype_bytes * 8
    names = [name for name in LADDER if bits_per_weight(name) <= widest] if not use.training else []
    if has_room(replace(use, dtype="")):
        names = []  # the model's own format fits
    dtype = next((name for name in names if has_room(replace(use, dtype=name))), None)
    return Greatest(context, batch, dtype)


def _greatest(most: int, fits: Callable[[int], bool]) -> int | None:
    """Return the greatest number from 1 to `most` that fits. What fits also fits with a smaller number."""
    if not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
