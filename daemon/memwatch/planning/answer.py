"""Answer to "does it fit": the need, the verdicts, several GPUs, the cheapest change, and the greatest that fits.

The command, the API and the page call it, so they agree.

The rate of decoding one sequence is an estimate from the bytes that each token reads and the bandwidth of the
memory: a token cannot take less than one read of the weights that it uses and of its cache. Programs reach part of
the bandwidth. llama.cpp on an M2 Ultra, 800 GB/s, Llama 2 7B: 69 % in F16 and 45 % in Q4_0 (ggml-org/llama.cpp
discussion 4167).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.leased import find_room, held_by_pool, with_leases_used
from memwatch.core.doc import Doc
from memwatch.core.leases import Lease, without_lease
from memwatch.core.listing import some_of
from memwatch.core.model import Absent, Bytes, find_system_ram, sum_figures
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import size
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.engines import Launches, build_launches, select_engines
from memwatch.planning.fit import CPU, Demand, Fit, FitVerdict, compute_fit, doubt
from memwatch.planning.inference import MAX_TOKENS, choose_cache_bytes, compute_kv_cache, compute_weights
from memwatch.planning.named_machines import find_bandwidth
from memwatch.planning.need import (
    MemoryNeed,
    Reduction,
    cheapest_reduction,
    choose_parallel_kind,
    compute_need_here,
    parse_need,
)
from memwatch.planning.number_formats import NumberFormat, bits_per_cached_number, bits_per_weight, parse_format
from memwatch.planning.request import FitRequest, Use, choose_context, describe_long_context
from memwatch.planning.transformer import Transformer

LOWEST, HIGHEST = 0.4, 0.8


class DecodeRate(Struct, frozen=True):
    """Tokens a second of one sequence at its full context: a range, estimated."""

    low: Annotated[float, Doc("Tokens a second, at the least.", (20.3,))]
    high: Annotated[float, Doc("Tokens a second, at the most.", (40.5,))]
    read_bytes: Annotated[int, Doc("Bytes that one token reads.")]
    bandwidth: Annotated[int, Doc("Of the GPU's memory, bytes a second, by its specification.")]
    quality: Annotated[str, Doc(values=("estimated",))] = "estimated"


def estimate_decode_rate(checkpoint: Checkpoint, use: Use, device: str) -> DecodeRate | None:
    """Return the rate on a GPU by its name. None for other plans than one GPU's inference, an unknown shape, and a
    GPU whose bandwidth is not known."""
    bandwidth = find_bandwidth(device)
    elsewhere = use.training or use.offload_kv or use.cpu_layers or use.gpus > 1
    if bandwidth is None or checkpoint.transformer is None or elsewhere:
        return None
    read = count_read_bytes(checkpoint, checkpoint.transformer, use)
    return DecodeRate(LOWEST * bandwidth / read, HIGHEST * bandwidth / read, read, bandwidth)


def count_read_bytes(checkpoint: Checkpoint, shape: Transformer, use: Use) -> int:
    """Return the bytes that a token reads: its cache, and weights without embeddings and the other experts."""
    form = parse_format(use.dtype) if use.dtype else NumberFormat(checkpoint.dtype_bytes * 8, checkpoint.scope)
    counted = compute_weights(shape, form.bytes, form.scope)
    known = None if use.dtype else checkpoint.weights_bytes
    experts = shape.count_parameters("experts")
    used = min(1.0, (shape.active_experts or 2) / shape.n_experts) if shape.n_experts > 1 else 1.0
    table = 0 if shape.tied_embeddings else shape.vocab_size * shape.hidden_size
    bytes_of_table = form.bytes if form.scope == "file" else max(form.bytes, 2.0)
    unread = experts * (1 - used) * form.bytes + table * bytes_of_table
    number = bits_per_cached_number(use.kv_dtype) / 8 if use.kv_dtype else choose_cache_bytes(form.bytes)
    cache = compute_kv_cache(shape, choose_context(checkpoint, use), 1, number)
    return int((known or counted) * max(0.0, 1 - unread / counted)) + cache


def figure(rate: float) -> str:
    """Return a rate with three figures, from 1,000 on as a whole number."""
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.3g}"


def describe_rate(rate: DecodeRate) -> str:
    """Return the rate as a sentence."""
    width = rate.bandwidth / 1e9
    return (
        f"Decoding one sequence: {figure(rate.low)} to {figure(rate.high)} tokens a second (estimated: "
        f"{size(rate.read_bytes)} are read for each, at 40 to 80 % of {width:g} GB/s)."
    )


MAX_BATCH = 1 << 16
# Formats from the widest to the narrowest.
LADDER = ("bfloat16", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k")
NAMED_LEASES = 2
# In the cache of huggingface_hub, the folder of a repository begins with this.
REPOSITORY = "models--"
MEANS_NOTHING = frozenset({"", "model", "models", "config.json", "model.safetensors", "main"})
NOT_KNOWN = "it is not known if the plan fits"


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
        f"a context of {found.context:,} tokens" if found.context else "",
        f"a batch of {found.batch:,}" if found.batch else "",
        f"{found.dtype} weights" if found.dtype else "",
    )
    words = [one for one in known if one]
    return f"Greatest that fits, other options as asked: {', or '.join(words)}." if words else ""


class EngineReport(Struct, frozen=True):
    """Memory of a model server that runs this model here, beside the plan for what it reserves."""

    engine: Annotated[str, Doc(examples=("vllm-8000",))]
    title: Annotated[str, Doc(examples=("vLLM",))]
    planned_bytes: Annotated[int, Doc("Bytes of the plan, with the server's cache if it is known.")]
    reported_bytes: Annotated[int, Doc("Memory of all its processes, or what they hold of GPUs (`on_gpus`).")]
    kv_cache_bytes: Annotated[Bytes, Doc("The cache that the server reserves.")] = Absent.NOT_AVAILABLE
    on_gpus: Annotated[bool, Doc("True if the plan is of GPUs with memory of their own, and so is the report.")] = (
        False
    )


def report_sentence(found: EngineReport) -> str:
    cache = found.kv_cache_bytes
    how = f" with its cache of {size(cache)}" if isinstance(cache, int) else ""
    return (
        f"{found.title} ({found.engine}) runs this model: planned {size(found.planned_bytes)}{how}, reports "
        f"{size(found.reported_bytes)}{' of GPU memory' if found.on_gpus else ''}."
    )


class FitAnswer(Struct, frozen=True):
    """Need, verdicts, the cheapest change if it fits nowhere, the greatest that fits, launch lines, servers of
    the model, the rate on the one GPU that a yes names, and why engines refuse a plan for which there is room."""

    need: MemoryNeed
    fit: Fit
    change: Reduction | None = None
    greatest: Greatest | None = None
    launches: Launches = Launches()
    engines: tuple[EngineReport, ...] = ()
    decode_rate: DecodeRate | None = None
    caution: str = ""

    @property
    def fits(self) -> bool:
        """True for a certain yes. Without one, `fit.unknown` is the reason if it is no certain no."""
        return self.fit.is_yes


def answer_request(request: FitRequest, snapshot: Snapshot, launch: str = "") -> FitAnswer:
    """Answer beside the leases of others. `launch`: engines if the request has none. Raises InvalidInputError."""

    def answer(seen: Snapshot) -> FitAnswer:
        if request.is_size:
            need = parse_need(request.bytes, "bytes")
            return answer_size(need, str(request.bytes), seen, request.use.reserve_bytes)
        engines = select_engines(request.launch or launch)
        return answer_model(request.checkpoint, request.use, seen, engines, request.alias or request.model)

    return answer_beside_leases(snapshot, request.lease, answer)


def answer_size(need: int, subject: str, snapshot: Snapshot, reserve: int = 0) -> FitAnswer:
    return FitAnswer(MemoryNeed(subject, need, {}), compute_fit(need, snapshot, reserve))


def answer_model(
    checkpoint: Checkpoint, use: Use, snapshot: Snapshot, engines: Sequence[str] = (), name: str = ""
) -> FitAnswer:
    """Check a model, with the launch lines of `engines`. `name`: as it was asked for, by which servers are found.

    Raises InvalidInputError.
    """
    found = _answer_model(checkpoint, use, snapshot, engines)
    reports = () if use.training else tuple(_find_reports(found.need, name, snapshot))
    best = next((one.name for one in found.fit.verdicts if one.device == found.fit.best), "")
    rate = estimate_decode_rate(checkpoint, use, best)
    return replace(
        found, engines=reports, decode_rate=rate, caution=describe_long_context(checkpoint.context, use.context)
    )


def _answer_model(checkpoint: Checkpoint, use: Use, snapshot: Snapshot, engines: Sequence[str]) -> FitAnswer:

    def check(changed: Use) -> Fit:
        return check_model(checkpoint, changed, snapshot)

    need = compute_need_here(checkpoint, use, snapshot)
    found = replace(check(use), bytes=need.bytes)

    def has_room(changed: Use) -> bool:
        with suppress(InvalidInputError):
            return check(changed).is_yes
        return False

    fits = has_room(use)
    change = None if fits else cheapest_reduction(checkpoint, use, has_room)
    if change:
        on_cpu = snapshot.devices and check(change.use).best == CPU
        words = f"{change.words}, on the CPU" if on_cpu else change.words
        change = replace(change, words=words, need=compute_need_here(checkpoint, change.use, snapshot))
    if need.note:
        refused = Launches(refused=dict.fromkeys(engines, NOT_KNOWN))
        return FitAnswer(need, doubt(found, need.note), None, None, refused)
    launches = build_launches(engines, checkpoint, use, snapshot, check)
    return FitAnswer(need, found, change, find_greatest(checkpoint, use, _same_place(check, found)), launches)


def check_model(checkpoint: Checkpoint, use: Use, snapshot: Snapshot) -> Fit:
    """Return the verdicts for a model, with what its engine takes on this machine. Raises InvalidInputError."""
    demand = compute_need_here(checkpoint, use, snapshot).demand
    splits = list_splits(checkpoint, use, snapshot)
    return compute_fit(demand, snapshot, use.reserve_bytes, splits, use.gpus > 1)


def _find_reports(need: MemoryNeed, name: str, snapshot: Snapshot) -> Iterator[EngineReport]:
    wanted = names_of(name)
    for engine in snapshot.engines:
        held, cache = engine.held_bytes.values(), engine.kv_cache_bytes
        # Resident memory also has pages of a mapped file, which no plan counts.
        on_gpus = need.host is None and not need.demand.ram_bytes and bool(held)
        used = sum_figures(held) if on_gpus else engine.footprint_bytes
        if need.note or not isinstance(used, int) or engine.sleeping is True:
            continue
        if isinstance(engine.model, Absent) or wanted.isdisjoint(names_of(engine.model)):
            continue
        planned = need.bytes + need.demand.ram_bytes
        if isinstance(cache, int):
            planned += cache - need.parts.get("kv_cache", 0)
        yield EngineReport(engine.id, engine.title, planned, used, cache, on_gpus)


def names_of(model: str) -> frozenset[str]:
    """Return the word by which servers call a model: of a repository, a file or a tag of Ollama."""
    words = [word for word in model.lower().removeprefix("ollama:").partition("@")[0].split("/") if word]
    cached = next((word.removeprefix(REPOSITORY) for word in words if word.startswith(REPOSITORY)), "")
    last = cached.rpartition("--")[2] or (words[-1] if words else "")
    return frozenset({last.removesuffix(".gguf").removesuffix(":latest")} - MEANS_NOTHING)


def _same_place(check: Callable[[Use], Fit], found: Fit) -> Callable[[Use], bool]:
    """Return a test for room on a GPU, or on the CPU if that was the answer."""

    def has_room(changed: Use) -> bool:
        with suppress(InvalidInputError):
            fit = check(changed)
            return fit.split is not None or (fit.best is not None and (fit.best != CPU or found.best == CPU))
        return False

    return has_room


def list_splits(checkpoint: Checkpoint, use: Use, snapshot: Snapshot) -> Iterator[tuple[int, str, Demand]]:
    """Yield the demands on each of two and more GPUs, the smallest number first."""
    shape, devices = checkpoint.transformer, len(snapshot.devices)
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
        yield count, how, compute_need_here(checkpoint, use, snapshot, count).demand


def find_greatest(checkpoint: Checkpoint, use: Use, has_room: Callable[[Use], bool]) -> Greatest:
    """Search the greatest context up to the model's own, the greatest batch, and the widest format that fit."""
    if checkpoint.pipeline:
        return Greatest(batch=_greatest(MAX_BATCH, lambda count: has_room(replace(use, batch_size=count))))
    most = checkpoint.context or MAX_TOKENS
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


def answer_beside_leases(snapshot: Snapshot, own: str, answer: Callable[[Snapshot], FitAnswer]) -> FitAnswer:
    """Answer on a machine on which leased bytes are used. `own`: the lease of the asker, which does not count."""
    leases = without_lease(snapshot.leases, own)
    if not leases:
        return answer(snapshot)
    found = answer(with_leases_used(snapshot, leases))
    verdicts = tuple(_name_leases(one, snapshot, leases) for one in found.fit.verdicts)
    return replace(found, fit=replace(found.fit, verdicts=verdicts))


def _name_leases(verdict: FitVerdict, snapshot: Snapshot, leases: Sequence[Lease]) -> FitVerdict:
    """Add the leases that lower the headroom of a verdict to its reason."""
    ram = find_system_ram(snapshot.pools)
    room = find_room(snapshot, ram.id if verdict.device == CPU and ram else verdict.device)
    left, alone = verdict.headroom_after_reclaim_bytes, room.headroom_after_reclaim_bytes if room else None
    if not isinstance(alone, int) or not isinstance(left, int) or left >= alone:
        return verdict
    leased = alone - left
    names = [f"{one.name} ({one.pid})" for one in leases if _lowers(one, verdict, snapshot)]
    reason = f"{verdict.reason}; {size(leased)} is leased to {some_of(names, NAMED_LEASES)}"
    return replace(verdict, reason=reason, leased_bytes=leased)


def _lowers(lease: Lease, verdict: FitVerdict, snapshot: Snapshot) -> bool:
    """Check that a lease holds bytes of a pool that the device of a verdict allocates from."""
    device = next((one for one in snapshot.devices if one.id == verdict.device), None)
    ram = find_system_ram(snapshot.pools)
    places = device.allocates_from if device else (ram.id,) if ram else ()
    own = held_by_pool([replace(lease, held=dict.fromkeys(places, 0))], snapshot.shares)
    return any(held and pool in own for pool, held in held_by_pool([lease], snapshot.shares).items())
