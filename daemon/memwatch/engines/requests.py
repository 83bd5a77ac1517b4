"""Requests to engines: how often each is sent, and its effect on a server that sleeps or loads a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from memwatch.engines.answers import Answers

Frequency = Literal["every 5 s", "once a minute", "never"]


def always(_: Answers) -> bool:
    return True


class Request(Struct, frozen=True):
    """A path of an engine. `A|B` is B if A has no answer.

    `effect` is that on a server that sleeps or loads a model. `allows` decides by the answers of this round to the
    requests before it, and by the command line. A request that is never sent is listed with the reason.
    """

    path: str
    asked: Frequency
    effect: str
    allows: Callable[[Answers], bool] = always
