"""Memory of machines with GPUs: pools that add up, and shares inside them.

The names below are loaded on first use, which keeps the import cheap. Tools for training code are in
`memwatch.training`; each of its names is one of this module as well.
"""

TYPE_CHECKING = False  # importing typing would take 30 ms
if TYPE_CHECKING:
    from memwatch.build_info import __version__ as __version__
    from memwatch.core.backends.cuda_context import ContextNotMeasuredError as ContextNotMeasuredError
    from memwatch.library.advice import Advice as Advice
    from memwatch.library.advice import advise as advise
    from memwatch.library.advice import recommended_env as recommended_env
    from memwatch.library.backend_selection import NoBackendError as NoBackendError
    from memwatch.library.backend_selection import best_available_backend as best_available_backend
    from memwatch.library.backend_selection import discover_backends as discover_backends
    from memwatch.library.backend_selection import select_backend_for as select_backend_for
    from memwatch.library.daemon_client import NoDaemonError as NoDaemonError
    from memwatch.library.fit import fit as fit
    from memwatch.library.guard import Usage as Usage
    from memwatch.library.guard import guard as guard
    from memwatch.library.machine import get_device_memory_bytes as get_device_memory_bytes
    from memwatch.library.machine import is_unified_memory_gpu as is_unified_memory_gpu
    from memwatch.library.machine import machine as machine
    from memwatch.library.machine import memory_info as memory_info
    from memwatch.library.machine_record import Machine as Machine
    from memwatch.library.machine_record import MemoryInfo as MemoryInfo
    from memwatch.library.memory_tree import log_start as log_start
    from memwatch.library.memory_tree import memory_tree as memory_tree
    from memwatch.library.pressure_watch import PressureChange as PressureChange
    from memwatch.library.pressure_watch import on_pressure as on_pressure
    from memwatch.library.profiler import MemoryProfiler as MemoryProfiler
    from memwatch.library.stage_log import log_memory_usage as log_memory_usage
    from memwatch.library.track import MemoryStats as MemoryStats
    from memwatch.library.track import track as track
    from memwatch.library.visible_gpus import DeviceError as DeviceError
    from memwatch.library.wait import wait_for as wait_for
    from memwatch.planning.answer import FitAnswer as FitAnswer
    from memwatch.planning.arguments import InvalidInputError as InvalidInputError
    from memwatch.planning.checkpoint import read_checkpoint as read_checkpoint
    from memwatch.planning.inference import InferenceEstimate as InferenceEstimate
    from memwatch.planning.inference import estimate_inference_memory as estimate_inference_memory
    from memwatch.planning.inference import estimate_kv_cache as estimate_kv_cache
    from memwatch.planning.training import TrainingEstimate as TrainingEstimate
    from memwatch.planning.training import TrainingPlan as TrainingPlan
    from memwatch.planning.training import estimate_training_memory as estimate_training_memory
    from memwatch.planning.transformer import Transformer as Transformer
    from memwatch.training import AllocationTracker as AllocationTracker
    from memwatch.training import Autopsy as Autopsy
    from memwatch.training import BlockSwap as BlockSwap
    from memwatch.training import FallbackBuffer as FallbackBuffer
    from memwatch.training import MemoryPool as MemoryPool
    from memwatch.training import PoolStats as PoolStats
    from memwatch.training import Preset as Preset
    from memwatch.training import Released as Released
    from memwatch.training import SafetensorsFile as SafetensorsFile
    from memwatch.training import accelerate_tracker as accelerate_tracker
    from memwatch.training import allocate_with_fallback as allocate_with_fallback
    from memwatch.training import autopsy as autopsy
    from memwatch.training import autopsy_on_oom as autopsy_on_oom
    from memwatch.training import clear as clear
    from memwatch.training import is_out_of_memory as is_out_of_memory
    from memwatch.training import keras_callback as keras_callback
    from memwatch.training import lightning_callback as lightning_callback
    from memwatch.training import open_safetensors as open_safetensors
    from memwatch.training import pools as pools
    from memwatch.training import preset as preset
    from memwatch.training import register_pool as register_pool
    from memwatch.training import retry_on_oom as retry_on_oom
    from memwatch.training import shrink as shrink
    from memwatch.training import shrink_on_pressure as shrink_on_pressure
    from memwatch.training import swap_blocks as swap_blocks
    from memwatch.training import transformers_callback as transformers_callback
    from memwatch.training import unregister_pool as unregister_pool

_HOME = {
    "build_info": "__version__",
    "core.backends.cuda_context": "ContextNotMeasuredError",
    "library.advice": "Advice advise recommended_env",
    "library.backend_selection": "NoBackendError best_available_backend discover_backends select_backend_for",
    "library.daemon_client": "NoDaemonError",
    "library.fit": "fit",
    "library.guard": "Usage guard",
    "library.machine": "get_device_memory_bytes is_unified_memory_gpu machine memory_info",
    "library.machine_record": "Machine MemoryInfo",
    "library.memory_tree": "log_start memory_tree",
    "library.pressure_watch": "PressureChange on_pressure",
    "library.profiler": "MemoryProfiler",
    "library.stage_log": "log_memory_usage",
    "library.track": "MemoryStats track",
    "library.visible_gpus": "DeviceError",
    "library.wait": "wait_for",
    "planning.answer": "FitAnswer",
    "planning.arguments": "InvalidInputError",
    "planning.checkpoint": "read_checkpoint",
    "planning.inference": "InferenceEstimate estimate_inference_memory estimate_kv_cache",
    "planning.training": "TrainingEstimate TrainingPlan estimate_training_memory",
    "planning.transformer": "Transformer",
    "training": "AllocationTracker retry_on_oom",
}


def _modules_of(home: dict[str, str]) -> dict[str, str]:
    return {name: f"memwatch.{module}" for module, names in home.items() for name in names.split()}


def _load(package: dict[str, object], module_of: dict[str, str], name: str) -> object:
    """Import a name at its first use, and keep it among the globals of its package."""
    if name not in module_of:
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
    from importlib import import_module

    package[name] = found = getattr(import_module(module_of[name]), name)
    return found


_MODULE_OF = _modules_of(_HOME)

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return _load(globals(), _MODULE_OF, name)
    from importlib import import_module

    training = import_module("memwatch.training")
    return training if name == "training" else _load(globals(), training._MODULE_OF, name)


def __dir__() -> list[str]:
    return [*__all__, "training"]
