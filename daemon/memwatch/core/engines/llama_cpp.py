"""llama.cpp's server. Facts of tools/server/README.md at b4000 to b10700; /metrics needs `--metrics`.

Until June 2024 its program was `server`. Until February 2024 it had no /metrics, no /models beside /v1/models, and
neither the model nor its slots in /props.

With `--sleep-idle-seconds` (since PR #18228, December 2025) it unloads an idle model. /props has that state, and is
no activity itself. /metrics was one until PR #27376 (19 August 2026): issues #20227 and #23096. Its averages are
those since any reader asked for it (issue #25128, unslothai/unsloth#10384). Since the middle of 2025 it no longer
reports how much of the cache is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.command import CACHE_VARIABLES, DRAFT_CACHE, UNIX_SOCKET, Command, Variable
from memwatch.core.engines.records import Cache, Counters, EngineReading
from memwatch.core.engines.requests import Answers, Request
from memwatch.core.engines.text import bytes_of, count_of, name_of, ratio_of
from memwatch.core.listing import some_of
from memwatch.core.model import Absent, Quality
from memwatch.core.printable import printable

PORT = 8080
# A build of the week before PR #18228 was merged; one of the month after PR #18777, which calls /models harmless;
# and one of six days after PR #27376. Smaller numbers than MIN_BUILD count the commits of a shallow clone.
MIN_BUILD, LAST_SLEEPLESS_BUILD, MODELS_BUILD, METRICS_BUILD = 1000, 7389, 7898, 10621
MAX_NAMES, MAX_TOKENS, MAX_SLOTS = 8, 10**9, 10**6
BUILD = re.compile(r"\bb(\d{1,9})\b|\bbuild (\d{1,9})\b")
IDLE = "--sleep-idle-seconds"
NO_METRICS = "Start it with --metrics for requests and tokens."
NO_SLOTS = "It is a version of early 2024 or before: it reports neither requests nor the size of its KV cache."
MODEL_FILE = ("--model", "-m")
# Where the server gets a model that it has not on disk.
FROM_HUB, HUB_FILE, FROM_URL = ("--hf-repo", "-hf", "-hfr"), ("--hf-file", "-hff"), ("--model-url", "-mu")
# Builds are named after what they run on: llama-server-cuda. Docker Model Runner has its own, on a Unix socket.
SERVER = re.compile(r"(?:com\.docker\.)?llama-server(?:[-_.][\w.-]+)?|llama-cpp-server")
KEPT_AWAKE = (
    f"Requests and tokens are not asked for: in this version /metrics counts as activity, and {IDLE} is set."
)
MAYBE_KEPT_AWAKE = (
    "Requests and tokens are not asked for: in this version /metrics keeps a server awake that is started with "
    f"{IDLE}, and its command line is not known."
)
ASLEEP = "It sleeps: weights and KV cache are unloaded until the next request."
UNKNOWN_CELLS = "Its command line may not be read, so the size of its KV cache is not known."
# Slots when `--parallel` is not given; all of them share one cache then (b7000 and later).
DEFAULT_SLOTS = 4
# The context of one slot (PR #24124, June 2026). The cache has whole groups of cells.
PER_SLOT, CELLS = "--kv-unified-per-slot", 256
UNIFIED, DIVIDED = ("--kv-unified", "-kvu"), ("--no-kv-unified", "-no-kvu")
# A draft model proposes tokens. Its cache has a context for each slot, or since 2026 another form: its size is not
# known from outside (tools/server/server-context.cpp, b4000 to b10700). Both are unloaded while the server sleeps.
DRAFT_FILE = ("--model-draft", "--spec-draft-model", "-md")
DRAFT_REPOSITORY = ("--hf-repo-draft", "--spec-draft-hf", "-hfd", "-hfrd")
UNKNOWN_DRAFT = "The size of its draft model is not known: the command line names a repository, and not its file."
# Files beside the model, which are not in the size that /models reports: the projector of images and sound, and
# LoRA adapters, each loaded even if unused (llama.cpp#19153). Some versions take a list of them, with scales.
PROJECTOR, NO_PROJECTOR = ("--mmproj", "-mm"), "--no-mmproj"
ADAPTERS, SCALE = ("--lora", "--lora-scaled"), re.compile(r":-?[0-9.]+$")
UNKNOWN_PROJECTOR = "The size of its multimodal projector is not known: the command line does not name its file."
# The command line comes before them. LLAMA_ARG_KV_SPLIT is the name of the middle of 2025. There are none for IDLE.
VARIABLES: Mapping[str, Variable] = {
    "LLAMA_ARG_MODEL": Variable("--model"),
    "LLAMA_ARG_HF_REPO": Variable("--hf-repo"),
    "LLAMA_ARG_HF_FILE": Variable("--hf-file"),
    "LLAMA_ARG_CTX_SIZE": Variable("--ctx-size"),
    "LLAMA_ARG_N_PARALLEL": Variable("--parallel"),
    "LLAMA_ARG_KV_SPLIT": Variable("--kv-unified", "--no-kv-unified"),
    "LLAMA_ARG_KV_UNIFIED": Variable("--kv-unified", "--no-kv-unified"),
    "LLAMA_ARG_NO_KV_UNIFIED": Variable("--no-kv-unified", "--no-kv-unified"),
    "LLAMA_ARG_KV_UNIFIED_PER_SLOT": Variable(PER_SLOT),
    "LLAMA_ARG_MMPROJ": Variable("--mmproj"),
    "LLAMA_ARG_MODEL_DRAFT": Variable("--model-draft"),
    "LLAMA_ARG_SPEC_DRAFT_MODEL": Variable("--model-draft"),
    "LLAMA_ARG_HFD_REPO": Variable("--hf-repo-draft"),
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": Variable("--hf-repo-draft"),
    **CACHE_VARIABLES,
}
ASSUMED_CELLS = (
    "The size of its KV cache is an estimate: variables such as LLAMA_ARG_CACHE_TYPE_K may decide on it, and its "
    "environment cannot be read here."
)


class Generation(Struct, frozen=True):
    n_ctx: int | None = None


class Modalities(Struct, frozen=True):
    vision: bool = False
    audio: bool = False


class Props(Struct, frozen=True):
    default_generation_settings: Generation = Generation()
    total_slots: int | None = None
    role: str = ""
    model_path: str = ""
    model_alias: str = ""
    build_info: str = ""
    is_sleeping: bool | None = None
    modalities: Modalities = Modalities()
    user_name: str | None = None  # until 2024


class Health(Struct, frozen=True):
    """`sleeping`: of ik_llama.cpp, whose /props loads a sleeping model (its PR #2383)."""

    status: str = ""
    sleeping: bool | None = None


class Meta(Struct, frozen=True):
    size: int | None = None
    ftype: str = ""


class Status(Struct, frozen=True):
    value: str = ""


class Listed(Struct, frozen=True):
    id: str = ""
    status: Status | None = None
    meta: Meta | None = None


class List(Struct, frozen=True):
    data: list[Listed] = []


def build_number(build_info: str) -> int | None:
    """Return the number of "b9760-6ee0f6579" or "0.3.0 (build 10621, …)", None for others and shallow clones."""
    found = BUILD.search(build_info)
    number = int(found[1] or found[2]) if found else 0
    return number if number >= MIN_BUILD else None


def never_sleeps(command: Command) -> bool:
    """Return True if the command line is known, and sets no idle time. There is no variable for it."""
    return bool(command.argv) and (not command.has_option(IDLE) or command.option(IDLE).startswith("-"))


def may_sleep(answers: Answers) -> bool:
    return not never_sleeps(answers.command)


def is_early(answers: Answers) -> bool:
    """Return True for a version whose /props has the names of a chat, and not yet its slots."""
    props = answers.json("/props", Props) or Props()
    return props.user_name is not None and props.total_slots is None


def is_awake(answers: Answers) -> bool:
    """Return False if its health says that it sleeps. llama.cpp has no such field: its /props is harmless."""
    health = answers.json("/health", Health)
    return health is None or not health.sleeping


def allows_models(answers: Answers) -> bool:
    """Ask an old build that may sleep only once: its answer does not change. A router answers by itself."""
    props = answers.json("/props", Props)
    return (props is not None and is_router(props)) or _allows(
        answers, MODELS_BUILD, "/models" not in answers.bodies
    )


def allows_metrics(answers: Answers) -> bool:
    return _allows(answers, METRICS_BUILD, False)


def _allows(answers: Answers, harmless_build: int, otherwise: bool) -> bool:
    """Return True if a request cannot wake this server. Without /props, only the command line proves that."""
    props = answers.json("/props", Props)
    if props is None or props.is_sleeping:
        return props is None and never_sleeps(answers.command)
    if is_router(props):  # it loads the model that is asked for, and has no figures itself
        return False
    build = build_number(props.build_info)
    if otherwise or never_sleeps(answers.command) or build is None:
        return otherwise or never_sleeps(answers.command)
    # A build with the option sleeps, whatever its number: forks count their own commits.
    is_sleepless = (
        build <= LAST_SLEEPLESS_BUILD and props.is_sleeping is None and not answers.command.has_option(IDLE)
    )
    return build >= harmless_build or is_sleepless


REQUESTS = (
    Request(
        "/health",
        "every 5 s",
        f"None in any version. Asked only of servers with `{IDLE}`, or whose command line is not known.",
        may_sleep,
        form=Health,
    ),
    Request(
        "/props",
        "every 5 s",
        "None in any version of llama.cpp: it neither loads the model nor counts as activity. In ik_llama.cpp it "
        "loads a sleeping model; not asked if `/health` says that it sleeps.",
        is_awake,
        form=Props,
    ),
    Request(
        "/metrics",
        "every 5 s",
        "Its averages `…_tokens_seconds` begin again, for other readers too: use the counters. After "
        f"b{LAST_SLEEPLESS_BUILD}, and before 19 August 2026 (b{METRICS_BUILD} for certain), it loads a sleeping "
        f"model and counts as activity; then asked only without `{IDLE}` on the command line. Never while it "
        "sleeps, and never of a router, which may load a model for it.",
        allows_metrics,
    ),
    Request(
        "/models",
        "once a minute",
        f"Builds before January 2026 (b{MODELS_BUILD} for certain) load a sleeping model; they are asked once. "
        "Not asked while it sleeps.",
        allows_models,
        form=List,
    ),
    Request(
        "/v1/models",
        "once a minute",
        "None: versions of early 2024 and before, of which alone it is asked, do not sleep.",
        is_early,
        form=List,
    ),
    Request("/slots", "never", "It loads a sleeping model and counts as activity."),
)


def why_unasked(command: Command) -> str:
    """Return why a server has no address, empty if it has one: `--host FILE.sock`, as in Docker's model runner."""
    host = command.option("--host")
    return UNIX_SOCKET.format(path=printable(host)) if host.endswith(".sock") else ""


def matches(command: Command) -> bool:
    """`llama serve` is the same server, in the one program of all tools (b9230 and later)."""
    is_part = command.script == "llama" and command.subcommand in ("serve", "server")
    named = command.option(*MODEL_FILE, *HUB_FILE, *FROM_URL)
    is_part = is_part or (command.script == "server" and named.endswith(".gguf"))
    return is_part or SERVER.fullmatch(command.script) is not None


def parse(answers: Answers) -> EngineReading:
    metrics, props = answers.metrics(), answers.json("/props", Props) or Props()
    if not is_awake(answers):
        props = replace(props, is_sleeping=True)
    every = (answers.json("/models", List) or answers.json("/v1/models", List) or List()).data
    path = props.model_path or answers.command.option(*MODEL_FILE)
    if is_router(props):
        return describe_router(props, every)
    named = path or next(filter(None, map(answers.command.option, (*HUB_FILE, *FROM_HUB, *FROM_URL))), "")
    listed = next(iter(every), Listed())
    running = metrics.one("llamacpp:requests_processing")
    cells, used = find_cells(props, answers.command), ratio_of(metrics.one("llamacpp:kv_cache_usage_ratio"))
    found = EngineReading(
        version=name_of(props.build_info),
        model=name_of(props.model_alias or listed.id.rpartition("/")[2] or named.rpartition("/")[2]),
        model_path=path,
        draft_path=answers.command.option(*DRAFT_FILE),
        beside_paths=find_beside(answers.command),
        draft_weights_bytes=Absent.NOT_AVAILABLE if has_draft(answers.command) else Absent.NOT_SUPPORTED,
        quantization=name_of(listed.meta.ftype.removeprefix("(guessed) ") if listed.meta else ""),
        context_tokens=count_of(props.default_generation_settings.n_ctx or None),
        weights_bytes=bytes_of(listed.meta.size if listed.meta else None),
        kv_cache_ratio=used,
        kv_cache_mean_ratio=used,
        cache=cells,
        requests_running=count_of(running),
        requests_waiting=count_of(metrics.one("llamacpp:requests_deferred")),
        counters=Counters(
            metrics.one("llamacpp:prompt_tokens_total"), metrics.one("llamacpp:tokens_predicted_total")
        ),
        sleeping=Absent.NOT_SUPPORTED if props.is_sleeping is None else props.is_sleeping,
        notes=tuple(filter(None, _notes(answers, running, cells, props))),
    )
    if used is Absent.NOT_AVAILABLE and "/metrics" in answers.bodies:
        found = replace(found, kv_cache_ratio=Absent.NOT_SUPPORTED, kv_cache_mean_ratio=Absent.NOT_SUPPORTED)
    return _asleep(found) if props.is_sleeping else found


def find_beside(command: Command) -> tuple[str, ...]:
    """Return the files of the projector and of the adapters, each once."""
    listed = [SCALE.sub("", one) for value in command.values_of(*ADAPTERS) for one in value.split(",")]
    projector = "" if command.has(NO_PROJECTOR) else command.option(*PROJECTOR)
    return tuple(dict.fromkeys(one for one in (projector, *listed) if one))


def is_projector_unknown(command: Command, props: Props) -> bool:
    """Return True for a model that takes images or sound, by a file that only the server knows."""
    takes_more = props.modalities.vision or props.modalities.audio
    return takes_more and not command.option(*PROJECTOR)


def has_draft(command: Command) -> bool:
    return bool(command.option(*DRAFT_FILE, *DRAFT_REPOSITORY))


def is_router(props: Props) -> bool:
    """Return True for a server of several models, each in its own process. Its own model is a placeholder."""
    return props.role == "router" or props.model_path == "none"


def describe_router(props: Props, listed: list[Listed]) -> EngineReading:
    """Return the names of loaded models. Their memory and their requests are those of other servers."""
    no, states = Absent.NOT_SUPPORTED, [one.status.value if one.status else "" for one in listed]
    loaded = [one.id for one, state in zip(listed, states, strict=True) if state == "loaded"]
    asleep, note = states.count("sleeping"), "It is a router."
    if listed and all(states):
        names = ": " + some_of(loaded, MAX_NAMES) if loaded else ""
        note = f"It is a router, {len(loaded)} of {len(listed)} models loaded{names}."
        note = f"{note[:-1]}; {asleep} asleep." if asleep else note
    return EngineReading(
        version=name_of(props.build_info),
        model=no,
        context_tokens=no,
        weights_bytes=no,
        kv_cache_bytes=no,
        kv_cache_ratio=no,
        kv_cache_mean_ratio=no,
        requests_running=no,
        requests_waiting=no,
        rate=no,
        sleeping=no,
        notes=(note,),
    )


def find_cells(props: Props, command: Command) -> Cache | None:
    """Return the capacity of the cache. One slot is known from its context; for more the command line is needed."""
    context, slots = props.default_generation_settings.n_ctx, props.total_slots
    if not context or not slots or not 0 < context < MAX_TOKENS or not 0 < slots < MAX_SLOTS:
        return None
    if slots > 1 and not command.argv:
        return None
    is_chosen = command.number("--parallel", "-np") is not None or slots != DEFAULT_SLOTS
    flag = command.last_of(*UNIFIED, *DIVIDED)
    is_shared = slots == 1 or not is_chosen or flag in UNIFIED
    cells = min(count_cells(context, slots, is_shared, command), MAX_TOKENS)
    sequences = 1 if is_shared else slots
    key, value = command.cache_types
    is_certain = key and value and (slots == 1 or flag or command.number("--ctx-size", "-c"))
    return Cache(
        "cells",
        tokens=cells // sequences,
        sequences=sequences,
        key_dtype=key or "f16",
        value_dtype=value or "f16",
        is_assumed=command.from_environment is None and not is_certain,
        ignores_windows=command.ignores_windows,
    )


def count_cells(context: int, slots: int, is_shared: bool, command: Command) -> int:
    """Return the cells of all slots, of which each may use `context`.

    That is all of a shared cache, or one slot's part of a divided one, unless `--kv-unified-per-slot` or the
    context of the training limits it (lemonade-sdk/lemonade#3574). `--ctx-size` is that of all slots.
    """
    known = context if is_shared else context * slots
    given, of_slot = command.number("--ctx-size", "-c"), command.number(PER_SLOT)
    if given:
        is_known = given <= known < given + CELLS * slots
        return known if is_known else max(context, -(-given // CELLS) * CELLS)
    return of_slot * slots if of_slot and given is None else known


def _asleep(found: EngineReading) -> EngineReading:
    return replace(
        found,
        weights_bytes=0,
        draft_weights_bytes=found.draft_weights_bytes if found.draft_weights_bytes is Absent.NOT_SUPPORTED else 0,
        kv_cache_bytes=0,
        kv_cache_ratio=Absent.NOT_AVAILABLE,
        cache=None,
        model_path="",
        draft_path="",
        beside_paths=(),
        quality=Quality.DERIVED,
    )


def _notes(answers: Answers, running: float | None, cells: Cache | None, props: Props) -> Iterator[str]:
    if props.is_sleeping:
        yield ASLEEP
        return
    if running is None:
        yield _missing_metrics(answers)
    if has_draft(answers.command):
        yield DRAFT_CACHE if answers.command.option(*DRAFT_FILE) else UNKNOWN_DRAFT
    if is_projector_unknown(answers.command, props):
        yield UNKNOWN_PROJECTOR
    if cells is None and (props.total_slots or 0) > 1 and not answers.command.argv:
        yield UNKNOWN_CELLS
    if cells is not None and cells.is_assumed and answers.command.argv:
        yield ASSUMED_CELLS


def _missing_metrics(answers: Answers) -> str:
    if allows_metrics(answers):
        return "" if "/metrics" in answers.bodies else NO_SLOTS if is_early(answers) else NO_METRICS
    return KEPT_AWAKE if answers.command.argv else MAYBE_KEPT_AWAKE
