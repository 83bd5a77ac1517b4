"""Parse a Prometheus text as engines print it, and the figures in it.

Samples are told apart by an identity: the labels that tell two things apart. Samples with the same identity are
reports of one thing, by several processes or ranks; the largest counts. vLLM with `--api-server-count` has a
sample of each API server process, of which one is current and the others are 0 (PR #28792). A label that is in no
identity, such as `pid`, never makes one thing several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from memwatch.core.engines.records import MAX_BYTES, MAX_COUNT
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.printable import printable
from memwatch.core.redaction import redact_text

Identity = tuple[str, ...]

# vLLM: an engine core, with its own KV cache. Each replica (data parallel) is one.
VLLM_CORE: Identity = ("model_name", "engine")
# SGLang: the ranks of a replica run the same requests, and count the tokens of the same cache.
SGLANG_REPLICA: Identity = ("model_name", "engine_type", "dp_rank")
# A pool of one rank. With pipeline stages the ranks have separate pools.
SGLANG_POOL: Identity = ("model_name", "engine_type", "dp_rank", "pp_rank", "tp_rank", "moe_ep_rank")
TRTLLM_ENGINE: Identity = ("model_name", "engine_type")
TRITON_MODEL: Identity = ("model", "version")
# A counter: each set of labels counts other requests. Only the process is none of them.
EVERY_LABEL: Identity = ("*",)

# Ranks of one server that report the same metric: some hundreds at most.
MAX_SAMPLES = 4096
# A value below 0, of a line without its metric's name.
NEGATIVE = re.compile(rb"^(?:\{.*\})?[ \t]+-(?:[0-9.]+(?:e[-+]?\d+)?|inf)\b", re.IGNORECASE)
PROCESS = re.compile(rb',?\s*pid="[^"]*"')
MAX_NAME_CHARACTERS = 200
# A line with a metric, its labels and a number.
SAMPLE = re.compile(rb"^[a-zA-Z_:][\w:]*(?:\{[^\n]*\})?[ \t]+[-+]?(?:[0-9.]|inf|nan)", re.MULTILINE | re.IGNORECASE)


class Exposition:
    """A Prometheus text of which only some names are wanted.

    vLLM prints 60 kB, mostly buckets of histograms. `bytes.find` takes 3 µs a name; a parser of all lines 15 ms.
    """

    def __init__(self, data: bytes | None) -> None:
        self._data = b"\n" + (data or b"")
        self._separators: dict[str, str] = {}

    def has(self, prefix: str) -> bool:
        """Return True if a line begins with this part of a name."""
        return b"\n" + self._spell(prefix) in self._data

    def _spell(self, name: str) -> bytes:
        """Return a name as this text has it: some write `_` for the `:` after the engine (sglang#12618)."""
        engine, colon, rest = name.partition(":")
        if colon and engine not in self._separators:
            self._separators[engine] = ":" if f"\n{engine}:".encode() in self._data else "_"
        return f"{engine}{self._separators[engine]}{rest}".encode() if colon else name.encode()

    def samples(self, name: str) -> Iterator[tuple[bytes, float]]:
        """Yield labels and value of each sample. Values that are no finite number of at least 0 are left out."""
        for line in self._lines(name):
            value = parse_value(line)
            if value is not None:
                yield line.rpartition(b"}")[0], value

    def count_impossible(self, *names: str) -> int:
        """Return the samples below 0 of a metric by its names. NaN is no value, and no impossible one."""
        counts = (
            sum(1 for line in islice(self._lines(name), MAX_SAMPLES) if NEGATIVE.match(line)) for name in names
        )
        return max(counts, default=0)

    def _lines(self, name: str) -> Iterator[bytes]:
        """Yield what follows the name in each line that begins with it, also with a longer one."""
        start, end = b"\n" + self._spell(name), 0
        while True:
            at = self._data.find(start, end)
            if at < 0:
                return
            end = at + len(start)
            yield self._data[end : self._line_end(end)]

    def by(self, names: str | Sequence[str], identity: Identity, **wanted: str) -> dict[tuple[str, ...], float]:
        """Return the largest value of each thing, for the first name that has samples.

        `wanted`: labels that all samples must have. More than MAX_SAMPLES would be a part, and give nothing.
        """
        for name in [names] if isinstance(names, str) else names:
            found: dict[tuple[str, ...], float] = {}
            for count, (labels, value) in enumerate(self.samples(name)):
                if count >= MAX_SAMPLES:
                    return {}
                if all(label(labels, key) == text for key, text in wanted.items()):
                    key = identify(labels, identity)
                    found[key] = max(value, found.get(key, 0.0))
            if found:
                return found
        return {}

    def total(self, name: str, identity: Identity, **wanted: str) -> float | None:
        """Return the sum over all things, None without samples."""
        found = self.by(name, identity, **wanted)
        return sum(found.values()) if found else None

    def one(self, name: str, **wanted: str) -> float | None:
        """Return the figure of the whole server."""
        return self.total(name, (), **wanted)

    def count_all(self, identities: Mapping[str, Identity]) -> int | Absent:
        """Return the sum of several metrics, each with its identity. One unreadable sample makes it unknown."""
        for name in identities:
            lines = (line for line in self._lines(name) if line[:1] in (b"{", b" "))
            if any(parse_value(line) is None for line in islice(lines, MAX_SAMPLES)):
                return Absent.INCONSISTENT
        known = [one for one in (self.total(*each) for each in identities.items()) if one is not None]
        return count_of(sum(known) if known else None)

    def cache_use(
        self, use: Sequence[str], running: str, has_blocks: bool = True
    ) -> tuple[dict[Identity, float], int]:
        """Return the used fraction of each cache of vLLM's form, and the number of those whose use cannot be true.

        A request that runs has a block, so a cache of blocks is not empty then: a scheduler that leaves out its
        statistics reports 0 (vllm-omni #4802), and so do servers that only print the names (llm-d-inference-sim
        #36).
        """
        pools, busy = self.by(use, VLLM_CORE), self.by(running, VLLM_CORE)
        known = {core: used for core, used in pools.items() if used or not has_blocks or not busy.get(core)}
        return known, self.count_impossible(*use) + len(pools) - len(known)

    def infos(self, name: str, identity: Identity) -> list[bytes]:
        """Return the labels of the first sample of each thing."""
        first: dict[tuple[str, ...], bytes] = {}
        for labels, _ in self.samples(name):
            first.setdefault(identify(labels, identity), labels)
        return list(first.values())

    def _line_end(self, start: int) -> int:
        end = self._data.find(b"\n", start)
        return len(self._data) if end < 0 else end


def identify(labels: bytes, identity: Identity) -> tuple[str, ...]:
    """Return the values of the labels that tell a thing from others. Without a label it is empty."""
    if identity == EVERY_LABEL:
        return (PROCESS.sub(b"", labels).decode("utf-8", "replace"),)
    return tuple(label(labels, name) or "" for name in identity)


def worst_and_mean(
    pools: Mapping[tuple[str, ...], float], impossible: int = 0
) -> tuple[float | Absent, float | Absent]:
    """Return the used fraction of the fullest pool, and the mean. One above 1 makes both inconsistent.

    `impossible`: further pools whose use cannot be true. No mean is known then; the fullest of the others is a
    lower bound.
    """
    if impossible and not pools:
        return Absent.INCONSISTENT, Absent.INCONSISTENT
    worst = ratio_of(max(pools.values(), default=None))
    if isinstance(worst, Absent) or impossible:
        return worst, worst if isinstance(worst, Absent) else Absent.INCONSISTENT
    return worst, sum(pools.values()) / len(pools)


def note_impossible(pools: Mapping[tuple[str, ...], float], impossible: int) -> tuple[str, ...]:
    """Return a sentence about pools whose use cannot be true; nothing without."""
    return (f"{impossible} of {impossible + len(pools)} KV caches report an impossible use.",) if impossible else ()


def parse_value(line: bytes) -> float | None:
    """Parse the rest of a line after the metric's name. None for another name that begins the same."""
    if line[:1] not in (b"{", b" "):
        return None
    columns = line.rpartition(b"}")[2].split()
    try:
        value = float(columns[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def label(labels: bytes, name: str) -> str | None:
    """Return the value of a label, None without it."""
    found = re.search(rb"[{,]\s*" + name.encode() + rb'="((?:[^"\\]|\\.)*)"', labels)
    return found[1].decode("utf-8", "replace") if found else None


def name_of(value: str | None) -> Words:
    """Return a name for display. One that is too long ends with `…`."""
    if not value:
        return Absent.NOT_AVAILABLE
    shown = value if len(value) <= MAX_NAME_CHARACTERS else f"{value[: MAX_NAME_CHARACTERS - 1]}…"
    return redact_text(printable(shown))


def count_of(value: float | None) -> int | Absent:
    """Return a count that an engine reports. A negative or absurd one is inconsistent."""
    if value is None:
        return Absent.NOT_AVAILABLE
    return int(value) if 0 <= value <= MAX_COUNT else Absent.INCONSISTENT


def bytes_of(value: float | None) -> Bytes:
    if value is None:
        return Absent.NOT_AVAILABLE
    return int(value) if 0 <= value <= MAX_BYTES else Absent.INCONSISTENT


def ratio_of(value: float | None) -> float | Absent:
    """Return a fraction from 0 to 1."""
    if value is None:
        return Absent.NOT_AVAILABLE
    return value if 0 <= value <= 1 else Absent.INCONSISTENT


def number_in(text: str | None) -> int | None:
    """Return a positive integer of at most 12 digits, None for anything else such as "None"."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 12 else None
