"""Tools for training code: allocators, out-of-memory errors, callbacks of frameworks, weights.

They are loaded on first use, and by nothing else of this package. A monitor's functions are in `memwatch`.
"""

from memwatch import _load, _modules_of

TYPE_CHECKING = False  # importing typing would take 30 ms
if TYPE_CHECKING:
    from memwatch.library.frameworks import pools as pools
    from memwatch.library.frameworks import register_pool as register_pool
    from memwatch.library.frameworks import shrink as shrink
    from memwatch.library.frameworks import unregister_pool as unregister_pool
    from memwatch.library.memory_pool import MemoryPool as MemoryPool
    from memwatch.library.memory_pool import PoolStats as PoolStats
    from memwatch.library.memory_release import Released as Released
    from memwatch.library.memory_release import clear as clear
    from memwatch.library.pressure_watch import shrink_on_pressure as shrink_on_pressure
    from memwatch.training.allocation_tracker import AllocationTracker as AllocationTracker
    from memwatch.training.block_swap import BlockSwap as BlockSwap
    from memwatch.training.block_swap import swap_blocks as swap_blocks
    from memwatch.training.callbacks import accelerate_tracker as accelerate_tracker
    from memwatch.training.callbacks import keras_callback as keras_callback
    from memwatch.training.callbacks import lightning_callback as lightning_callback
    from memwatch.training.callbacks import transformers_callback as transformers_callback
    from memwatch.training.oom_autopsy import Autopsy as Autopsy
    from memwatch.training.oom_autopsy import autopsy as autopsy
    from memwatch.training.oom_autopsy import autopsy_on_oom as autopsy_on_oom
    from memwatch.training.oom_errors import is_out_of_memory as is_out_of_memory
    from memwatch.training.oom_recovery import FallbackBuffer as FallbackBuffer
    from memwatch.training.oom_recovery import allocate_with_fallback as allocate_with_fallback
    from memwatch.training.oom_recovery import retry_on_oom as retry_on_oom
    from memwatch.training.presets import Preset as Preset
    from memwatch.training.presets import preset as preset
    from memwatch.training.safetensors_file import SafetensorsFile as SafetensorsFile
    from memwatch.training.safetensors_file import open_safetensors as open_safetensors

_HOME = {
    "library.frameworks": "pools register_pool shrink unregister_pool",
    "library.memory_pool": "MemoryPool PoolStats",
    "library.memory_release": "Released clear",
    "library.pressure_watch": "shrink_on_pressure",
    "training.allocation_tracker": "AllocationTracker",
    "training.block_swap": "BlockSwap swap_blocks",
    "training.callbacks": "accelerate_tracker keras_callback lightning_callback transformers_callback",
    "training.oom_autopsy": "Autopsy autopsy autopsy_on_oom",
    "training.oom_errors": "is_out_of_memory",
    "training.oom_recovery": "FallbackBuffer allocate_with_fallback retry_on_oom",
    "training.presets": "Preset preset",
    "training.safetensors_file": "SafetensorsFile open_safetensors",
}
_MODULE_OF = _modules_of(_HOME)

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    return _load(globals(), _MODULE_OF, name)


def __dir__() -> list[str]:
    return __all__
