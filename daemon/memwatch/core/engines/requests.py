"""Requests to engines: how often each is sent, and its effect on a server that sleeps or loads a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from memwatch.core.engines.answers import Answers
from memwatch.core.engines.lenient import MAX_NAMED, decode, is_understood
from memwatch.core.engines.text import SAMPLE
from memwatch.core.listing import some_of

NOT_UNDERSTOOD = "its answer was not understood."
Frequency = Literal["every 5 s", "once a minute", "never"]


def always(_: Answers) -> bool:
    return True


class Request(Struct, frozen=True):
    """A path of an engine. `A|B` is B if A has no answer.

    `effect` is that on a server that sleeps or loads a model. `allows` decides by the answers of this round to the
    requests before it, and by the command line. A request that is never sent is listed with the reason. `form` is
    that of its JSON; without, the answer is a Prometheus text.
    """

    path: str
    asked: Frequency
    effect: str
    allows: Callable[[Answers], bool] = always
    form: type[Struct] | None = None

    def find_oddity(self, body: bytes) -> str:
        """Return a sentence if the answer, or a field of it, was not understood; empty otherwise."""
        odd: tuple[str, ...] = ()
        if self.form is None:
            is_clear = not body.strip() or SAMPLE.search(body) is not None
        else:
            found, odd = decode(body, self.form)
            is_clear = found is not None and (found != self.form() or is_understood(body, self.form))
        path = self.path.partition("|")[0]
        if not is_clear:
            return f"{path}: {NOT_UNDERSTOOD}"
        return f"{path}: {some_of(odd, MAX_NAMED)} in its answer was not understood." if odd else ""
