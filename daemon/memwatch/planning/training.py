"""Memory of a model during training: weights, gradients, optimizer states and activations, on and off the GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from memwatch.core.doc import Doc
from memwatch.core.model import MAX_BYTES
from memwatch.planning.arguments import InvalidInputError, check_count, check_dtype_bytes, check_kind
from memwatch.planning.inference import UNQUANTIZED_BYTES, compute_weights
from memwatch.planning.parameters import check_fields
from memwatch.planning.transformer import Transformer

# Bytes of optimizer state per trained parameter with 32-bit weights or copies. AdamW: two 32-bit moments; 8-bit
# AdamW: two 8-bit ones; Lion: one 32-bit moment. Adafactor's rows and columns are negligible.
OPTIMIZER_BYTES = {"adamw": 8.0, "adamw_8bit": 2.0, "lion": 4.0, "momentum": 4.0, "adafactor": 0.1, "sgd": 0.0}
# Their moments have the type of the weights that they train.
OF_WEIGHTS_TYPE = frozenset({"adamw", "lion", "momentum"})
MASTER_BYTES = 4.0
# The loss computes in 32 bits: log-softmax, its gradient and that of the loss, beside the logits. Measured on an
# H100 with PyTorch 2.11 and transformers 5.17: 12.3 to 17.8 bytes for each logit, with logits of 16 bits.
LOSS_BYTES = 12
# Adafactor's update of the largest matrix: 8.3 bytes for each of its numbers, measured there.
ADAFACTOR_STEP_BYTES = 8


class TrainingPlan(Struct, frozen=True):
    """Options of a training run. `lora_rank` 0 trains all weights. `dtype_bytes`: bytes per stored weight.

    `master_weights` adds a 32-bit copy of the trained weights, as autocast does: its weights have 32 bits, and the
    copy 16. `accumulate`: gradients are kept from one batch to the next. `swapped_blocks`: number of layers whose
    weights are offloaded to System RAM. `offload_optimizer` offloads the optimizer states and the 32-bit copy as
    well, `offload_parameters` all weights except those of one layer.
    """

    batch_size: int = 1
    seq_len: int = 2048
    dtype_bytes: float = 2
    optimizer: Annotated[
        str, Doc("With {train}: adamw, adamw_8bit, lion, adafactor, sgd, …"), Meta(max_length=40)
    ] = "adamw"
    master_weights: bool = True
    checkpointing: Annotated[bool, Doc("With {train}: activation (gradient) checkpointing.")] = False
    flash_attention: bool = True
    lora_rank: Annotated[
        int, Doc("With {train}: rank of LoRA adapters; 0: train all weights.", (16,)), Meta(ge=0, le=1 << 16)
    ] = field(default=0, name="lora")
    offload_optimizer: Annotated[bool, Doc("With {train}: optimizer states in System RAM.")] = False
    swapped_blocks: Annotated[
        int, Doc("With {train}: layers offloaded to System RAM.", (8,)), Meta(ge=0, le=1 << 20)
    ] = field(default=0, name="swap_blocks")
    offload_parameters: Annotated[bool, Doc("With {train}: weights in System RAM.")] = False
    accumulate: Annotated[bool, Doc("With {train}: gradients are kept over several batches.")] = False

    # Fields that a request sets, in its order. Without a type: msgspec cannot read ClassVar with Python 3.10.
    REQUESTED = (
        "optimizer",
        "lora_rank",
        "checkpointing",
        "accumulate",
        "offload_optimizer",
        "swapped_blocks",
        "offload_parameters",
    )

    def __post_init__(self) -> None:
        check_count(self.batch_size, "batch_size", 1, 1, 1 << 30)
        check_count(self.seq_len, "seq_len", 2048, 1, 1 << 30)
        check_fields(self, by_attribute=True)
        check_dtype_bytes(self.dtype_bytes)
        if self.optimizer not in OPTIMIZER_BYTES:
            known = ", ".join(OPTIMIZER_BYTES)
            raise InvalidInputError(
                f'optimizer is "{self.optimizer}", which is not one of {known}; for example adamw'
            )
        if self.dtype_bytes < UNQUANTIZED_BYTES and not self.lora_rank:
            raise InvalidInputError(
                f"dtype_bytes is {self.dtype_bytes:g}, but quantized weights cannot be trained; "
                "also give lora_rank, for example 16"
            )


class TrainingEstimate(Struct, frozen=True):
    """Sizes in bytes. `device_bytes`: the peak on the GPU; `ram_bytes`: the part offloaded to System RAM, in
    `moves` by part.

    `apart_bytes`: the part of gradients and activations that are not in use at the same time, because activations
    are freed while gradients are computed. `total_bytes`: the sum of all without it. On a machine with unified
    memory GPU and System RAM are the same pool.
    """

    parameters: int
    trained_parameters: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    device_bytes: int
    ram_bytes: int
    total_bytes: int
    moves: Mapping[str, int] = {}
    apart_bytes: int = 0


def estimate_training_memory(
    model: Transformer, plan: TrainingPlan = TrainingPlan(), weights_bytes: int | None = None
) -> TrainingEstimate:
    """Estimate the memory of a training run. Raises InvalidInputError if the plan does not match the model.

    `weights_bytes`: the size of the checkpoint's tensors, if known, without adapters. Within 10 % of the peaks
    that `make test-torch` measured on an H100, for eight plans.
    """
    check_kind(model, "model", Transformer, "read_checkpoint(path).transformer")
    check_kind(plan, "plan", TrainingPlan, "TrainingPlan(batch_size=8)")
    if weights_bytes is not None:
        check_count(weights_bytes, "weights_bytes", 16 << 30, 0, MAX_BYTES)
    if plan.swapped_blocks > model.n_layers:
        raise InvalidInputError(
            f"swapped_blocks is {plan.swapped_blocks}, but the model has {model.n_layers} layers; "
            f"for example {model.n_layers // 2}"
        )
    trained = lora_parameters(model, plan.lora_rank) if plan.lora_rank else model.parameters
    adapters = math.ceil(trained * UNQUANTIZED_BYTES) if plan.lora_rank else 0
    stored = compute_weights(model, plan.dtype_bytes) if weights_bytes is None else weights_bytes
    weights = stored + adapters
    copies = MASTER_BYTES if plan.master_weights and plan.dtype_bytes < MASTER_BYTES else 0.0
    number = max(plan.dtype_bytes, UNQUANTIZED_BYTES)
    gradients = math.ceil(trained * (MASTER_BYTES if copies and plan.accumulate else number))
    states = math.ceil(trained * (state_bytes(plan.optimizer, number, copies) + copies))
    activations = compute_activations(model, plan)
    apart = 0 if plan.accumulate else max(0, min(gradients, activations - compute_step(model, plan)))
    layer = math.ceil(model.matrix_parameters * plan.dtype_bytes / model.n_layers)
    swapped = weights - layer if plan.offload_parameters else layer * plan.swapped_blocks
    moved_weights, moved_states = max(0, min(swapped, weights)), states if plan.offload_optimizer else 0
    offloaded = moved_weights + moved_states
    total = weights + gradients + states + activations - apart
    return TrainingEstimate(
        parameters=model.parameters,
        trained_parameters=trained,
        weights_bytes=weights,
        gradients_bytes=gradients,
        optimizer_bytes=states,
        activations_bytes=activations,
        device_bytes=total - offloaded,
        ram_bytes=offloaded,
        total_bytes=total,
        moves={"weights": moved_weights, "optimizer": moved_states},
        apart_bytes=apart,
    )


def state_bytes(optimizer: str, number_bytes: float, copies_bytes: float) -> float:
    """Return the bytes of optimizer state per trained parameter."""
    found = OPTIMIZER_BYTES[optimizer]
    return found if copies_bytes or optimizer not in OF_WEIGHTS_TYPE else found * number_bytes / MASTER_BYTES


def lora_parameters(model: Transformer, rank: int) -> int:
    """Return the number of parameters of LoRA adapters on every matrix of every layer."""
    return rank * sum(count * (inputs + outputs) for _, count, inputs, outputs in model.list_matrices())


def compute_activations(model: Transformer, plan: TrainingPlan) -> int:
    """Return the bytes saved for the backward pass when it begins.

    With checkpointing: each layer's input, and the loss or, after it, the one layer that is recomputed.
    """
    tokens, number = plan.batch_size * plan.seq_len, max(plan.dtype_bytes, UNQUANTIZED_BYTES)
    layer = compute_layer(model, plan)
    logits = tokens * model.vocab_size * (number + LOSS_BYTES)
    if plan.checkpointing:
        inputs = tokens * model.hidden_size * number * model.n_layers
        return math.ceil(inputs + max(layer, logits))
    return math.ceil(layer * model.n_layers + logits)


def compute_layer(model: Transformer, plan: TrainingPlan) -> float:
    """Return the bytes that one layer saves for the backward pass."""
    tokens = plan.batch_size * plan.seq_len
    layer = tokens * layer_bytes(model, max(plan.dtype_bytes, UNQUANTIZED_BYTES))
    if not plan.flash_attention:
        # Korthikanti et al., 2022 (arXiv 2205.05198), equation 1: softmax, mask and dropout per pair of tokens.
        layer += 5 * model.n_heads * plan.seq_len * tokens
    return layer


def compute_step(model: Transformer, plan: TrainingPlan) -> int:
    """Return the bytes in use beside all gradients: the first layer's activations, then the optimizer's work."""
    largest = max(
        model.vocab_size * model.hidden_size, *(rows * columns for *_, rows, columns in model.list_matrices())
    )
    step = ADAFACTOR_STEP_BYTES * largest if plan.optimizer == "adafactor" else 0
    return math.ceil(max(compute_layer(model, plan), step))


def layer_bytes(model: Transformer, number_bytes: float) -> float:
    """Return the bytes saved per token in one layer. Norms compute in 32 bits and save their inputs.

    Measured with PyTorch 2.13, a Llama-like layer in bfloat16 with hidden size 512 and 8 heads: 25,128 bytes per
    token (estimate 25,088) with intermediate size 1,792 and 2 KV heads; 23,336 (23,296) with 1,376 and 8.
    """
    return numbers_of_layer(model) * number_bytes + model.norms_per_layer * model.hidden_size * 4


def numbers_of_layer(model: Transformer) -> int:
    """Return the numbers saved per token in one layer.

    They are the inputs of both norms and both blocks, queries, keys, values, the attention's output, and the MLP's
    gate, input, activation and product.
    """
    attention = 2 * model.n_heads * model.head_dim + 2 * model.kv_width
    return 4 * model.hidden_size + attention + (4 if model.gated_mlp else 2) * model.active_width
