"""Transformers: loads weights to the devices that it is given. The cache grows with the tokens."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.core.units import GIB, size
from memwatch.planning.engines.placement import (
    FLOATS,
    Flag,
    Launch,
    NoLaunchError,
    Placement,
    refuse_conversion,
    select_gpus,
)

QUANTIZATIONS = {
    "nf4": 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16")',
    "nf4_double": 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
    'bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="bfloat16")',
    "int8": "BitsAndBytesConfig(load_in_8bit=True)",
}


def build(plan: Placement, dtype: str) -> Launch:
    """Return the lines of Python that load the model for a plan."""
    if plan.cache_dtype not in ("", "bfloat16", "float16"):
        raise NoLaunchError(f"the cache of Transformers has the dtype of the model, not {plan.use.kv_dtype}")
    variables, notes = select_gpus(plan)
    arguments = [*_formats(dtype), *_devices(plan)]
    quantized = dtype in QUANTIZATIONS
    names = f"AutoModelForCausalLM{', BitsAndBytesConfig' if quantized else ''}"
    given = "".join(f"    {one.flag},\n" for one in arguments)
    limit = Flag(f"max_length = {plan.context}", "the cache grows with each token, up to the plan's context")
    setup = [
        f'os.environ["{name}"] = "{value}"' for one in variables for name, _, value in [one.flag.partition("=")]
    ]
    lines = [
        *(["import os", *setup] if setup else []),
        f"from transformers import {names}",
        f"model = AutoModelForCausalLM.from_pretrained(\n    {plan.model!r},\n{given})",
        f"model.generation_config.{limit.flag}",
    ]
    return Launch("transformers", "\n".join(lines), (*variables, *arguments, limit), (*notes,), "python")


def _formats(dtype: str) -> Iterator[Flag]:
    if dtype in QUANTIZATIONS:
        yield Flag(f"quantization_config={QUANTIZATIONS[dtype]}", f"the plan counts {dtype} weights")
    elif dtype and dtype not in FLOATS:
        raise refuse_conversion("Transformers", dtype)
    yield Flag(
        f'dtype="{dtype if dtype in FLOATS else "auto"}"',
        "the plan counts weights of this format"
        if dtype in FLOATS
        else "as in the file; Transformers 4 loads 32 bits otherwise",
    )


def _devices(plan: Placement) -> Iterator[Flag]:
    if not plan.gpus:
        yield Flag('device_map="cpu"', "the plan is for the CPU")
    elif plan.count == 1:
        where = '"mps"' if plan.vendors == {"APPLE"} else '{"": 0}'
        why = "all weights on the GPU"
        if plan.is_unified and plan.vendors == {"NVIDIA"}:
            why += '; "auto" reads CUDA\'s free memory, without page cache, and moves layers to the CPU'
        yield Flag(f"device_map={where}", why)
    else:
        each = plan.part("weights")
        limit = f"{-(-each * 10 // GIB) / 10:.1f}GiB"
        yield Flag('device_map="auto"', "each GPU holds some of the layers")
        yield Flag(
            f"max_memory={{{', '.join(f'{at}: {limit!r}' for at in range(plan.count))}}}",
            f"{size(each)} of weights on each GPU, the rest is for cache and activations",
        )
