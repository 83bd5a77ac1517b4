"""Command line, file of options and answers of a model server: figures that hold together, or none.

The parts are separated by `---`: arguments that end with NUL, the file, and one body for each request of a kind.
"""

from __future__ import annotations

from fuzz.oracle import are_valid
from memwatch.core.engines.command import Command, may_start_engine
from memwatch.core.engines.kinds import KINDS, EngineKind, find_kind
from memwatch.core.engines.records import MAX_BYTES as MAX_MEMORY
from memwatch.core.engines.records import MAX_COUNT
from memwatch.core.engines.requests import Answers
from memwatch.core.model import Absent
from memwatch.planning.served import WANTED, parse_options

MAX_BYTES = 8192
BETWEEN = b"\n---\n"


def check(data: bytes) -> None:
    arguments, *bodies = data.split(BETWEEN)
    options = parse_options(bodies[0]) if bodies else ()
    names = [one for one in options if one.removeprefix("--").replace("_", "-") in WANTED]
    assert len(options) <= 2 * len(names)
    command = Command(tuple(arguments.decode("utf-8", "surrogateescape").split("\0")), options)
    assert may_start_engine(arguments) or find_kind(command) is None
    for kind in KINDS:
        paths = (request.path for request in kind.requests if request.asked != "never")
        answers(kind, Answers(dict(zip(paths, bodies[1:], strict=False)), command))


def answers(kind: EngineKind, given: Answers) -> None:
    found = kind.parse(given)
    are_valid(found)
    for figure, most in (
        (found.weights_bytes, MAX_MEMORY),
        (found.kv_cache_bytes, MAX_MEMORY),
        (found.requests_running, MAX_COUNT),
        (found.requests_waiting, MAX_COUNT),
        (found.kv_cache_ratio, 1),
        (found.kv_cache_mean_ratio, 1),
    ):
        assert isinstance(figure, Absent) or figure <= most, f"{figure} of {kind.name} is above {most}"
    for request in kind.requests:
        request.find_oddity(given.bodies.get(request.path, b""))
