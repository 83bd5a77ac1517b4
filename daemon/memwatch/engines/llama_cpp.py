"""llama.cpp's server. Facts of tools/server/README.md at b4000 to b9000; /metrics needs `--metrics`.

Asked are only the paths that neither wake a sleeping server nor reset its timer: /props, /metrics and /models, not
/slots. Since the middle of 2025 it no longer reports how much of the cache is used.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from memwatch.engines.answers import Answers
from memwatch.engines.command import Command
from memwatch.engines.records import Cache, Counters, EngineReading
from memwatch.engines.text import bytes_of, count_of, name_of, ratio_of
from memwatch.model import Absent, Quality

PORT = 8080
PATHS = ("/props", "/metrics")
RARE_PATHS = ("/models",)
NO_METRICS = "Start it with --metrics for requests and tokens."
ASLEEP = "It sleeps: weights and KV cache are unloaded until the next request."
UNKNOWN_CELLS = "Its command line may not be read, so the size of its KV cache is not known."
# Slots when `--parallel` is not given; all of them share one cache then (b7000 and later).
KEYS, VALUES = ("--cache-type-k", "-ctk"), ("--cache-type-v", "-ctv")


class Generation(Struct, frozen=True):
    n_ctx: int = 0


class Props(Struct, frozen=True):
    default_generation_settings: Generation = Generation()
    total_slots: int = 1
    model_path: str = ""
    model_alias: str = ""
    build_info: str = ""
    is_sleeping: bool | None = None


class Meta(Struct, frozen=True):
    size: int | None = None
    n_params: int | None = None
    ftype: str = ""


class Listed(Struct, frozen=True):
    id: str = ""
    meta: Meta | None = None


class List(Struct, frozen=True):
    data: list[Listed] = []


def matches(command: Command) -> bool:
    return command.script == "llama-server"


def parse(answers: Answers) -> EngineReading:
    metrics, props = answers.metrics(), answers.json("/props", Props) or Props()
    listed = next(iter((answers.json("/models", List) or List()).data), Listed())
    running = metrics.total("llamacpp:requests_processing")
    cells = find_cells(props, answers.command)
    found = EngineReading(
        version=name_of(props.build_info),
        model=name_of(props.model_alias or listed.id.rpartition("/")[2] or props.model_path.rpartition("/")[2]),
        model_path=props.model_path,
        quantization=name_of(listed.meta.ftype.removeprefix("(guessed) ") if listed.meta else ""),
        context_tokens=count_of(props.default_generation_settings.n_ctx or None),
        weights_bytes=bytes_of(listed.meta.size if listed.meta else None),
        kv_cache_ratio=ratio_of(metrics.total("llamacpp:kv_cache_usage_ratio")),
        cache=cells,
        requests_running=count_of(running),
        requests_waiting=count_of(metrics.total("llamacpp:requests_deferred")),
        counters=Counters(
            metrics.total("llamacpp:prompt_tokens_total"), metrics.total("llamacpp:tokens_predicted_total")
        ),
        sleeping=Absent.NOT_SUPPORTED if props.is_sleeping is None else props.is_sleeping,
        notes=tuple(_notes(running, cells, props)),
    )
    if found.kv_cache_ratio is Absent.NOT_AVAILABLE and running is not None:
        found = replace(found, kv_cache_ratio=Absent.NOT_SUPPORTED)
    return _asleep(found) if props.is_sleeping else found


def find_cells(props: Props, command: Command) -> Cache | None:
    """Return the capacity of the cache. Slots have a part of it each, or all share one.

    `--parallel` divides the cache unless `--kv-unified` is given. Without `--parallel`, all share it. One slot
    is the same either way; for more the command line must be known.
    """
    context, slots = props.default_generation_settings.n_ctx, props.total_slots
    if context <= 0 or slots <= 0 or (slots > 1 and not command.argv):
        return None
    is_divided = command.number("--parallel", "-np") is not None and not command.has("--kv-unified", "-kvu")
    key, value = command.option(*KEYS) or "f16", command.option(*VALUES) or "f16"
    return Cache("cells", tokens=context, sequences=slots if is_divided else 1, key_dtype=key, value_dtype=value)


def _asleep(found: EngineReading) -> EngineReading:
    return replace(
        found,
        weights_bytes=0,
        kv_cache_bytes=0,
        kv_cache_ratio=Absent.NOT_AVAILABLE,
        cache=None,
        model_path="",
        quality=Quality.DERIVED,
    )


def _notes(running: float | None, cells: Cache | None, props: Props) -> list[str]:
    notes = [NO_METRICS] if running is None else []
    notes += [UNKNOWN_CELLS] if cells is None and props.default_generation_settings.n_ctx else []
    return [*notes, ASLEEP] if props.is_sleeping else notes
