"""Rates of an engine: differences of its counters between two reads."""

from __future__ import annotations

from msgspec import Struct

from memwatch.core.engines.records import Counters
from memwatch.core.model import Absent

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
