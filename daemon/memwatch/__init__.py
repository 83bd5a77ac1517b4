"""Memory truth for machines with GPUs: pools that add up, shares that are inside them.

The names below are for training and inference code. Each is loaded when it is first used, so that importing this
package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.planning.checkpoint import read_checkpoint as read_checkpoint
    from memwatch.planning.inference import estimate_inference_memory as estimate_inference_memory
    from memwatch.planning.inference import estimate_kv_cache as estimate_kv_cache
    from memwatch.planning.training import estimate_training_memory as estimate_training_memory

__version__ = "0.1.0"

_HOME = {
    "planning.checkpoint": "read_checkpoint",
    "planning.inference": "estimate_inference_memory estimate_kv_cache",
    "planning.quantities": "BadInput",
    "planning.training": "TrainingPlan estimate_training_memory",
    "planning.transformer": "Transformer",
}
_MODULE_OF = {name: f"memwatch.{module}" for module, names in _HOME.items() for name in names.split()}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
