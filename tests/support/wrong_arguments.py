"""Call each function of the library's first page with wrong arguments. What is not an answer is printed.

A separate program, `python -m support.wrong_arguments FOLDER`: the library keeps readings of the machine. FOLDER
has a model. Each parameter gets each wrong value; only the library's own errors may come out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memwatch

library: Any = memwatch  # calls with wrong types
OURS = (
    memwatch.InvalidInputError,
    memwatch.DeviceError,
    memwatch.NoBackendError,
    memwatch.ContextNotMeasuredError,
)
WRONG: tuple[Any, ...] = (
    None,
    1,
    -1,
    0,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a\0b",
    b"x",
    object(),
    [],
    {},
    (),
    True,
    len,
)
# The config.json of the model in FOLDER, and its shape.
MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "n_layers": 2,
    "vocab_size": 1000,
    "n_heads": 4,
    "n_kv_heads": 4,
}


def guard(**given: object) -> None:
    with library.guard(**{"limit": "1TiB", **given}):
        pass


def profile(**given: object) -> None:
    profiler = library.MemoryProfiler(**{one: given[one] for one in ("interval", "exact") if one in given})
    if "stage" in given:
        profiler.stage(given["stage"])
    if "path" in given:
        profiler.save(given["path"])


def watch(**given: object) -> None:
    library.on_pressure(**{"callback": print, **given}).stop()


def wait(**given: object) -> None:
    # Values that are right, and would wait, are not of interest here.
    wished = {"size": 1, "timeout": 0.01, **given}
    if wished["timeout"] is None or wished["timeout"] in (1, True):
        return
    library.wait_for(**wished)


# Name, call with one more argument, and the parameters. Records and errors are in `RESULTS`.
CALLS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "MemoryProfiler": (profile, ("interval", "exact", "stage", "path")),
    "TrainingPlan": (library.TrainingPlan, memwatch.TrainingPlan.__struct_fields__),
    "Transformer": (lambda **one: library.Transformer(**{**SHAPE, **one}), memwatch.Transformer.__struct_fields__),
    "best_available_backend": (library.best_available_backend, ("prefer",)),
    "estimate_inference_memory": (
        lambda **one: library.estimate_inference_memory(**{**SHAPE, "max_seq_len": 64, **one}),
        (*SHAPE, "max_seq_len", "dtype_bytes", "batch_size", "kv_dtype_bytes"),
    ),
    "estimate_kv_cache": (
        lambda **one: library.estimate_kv_cache(
            **{"n_layers": 2, "n_kv_heads": 4, "head_dim": 16, "max_seq_len": 64, **one}
        ),
        ("n_layers", "n_kv_heads", "head_dim", "max_seq_len", "batch_size", "dtype_bytes"),
    ),
    "estimate_training_memory": (
        lambda **one: library.estimate_training_memory(**{"model": library.Transformer(**SHAPE), **one}),
        ("model", "plan", "weights_bytes"),
    ),
    "fit": (
        lambda **one: library.fit(**{"model": sys.argv[1], **one}),
        (
            *("model", "context", "batch", "dtype", "kv_dtype", "training", "offload_kv", "cpu_layers"),
            *("gpus", "parallel", "zero", "reserve", "launch", "measure"),
        ),
    ),
    "get_device_memory_bytes": (library.get_device_memory_bytes, ("device", "default")),
    "guard": (guard, ("limit", "warn_at", "on_warn", "on_limit", "interval", "clear_at")),
    "is_unified_memory_gpu": (library.is_unified_memory_gpu, ("device",)),
    "log_memory_usage": (lambda **one: library.log_memory_usage(**{"stage": "step", **one}), ("stage",)),
    "log_start": (library.log_start, ("name",)),
    "memory_info": (library.memory_info, ("device",)),
    "on_pressure": (watch, ("callback", "level")),
    "read_checkpoint": (library.read_checkpoint, ("path",)),
    "select_backend_for": (
        lambda **one: library.select_backend_for(**{"wanted": 1, **one}),
        ("wanted", "gpus", "prefer"),
    ),
    "track": (library.track, ("name", "exact")),
    "wait_for": (wait, ("size", "timeout", "device", "interval", "certain")),
}
RESULTS = {
    *("Advice", "FitAnswer", "InferenceEstimate", "Machine", "MemoryInfo", "MemoryStats", "PressureChange"),
    *("TrainingEstimate", "Usage"),
    *("ContextNotMeasuredError", "DeviceError", "InvalidInputError", "NoBackendError", "NoDaemonError"),
}
WITHOUT_ARGUMENTS = {"advise", "discover_backends", "machine", "memory_tree", "recommended_env"}
# Names of design.md's first list whose arguments are tested with those of memwatch.training.
OF_TRAINING = {"AllocationTracker", "retry_on_oom", "training"}


def failure_of(call: Callable[..., object], given: dict[str, Any]) -> str | None:
    try:
        call(**given)
    except OURS as error:
        return None if str(error) else "no sentence"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def complaints() -> Iterator[str]:
    for name, (call, parameters) in CALLS.items():
        for parameter in parameters:
            for value in WRONG:
                if failure := failure_of(call, {parameter: value}):
                    yield f"{name}({parameter}={str(value)[:40]}): {failure}"


def check_right_calls() -> Iterator[str]:
    """Yield what no longer works after all wrong calls."""
    if not library.memory_info() or not library.fit("1MiB").fits or library.pools():
        yield "a right call fails after the wrong ones"
    with library.track("after") as stats:
        pass
    if not isinstance(stats, memwatch.MemoryStats):
        yield "track() fails after the wrong calls"


if __name__ == "__main__":
    logging.disable()
    assert Path(sys.argv[1]).is_dir()
    found = [*complaints(), *check_right_calls()]
    print(len(found), *found, sep="\n")
