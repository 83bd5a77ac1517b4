"""The largest models of models.json that fit a machine, by format: `memwatch fit --what`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.snapshot import Snapshot
from memwatch.planning import read_table
from memwatch.planning.answer import DecodeRate, check_model, estimate_decode_rate
from memwatch.planning.checkpoint import Checkpoint, describe_config
from memwatch.planning.fit import CPU
from memwatch.planning.huggingface import parse_config
from memwatch.planning.need import compute_need_here
from memwatch.planning.request import DEFAULT_CONTEXT, Use, describe_long_context

# Formats of weights: as published, and two of llama.cpp.
FORMATS = ("", "q8_0", "q4_k")
MAX_OF_FORMAT = 5


class Runnable(Struct, frozen=True):
    """A model of the table that fits. `dtype` empty: its published format. `devices`: the GPUs, or the CPU."""

    model: str
    dtype: str
    parameters: int
    bytes: int
    devices: tuple[str, ...]
    rate: DecodeRate | None = None
    is_compared: bool = False
    """True if its parameters were compared with those in its published files."""
    max_context: int = 0
    """Its own longest context in tokens, 0 if the table does not have it."""

    def is_sure_of(self, context: int) -> bool:
        """Return True if it is known that the model takes that many tokens."""
        return context <= max(self.max_context, DEFAULT_CONTEXT)


def read_models() -> dict[str, dict[str, Any]]:
    """Return the rows by name: keys of a config.json, `compared` if its parameters are those in its files, and
    `context`, its longest context in tokens, where max_position_embeddings does not have it."""
    rows: dict[str, dict[str, Any]] = read_table("models", dict[str, Any])
    return rows


@cache
def list_models() -> tuple[Checkpoint, ...]:
    """Return the models of the table, the largest first.

    The overview searches them each time that the room changes by a GiB: describing 134 takes 16 ms, keeping them
    91 KiB.
    """
    found = []
    for name, row in read_models().items():
        one = describe_config(parse_config(row, name))
        found.append(replace(one, name=name, context=row.get("context") or one.context))
    return tuple(sorted(found, key=lambda one: -one.transformer.parameters if one.transformer else 0))


def list_runnable(snapshot: Snapshot, use: Use, min_rate: float = 0.0) -> tuple[Runnable, ...]:
    """Return the largest models that fit on GPUs, or on the CPU of a machine without one: five of each format.
    Models whose own longest context is less than that of the use are left out.

    `min_rate`: tokens a second that the estimate's low end must have; a model without an estimate has none.
    """
    alone = replace(snapshot, processes=())  # they only explain a refusal
    models = [one for one in list_models() if not describe_long_context(one.context, use.context)]
    found: list[Runnable] = []
    for dtype in FORMATS:
        fitting = (_run(model, replace(use, dtype=dtype), alone) for model in models if _is_wider(model, dtype))
        fast = (one for one in fitting if one and (not min_rate or (one.rate and one.rate.low >= min_rate)))
        found += [one for one, _ in zip(fast, range(MAX_OF_FORMAT), strict=False)]
    return tuple(found)


def list_largest(snapshot: Snapshot) -> Iterator[Runnable]:
    """Yield the models that fit with 4-bit weights, the largest first, of those with a compared shape."""
    alone, use = replace(snapshot, processes=()), Use(dtype=FORMATS[-1])
    models = (one for one in list_models() if read_models()[one.name].get("compared") and _is_wider(one, use.dtype))
    yield from (one for model in models if (one := _run(model, use, alone)))


def list_shorter(use: Use) -> tuple[str, ...]:
    """Return the names of models whose own longest context is less than that of the use."""
    return tuple(one.name for one in list_models() if describe_long_context(one.context, use.context))


def _is_wider(model: Checkpoint, dtype: str) -> bool:
    """Return False for a format that a published quantization already has about."""
    return not dtype or model.dtype_bytes >= 2


def _run(model: Checkpoint, use: Use, snapshot: Snapshot) -> Runnable | None:
    need, fit = compute_need_here(model, use, snapshot), check_model(model, use, snapshot)
    if need.note or not fit.is_yes or model.transformer is None or (snapshot.devices and fit.best == CPU):
        return None
    devices = fit.split.devices if fit.split else (str(fit.best),)
    name = next((one.name for one in snapshot.devices if one.id == fit.best), CPU)
    rate = None if fit.split else estimate_decode_rate(model, use, name)
    is_compared = bool(read_models()[model.name].get("compared"))
    return Runnable(
        model.name, use.dtype, model.transformer.parameters, need.bytes, devices, rate, is_compared, model.context
    )
