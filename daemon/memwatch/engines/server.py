"""One model server: the requests of a round, its latest answers, and the record that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from memwatch.engines.answers import Answers
from memwatch.engines.command import Command
from memwatch.engines.kinds import EngineKind
from memwatch.engines.rates import Rates, compute_rates
from memwatch.engines.records import Counters, Engine, EngineReading, ModelQuery, ModelSizes
from memwatch.engines.requests import Request
from memwatch.model import Absent, Bytes, Quality
from memwatch.printable import printable
from memwatch.runtime.http_get import GetError, get

if TYPE_CHECKING:
    import ssl

# vLLM prints 60 to 300 kB of metrics.
MAX_ANSWER_BYTES = 1 << 20
TIMEOUT_SECONDS = 2.0
RARE_SECONDS = 60.0
# Pause after a server did not answer: it is loading, or it is none.
SILENT_SECONDS = 30.0
NOT_ALLOWED = frozenset({401, 403})
WANTS_KEY = "It wants an API key: name it under [[engines]] with its token."

TOO_OFTEN = "The files of its model are read once a minute."

SizeModel = Callable[[ModelQuery], ModelSizes]


class Address(Struct, frozen=True):
    """Address of a server. `prefix`: path before that of each request."""

    host: str
    port: int
    prefix: str = ""
    token: str = ""
    is_tls: bool = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.prefix}"


class EngineServer:
    """Asks one server. `size_model`: reads the sizes of its model, None if they are not wanted."""

    def __init__(
        self,
        kind: EngineKind,
        address: Address,
        size_model: SizeModel | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self.address = address
        self._size_model, self._monotonic = size_model, monotonic
        self._bodies: dict[str, bytes] = {}
        self._rare_at = self._silent_at = float("-inf")
        self._failure: GetError | None = None
        self._before: tuple[float, Counters] | None = None
        self._sizes = ModelSizes()
        self._sized: ModelQuery | None = None
        self._sized_at = float("-inf")
        self._tls: ssl.SSLContext | None = None

    @property
    def is_silent(self) -> bool:
        return self._failure is not None

    def ask(self, engine: Engine, command: Command, inner: Command) -> Engine:
        """Return the record with what the server reports now."""
        now = self._monotonic()
        if now - self._silent_at < SILENT_SECONDS and self._failure is not None:
            return describe_failure(engine, self._failure)
        self._failure = None
        self._request(now, command, inner)
        if not self._bodies:
            self._silent_at, self._before = now, None
            self._failure = self._failure or GetError("no answer")
            return describe_failure(engine, self._failure)
        reading = self.kind.parse(Answers(self._bodies, command, inner))
        before, self._before = self._before, (now, reading.counters)
        rates = compute_rates(before[1], reading.counters, now - before[0]) if before else Rates()
        found = build_engine(engine, reading, rates, self._size(reading, now))
        return replace(found, notes=tuple(dict.fromkeys((*found.notes, *self._oddities()))))

    def _oddities(self) -> Iterator[str]:
        """Yield a note for each answer that was not understood."""
        for one in self.kind.requests:
            if one.path in self._bodies and (note := one.find_oddity(self._bodies[one.path])):
                yield note

    def _request(self, now: float, command: Command, inner: Command) -> None:
        """Send the requests of this round. After the first that times out, the others are not sent.

        A busy server may take too long for a rare path only: the figures of the round stay, and earlier answers.
        """
        frequent, rare = self.kind.requests_of("every 5 s"), self.kind.requests_of("once a minute")
        for one in frequent:
            self._bodies.pop(one.path, None)
        answers = Answers(self._bodies, command, inner)
        if not self._ask_all(frequent, answers):
            self._bodies.clear()
            return
        if now - self._rare_at < RARE_SECONDS:
            return
        has_figures = any(one.path in self._bodies for one in frequent)
        if not self._ask_all(rare, answers) and not has_figures:
            self._bodies.clear()
        if self._bodies:
            self._rare_at = now

    def _ask_all(self, requests: Sequence[Request], answers: Answers) -> bool:
        """Return False if a path has no answer at all. A refusal replaces an earlier answer.

        A request that would change the server is not sent; an earlier answer to it stays.
        """
        for one in requests:
            if not one.allows(answers):
                continue
            body = self._first(one.path)
            if body is not None:
                self._bodies[one.path] = body
            elif self._failure is not None and not self._failure.status:
                return False
            else:
                self._bodies.pop(one.path, None)
        return True

    def _first(self, path: str) -> bytes | None:
        """Return the first answer of `A|B`. Without one, keep the failure."""
        for one in path.split("|"):
            answer = self._get(one)
            if isinstance(answer, bytes):
                return answer
            self._failure = answer
            if not answer.status:  # not even a refusal: the next path would wait as long
                return None
        return None

    def _get(self, path: str) -> bytes | GetError:
        at = self.address
        if at.is_tls and self._tls is None:
            import ssl  # takes 2 MiB, and is needed for a server on another machine only

            self._tls = ssl.create_default_context()
        try:
            return get(at.host, at.port, at.prefix + path, TIMEOUT_SECONDS, MAX_ANSWER_BYTES, at.token, self._tls)
        except GetError as failure:
            return failure

    def _size(self, reading: EngineReading, now: float) -> ModelSizes:
        """Return the sizes that follow from the model's files, read once for each model and capacity.

        A server that reports another model at each answer gets one reading a minute.
        """
        if self._size_model is None or not reading.model_path or not is_needed(reading):
            return ModelSizes()
        query = ModelQuery(reading.model_path, reading.cache)
        if query == self._sized:
            return self._sizes
        if now - self._sized_at < RARE_SECONDS:
            return ModelSizes(note=TOO_OFTEN)
        self._sizes, self._sized, self._sized_at = self._size_model(query), query, now
        return self._sizes


def is_needed(reading: EngineReading) -> bool:
    return isinstance(reading.weights_bytes, Absent) or (
        isinstance(reading.kv_cache_bytes, Absent) and reading.cache is not None
    )


def build_engine(engine: Engine, reading: EngineReading, rates: Rates, sizes: ModelSizes) -> Engine:
    """Return the record of one round. Figures of the engine come before those of its model's files.

    Notes may have paths that the server reports or that are on its command line.
    """
    weights, cache = reading.weights_bytes, reading.kv_cache_bytes
    quality = reading.quality
    if isinstance(weights, Absent) and not isinstance(sizes.weights_bytes, Absent):
        weights, quality = sizes.weights_bytes, Quality.DERIVED
    if isinstance(cache, Absent) and not isinstance(sizes.kv_cache_bytes, Absent):
        cache, quality = sizes.kv_cache_bytes, sizes.quality
    told = isinstance(rates.generation, Absent) and isinstance(reading.rate, Absent)
    return replace(
        engine,
        version=reading.version,
        model=reading.model,
        quantization=reading.quantization,
        context_tokens=reading.context_tokens,
        weights_bytes=weights,
        kv_cache_bytes=cache,
        kv_cache_used_bytes=_used(cache, reading.kv_cache_mean_ratio),
        kv_cache_ratio=reading.kv_cache_ratio,
        kv_cache_mean_ratio=reading.kv_cache_mean_ratio,
        requests_running=reading.requests_running,
        requests_waiting=reading.requests_waiting,
        prompt_tokens_total=_total(reading.counters.prompt_tokens, reading.rate),
        generation_tokens_total=_total(reading.counters.generation_tokens, reading.rate),
        tokens_per_second=reading.rate if told else rates.generation,
        prompt_tokens_per_second=reading.rate if told else rates.prompt,
        time_to_first_token_seconds=rates.first_token_seconds,
        sleeping=reading.sleeping,
        gpu_fraction=reading.gpu_fraction,
        quality=quality,
        notes=tuple(map(printable, _notes(engine, reading, sizes))),
    )


def _notes(engine: Engine, reading: EngineReading, sizes: ModelSizes) -> Iterator[str]:
    yield from engine.notes
    yield from reading.notes
    if sizes.note:
        yield sizes.note


def _used(cache: Bytes, ratio: float | Absent) -> Bytes:
    if isinstance(cache, Absent) or isinstance(ratio, Absent):
        return ratio if isinstance(ratio, Absent) else cache
    return int(cache * ratio)


def _total(value: float | None, rate: float | Absent) -> int | Absent:
    if value is None:
        return rate if isinstance(rate, Absent) else Absent.NOT_AVAILABLE
    return int(value) if value < 1e15 else Absent.INCONSISTENT


def describe_failure(engine: Engine, failure: GetError) -> Engine:
    """Return the record of a server without an answer."""
    refused = failure.status in NOT_ALLOWED
    note = WANTS_KEY if refused else f"{engine.url}: {failure}."
    reason = Absent.NOT_PERMITTED if refused else Absent.NOT_AVAILABLE
    return replace(engine, weights_bytes=reason, kv_cache_bytes=reason, notes=(*engine.notes, note))
