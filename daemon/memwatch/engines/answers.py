"""The answers of one engine to a round of requests."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from memwatch.engines.command import Command
from memwatch.engines.text import Exposition, T, parse_json


class Model(Struct, frozen=True):
    """An entry of /v1/models."""

    id: str = ""
    root: str | None = None
    owned_by: str = ""
    max_model_len: int | None = None


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
        return parse_json(self.bodies.get(path), kind)

    def metrics(self, path: str = "/metrics") -> Exposition:
        return Exposition(self.bodies.get(path))

    def model(self, path: str = "/v1/models") -> Model:
        """Return the first model of an OpenAI-compatible list."""
        found = self.json(path, Models)
        return found.data[0] if found and found.data else Model()

    def version(self, path: str = "/version") -> str:
        found = self.json(path, VersionAnswer)
        return found.version if found else ""
