"""Models that servers have loaded, each read once by a short-lived child with the rights of its server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import MsgspecError, json

from memwatch.core.engines.records import ModelQuery, ModelSizes, ServedBy
from memwatch.core.helper.python_child import python_child
from memwatch.core.helper.supervisor import Helper, HelperError

if TYPE_CHECKING:
    from memwatch.planning.served import ServedModel

CHILD = "memwatch.planning.served_child"
# Headers of the 200 files of a large model on a network drive take 2 s. The child takes 0.2 s of CPU to start.
DEADLINE_SECONDS = 5.0
# The child may get the rights of another user, so it gets nothing else of the daemon's environment.
KEPT = ("LANG", "LD_LIBRARY_PATH", "PATH")
FAILED = "The files of its model could not be read: {error}."
MAX_KNOWN = 64


class ServedModels:
    """Sizes of models. The files of one that a process serves are read once: it loaded them when it started."""

    def __init__(self) -> None:
        self._known: dict[tuple[ServedBy | None, str, bool], ServedModel] = {}

    def size(self, query: ModelQuery) -> ModelSizes:
        """Return the sizes of a model. Those that do not follow from its files are absent, with a note."""
        from memwatch.planning.served import size_served  # only machines with a model server need it

        key = query.by, query.name, query.is_options
        model = self._known.pop(key, None) or read_served_model(query)
        if not model.failure:
            self._known[key] = model
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return size_served(model, query.cache)


def read_served_model(query: ModelQuery) -> ServedModel:
    from memwatch.planning.served import ServedModel

    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    helper = Helper(python_child(CHILD), DEADLINE_SECONDS, pause_seconds=0.0, environ=environ)
    try:
        return json.decode(helper.ask(json.encode(query)), type=ServedModel)
    except (HelperError, MsgspecError) as error:
        return ServedModel(failure=FAILED.format(error=error))
    finally:
        helper.stop()
