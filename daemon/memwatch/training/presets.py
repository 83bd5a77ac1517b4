"""Presets: recommended settings by purpose. Nothing is set here except by `Preset.apply`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, MutableMapping

from msgspec import Struct

from memwatch.library.advice import (
    JAX,
    SHARING,
    TEGRA,
    TORCH_CUDA,
    TORCH_DATA,
    Advice,
    advice_for,
    has_bfloat16,
    select_environment,
    with_visible_gpus,
)
from memwatch.library.machine import machine
from memwatch.library.machine_record import Machine
from memwatch.library.program_safety import log_once
from memwatch.planning.arguments import check_choice, refuse

TORCH_INFERENCE = "https://docs.pytorch.org/docs/stable/notes/autograd.html"
TORCH_CHECKPOINT = "https://docs.pytorch.org/docs/stable/checkpoint.html"
TORCH_AMP = "https://docs.pytorch.org/docs/stable/amp.html"
QUANTIZED = "https://huggingface.co/docs/transformers/quantization/overview"
MALLOPT = "https://man7.org/linux/man-pages/man3/mallopt.3.html"
LOADER = frozenset({"num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "non_blocking"})
# PyTorch refuses these without worker processes.
OF_WORKERS = frozenset({"persistent_workers", "prefetch_factor"})


class Preset(Struct, frozen=True):
    """Settings for one purpose on one machine, set only by `apply`. `advice` has the reasons and sources."""

    name: str
    advice: tuple[Advice, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that are recommended."""
        return select_environment(self.advice)

    @property
    def settings(self) -> dict[str, str]:
        """Recommended settings of the program, such as dtype and batch_size, by their usual names."""
        return {
            one.name: one.value for one in self.advice if not one.environment and one.certainty == "recommended"
        }

    def apply(self, environ: MutableMapping[str, str] | None = None) -> dict[str, str]:
        """Set the environment variables that are not set yet, and return them. Call it before importing torch.

        `environ`: in place of that of this process. Raises InvalidInputError if it is no mapping.
        """
        if environ is not None and not isinstance(environ, MutableMapping):
            raise refuse(environ, "environ", "a mapping that can be changed", "os.environ")
        environ = os.environ if environ is None else environ
        new = {name: value for name, value in self.environment.items() if name not in environ}
        environ.update(new)
        late = [name for name in ("torch", "jax", "cupy") if name in sys.modules] if new else []
        if late:
            log_once(
                f"preset {self.name}: {', '.join(new)} are set after the import of {', '.join(late)}, "
                "which may have read them already; call apply() first"
            )
        return new


def preset(name: str) -> Preset:
    """Return the settings for "inference", "training" or "constrained" (little memory) on this machine.

    It has the advice of `advise` as well. Raises InvalidInputError for another name.
    """
    return build_preset(name, with_visible_gpus(machine()))


def build_preset(name: str, here: Machine) -> Preset:
    check_choice(name, "preset", PRESETS, '"training"')
    own = list(PRESETS[name](here))
    chosen = {one.name: one for one in [*own, *advice_for(here)][::-1]}
    without = LOADER if name == "inference" else OF_WORKERS if name == "constrained" else frozenset()
    return Preset(name, tuple(one for one in chosen.values() if one.name not in without)[::-1])


def _inference(here: Machine) -> Iterator[Advice]:
    yield _dtype(here)
    reason = "keeps no activations and no gradients: torch.inference_mode()"
    yield Advice("inference_mode", "True", reason, (TORCH_INFERENCE,))
    yield _batch("raise it while `memwatch.fit(model, batch=N, context=…)` fits: the KV cache grows with it")


def _training(here: Machine) -> Iterator[Advice]:
    yield _dtype(here)
    reason = "activations are most of the memory above a batch of a few: True costs one more forward pass"
    yield Advice("gradient_checkpointing", "False", reason, (TORCH_CHECKPOINT,), "if needed")
    yield _batch("raise it while `memwatch.fit(model, training=TrainingPlan(batch_size=N))` fits")


def _constrained(here: Machine) -> Iterator[Advice]:
    reason = "weights take a quarter of bfloat16; adapters (LoRA) are trained on top of them in 16 bits"
    yield Advice("dtype", "4bit", reason, (QUANTIZED,))
    yield _batch("the smallest; accumulate gradients for the same steps")
    reason = "the same step as a batch of 8, in the memory of a batch of 1"
    yield Advice("gradient_accumulation_steps", "8", reason, (TORCH_AMP,))
    reason = "activations of one block at a time, for one more forward pass"
    yield Advice("gradient_checkpointing", "True", reason, (TORCH_CHECKPOINT,))
    yield from _offload(here)
    reason = "each worker has its own copy of what it touches; 0 loads data in the training process"
    yield Advice("num_workers", "0", reason, (TORCH_DATA,))
    reason = "pinned pages cannot be reclaimed or swapped"
    yield Advice("pin_memory", "False", reason, (TORCH_DATA,))
    reason = "without pinned memory a copy does not overlap with computation"
    yield Advice("non_blocking", "False", reason, (TORCH_DATA,))
    reason = "JAX preallocates three quarters of the GPU's memory at startup"
    yield Advice("XLA_PYTHON_CLIENT_PREALLOCATE", "false", reason, (JAX,), "recommended", True)
    reason = "glibc gives threads heaps of their own, each with freed memory that it keeps; two are enough"
    yield Advice("MALLOC_ARENA_MAX", "2", reason, (MALLOPT,), "recommended", True)


def _offload(here: Machine) -> Iterator[Advice]:
    if any(device.architecture in SHARING for device in here.devices):
        reason = "GPU and CPU use the same memory here: offloading copies within it and frees nothing"
        yield Advice("cpu_offload", "False", reason, (TEGRA,))
    elif here.devices:
        reason = "`memwatch.swap_blocks` keeps a few blocks on the GPU and the others in System RAM"
        yield Advice("cpu_offload", "True", reason, (TORCH_CUDA,))


def _dtype(here: Machine) -> Advice:
    unsure = [one for one in here.devices if one.vendor.lower() in ("nvidia", "amd") and not has_bfloat16(one)]
    if unsure:
        reason = f"{unsure[0].name} is not known to compute in bfloat16; scale the loss when training in float16"
        return Advice("dtype", "float16", reason, (TORCH_AMP,))
    reason = "half the memory of float32, with its range: no scaling of the loss"
    return Advice("dtype", "bfloat16", reason, (TORCH_AMP,))


def _batch(reason: str) -> Advice:
    return Advice("batch_size", "1", reason, ("memwatch: fit",))


PRESETS: dict[str, Callable[[Machine], Iterator[Advice]]] = {
    "inference": _inference,
    "training": _training,
    "constrained": _constrained,
}
