"""Parser of a Dockerfile's instructions, sufficient to execute them by hand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

KNOWN = frozenset(
    ("ARG", "FROM", "RUN", "COPY", "WORKDIR", "ENV", "LABEL", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT")
)


class Stage(Struct):
    """Instructions from one FROM to the next. `steps` are its RUN, COPY and WORKDIR in order."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    entrypoint: Sequence[str] = ()
    healthcheck: Sequence[str] = ()


def instructions_of(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    unknown = {word for word, _, _ in found} - KNOWN
    assert not unknown, f"unsupported instructions: {unknown}"
    return [(word, rest.strip()) for word, _, rest in found]


def substituted(text: str, arguments: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text)


def stages_of(text: str) -> list[Stage]:
    """Return the stages that do something. One that only names its base is replaced by that base."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for word, rest in instructions_of(text):
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            base, _, name = substituted(rest, arguments).partition(" AS ")
            aliases = {stage.name: stage.base for stage in stages if not stage.steps}
            stages.append(Stage(name, aliases.get(base, base)))
        else:
            _add(stages[-1], word, rest, arguments)
    return [stage for stage in stages if stage.steps]


def _add(stage: Stage, word: str, rest: str, arguments: Mapping[str, str]) -> None:
    if word in ("ENV", "LABEL"):
        pairs = dict(pair.partition("=")[::2] for pair in shlex.split(substituted(rest, arguments)))
        (stage.environment if word == "ENV" else stage.labels).update(pairs)
    elif word == "USER":
        stage.user = rest
    elif word == "ENTRYPOINT":
        stage.entrypoint = json.loads(rest)
    elif word == "HEALTHCHECK":
        stage.healthcheck = json.loads(rest.partition("CMD ")[2])
    elif word != "EXPOSE":
        stage.steps.append((word, rest))
