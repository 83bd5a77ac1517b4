"""Sizes of the model that a server has loaded, read by a short-lived child with the rights of the server."""

from __future__ import annotations

import os

from msgspec import MsgspecError, json

from memwatch.engines.records import ModelQuery, ModelSizes
from memwatch.helper.python_child import python_child
from memwatch.helper.supervisor import Helper, HelperError

CHILD = "memwatch.planning.served_child"
# Headers of the 200 files of a large model on a network drive take 2 s. The child takes 0.2 s of CPU to start.
DEADLINE_SECONDS = 5.0
# The child may get the rights of another user, so it gets nothing else of the daemon's environment.
KEPT = ("LANG", "LD_LIBRARY_PATH", "PATH")
FAILED = "The files of its model could not be read: {error}."


def read_model_sizes(query: ModelQuery) -> ModelSizes:
    """Return the sizes of a model. Those that do not follow from its files are absent, with a reason as a note."""
    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    helper = Helper(python_child(CHILD), DEADLINE_SECONDS, pause_seconds=0.0, environ=environ)
    try:
        return json.decode(helper.ask(json.encode(query)), type=ModelSizes)
    except (HelperError, MsgspecError) as error:
        return ModelSizes(note=FAILED.format(error=error))
    finally:
        helper.stop()
