"""The answers of one engine to a round of requests."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from memwatch.core.engines.command import Command
from memwatch.core.engines.lenient import T, decode
from memwatch.core.engines.text import Exposition


class Model(Struct, frozen=True):
    """An entry of /v1/models. `loaded`: of servers that list other models as well (mlx-vlm 0.7)."""

    id: str = ""
    root: str | None = None
    owned_by: str = ""
    max_model_len: int | None = None
    loaded: bool | None = None


class Models(Struct, frozen=True):
    data: list[Model] = []


class VersionAnswer(Struct, frozen=True):
    version: str = ""


class Answers(Struct, frozen=True):
    """Bodies by path. A path without an answer is missing. `inner`: the command line of a process that holds the
    model, if it is not that of the server."""

    bodies: Mapping[str, bytes]
    command: Command = Command()
    inner: Command = Command()

    def json(self, path: str, kind: type[T]) -> T | None:
        body = self.bodies.get(path)
        return decode(body, kind)[0] if body else None

    def metrics(self, path: str = "/metrics") -> Exposition:
        return Exposition(self.bodies.get(path))

    def models(self, path: str = "/v1/models") -> list[Model]:
        """Return an OpenAI-compatible list."""
        found = self.json(path, Models)
        return found.data if found else []

    def model(self, path: str = "/v1/models") -> Model:
        return next(iter(self.models(path)), Model())

    def version(self, path: str = "/version") -> str:
        found = self.json(path, VersionAnswer)
        return found.version if found else ""
