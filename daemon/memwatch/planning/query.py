"""A model and its use as parameters of /api/v1/fit, without those that have their default."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import fields

from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.pipeline import Pipeline
from memwatch.planning.request import Use, choose_context
from memwatch.planning.training import TrainingPlan
from memwatch.planning.transformer import Transformer

SHAPE = ("hidden_size", "intermediate_size", "n_layers", "vocab_size", "n_heads", "n_kv_heads")
# Details that most models do not have. The defaults describe a plain model.
DEFAULTS = {field.name: field.default for field in fields(Transformer) if field.name not in SHAPE}
DETAILS = tuple(DEFAULTS)


def shape_fields(transformer: Transformer) -> dict[str, str]:
    """Return a shape as request fields, without details that equal those of a plain model."""
    shape = {name: str(getattr(transformer, name)) for name in SHAPE}
    for name in DETAILS:
        value = getattr(transformer, name)
        plain = transformer.hidden_size // transformer.n_heads if name == "head_dim" else DEFAULTS[name]
        if value != plain:
            shape[name] = str(value).lower()
    return shape


def model_fields(checkpoint: Checkpoint, use: Use, launch: str = "") -> dict[str, str]:
    """Return the request fields of a model and its use. `launch`: an engine for its launch line, or all."""
    if checkpoint.pipeline:
        return pipeline_fields(checkpoint.pipeline) | use_fields(use)
    given = shape_fields(checkpoint.transformer) if checkpoint.transformer else {}
    found: dict[str, object] = {**given, **use_fields(use)}
    if checkpoint.unknown:
        found["unknown"] = checkpoint.unknown
    if checkpoint.weights_bytes is not None:
        found["weights_bytes"] = checkpoint.weights_bytes
    if not use.dtype or launch:
        found |= {"weight_bits": checkpoint.dtype_bytes * 8, "weight_scope": checkpoint.scope}
    if checkpoint.transformer:
        found |= {"context": choose_context(checkpoint, use), "max_context": checkpoint.context}
    if launch:
        found |= {"launch": launch, "model": checkpoint.name, "source": checkpoint.source}
    return {name: str(value) for name, value in found.items()}


def pipeline_fields(pipe: Pipeline) -> dict[str, str]:
    return {name: str(value).lower() for name, value in _changed(pipe).items()}


def _changed(record: Struct) -> dict[str, object]:
    """Return the fields of a record that do not have their default."""
    named = {field.name: (getattr(record, field.name), field.default) for field in fields(type(record))}
    return {name: value for name, (value, default) in named.items() if value != default}


def use_fields(use: Use) -> dict[str, str]:
    """Return the request fields of a use, without the context."""
    plan = use.training
    found: dict[str, object] = {
        "batch": use.batch_size if use.batch_size > 1 else 0,
        "dtype": use.dtype,
        "kv_dtype": use.kv_dtype,
        "offload_kv": use.offload_kv,
        "cpu_layers": use.cpu_layers,
        "gpus": use.gpus,
        "parallel": use.parallel,
        "reserve": use.reserve_bytes,
        "runtime": use.runtime_bytes,
        **(_plan_fields(plan) if plan else {}),
    }
    found |= _changed(use.images)
    kept = {name: str(value).lower() for name, value in found.items() if value}
    return kept | ({"zero": str(use.zero)} if plan else {})


def _plan_fields(plan: TrainingPlan) -> dict[str, object]:
    return {
        "train": True,
        "optimizer": plan.optimizer,
        "lora": plan.lora_rank,
        "checkpointing": plan.checkpointing,
        "accumulate": plan.accumulate,
        "offload_optimizer": plan.offload_optimizer,
        "offload_parameters": plan.offload_parameters,
        "swap_blocks": plan.swapped_blocks,
    }


# Fields that apply to training only.
TRAINING = (*(name for name in _plan_fields(TrainingPlan()) if name != "train"), "zero")
