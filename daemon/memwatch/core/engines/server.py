"""One model server: when it is asked, its latest answers, its rates, and the record that they make."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.engines.command import Command
from memwatch.core.engines.exchange import NOT_ALLOWED, OVERDUE, Exchange
from memwatch.core.engines.kinds import EngineKind
from memwatch.core.engines.records import Address, Counters, Engine, EngineReading, ModelQuery, ModelSizes
from memwatch.core.engines.requests import MAX_NAMED, Answers
from memwatch.core.http import Admit, GetError, GetTimeoutError, Resolve, get
from memwatch.core.listing import some_of
from memwatch.core.model import Absent, Bytes, Quality
from memwatch.core.printable import printable

if TYPE_CHECKING:
    import ssl

# Ends of an interval that is too short for a rate.
MIN_SECONDS = 0.5


class Rates(Struct, frozen=True):
    """Tokens per second, and the mean time to the first token, over one interval."""

    generation: float | Absent = Absent.NOT_AVAILABLE
    prompt: float | Absent = Absent.NOT_AVAILABLE
    first_token_seconds: float | Absent = Absent.NOT_AVAILABLE


def compute_rates(before: Counters | None, now: Counters, seconds: float) -> Rates:
    """Return the rates between two reads. A counter that fell was reset: there is no rate across its restart."""
    if before is None or seconds < MIN_SECONDS:
        return Rates()
    first = _risen(before.first_tokens, now.first_tokens)
    waited = _risen(before.first_token_seconds, now.first_token_seconds)
    return Rates(
        _per_second(_risen(before.generation_tokens, now.generation_tokens), seconds),
        _per_second(_risen(before.prompt_tokens, now.prompt_tokens), seconds),
        waited / first if first and waited is not None else Absent.NOT_AVAILABLE,
    )


def _risen(before: float | None, now: float | None) -> float | None:
    return now - before if before is not None and now is not None and now >= before else None


def _per_second(risen: float | None, seconds: float) -> float | Absent:
    return Absent.NOT_AVAILABLE if risen is None else risen / seconds


RARE_SECONDS = 60.0
# Pause after a server gave no answer: it is loading, or it is none.
SILENT_SECONDS = 30.0
# One that uses up its share is asked again in the next round. From the second time on it waits, twice as long each
# time, up to the second value.
MAX_TIMES_USED_UP = 2
MAX_SILENT_SECONDS = 300.0
# Fraction of a core for the answers of one server, and CPU time that is below it in every round. An answer of
# 160 kB that comes in chunks of one byte takes 0.1 s to receive.
MAX_CPU_RATIO = 0.005
MAX_CHEAP_SECONDS = 0.025
COSTLY = "Its answers take {seconds:.2f} s of CPU time, so that it is asked every {pause:.0f} s."
NO_ANSWER = "no answer"
DEFECT = "its answers could not be parsed; the log has the reason"

log: logging.Logger = logging.getLogger(__name__)
WANTS_KEY = "It wants an API key: name it under [[engines]] with its token."
WANTS_KEY_FOR = "It wants an API key for {paths}: name it under [[engines]] with its token."

TOO_OFTEN = "The files of its model are read once a minute."
NOT_YET = "The files of its model are not read yet."

CONVERTED = "The size of its weights is not known: it converts those of its files to a smaller format."
BESIDE = "The weights of {count} of {total} projectors and adapters beside its model are counted in the rest."
# Files of a server beside its model that are read; the others are counted in the note.
MAX_BESIDE = 16
NO_SIZES = ModelSizes()

# Return the sizes of a model, None while its files are being read.
SizeModel = Callable[[ModelQuery], "ModelSizes | None"]


class ModelFiles:
    """Sizes that follow from the files of one model of a server."""

    def __init__(self, size_model: SizeModel | None) -> None:
        self._size_model = size_model
        self._sizes = ModelSizes()
        self._sized: ModelQuery | None = None
        self._wanted: ModelQuery | None = None
        self._wanted_at = float("-inf")

    def size(self, query: ModelQuery | None, now: float) -> ModelSizes:
        """Return the sizes of a model, read once for each model and capacity; none without a query.

        A server that reports another model at each answer gets one reading a minute. When the options of its cache
        are read, it need not wait.
        """
        if self._size_model is None or query is None:
            return ModelSizes()
        if query == self._sized:
            return self._sizes
        if query != self._wanted:
            if now - self._wanted_at < RARE_SECONDS and not is_now_certain(self._wanted, query):
                return ModelSizes(note=TOO_OFTEN)
            self._wanted, self._wanted_at = query, now
        sizes = self._size_model(query)
        if sizes is None:
            return ModelSizes(note=NOT_YET)
        self._sizes, self._sized = sizes, query
        return sizes


class EngineServer:
    """One server, asked once a round. `size_model`: reads the sizes of its model, None if they are not wanted."""

    def __init__(
        self,
        kind: EngineKind,
        address: Address,
        size_model: SizeModel | None,
        monotonic: Callable[[], float] = time.monotonic,
        admit: Admit | None = None,
        resolve: Resolve = socket.getaddrinfo,
        cpu_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """`admit`: see `memwatch.core.http`."""
        self.kind = kind
        self.address = address
        self._files, self._draft_files = ModelFiles(size_model), ModelFiles(size_model)
        self._size_model = size_model
        self._beside: dict[str, ModelFiles] = {}
        self._monotonic = monotonic
        self._admit, self._resolve, self._cpu_time = admit, resolve, cpu_time
        self._exchange: Exchange | None = None
        self._bodies: dict[str, bytes] = {}
        self._known_paths: dict[str, str] = {}
        self._rare_at = float("-inf")
        self._failure: GetError | None = None
        self._times_used_up = 0
        self._waits_until = float("-inf")
        self._reading: EngineReading | None = None
        self._is_fresh = False
        self._costly = ""
        self._fetch_seconds = 0.0
        self._has_defect = False
        self._rates = Rates()
        self._oddities: tuple[str, ...] = ()
        self._refused: set[str] = set()
        self._before: tuple[float, Counters] | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def is_silent(self) -> bool:
        return self._failure is not None

    @property
    def may_hang(self) -> bool:
        """Return True if the address has a name: looking it up has no deadline."""
        try:
            ip_address(self.address.host)
        except ValueError:
            return True
        return False

    def begin(self, command: Command, inner: Command, deadline: float) -> Exchange | None:
        """Return the requests of this round. None while the server waits, or the last ones have not ended."""
        now, self._is_fresh = self._monotonic(), False
        if now < self._waits_until or (self._exchange is not None and not self._exchange.is_done):
            return None
        self._fetch_seconds = 0.0
        asks_rare = now - self._rare_at >= RARE_SECONDS
        if asks_rare:
            self._known_paths = {}
        self._exchange = Exchange(
            self.kind, self._fetch, self._bodies, command, inner, asks_rare, deadline, self._known_paths
        )
        return self._exchange

    def take(self, exchange: Exchange, command: Command, inner: Command) -> None:
        """Parse the answers of this round, and ask for the sizes of the model."""
        now = self._monotonic()
        answers = self._take(exchange, now)
        if not answers:
            self._before = self._reading = None
            return
        began, self._is_fresh = self._cpu_time(), True
        reading = self._parse(answers, command, inner)
        self._limit_cost(self._fetch_seconds + self._cpu_time() - began, now)
        self._reading = reading
        if reading is None:
            self._before, self._failure = None, GetError(DEFECT)
            return
        before, self._before = self._before, (now, reading.counters)
        self._rates = compute_rates(before[1], reading.counters, now - before[0]) if before else Rates()
        self._size(reading, now)

    def _parse(self, answers: Mapping[str, bytes], command: Command, inner: Command) -> EngineReading | None:
        """Return the figures in the answers. A defect that they reveal costs only those of this server."""
        try:
            reading = self.kind.parse(Answers(answers, command, inner))
            self._oddities = tuple(self._find_oddities(answers))
        except Exception:
            if not self._has_defect:
                log.exception("Defect while the answers of %s were parsed", self.address.url)
            self._has_defect = True
            return None
        return reading

    def _limit_cost(self, seconds: float, now: float) -> None:
        """Let a server wait whose answers are expensive: 1 MiB of JSON takes 0.1 s, those of real servers 2 ms."""
        pause = choose_pause_for(seconds)
        self._waits_until = now + pause
        self._costly = COSTLY.format(seconds=seconds, pause=pause)

    def build(self, engine: Engine) -> Engine:
        """Return the record with what the server reported in the last round."""
        if self._reading is None:
            return describe_failure(engine, self._failure or GetError(NO_ANSWER))
        sizes, draft, *beside = self._size(self._reading, self._monotonic())
        found = build_engine(engine, self._reading, self._rates, sizes, draft, beside)
        if not self._is_fresh:
            return replace(found.as_stale(), notes=(*engine.notes, self._costly))
        key = (WANTS_KEY_FOR.format(paths=some_of(sorted(self._refused), MAX_NAMED)),) if self._refused else ()
        return replace(found, notes=tuple(dict.fromkeys((*found.notes, *self._oddities, *key))))

    def _take(self, exchange: Exchange, now: float) -> Mapping[str, bytes]:
        """Return the answers of a round, none if it has not ended. Keep those to rare requests, and the failure."""
        is_done = exchange.is_done  # it may end now, which is too late
        answers = exchange.bodies if is_done else {}
        rare = {one.path for one in self.kind.requests_of("once a minute")}
        self._bodies = {path: body for path, body in answers.items() if path in rare}
        kept = {path for path in self._refused if path in rare and not exchange.has_asked_rare}
        self._refused = kept | (exchange.refused if is_done else set())
        if answers:
            self._rare_at = now if exchange.has_asked_rare else self._rare_at
            self._failure, self._times_used_up = None, 0
            return answers
        self._failure = (exchange.failure if is_done else GetTimeoutError(OVERDUE)) or GetError(NO_ANSWER)
        pause = self._choose_pause(isinstance(self._failure, GetTimeoutError))
        self._waits_until = now + max(pause, choose_pause_for(self._fetch_seconds))
        return {}

    def _choose_pause(self, is_used_up: bool) -> float:
        """Return the pause after a round without an answer. One that used up its share waits longer each time."""
        self._times_used_up = self._times_used_up + 1 if is_used_up else 0
        if not is_used_up:
            return SILENT_SECONDS
        over = self._times_used_up - MAX_TIMES_USED_UP
        return 0.0 if over < 0 else min(MAX_SILENT_SECONDS, SILENT_SECONDS * 2.0 ** min(over, 8))

    def _find_oddities(self, answers: Mapping[str, bytes]) -> Iterator[str]:
        """Yield a note for each answer that was not understood."""
        for one in self.kind.requests:
            if one.path in answers and (note := one.find_oddity(answers[one.path])):
                yield note

    def _fetch(self, path: str, max_bytes: int, deadline: float) -> bytes:
        at = self.address
        if at.is_tls and self._tls is None:
            import ssl  # takes 2 MiB, and is needed for a server on another machine only

            self._tls = ssl.create_default_context()
        began, url_path = self._cpu_time(), at.prefix + path
        try:
            return get(
                at.host, at.port, url_path, deadline, max_bytes, at.token, self._tls, self._admit, self._resolve
            )
        finally:
            self._fetch_seconds += self._cpu_time() - began

    def _size(self, reading: EngineReading, now: float) -> tuple[ModelSizes, ...]:
        """Return the sizes that follow from the files of the model, of its draft model, and of each beside them."""
        is_wanted = reading.model_path and is_needed(reading)
        query = ModelQuery(reading.model_path, reading.cache) if is_wanted else None
        draft = ModelQuery(reading.draft_path) if reading.draft_path else None
        paths = reading.beside_paths[:MAX_BESIDE]
        self._beside = {path: self._beside.get(path) or ModelFiles(self._size_model) for path in paths}
        beside = [self._beside[path].size(ModelQuery(path), now) for path in paths]
        beside += [NO_SIZES] * (len(reading.beside_paths) - len(paths))
        return self._files.size(query, now), self._draft_files.size(draft, now), *beside


def is_now_certain(before: ModelQuery | None, query: ModelQuery) -> bool:
    """Return True for the same model whose cache is no longer assumed."""
    was_assumed = before is not None and before.name == query.name and before.cache and before.cache.is_assumed
    return bool(was_assumed and query.cache and not query.cache.is_assumed)


def choose_pause_for(cpu_seconds: float) -> float:
    """Return the pause after a round by its CPU time."""
    return min(cpu_seconds / MAX_CPU_RATIO, MAX_SILENT_SECONDS) if cpu_seconds > MAX_CHEAP_SECONDS else 0.0


def is_needed(reading: EngineReading) -> bool:
    return isinstance(reading.weights_bytes, Absent) or (
        isinstance(reading.kv_cache_bytes, Absent) and reading.cache is not None
    )


def build_engine(
    engine: Engine,
    reading: EngineReading,
    rates: Rates,
    sizes: ModelSizes,
    draft: ModelSizes = NO_SIZES,
    beside: Sequence[ModelSizes] = (),
) -> Engine:
    """Return the record of one round. Figures of the engine come before those of its model's files.

    Notes may have paths that the server reports or that are on its command line.
    """
    weights, cache = reading.weights_bytes, reading.kv_cache_bytes
    quality = reading.quality
    if isinstance(weights, Absent) and not isinstance(sizes.weights_bytes, Absent) and not converts(reading, sizes):
        weights, quality = sizes.weights_bytes, Quality.DERIVED
    more = [one.weights_bytes for one in beside]
    known = [one for one in more if isinstance(one, int)]
    if isinstance(weights, int) and known:
        weights, quality = weights + sum(known), Quality.DERIVED
    if isinstance(cache, Absent) and not isinstance(sizes.kv_cache_bytes, Absent):
        cache, quality = sizes.kv_cache_bytes, sizes.quality
    is_draft_sized = isinstance(draft.weights_bytes, int)
    told = isinstance(rates.generation, Absent) and isinstance(reading.rate, Absent)
    return replace(
        engine,
        version=reading.version,
        model=reading.model,
        quantization=reading.quantization,
        context_tokens=reading.context_tokens,
        weights_bytes=weights,
        draft_weights_bytes=draft.weights_bytes if is_draft_sized else reading.draft_weights_bytes,
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
        notes=tuple(map(printable, _notes(engine, reading, sizes, draft, *beside))),
    )


def converts(reading: EngineReading, sizes: ModelSizes) -> bool:
    """Return True if the weights in memory are smaller than those of the files (vllm-project/vllm#15042)."""
    return reading.converts_from is not None and sizes.number_bytes >= reading.converts_from


def _notes(engine: Engine, reading: EngineReading, *sizes: ModelSizes) -> Iterator[str]:
    yield from engine.notes
    yield from reading.notes
    if isinstance(reading.weights_bytes, Absent) and converts(reading, sizes[0]):
        yield CONVERTED
    yield from (one.note for one in sizes if one.note)
    if unread := sum(1 for one in sizes[2:] if isinstance(one.weights_bytes, Absent)):
        yield BESIDE.format(count=unread, total=len(sizes) - 2)


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
