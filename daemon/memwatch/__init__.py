"""Memory of machines with GPUs: pools that add up, and shares inside them.

The names below are for training and inference code. They are loaded on first use, which keeps the import cheap.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take 30 ms
if TYPE_CHECKING:
    from memwatch.build_info import __version__ as __version__
    from memwatch.core.backends.cuda_context import ContextNotMeasuredError as ContextNotMeasuredError
    from memwatch.library.advice import Advice as Advice
    from memwatch.library.advice import Preset as Preset
    from memwatch.library.advice import advise as advise
    from memwatch.library.advice import preset as preset
    from memwatch.library.advice import recommended_env as recommended_env
    from memwatch.library.allocation_tracker import AllocationTracker as AllocationTracker
    from memwatch.library.autopsy import Autopsy as Autopsy
    from memwatch.library.autopsy import autopsy as autopsy
    from memwatch.library.autopsy import autopsy_on_oom as autopsy_on_oom
    from memwatch.library.backend_selection import NoBackendError as NoBackendError
    from memwatch.library.backend_selection import best_available_backend as best_available_backend
    from memwatch.library.backend_selection import discover_backends as discover_backends
    from memwatch.library.backend_selection import select_backend_for as select_backend_for
    from memwatch.library.block_swap import BlockSwap as BlockSwap
    from memwatch.library.block_swap import swap_blocks as swap_blocks
    from memwatch.library.callbacks import accelerate_tracker as accelerate_tracker
    from memwatch.library.callbacks import keras_callback as keras_callback
    from memwatch.library.callbacks import lightning_callback as lightning_callback
    from memwatch.library.callbacks import transformers_callback as transformers_callback
    from memwatch.library.fit import fit as fit
    from memwatch.library.frameworks import pools as pools
    from memwatch.library.frameworks import register_pool as register_pool
    from memwatch.library.frameworks import shrink as shrink
    from memwatch.library.frameworks import unregister_pool as unregister_pool
    from memwatch.library.guard import Usage as Usage
    from memwatch.library.guard import guard as guard
    from memwatch.library.machine import get_device_memory_bytes as get_device_memory_bytes
    from memwatch.library.machine import is_unified_memory_gpu as is_unified_memory_gpu
    from memwatch.library.machine import machine as machine
    from memwatch.library.machine import memory_info as memory_info
    from memwatch.library.machine_record import Machine as Machine
    from memwatch.library.machine_record import MemoryInfo as MemoryInfo
    from memwatch.library.memory_pool import MemoryPool as MemoryPool
    from memwatch.library.memory_pool import PoolStats as PoolStats
    from memwatch.library.memory_release import Released as Released
    from memwatch.library.memory_release import clear as clear
    from memwatch.library.memory_tree import memory_tree as memory_tree
    from memwatch.library.oom_errors import is_out_of_memory as is_out_of_memory
    from memwatch.library.oom_recovery import FallbackBuffer as FallbackBuffer
    from memwatch.library.oom_recovery import allocate_with_fallback as allocate_with_fallback
    from memwatch.library.oom_recovery import retry_on_oom as retry_on_oom
    from memwatch.library.pressure_watch import PressureChange as PressureChange
    from memwatch.library.pressure_watch import on_pressure as on_pressure
    from memwatch.library.pressure_watch import shrink_on_pressure as shrink_on_pressure
    from memwatch.library.profiler import MemoryProfiler as MemoryProfiler
    from memwatch.library.safetensors_file import SafetensorsFile as SafetensorsFile
    from memwatch.library.safetensors_file import open_safetensors as open_safetensors
    from memwatch.library.stage_log import log_memory_usage as log_memory_usage
    from memwatch.library.start_log import log_start as log_start
    from memwatch.library.track import MemoryStats as MemoryStats
    from memwatch.library.track import track as track
    from memwatch.library.visible_gpus import DeviceError as DeviceError
    from memwatch.library.wait import wait_for as wait_for
    from memwatch.planning.answer import FitAnswer as FitAnswer
    from memwatch.planning.checkpoint import read_checkpoint as read_checkpoint
    from memwatch.planning.inference import InferenceEstimate as InferenceEstimate
    from memwatch.planning.inference import estimate_inference_memory as estimate_inference_memory
    from memwatch.planning.inference import estimate_kv_cache as estimate_kv_cache
    from memwatch.planning.sizes import InvalidInputError as InvalidInputError
    from memwatch.planning.training import TrainingEstimate as TrainingEstimate
    from memwatch.planning.training import TrainingPlan as TrainingPlan
    from memwatch.planning.training import estimate_training_memory as estimate_training_memory
    from memwatch.planning.transformer import Transformer as Transformer

_HOME = {
    "core.backends.cuda_context": "ContextNotMeasuredError",
    "build_info": "__version__",
    "library.advice": "Advice Preset advise preset recommended_env",
    "library.allocation_tracker": "AllocationTracker",
    "library.backend_selection": "NoBackendError best_available_backend discover_backends select_backend_for",
    "library.block_swap": "BlockSwap swap_blocks",
    "library.callbacks": "accelerate_tracker keras_callback lightning_callback transformers_callback",
    "library.visible_gpus": "DeviceError",
    "library.oom_recovery": "FallbackBuffer allocate_with_fallback retry_on_oom",
    "library.fit": "fit",
    "library.frameworks": "pools register_pool shrink unregister_pool",
    "library.memory_pool": "MemoryPool PoolStats",
    "library.memory_release": "Released clear",
    "library.memory_tree": "memory_tree",
    "library.guard": "Usage guard",
    "library.pressure_watch": "PressureChange on_pressure shrink_on_pressure",
    "library.profiler": "MemoryProfiler",
    "library.autopsy": "Autopsy autopsy autopsy_on_oom",
    "library.oom_errors": "is_out_of_memory",
    "library.safetensors_file": "SafetensorsFile open_safetensors",
    "library.stage_log": "log_memory_usage",
    "library.start_log": "log_start",
    "library.track": "MemoryStats track",
    "library.machine": "get_device_memory_bytes is_unified_memory_gpu machine memory_info",
    "library.machine_record": "Machine MemoryInfo",
    "library.wait": "wait_for",
    "planning.answer": "FitAnswer",
    "planning.checkpoint": "read_checkpoint",
    "planning.inference": "InferenceEstimate estimate_inference_memory estimate_kv_cache",
    "planning.sizes": "InvalidInputError",
    "planning.training": "TrainingEstimate TrainingPlan estimate_training_memory",
    "planning.transformer": "Transformer",
}
_MODULE_OF = {name: f"memwatch.{module}" for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
