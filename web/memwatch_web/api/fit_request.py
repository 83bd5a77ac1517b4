"""Parameters of /fit: a size, or the shape of a model and its intended use."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import FitAnswer, answer_model, answer_size
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.launch import select_engines
from memwatch.planning.leased import answer_beside_leases
from memwatch.planning.number_formats import parse_format
from memwatch.planning.query import DETAILS, SHAPE, TRAINING
from memwatch.planning.request import DEFAULT_CONTEXT, Use
from memwatch.planning.sizes import InvalidInputError, parse_bytes
from memwatch.planning.training import TrainingPlan
from memwatch.planning.transformer import Biases, Transformer
from memwatch_web.api.image_request import ImageRequest


class FitRequest(ImageRequest):
    """A size, or the shape of a model and its intended use."""

    model_config = ConfigDict(extra="forbid")

    head_dim: int = Field(0, description="0: hidden_size / n_heads.")
    tied_embeddings: bool = False
    gated_mlp: bool = Field(True, description="Three MLP matrices, as in SwiGLU, instead of two.")
    n_experts: int = 1
    biases: Biases = "none"
    qk_norm: bool = False
    norms_per_layer: int = 2
    learned_positions: int = Field(0, description="Rows of the learned position table; 0: none.")
    sliding_window: int = Field(0, description="Attention window in tokens; 0: unlimited.")
    full_layers: int = Field(0, description="Layers without the window; 0: none.")
    full_kv_width: int = Field(0, description="Numbers of a token's keys in those, if other than in the others.")
    full_kv_heads: int = Field(0, description="KV heads of those, if other than in the others.")
    shared_kv_layers: int = Field(0, description="Layers that read the KV cache of another.")
    attention_layers: int = Field(0, description="Layers with attention; 0: all but linear_layers.")
    linear_layers: int = Field(0, description="Layers without a KV cache: linear attention, state-space.")
    linear_parameters: int = Field(0, description="Parameters of each of those.")
    state_bytes: int = Field(0, description="State of each of those, for one sequence.")
    kv_lora_rank: int = Field(0, description="MLA: rank of the cached vector; 0: no MLA.")
    q_lora_rank: int = Field(0, description="MLA: rank of the queries; 0: one matrix.")
    qk_rope_head_dim: int = Field(0, description="MLA: cached numbers with positions.")
    v_head_dim: int = Field(0, description="Head dimension of values; 0: head_dim.")
    mlp_layers: int = Field(0, description="Layers with an MLP; 0: all.")
    moe_layers: int = Field(0, description="Layers with experts; 0: all with an MLP.")
    dense_intermediate_size: int = Field(0, description="Width of layers without experts.")
    shared_intermediate_size: int = Field(0, description="Width of the shared experts.")
    active_experts: int = Field(0, description="Experts of a token; 0: two.")
    o_groups: int = Field(0, description="Groups of heads with an output matrix of low rank; 0: one matrix.")
    o_lora_rank: int = Field(0, description="Rank of each of those.")
    fp8_token_bytes: int = Field(0, description="MLA: bytes of the cached vector in 8 bits; 0: one a number.")
    side_numbers: int = Field(0, description="Cached numbers of a token beside keys and values, in all layers.")
    side_bytes: int = Field(0, description="The same in bytes of a format of their own, such as an indexer's.")
    extra_parameters: int = Field(0, description="Parameters of a vision tower and others, not quantized.")
    context: int = Field(DEFAULT_CONTEXT, ge=1, le=1 << 30, description="Context length in tokens per sequence.")
    batch: int = Field(1, ge=1, le=1 << 20, description="Batch size in sequences.")
    dtype: str = Field("bfloat16", max_length=40, description="Type of the weights: bfloat16, int8, nf4, q4_k, …")
    kv_dtype: str = Field("", max_length=40, description="Type of the KV cache; by default that of the weights.")
    train: bool = Field(False, description="Training instead of inference.")
    optimizer: str = Field("adamw", max_length=40, description="With train: the optimizer.")
    lora: int = Field(0, ge=0, le=1 << 16, description="With train: rank of LoRA adapters; 0: train all weights.")
    checkpointing: bool = Field(False, description="With train: activation (gradient) checkpointing.")
    accumulate: bool = Field(False, description="With train: gradients are kept over several batches.")
    offload_optimizer: bool = Field(False, description="With train: offload optimizer states to system RAM.")
    swap_blocks: int = Field(
        0, ge=0, le=1 << 20, description="With train: number of layers offloaded to system RAM."
    )

    offload_parameters: bool = Field(False, description="With train: offload all weights to system RAM.")
    zero: int = Field(3, ge=0, le=3, description="With train, on several GPUs: stage of ZeRO; 3 is FSDP.")
    offload_kv: bool = Field(False, description="KV cache in system RAM.")
    cpu_layers: int = Field(0, ge=0, le=1 << 20, description="Layers on the CPU, with their part of the KV cache.")
    gpus: int = Field(0, ge=0, le=1024, description="Number of GPUs; 0: the smallest that holds it.")
    parallel: Literal["", "tensor", "pipeline"] = Field("", description="Split over several GPUs.")
    reserve: str = Field("", max_length=40, description="Size that stays free in each pool, for example 4GiB.")
    runtime: int = Field(0, ge=0, le=16 << 30, description="Measured bytes of a GPU context; 0: a typical value.")
    weights_bytes: int | None = Field(None, ge=1, le=1 << 60, description="Size of the model's tensors, if known.")
    weight_bits: float | None = Field(None, ge=1, le=128, description="Bits per weight, in place of dtype.")
    weight_scope: Literal["layers", "mlp", "experts", "file"] = Field(
        "layers", description="Parts of the model that have weight_bits; the others have 16."
    )
    unknown: str = Field("", max_length=400, description="What the shape lacks: the answer is then unknown or no.")
    max_context: int = Field(0, ge=0, le=1 << 30, description="Longest context of the model; 0: not known.")
    launch: str = Field("", max_length=40, description="Engine whose launch line is wanted, or all.")
    model: str = Field("model", min_length=1, max_length=4096, description="With launch: path of the model.")
    source: Literal["shape", "config.json", "safetensors", "GGUF"] = Field(
        "shape", description="With launch: the model's files; shape: not known."
    )
    lease: str = Field("", max_length=40, description="Own lease: its bytes count as available.")

    def answer(self, snapshot: Snapshot, launch: str = "") -> FitAnswer:
        """Check the request against a snapshot, beside the leases of others. `launch`: in place of none.

        Raises InvalidInputError.
        """
        return answer_beside_leases(snapshot, self.lease, lambda seen: self._answer(seen, launch))

    def _answer(self, snapshot: Snapshot, launch: str) -> FitAnswer:
        checkpoint, use = self._checkpoint(), self._use()
        if checkpoint is None:
            need = parse_bytes(self.bytes, "bytes")
            return answer_size(need, str(self.bytes), snapshot, use.reserve_bytes)
        return answer_model(checkpoint, use, snapshot, select_engines(self.launch or launch))

    def _checkpoint(self) -> Checkpoint | None:
        """Return the model, or None if a size was given."""
        shape = {name: getattr(self, name) for name in SHAPE}
        set_fields = [name for name, value in shape.items() if value is not None]
        if self.bytes is not None and not set_fields:
            self._refuse_all_but_bytes()
            return None
        if pipe := self.pipeline():
            self._refuse_training_options()
            return Checkpoint("model", "diffusers", None, None, 0, 2.0, pipeline=pipe)
        if self.weights_bytes is not None and not set_fields:
            return Checkpoint(self.model, self.source, None, self.weights_bytes, 0, 2.0)
        missing = [name for name in SHAPE if name not in set_fields]
        if self.bytes is not None or missing:
            lacking = f"; {', '.join(missing)} are missing" if set_fields and missing else ""
            raise InvalidInputError(
                f"give either bytes, for example bytes=20GiB, or all of {', '.join(SHAPE)}{lacking}"
            )
        self._refuse_training_options()
        transformer = Transformer(**shape, **{name: getattr(self, name) for name in DETAILS})
        form = parse_format(self.dtype)
        bits, scope = (self.weight_bits, self.weight_scope) if self.weight_bits else (form.bits, form.scope)
        return Checkpoint(
            self.model, self.source, transformer, self.weights_bytes, self.max_context, bits / 8,
            scope=scope, unknown=self.unknown,
        )  # fmt: skip

    def _refuse_training_options(self) -> None:
        unused = [name for name in TRAINING if not self.train and getattr(self, name) != _default(name)]
        if unused:
            raise InvalidInputError(f"{', '.join(unused)}: for training only; add train=true, or leave it out")

    def _refuse_all_but_bytes(self) -> None:
        given = self.model_fields_set - {"bytes", "reserve", "lease"}
        others = [name for name in type(self).model_fields if name in given]
        if others:
            raise InvalidInputError(
                f"bytes is a size, to which {', '.join(others)} does not apply; leave that out, or describe a "
                f"model: give all of {', '.join(SHAPE)} instead of bytes"
            )

    def _use(self) -> Use:
        plan = None
        if self.train:
            plan = TrainingPlan(
                optimizer=self.optimizer,
                lora_rank=self.lora,
                checkpointing=self.checkpointing,
                accumulate=self.accumulate,
                offload_optimizer=self.offload_optimizer,
                swapped_blocks=self.swap_blocks,
                offload_parameters=self.offload_parameters,
            )
        own = (self.weight_bits is not None or bool(self.denoiser)) and "dtype" not in self.model_fields_set
        context = 0 if self.denoiser and "context" not in self.model_fields_set else self.context
        return Use(
            context,
            self.batch,
            "" if own else self.dtype,
            self.kv_dtype,
            plan,
            self.offload_kv,
            self.cpu_layers,
            self.gpus,
            self.parallel,
            self.zero,
            parse_bytes(self.reserve, "reserve") if self.reserve else 0,
            self.runtime,
            self.images(),
        )


def _default(name: str) -> object:
    return FitRequest.model_fields[name].default
