"""Records of model servers: one engine with its memory and its load, and the parts of an answer that lead to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.doc import Doc
from memwatch.core.model import Absent, Bytes, Quality, Words, refuse_negative

# An engine reports more than this only if it is broken: 1 PiB, and 10^15 tokens.
MAX_BYTES = 1 << 50
# Sizes from a model's files, and sizes that an engine rounds, may be more than its processes hold by this part.
SIZE_TOLERANCE = 0.02
MAX_COUNT = 10**15
# Bytes of a number in half and in full precision.
HALF, FULL = 2.0, 4.0
# Layout of a KV cache: whole blocks of all layers (vLLM), or the cells of each sequence (llama.cpp).
Layout = Literal["blocks", "cells"]
EngineName = Literal[
    "vllm", "sglang", "llama.cpp", "ollama", "lm-studio", "tgi", "tensorrt-llm", "triton", "openvino", "openai"
]
NO = Absent.NOT_SUPPORTED


class Engine(Struct, frozen=True):
    """One model server. Weights and KV cache are parts of the memory of its processes.

    `kv_cache_ratio` is known also where the bytes are not. `requests_running` and `requests_waiting` are counts
    now.
    """

    id: Annotated[str, Doc(examples=("vllm-8000",))]
    kind: Annotated[str, Doc(values=get_args(EngineName))]
    title: Annotated[str, Doc(examples=("vLLM",))]
    url: Words
    pid: Annotated[int | Absent, Doc("The first process of the server.")] = Absent.NOT_AVAILABLE
    pids: Annotated[tuple[int, ...], Doc("All its processes.")] = ()
    user: Words = Absent.NOT_AVAILABLE
    version: Words = Absent.NOT_AVAILABLE
    model: Words = Absent.NOT_AVAILABLE
    quantization: Words = Absent.NOT_AVAILABLE
    context_tokens: int | Absent = Absent.NOT_AVAILABLE
    weights_bytes: Annotated[
        Bytes, Doc("Weights of a model server in bytes, part of the memory of its processes.")
    ] = Absent.NOT_AVAILABLE
    draft_weights_bytes: Annotated[
        Bytes, Doc("Weights of a model server's draft model in bytes (speculative decoding). Absent without one.")
    ] = NO
    kv_cache_bytes: Annotated[Bytes, Doc("Memory in bytes that a model server reserved for its KV cache.")] = (
        Absent.NOT_AVAILABLE
    )
    kv_cache_used_bytes: Annotated[Bytes, Doc("Part of the KV cache in bytes that holds tokens.")] = (
        Absent.NOT_AVAILABLE
    )
    kv_cache_ratio: Annotated[
        float | Absent, Doc("Used fraction of the KV cache of the fullest replica or rank, 0–1.")
    ] = Absent.NOT_AVAILABLE
    kv_cache_mean_ratio: Annotated[
        float | Absent, Doc("Mean used fraction of the KV caches of all replicas or ranks, 0–1.")
    ] = Absent.NOT_AVAILABLE
    footprint_bytes: Annotated[Bytes, Doc("Memory of all its processes.")] = Absent.NOT_AVAILABLE
    remainder_bytes: Annotated[
        Bytes,
        Doc(
            "Memory of a model server in bytes without weights, draft model and KV cache: graphs, workspace, "
            "fragmentation, the KV cache of a draft model."
        ),
    ] = Absent.NOT_AVAILABLE
    held_bytes: Annotated[Mapping[str, Bytes], Doc("Device memory by pool or share.")] = field(default_factory=dict)
    requests_running: int | Absent = Absent.NOT_AVAILABLE
    requests_waiting: int | Absent = Absent.NOT_AVAILABLE
    prompt_tokens_total: Annotated[int | Absent, Doc("Since the server started.")] = Absent.NOT_AVAILABLE
    generation_tokens_total: int | Absent = Absent.NOT_AVAILABLE
    tokens_per_second: Annotated[float | Absent, Doc("Generated, in the last 5 s.")] = Absent.NOT_AVAILABLE
    prompt_tokens_per_second: float | Absent = Absent.NOT_AVAILABLE
    time_to_first_token_seconds: Annotated[float | Absent, Doc("Mean of the requests of the last 5 s.")] = (
        Absent.NOT_AVAILABLE
    )
    sleeping: Annotated[bool | Absent, Doc("True while the model is unloaded until the next request.")] = (
        Absent.NOT_AVAILABLE
    )
    gpu_fraction: Annotated[float | Absent, Doc("Fraction of a GPU that the server was allowed to use.")] = NO
    quality: Annotated[Quality, Doc("That of weights and KV cache.")] = Quality.MEASURED
    notes: Annotated[tuple[str, ...], Doc("Why figures are missing, and how to get them.")] = ()

    def __post_init__(self) -> None:
        names = (*PARTS, "kv_cache_used_bytes", "footprint_bytes", "remainder_bytes")
        refuse_negative(self, names, "engine", self.id)

    @property
    def parts(self) -> dict[str, Bytes]:
        """Return the parts by name that add up, with the remainder, to the memory of its processes."""
        found = {name: getattr(self, name) for name in PARTS}
        return {name: figure for name, figure in found.items() if figure is not NO}

    def as_stale(self) -> Engine:
        """Mark all figures as stale. Identities stay."""
        return replace(self, held_bytes={}, notes=(), **dict.fromkeys(FIGURES, Absent.STALE))


PARTS = ("weights_bytes", "draft_weights_bytes", "kv_cache_bytes")
FIGURES = (
    *PARTS,
    "kv_cache_used_bytes",
    "kv_cache_ratio",
    "kv_cache_mean_ratio",
    "footprint_bytes",
    "remainder_bytes",
    "requests_running",
    "requests_waiting",
    "prompt_tokens_total",
    "generation_tokens_total",
    "tokens_per_second",
    "prompt_tokens_per_second",
    "time_to_first_token_seconds",
    "sleeping",
)


class Cache(Struct, frozen=True):
    """Capacity of a KV cache in tokens, from which a model's configuration gives its bytes.

    Layout `blocks`: the sum of `blocks` of `block_tokens` over all replicas, as many on each GPU of one. Layout
    `cells`: `tokens` in each of `sequences`. `parallel`: GPUs among which the KV heads are divided. `replicas`:
    copies of the model, without its experts if `splits_experts`. `is_assumed`: options that may be set where they
    cannot be read decide on it. `ignores_windows`: layers with a window keep all tokens.
    """

    layout: Layout
    blocks: int = 0
    block_tokens: int = 0
    tokens: int = 0
    sequences: int = 1
    key_dtype: str = "auto"
    value_dtype: str = "auto"
    parallel: int = 1
    replicas: int = 1
    splits_experts: bool = False
    is_assumed: bool = False
    ignores_windows: bool = False


class ServedBy(Struct, frozen=True):
    """The process of a server, whose rights and root folder decide which files are those of its model."""

    pid: int
    start_ticks: int
    procfs: str = "/proc"
    rootfs: str = "/"


class ModelQuery(Struct, frozen=True):
    """A model by its path or by the name of its repository, as a server reports it, and the cache whose bytes are
    wanted. Without a process its files are not known. With `is_options`, `name` is its file of options. With
    `variables`, those of its environment are wanted, and nothing else."""

    name: str
    cache: Cache | None = None
    by: ServedBy | None = None
    is_options: bool = False
    variables: tuple[str, ...] = ()


class ModelSizes(Struct, frozen=True):
    """Sizes that follow from a model's files. `quality` is that of the cache. `note`: why one is missing.

    `options`: arguments in a file of options, or variables as NAME=VALUE, if these were asked for. `number_bytes`:
    bytes of a number of the weights, 0 where these are not known.
    """

    weights_bytes: Bytes = Absent.NOT_AVAILABLE
    kv_cache_bytes: Bytes = Absent.NOT_AVAILABLE
    quality: Quality = Quality.DERIVED
    note: str = ""
    options: tuple[str, ...] = ()
    number_bytes: float = 0.0


class Counters(Struct, frozen=True):
    """Totals since the engine started. A difference of two reads is a rate."""

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    first_token_seconds: float | None = None
    first_tokens: float | None = None


class EngineReading(Struct, frozen=True):
    """Figures in the answers of one engine. `model_path`: its files, a path or the name of a repository.
    `draft_path`: those of its draft model. `beside_paths`: files that it loads beside the model, such as adapters;
    their weights are added.

    `cache` is the capacity where the engine reports tokens and not bytes. `rate`: tokens per second as reported.
    `converts_from`: weights with at least that many bytes a number are converted to a smaller format as they are
    loaded; None: no weights are.
    """

    version: Words = Absent.NOT_AVAILABLE
    model: Words = Absent.NOT_AVAILABLE
    model_path: str = ""
    draft_path: str = ""
    beside_paths: tuple[str, ...] = ()
    quantization: Words = Absent.NOT_AVAILABLE
    context_tokens: int | Absent = Absent.NOT_AVAILABLE
    weights_bytes: Bytes = Absent.NOT_AVAILABLE
    draft_weights_bytes: Bytes = NO
    kv_cache_bytes: Bytes = Absent.NOT_AVAILABLE
    kv_cache_ratio: float | Absent = Absent.NOT_AVAILABLE
    kv_cache_mean_ratio: float | Absent = Absent.NOT_AVAILABLE
    cache: Cache | None = None
    requests_running: int | Absent = Absent.NOT_AVAILABLE
    requests_waiting: int | Absent = Absent.NOT_AVAILABLE
    counters: Counters = Counters()
    rate: float | Absent = Absent.NOT_AVAILABLE
    sleeping: bool | Absent = Absent.NOT_AVAILABLE
    gpu_fraction: float | Absent = NO
    quality: Quality = Quality.MEASURED
    converts_from: float | None = None
    notes: tuple[str, ...] = ()


KEY = "API key"
NOT_SENT = f"its {KEY} is not sent"


class Address(Struct, frozen=True):
    """Address of a server. `prefix`: path before that of each request. `user`: the one who may get the token."""

    host: str
    port: int
    prefix: str = ""
    token: str = ""
    is_tls: bool = False
    user: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.prefix}"
