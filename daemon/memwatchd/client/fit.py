"""`memwatch fit`: memory need of a model or size, devices it fits on, and the cheapest change to make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.number_formats import bits_per_cached_number, bits_per_weight
from memwatch.planning.request import PARTS, MemoryNeed, Reduction, Use, cheapest_reduction, compute_need, is_size
from memwatch.planning.sizes import InvalidInputError
from memwatch.planning.training import TrainingPlan
from memwatch.render import words as wording
from memwatchd.client.address import Address
from memwatchd.client.context import EXIT_OK, Number, build_context, check_shape, common
from memwatchd.client.errors import EXIT_FAILURE
from memwatchd.client.figures import Json, certain_headroom, figure, size
from memwatchd.client.tables import MARKS, columns

# Options that need --train.
TRAINING = ("optimizer", "lora", "checkpointing", "offload_optimizer", "swap_blocks")


@click.command(short_help="Check if a model or a size fits, and where.")
@click.argument("subject", metavar="MODEL_OR_BYTES")
@click.option("--context", type=Number(1, 1 << 30, 8192), help="Context length in tokens.")
@click.option("--batch", type=Number(1, 1 << 20, 1), default=1, help="Batch size.  [default: 1]")
@click.option("--dtype", default="", help="Weight dtype: bfloat16, int8, nf4, q4_k, …")
@click.option("--kv-dtype", default="", help="KV cache dtype.")
@click.option("--train", is_flag=True, help="Training instead of inference.")
@click.option("--optimizer", default="adamw", help="With --train: adamw, adamw_8bit, lion, adafactor, sgd, …")
@click.option("--lora", type=Number(0, 65536, 16), default=0, help="With --train: LoRA adapters of this rank only.")
@click.option("--checkpointing", is_flag=True, help="With --train: gradient (activation) checkpointing.")
@click.option("--offload-optimizer", is_flag=True, help="With --train: optimizer states in System RAM.")
@click.option(
    "--swap-blocks", type=Number(0, 1 << 20, 10), default=0, help="With --train: layers offloaded to CPU."
)
@common
def fit(subject: str, url: Address | None, as_json: bool, **options: object) -> int:
    """Show how much memory MODEL_OR_BYTES needs, where it fits now, and the cheapest change to make it fit.

    MODEL_OR_BYTES is a size (20GiB), a folder with safetensors or GGUF files, one such file, or a config.json. Only
    headers are read, no tensors. Exits with 1 if it does not fit on any device.
    """
    use = parse_use(options)
    refuse_unused(subject, bool(options["train"]))
    try:
        need = compute_need(subject, use)
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None
    context = build_context(url, as_json)
    response = context.fit(need.bytes)
    found = response.json
    with check_shape(context.address):
        change = None if found["best"] else change_for(found, subject, use)
        code = EXIT_OK if found["best"] else EXIT_FAILURE
    extra = {"parts": dict(need.parts), "note": need.note, "change": _change_json(change)}
    answer = {"subject": need.subject, **found, **extra}
    return context.show(answer, lambda: fit_lines(need, found, change), response.is_simulated) or code


def refuse_unused(subject: str, is_trained: bool) -> None:
    """Raise UsageError for options that have no effect on the result."""
    ctx = click.get_current_context()
    chosen = [
        option
        for option in ctx.command.params
        if isinstance(option, click.Option)
        and option.expose_value
        and option.name not in ("url", "as_json")
        and ctx.get_parameter_source(str(option.name)) is not ParameterSource.DEFAULT
    ]
    flags = ", ".join(option.opts[0] for option in chosen)
    if flags and is_size(subject):
        raise click.UsageError(
            f"{subject} is a size, which {flags} cannot change; use memwatch fit {subject}, or name a model, "
            "for example memwatch fit ./Mistral-7B --context 8192"
        )
    flags = ", ".join(option.opts[0] for option in chosen if option.name in TRAINING)
    if flags and not is_trained:
        raise click.UsageError(f"{flags}: only for training; add --train")


def parse_use(options: dict[str, object]) -> Use:
    """Convert the options. Raise UsageError for an unknown number format or training plan."""
    values = {name: value for name, value in options.items() if value is not None}
    try:
        plan = _parse_plan(values) if values["train"] else None
        for name, check in (("dtype", bits_per_weight), ("kv_dtype", bits_per_cached_number)):
            if values[name]:
                check(values[name])
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None
    context, batch = values.get("context", 0), values["batch"]
    return Use(int(str(context)), int(str(batch)), str(values["dtype"]), str(values["kv_dtype"]), plan)


def _parse_plan(values: dict[str, object]) -> TrainingPlan:
    return TrainingPlan(
        optimizer=str(values["optimizer"]),
        lora_rank=int(str(values["lora"])),
        checkpointing=bool(values["checkpointing"]),
        offload_optimizer=bool(values["offload_optimizer"]),
        swapped_blocks=int(str(values["swap_blocks"])),
    )


def change_for(found: Json, subject: str, use: Use) -> Reduction | None:
    """Return the cheapest change after which the model would fit on some device."""
    if is_size(subject):
        return None
    rooms = [one["headroom_bytes"] for one in found["verdicts"] if one["headroom_bytes"] is not None]
    return cheapest_reduction(read_checkpoint(Path(subject)), use, max(rooms, default=0))


def _change_json(change: Reduction | None) -> Json | None:
    return None if change is None else {"words": change.words, "flags": change.flags, "bytes": change.need.bytes}


def fit_lines(need: MemoryNeed, found: Json, change: Reduction | None) -> Iterator[str]:
    whole = {"bytes": need.bytes}
    yield f"{need.subject} needs {size(whole, 'bytes')}"
    if need.parts:
        rows = [(f"  {PARTS[name]}", size({"part": part}, "part")) for name, part in need.parts.items() if part > 0]
        rows += [
            (f"  {PARTS[name]}", f"−{size({'part': -part}, 'part')}")
            for name, part in need.parts.items()
            if part < 0
        ]
        yield from columns(rows, right=frozenset({1}))
    if need.note:
        yield need.note
    yield ""
    for verdict in found["verdicts"]:
        mark = MARKS[verdict["fits"]]
        headroom = wording.headroom(certain_headroom(verdict), figure(verdict, "headroom_bytes"))
        room = f" ({headroom} available)" if verdict["headroom_bytes"] is not None else ""
        yield f"{mark} {verdict['device']}, {verdict['name']}{room}: {verdict['reason']}"
    yield ""
    yield _conclusion(found, change)


def _conclusion(found: Json, change: Reduction | None) -> str:
    if found["best"]:
        best = next(one for one in found["verdicts"] if one["device"] == found["best"])
        how = " after reclaim of page cache" if best.get("needs_reclaim") else ""  # older daemons do not send it
        return f"Fits{how}: use {found['best']}."
    if change:
        needed = size({"need": change.need.bytes}, "need")
        return f"Does not fit right now. It would fit with {change.words} ({change.flags}): {needed}."
    return "Does not fit right now."
