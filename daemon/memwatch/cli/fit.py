"""`memwatch fit` and `advise`: whether a model fits, where, and by which change; recommended settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click
from click.core import ParameterSource
from msgspec.structs import asdict, replace

from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    Command,
    Number,
    SnapshotAnswer,
    build_context,
    check_shape,
    common,
    print_errors,
)
from memwatch.cli.http import EXIT_FAILURE, EXIT_UNKNOWN, Address, CommandError, ask
from memwatch.cli.machines import Need, Placement, place, placement_lines, read_machines
from memwatch.cli.tables import MARKS, columns
from memwatch.cli.what_fits import answer_named, show_runnable
from memwatch.core.model import Absent, known_or
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import Wire
from memwatch.planning.answer import (
    NOT_KNOWN,
    FitAnswer,
    answer_model,
    answer_size,
    describe_rate,
    greatest_sentence,
    report_sentence,
)
from memwatch.planning.arguments import InvalidInputError, UnknownModelError
from memwatch.planning.diffusion import ImageUse
from memwatch.planning.engines import ALL, ENGINES, select_engines
from memwatch.planning.fit import CPU, FitVerdict, exceeds_totals
from memwatch.planning.model_names import read_subject
from memwatch.planning.need import PARTS, compute_checkpoint_need, is_size, parse_need
from memwatch.planning.parameters import build, walk_parameters
from memwatch.planning.request import (
    FOR_A_SIZE,
    IMAGES,
    MAX_NAME,
    Use,
    refuse_for_size,
    refuse_training_only,
    write_request,
)
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.fit_json import FIT, FitReply

if TYPE_CHECKING:
    from memwatch.library.advice import Advice
    from memwatch.planning.unit_files import UnitFile

# `runtime` is measured by --measure.
OPTIONS = [one for one in walk_parameters(Use) if one.name != "runtime"]


def check_engine(_ctx: click.Context, _option: click.Parameter, value: str) -> str:
    try:
        select_engines(value)
    except InvalidInputError as error:
        raise click.UsageError(f"{error}; for example memwatch fit ./Mistral-7B --launch vllm") from None
    return value


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def use_options(command: Command) -> Command:
    """Add an option for each parameter of a use."""
    for one in reversed(OPTIONS):
        text = one.describe(flag)
        if one.kind is bool:
            command = click.option(flag(one.name), is_flag=True, help=text)(command)
            continue
        kind: click.ParamType[Any] | None = None
        if one.bounds:
            kind = Number(*one.bounds, one.example)
        elif one.choices:
            kind = click.Choice(one.choices)
        default = f"  [default: {one.default}]" if one.default else ""
        command = click.option(flag(one.name), type=kind, help=f"{text}{default}")(command)
    return command


@click.command(short_help="Check if a model or a size fits, and where.")
@click.argument("subject", metavar="MODEL_OR_BYTES", default=None)
@use_options
@click.option(
    "--on",
    "machine",
    metavar="MACHINE",
    default="",
    help="Check an empty machine: gb10, '2x rtx4090 + 64GiB', or a saved snapshot (machine.json).",
)
@click.option("--what", is_flag=True, help="The largest models of a table that fit, in place of one model.")
@click.option("--min-speed", type=Number(1, 100_000, 20), help="With --what: least tokens a second, estimated.")
@click.option("--measure", is_flag=True, help="Measure the cost of a GPU context here, in a short-lived process.")
@click.option(
    "--launch",
    metavar="[ENGINE]",
    is_flag=False,
    flag_value=ALL,
    default="",
    callback=check_engine,
    help=f"Launch line of {', '.join([*ENGINES][:-1])} or {[*ENGINES][-1]}. No name: all.",
)
@click.option("--online", is_flag=True, help="Ask the hub for a name that is not here. Reads at most 1 MB.")
@click.option("--machines", is_flag=True, help="Also check the daemon's neighbours.")
@common
def fit(subject: str | None, url: Address | None, as_json: bool, **options: object) -> int:
    """Show how much memory MODEL_OR_BYTES needs, where it fits now, and the cheapest change to make it fit.

    --what lists models that fit now, and that would fit if nothing else ran. --on checks another machine.

    MODEL_OR_BYTES is a size (20GiB), a folder with safetensors or GGUF files or of diffusers, one such file, a
    config.json, or a name: ORG/NAME[:FORMAT][@REV] in the cache of Hugging Face (HF_HUB_CACHE, HF_HOME), with
    --online on the hub (HF_ENDPOINT, HF_TOKEN); ollama:NAME[:TAG] or NAME:TAG in the store of Ollama
    (OLLAMA_MODELS). Only headers are read, no tensors. Exits with 1 if it does not fit on any device, and with 3 if
    that is not known: the model or the memory cannot be read, a file or a figure is missing, or the model has a
    cache that this version does not know.

    With --machines, each neighbour is checked by the figures that it sent last, and the processes are named that
    would have to move, by their memory on the same device.
    """
    use, machine = parse_use(options), str(options["machine"])
    refuse_contradictions(subject is not None, options)
    subject = subject or ""
    try:
        refuse_unused(subject, bool(options["train"]))
        context = build_context(url, as_json)
        if options["what"]:
            return show_runnable(context, use, machine, float(str(options["min_speed"] or 0)))
        if options["measure"]:
            use = replace(use, runtime_bytes=measure_here(context.address))
        query, note, answer, origin = prepare(subject, use, str(options["launch"]), bool(options["online"]))
        response = answer_named(machine, answer) if machine else context.fit(query, answer)
    except UnknownModelError as error:
        raise CommandError(str(error), EXIT_UNKNOWN) from None
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None
    except CommandError as error:
        raise CommandError(str(error), EXIT_UNKNOWN) from None
    with check_shape(context.address):
        found = {**name_answer(response.json, subject, note), "on": machine or None}
        answered = read_answer(found)
        missing = describe_missing_gpus(use.gpus, [one.device for one in answered.verdicts])
        found["note"] = " ".join(one for one in (note, origin, missing) if one)
        fits = answered.is_yes
        if options["machines"]:
            placed = find_places(context.address, answered, use.reserve_bytes, fits, is_least=bool(note))
            found["machines"] = ANSWERS.encode_all(placed)
            fits = fits or any(one.fits for one in placed)
            found["unknown"] = answered.unknown if not fits else None
        code = EXIT_OK if fits else EXIT_UNKNOWN if answered.unknown else EXIT_FAILURE
    return context.show(found, lambda: fit_lines(read_answer(found)), response.is_simulated) or code


class NamedReply(FitReply, frozen=True):
    """An answer as the command prints it with --json: with what it has beside that of a daemon."""

    subject: str = ""
    note: str = ""
    on: str | None = None
    more_gpus: str | None = None
    machines: tuple[Placement, ...] | None = None


ANSWERS: Wire = Wire(base=FIT)


def read_answer(found: object) -> NamedReply:
    """Decode an answer. Raises TypeError, KeyError or ValueError for anything else."""
    answered: NamedReply = ANSWERS.decode(NamedReply, found)
    return answered


def name_answer(sent: Mapping[str, Any], subject: str, note: str) -> dict[str, Any]:
    """Return an answer with its subject. A yes of an earlier daemon to a need that is a lower bound is none."""
    found = {**sent, "subject": subject, "note": note}
    if note and (answered := read_answer(sent)).is_yes:
        verdicts = FIT.encode_all(map(_doubt, answered.verdicts))
        found |= {"best": None, "split": None, "unknown": note, "verdicts": verdicts, "launch": []}
        found |= {"greatest": None, "decode_rate": None}
    return found


def _doubt(verdict: FitVerdict) -> FitVerdict:
    if verdict.fits is not True:
        return verdict
    return replace(verdict, fits=Absent.NOT_AVAILABLE, reason=f"{verdict.reason}, if that is all it needs")


def describe_missing_gpus(wanted: int, devices: Sequence[str]) -> str:
    """Return the reason against a plan for more GPUs than there are. Each verdict is about one GPU alone."""
    there = sum(device != CPU for device in devices)
    return f"The plan is for {wanted} GPUs: this machine has {there or 'none'}." if wanted > max(there, 1) else ""


def find_places(
    address: Address, found: FitReply, reserve_bytes: int, fits_here: bool, is_least: bool
) -> list[Placement]:
    """Return where the need fits among the daemon's machine and its neighbours. `is_least`: a lower bound."""
    host = found.processes_bytes or 0  # older daemons do not count it
    need = Need(found.bytes - host, found.moved_bytes, reserve_bytes, is_least, host)
    return place(need, read_machines(ask(address, "/api/v1/machines").json), fits_here)


# Options that change what --what lists.
WITH_WHAT = frozenset(
    {
        *("what", "machine", "min_speed", "context", "batch", "kv_dtype", "gpus", "parallel", "reserve"),
        *("offload_kv", "cpu_layers", "url", "as_json"),
    }
)


def measure_here(address: Address) -> int:
    """Return the cost of a GPU context on this machine, 0 with a message if it cannot be measured."""
    from memwatch.core.backends.cuda_context import ContextNotMeasuredError, measure_context

    if not address.is_here:
        raise click.UsageError(
            f"--measure opens a GPU context on this machine, and {address} is another one; run the command there"
        )
    try:
        return measure_context().bytes
    except ContextNotMeasuredError as error:
        print_errors([f"the cost of a GPU context was not measured: {error}; counting a typical value"])
        return 0


def list_given() -> dict[str, str]:
    """Return the options on the command line: flags by name."""
    ctx = click.get_current_context()
    return {
        str(one.name): one.opts[0]
        for one in ctx.command.params
        if isinstance(one, click.Option)
        and one.expose_value
        and ctx.get_parameter_source(str(one.name)) is not ParameterSource.DEFAULT
    }


def refuse_contradictions(has_subject: bool, options: Mapping[str, object]) -> None:
    """Raise UsageError for a model with --what or none without it, and for options that go with the other."""
    if has_subject == bool(options["what"]):
        wanted = "leave out one of them" if has_subject else "for example memwatch fit 20GiB"
        raise click.UsageError(f"memwatch fit takes a model, a size or --what; {wanted}")
    given = list_given()
    others = [option for name, option in given.items() if name not in WITH_WHAT]
    if options["what"] and others:
        raise click.UsageError(f"{', '.join(others)}: not with --what, which tries three formats; leave that out")
    if not str(options["machine"]).strip() and "machine" in given:
        raise click.UsageError("--on has no machine; for example --on gb10")
    if options["min_speed"] and not options["what"]:
        raise click.UsageError("--min-speed: only with --what; add it, or leave this out")
    if options["machine"] and (options["machines"] or options["measure"]):
        raise click.UsageError("--on names another machine than --machines and --measure; leave one of them out")


def prepare(
    subject: str, use: Use, launch: str, online: bool = False
) -> tuple[str, str, Callable[[Snapshot], FitAnswer], str]:
    """Return the request to a daemon, a note about the need, the same answer without a daemon, and a sentence about
    files that are not here."""
    reserve = use.reserve_bytes
    if is_size(subject):
        need = parse_need(subject)
        query = {"bytes": str(need), **({"reserve": str(reserve)} if reserve else {})}
        return urlencode(query), "", lambda snapshot: answer_size(need, subject, snapshot, reserve), ""
    engines = select_engines(launch)
    checkpoint = read_subject(subject, online)
    if not checkpoint.pipeline and use.images != ImageUse():
        *flags, last = map(flag, IMAGES)
        raise InvalidInputError(
            f"{subject}: is not a diffusion model, for which {', '.join(flags)} and {last} are; leave them out"
        )
    note = compute_checkpoint_need(checkpoint, use).note
    query = {"model": subject[-MAX_NAME:]} | write_request(checkpoint, use, launch)
    answer = partial(answer_model, checkpoint, use, engines=engines, name=subject)
    return urlencode(query, errors="replace"), note, answer, checkpoint.origin


# Options that say where to check and how to answer.
ANSWERING = ("url", "as_json", "machines", "machine", "what")


def refuse_unused(subject: str, is_trained: bool) -> None:
    """Raise InvalidInputError for options that have no effect on the result."""
    given = list_given()
    if is_size(subject):
        others = [option for name, option in given.items() if name not in (*ANSWERING, *FOR_A_SIZE)]
        remedy = (
            f"use memwatch fit {subject}, or name a model, for example memwatch fit ./Mistral-7B --context 8192"
        )
        refuse_for_size(subject, others, remedy)
    if not is_trained:
        refuse_training_only(given, flag, "--train")


def parse_use(options: Mapping[str, object]) -> Use:
    """Convert the options that were given. Raises UsageError for an unknown number format or training plan."""
    values = {one.name: options[one.name] for one in OPTIONS}
    try:
        return build(Use, {name: one for name, one in values.items() if one is not None and one is not False})
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None


def fit_lines(found: NamedReply) -> Iterator[str]:
    moved, place = found.moved_bytes, f" on {found.on}, empty:" if found.on else ""
    beside = f" on a GPU and {wording.size(moved)} in System RAM" if moved else ""
    yield f"{found.subject}{place} needs {wording.size(found.bytes)}{beside}"
    if found.parts:
        parts = found.parts.items()
        rows = [(f"  {PARTS[name]}", wording.size(part)) for name, part in parts if part > 0]
        rows += [(f"  {PARTS[name]}", f"−{wording.size(-part)}") for name, part in parts if part < 0]
        yield from columns(rows, right=frozenset({1}))
    source = found.runtime_source  # older daemons do not send it
    if source and not source.startswith("typical"):
        yield f"Runtime {source}."
    if found.processes_source:
        yield f"Processes: {found.processes_source}."
    if found.note and found.note not in (found.unknown or ""):
        yield found.note
    yield ""
    for verdict in found.verdicts:
        headroom = wording.headroom(verdict.headroom_bytes, verdict.headroom_after_reclaim_bytes)
        room = "" if isinstance(verdict.headroom_after_reclaim_bytes, Absent) else f" ({headroom} available)"
        yield f"{MARKS[known_or(verdict.fits, None)]} {verdict.device}, {verdict.name}{room}: {verdict.reason}"
    yield ""
    yield _conclusion(found)
    if found.caution:
        yield found.caution
    if found.greatest and (sentence := greatest_sentence(found.greatest)):
        yield sentence
    if found.more_gpus:
        yield f"It would fit on {found.more_gpus}."
    if found.decode_rate:
        yield describe_rate(found.decode_rate)
    yield from map(report_sentence, found.engines)
    if found.machines is not None:
        yield ""
        yield from placement_lines(found.machines)
    yield from launch_lines(found)


def launch_lines(found: FitReply) -> Iterator[str]:
    """Yield each launch line, ready to copy, with the reasons of its options. One engine's refusal is an answer."""
    for launch in found.launch:
        yield ""
        yield f"# {ENGINES[launch.engine].title}"
        yield from launch.command.split("\n")
        yield ""
        yield from columns([(f"  {one.flag}", one.reason) for one in launch.flags])
        yield from (f"  {note}" for note in launch.notes)
    refused = {} if found.launch else found.launch_refused
    if refused:
        yield ""
    if len(refused) > 1 and not found.is_yes:
        yield f"No launch line: {NOT_KNOWN if found.unknown else 'the plan does not fit'}."
    else:
        yield from (f"No launch line for {ENGINES[name].title}: {why}." for name, why in refused.items())


def _conclusion(found: NamedReply) -> str:
    if found.best:
        best = next(one for one in found.verdicts if one.device == found.best)
        how = " after reclaim of page cache" if best.needs_reclaim is True else ""
        return f"Fits{how}: use {found.best}."
    if split := found.split:
        return f"Fits on {len(split.devices)} GPUs, {', '.join(split.devices)}: {split.reason}."
    now = "" if found.on or exceeds_totals(found.verdicts) else " right now"
    answer = f"Does not fit{now}."
    if unknown := found.unknown:  # older daemons do not send it
        answer = f"Not known if it fits: {unknown[0].lower()}{unknown[1:]}"
    if change := found.change:
        beside = f" and {wording.size(change.ram_bytes)} in System RAM" if change.ram_bytes else ""
        return f"{answer} It would fit with {change.words} ({change.flags}): {wording.size(change.bytes)}{beside}."
    return answer


CERTAINTY_MARKS = {"recommended": "✓", "try both": "?", "if needed": "·", "avoid": "✗"}


@click.command(short_help="Recommended settings.")
@click.option("--systemd", "for_units", is_flag=True, help="Print files for services with GPU memory, to review.")
@common
def advise(for_units: bool, url: Address | None, as_json: bool) -> int:
    """Print recommended settings for training and inference, each with its reason and source.

    GPUs that variables such as CUDA_VISIBLE_DEVICES hide are left out. Settings with contradicting reports
    are marked "try both", those for one case "if needed". The number of workers needs the CPUs of the machine,
    which are known only on it. No setting is changed.

    With --systemd, print drop-ins for services whose footprint is GPU memory, which the kernel's OOM killer and
    systemd-oomd do not count: OOMScoreAdjust=, OOMPolicy=, MemoryMax=, ManagedOOMPreference= and a rule. No file is
    written.
    """
    from memwatch.cli.headroom import is_this_machine
    from memwatch.library.advice import advice_for, select_environment, with_visible_gpus
    from memwatch.library.machine_record import from_snapshot

    context = build_context(url, as_json)
    response = context.snapshot()
    if for_units:
        return _print_unit_files(context, response)
    with check_shape(context.address):
        machine = from_snapshot(response.snapshot, from_daemon=True)
        # Variables of this process hide no GPU of a remote or simulated machine.
        if not response.is_simulated and is_this_machine(response.snapshot):
            machine = with_visible_gpus(machine)
        advice = advice_for(machine)
    answer = {"environment": select_environment(advice), "advice": [asdict(one) for one in advice]}
    return context.show(answer, lambda: _lines(advice), response.is_simulated)


def _print_unit_files(context: ClientContext, response: SnapshotAnswer) -> int:
    from memwatch.planning.unit_files import build_unit_files, find_other_holders

    with check_shape(context.address):
        snapshot = response.snapshot
    files, others = build_unit_files(snapshot), find_other_holders(snapshot)
    answer = {"files": [asdict(one) for one in files], "units_without_drop_ins": others}
    return context.show(answer, lambda: _file_lines(files, others), response.is_simulated)


def _file_lines(files: Sequence[UnitFile], others: Sequence[str]) -> Iterator[str]:
    if not files:
        yield "# No system service holds 2 GiB of GPU memory or more: there is nothing to set."
    for one in files:
        yield f"# --- {one.path}"
        yield from one.text.splitlines()
        yield ""
    for unit in others:
        yield f"# {unit} holds GPU memory, and is no system service: set limits where it is started."


def _lines(advice: Sequence[Advice]) -> Iterator[str]:
    for one in advice:
        certainty = "" if one.certainty == "recommended" else f" ({one.certainty})"
        yield f"{CERTAINTY_MARKS[one.certainty]} {one.name}={one.value}{certainty}"
        yield f"    {one.reason}"
        yield from (f"    {source}" for source in one.sources)
