"""A request: a size, or a model and its use. Parameters are declared here and in the records inside.

The planner works with `Use` as well, and changes it to find what would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import fields, replace

from memwatch.core.doc import Doc
from memwatch.core.model import MAX_BYTES
from memwatch.planning.arguments import InvalidInputError, parse_bytes
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.diffusion import ImageUse, Pipeline
from memwatch.planning.number_formats import Scope, bits_per_cached_number, bits_per_weight, parse_format
from memwatch.planning.parameters import Text, build, check_fields, walk_parameters, write_parameters
from memwatch.planning.training import TrainingPlan
from memwatch.planning.transformer import Transformer

DEFAULT_CONTEXT = 8192
# Overhead of a process on a GPU beyond its allocations: CUDA or HIP context and kernels.
RUNTIME_BYTES = 512 << 20
MAX_GPUS = 1024
MAX_UNKNOWN = 400
MAX_NAME = 4096
MAX_ZERO_STAGE = 3
FORMAT = Meta(max_length=40)
MANY = Meta(ge=0, le=1 << 20)


class Use(Struct, frozen=True):
    """Options of a request. `context` 0: the model's own, at most 8,192 tokens. `dtype` empty: the checkpoint's.

    `offload_kv` and `cpu_layers` move the KV cache, or layers with their part of it, to System RAM. `parallel`
    empty: the better.
    """

    context: Annotated[
        int, Doc("Context length in tokens per sequence.", (DEFAULT_CONTEXT,)), Meta(ge=1, le=1 << 30)
    ] = 0
    batch_size: Annotated[int, Doc("Batch size in sequences."), Meta(ge=1, le=1 << 20)] = field(
        default=1, name="batch"
    )
    dtype: Annotated[str, Doc("Type of the weights: bfloat16, int8, nf4, q4_k, …"), FORMAT] = ""
    kv_dtype: Annotated[str, Doc("Type of the KV cache; by default that of the weights."), FORMAT] = ""
    training: Annotated[TrainingPlan | None, Doc("Training instead of inference.")] = field(
        default=None, name="train"
    )
    zero: Annotated[
        int,
        Doc("With {train}, on several GPUs: stage of ZeRO; 3 is FSDP."),
        Meta(ge=0, le=MAX_ZERO_STAGE),
    ] = MAX_ZERO_STAGE
    offload_kv: Annotated[bool, Doc("KV cache in System RAM.")] = False
    cpu_layers: Annotated[int, Doc("Layers on the CPU, with their part of the KV cache.", (8,)), MANY] = 0
    gpus: Annotated[int, Doc("Number of GPUs; 0: as few as possible.", (8,)), Meta(ge=0, le=MAX_GPUS)] = 0
    parallel: Annotated[Literal["", "tensor", "pipeline"], Doc("Split over several GPUs.")] = ""
    images: ImageUse = ImageUse()
    reserve_bytes: Annotated[
        int, Doc("Size that stays free in each pool, for example 4GiB."), FORMAT, Text(parse_bytes)
    ] = field(default=0, name="reserve")
    runtime_bytes: Annotated[
        int,
        Doc("Measured bytes of a GPU context; 0: a typical value.", (RUNTIME_BYTES,)),
        Meta(ge=0, le=16 << 30),
    ] = field(default=0, name="runtime")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dtype:
            bits_per_weight(self.dtype)
        if self.kv_dtype:
            bits_per_cached_number(self.kv_dtype)
        if self.training and (self.offload_kv or self.cpu_layers):
            raise InvalidInputError(
                "offload_kv and cpu_layers are for inference; use offload_parameters in training"
            )


class FitRequest(Struct, frozen=True, kw_only=True):
    """A size, or the shape of a model and its intended use."""

    bytes: Annotated[str | None, Doc("Size such as 20GiB, or a number of bytes."), FORMAT] = None
    shape: Transformer | None = None
    pipeline: Pipeline | None = None
    use: Use = Use()
    weights_bytes: Annotated[
        int | None, Doc("Size of the model's tensors, if known."), Meta(ge=1, le=MAX_BYTES)
    ] = None
    weight_bits: Annotated[float | None, Doc("Bits per weight, in place of dtype."), Meta(ge=1, le=128)] = None
    weight_scope: Annotated[Scope, Doc("Parts of the model that have weight_bits; the others have 16.")] = "layers"
    unknown: Annotated[
        str, Doc("What the shape lacks: the answer is then unknown or no."), Meta(max_length=MAX_UNKNOWN)
    ] = ""
    max_context: Annotated[int, Doc("Longest context of the model; 0: not known."), Meta(ge=0, le=1 << 30)] = 0
    launch: Annotated[str, Doc("Engine whose launch line is wanted, or all."), FORMAT] = ""
    model: Annotated[
        str,
        Doc("Name of the model, by which its servers are found; with launch: its path."),
        Meta(min_length=1, max_length=MAX_NAME),
    ] = "model"
    alias: Annotated[
        str,
        Doc("With launch: name of the model in Ollama's store, whose path is in model."),
        Meta(max_length=MAX_NAME),
    ] = ""
    projector: Annotated[
        str,
        Doc("With launch: file of the vision tower beside a GGUF file."),
        Meta(max_length=MAX_NAME),
    ] = ""
    file_format: Annotated[
        str,
        Doc("Format of a GGUF file, such as q8_0, or other: its engines and narrower files count."),
        FORMAT,
    ] = ""
    source: Annotated[
        Literal["shape", "config.json", "safetensors", "GGUF"],
        Doc("With launch: the model's files; shape: not known."),
    ] = "shape"
    lease: Annotated[str, Doc("Own lease: its bytes count as available."), FORMAT] = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_size(self) -> bool:
        return self.bytes is not None

    @property
    def checkpoint(self) -> Checkpoint:
        if self.pipeline:
            return Checkpoint(
                "model", "diffusers", None, None, 0, 2.0, unknown=self.unknown, pipeline=self.pipeline
            )
        if self.shape is None:
            return Checkpoint(self.model, self.source, None, self.weights_bytes, 0, 2.0, self.unknown)
        form = parse_format(self.use.dtype or DESCRIBED["dtype"])
        bits, scope = (self.weight_bits, self.weight_scope) if self.weight_bits else (form.bits, form.scope)
        return Checkpoint(
            self.model, self.source, self.shape, self.weights_bytes, self.max_context, bits / 8,
            scope=scope, unknown=self.unknown, alias=self.alias, projector=self.projector,
            file_format=self.file_format,
        )  # fmt: skip


# Defaults for a model that is described by numbers, which name neither its context nor its format.
DESCRIBED: Mapping[str, Any] = {"context": DEFAULT_CONTEXT, "dtype": "bfloat16"}
PARAMETERS = {one.name: one for one in walk_parameters(FitRequest)}
USE = tuple(one.name for one in walk_parameters(Use))
IMAGES = tuple(one.name for one in walk_parameters(ImageUse))
PIPELINE = tuple(one.name for one in walk_parameters(Pipeline))
SHAPE = tuple(one.name for one in fields(Transformer) if one.required)
# Details that most models do not have. The defaults describe a plain model.
DETAILS = tuple(one.name for one in fields(Transformer) if not one.required)
# Parameters that apply to training only.
TRAINING = (*(one.name for one in walk_parameters(TrainingPlan)), "zero")
# Parameters that apply to a size.
FOR_A_SIZE = ("bytes", "reserve", "lease")
PIPELINE_SIZES = tuple(one.name for one in fields(Pipeline) if one.required and one.name != "denoiser")
# Sizes that a description of a pipeline must have.
PIPELINE_NEEDS = (
    "denoiser_parameters",
    "denoiser_bytes",
    "denoiser_width",
    "token_pixels",
    "attention_pixels",
    "attention_heads",
)


def parse_request(given: Mapping[str, Any]) -> FitRequest:
    """Build a request from the parameters that were given, which have their types. Raises InvalidInputError."""
    described = [name for name in SHAPE if given.get(name) is not None]
    if given.get("bytes") is not None and not described:
        others = [name for name in PARAMETERS if name in given and name not in FOR_A_SIZE]
        remedy = f"leave that out, or describe a model: give all of {', '.join(SHAPE)} instead of bytes"
        refuse_for_size("bytes", others, remedy)
        return build(FitRequest, given)
    if given.get("denoiser"):
        return _parse_pipeline(given)
    images = [name for name in (*PIPELINE, *IMAGES) if name in given and name != "denoiser"]
    if images:
        raise InvalidInputError(f"{', '.join(images)}: for diffusion models only; add denoiser, for example unet")
    own = ("dtype",) if given.get("weight_bits") is not None else ()
    values = {name: value for name, value in DESCRIBED.items() if name not in own} | dict(given)
    if given.get("weights_bytes") is not None and not described:
        return build(FitRequest, values)
    missing = [name for name in SHAPE if name not in described]
    if given.get("bytes") is not None or missing:
        lacking = f"; {', '.join(missing)} are missing" if described and missing else ""
        raise InvalidInputError(
            f"give either bytes, for example bytes=20GiB, or all of {', '.join(SHAPE)}{lacking}"
        )
    _refuse_training_options(given)
    return replace(build(FitRequest, values), shape=build(Transformer, given))


def _parse_pipeline(given: Mapping[str, Any]) -> FitRequest:
    missing = [name for name in PIPELINE_NEEDS if not given.get(name)]
    if missing:
        raise InvalidInputError(f"a diffusion model also needs {', '.join(missing)}")
    pipeline = build(Pipeline, {**dict.fromkeys(PIPELINE_SIZES, 0), **given})
    _refuse_training_options(given)
    return replace(build(FitRequest, given), pipeline=pipeline)


def _refuse_training_options(given: Mapping[str, Any]) -> None:
    changed = [name for name in TRAINING if given.get(name, PARAMETERS[name].default) != PARAMETERS[name].default]
    if not given.get("train"):
        refuse_training_only(changed, str, "train=true")


def refuse_training_only(names: Iterable[str], spell: Callable[[str], str], switch: str) -> None:
    """Raise InvalidInputError for those of the given parameters that apply to training only."""
    if unused := ", ".join(spell(name) for name in names if name in TRAINING):
        raise InvalidInputError(f"{unused}: for training only; add {switch}, or leave it out")


def refuse_for_size(subject: str, names: Iterable[str], remedy: str) -> None:
    """Raise InvalidInputError for options that cannot change the answer for a size."""
    if unused := ", ".join(names):
        raise InvalidInputError(f"{subject} is a size, which {unused} cannot change; {remedy}")


def choose_context(checkpoint: Checkpoint, use: Use) -> int:
    return use.context or min(checkpoint.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def describe_long_context(most: int, wanted: int) -> str:
    """Return a sentence about a context beyond the maximum of a model, empty if it is within it or unknown (0)."""
    if not most or wanted <= most:
        return ""
    return (
        f"Its own maximum is {most:,} tokens: engines refuse {wanted:,} without a change of its "
        "configuration (rope scaling)."
    )


def write_request(checkpoint: Checkpoint, use: Use, launch: str = "") -> dict[str, str]:
    """Return the parameters of a model and its use. `launch`: an engine for its launch line, or all."""
    has_shape = checkpoint.transformer is not None or checkpoint.pipeline is not None
    unknown = checkpoint.unknown if has_shape else checkpoint.why_shapeless
    lacks = {"unknown": unknown[:MAX_UNKNOWN]} if unknown else {}
    if checkpoint.pipeline:
        return write_parameters(checkpoint.pipeline) | write_parameters(use) | lacks
    found: dict[str, object] = {
        **(write_shape(checkpoint.transformer) if checkpoint.transformer else {}),
        **write_parameters(use),
        **lacks,
    }
    if checkpoint.weights_bytes:
        found["weights_bytes"] = checkpoint.weights_bytes
    if not use.dtype or launch:
        found |= {"weight_bits": checkpoint.dtype_bytes * 8, "weight_scope": checkpoint.scope}
    if checkpoint.file_format:
        found["file_format"] = checkpoint.file_format
    if checkpoint.transformer:
        found |= {"context": choose_context(checkpoint, use), "max_context": checkpoint.context}
    if launch:
        found |= {"launch": launch, "model": checkpoint.name, "source": checkpoint.source}
        own = {"alias": checkpoint.alias, "projector": checkpoint.projector}
        found |= {name: value for name, value in own.items() if value}
    return {name: str(value) for name, value in found.items()}


def write_shape(transformer: Transformer) -> dict[str, str]:
    """Return a shape as parameters, without details that equal those of a plain model."""
    shape = write_parameters(transformer)
    if transformer.head_dim == transformer.hidden_size // transformer.n_heads:
        shape.pop("head_dim", None)
    return shape
