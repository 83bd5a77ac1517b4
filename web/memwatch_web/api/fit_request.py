"""What may be asked of /fit: so many bytes, or the shape of a model and how it is to be used."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.fit import Fit, compute_fit
from memwatch.planning.request import (
    DEFAULT_CONTEXT,
    MemoryNeed,
    Reduction,
    Use,
    cheapest_reduction,
    compute_checkpoint_need,
)
from memwatch.planning.sizes import InvalidInputError, bits_per_weight, parse_bytes
from memwatch.planning.training import TrainingPlan
from memwatch.planning.transformer import Biases, Transformer
from memwatch.snapshot import Snapshot

SHAPE = ("hidden_size", "intermediate_size", "n_layers", "vocab_size", "n_heads", "n_kv_heads")
# What most models have none of; each has the value of a plain one.
DETAILS = (
    "head_dim",
    "tied_embeddings",
    "gated_mlp",
    "n_experts",
    "biases",
    "qk_norm",
    "norms_per_layer",
    "learned_positions",
    "sliding_window",
)
# What means nothing without train. The form on the page sends its optimizer always.
TRAINING = ("optimizer", "lora", "checkpointing", "offload_optimizer", "swap_blocks")


class FitResult(Struct, frozen=True):
    """What it needs, where that fits, and the cheapest change that would make it fit where it does not."""

    need: MemoryNeed
    fit: Fit
    change: Reduction | None


class FitRequest(BaseModel):
    """A size, or the shape of a model and how it is to be used."""

    model_config = ConfigDict(extra="forbid")

    bytes: str | None = Field(None, max_length=40, description="Such as 20GiB, or a number of bytes.")
    hidden_size: int | None = None
    intermediate_size: int | None = None
    n_layers: int | None = None
    vocab_size: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int = Field(0, description="0: hidden_size / n_heads.")
    tied_embeddings: bool = False
    gated_mlp: bool = Field(True, description="Three matrices, as in SwiGLU, and not two.")
    n_experts: int = 1
    biases: Biases = "none"
    qk_norm: bool = False
    norms_per_layer: int = 2
    learned_positions: int = Field(0, description="Rows of a position table.")
    sliding_window: int = Field(0, description="The most tokens attention looks back; 0: all.")
    context: int = Field(DEFAULT_CONTEXT, ge=1, le=1 << 30, description="Tokens of each sequence.")
    batch: int = Field(1, ge=1, le=1 << 20, description="Sequences at a time.")
    dtype: str = Field("bfloat16", max_length=40, description="Of the weights: bfloat16, int8, nf4, q4_k, …")
    kv_dtype: str = Field("", max_length=40, description="Of the cache; like the weights if not given.")
    train: bool = Field(False, description="To be trained, not to answer.")
    optimizer: str = Field("adamw", max_length=40, description="With train.")
    lora: int = Field(0, ge=0, le=1 << 16, description="With train: adapters of this rank only; 0: all weights.")
    checkpointing: bool = Field(False, description="With train: activations are computed again.")
    offload_optimizer: bool = Field(False, description="With train: its states wait in System RAM.")
    swap_blocks: int = Field(0, ge=0, le=1 << 20, description="With train: so many layers wait in System RAM.")

    def answer(self, snapshot: Snapshot) -> FitResult:
        """For this machine as it is now. Raises InvalidInputError."""
        checkpoint, use = self._checkpoint(), self._use()
        if checkpoint is None:
            need = MemoryNeed(str(self.bytes), parse_bytes(self.bytes, "bytes"), {})
        else:
            need = compute_checkpoint_need(checkpoint, use)
        found = compute_fit(need.bytes, snapshot)
        rooms = [one.headroom_bytes for one in found.verdicts if isinstance(one.headroom_bytes, int)]
        helps = checkpoint is not None and found.best is None
        change = cheapest_reduction(checkpoint, use, max(rooms, default=0)) if checkpoint and helps else None
        return FitResult(need, found, change)

    def _checkpoint(self) -> Checkpoint | None:
        """None where a size was given."""
        shape = {name: getattr(self, name) for name in SHAPE}
        set_fields = [name for name, value in shape.items() if value is not None]
        if self.bytes is not None and not set_fields:
            self._refuse_all_but_bytes()
            return None
        missing = [name for name in SHAPE if name not in set_fields]
        if self.bytes is not None or missing:
            lacking = f"; {', '.join(missing)} are missing" if set_fields and missing else ""
            raise InvalidInputError(
                f"give either bytes, for example bytes=20GiB, or all of {', '.join(SHAPE)}{lacking}"
            )
        unused = [name for name in TRAINING if not self.train and getattr(self, name) != _default(name)]
        if unused:
            raise InvalidInputError(
                f"{', '.join(unused)}: that says how a model is trained; add train=true, or leave it out"
            )
        transformer = Transformer(**shape, **{name: getattr(self, name) for name in DETAILS})
        return Checkpoint("model", "shape", transformer, None, self.context, bits_per_weight(self.dtype) / 8)

    def _refuse_all_but_bytes(self) -> None:
        others = [name for name in type(self).model_fields if name in self.model_fields_set and name != "bytes"]
        if others:
            raise InvalidInputError(
                f"bytes is a size, which {', '.join(others)} cannot change; leave that out, or describe a model: "
                f"all of {', '.join(SHAPE)} in place of bytes"
            )

    def _use(self) -> Use:
        plan = None
        if self.train:
            plan = TrainingPlan(
                optimizer=self.optimizer,
                lora_rank=self.lora,
                checkpointing=self.checkpointing,
                offload_optimizer=self.offload_optimizer,
                swapped_blocks=self.swap_blocks,
            )
        return Use(self.context, self.batch, self.dtype, self.kv_dtype, plan)


def build_fields(transformer: Transformer) -> dict[str, str]:
    """A shape as the fields of a question; what is as in a plain model is left out."""
    shape = {name: str(getattr(transformer, name)) for name in SHAPE}
    for name in DETAILS:
        value = getattr(transformer, name)
        plain = transformer.hidden_size // transformer.n_heads if name == "head_dim" else _default(name)
        if value != plain:
            shape[name] = str(value).lower()
    return shape


def changed_fields(fields: Mapping[str, str], use: Use) -> dict[str, str]:
    """The fields of a question with the use of a change."""
    changed = {**fields, "context": str(use.context), "batch": str(use.batch_size), "dtype": use.dtype}
    if use.training:
        plan = use.training
        changed |= {"optimizer": plan.optimizer, "lora": str(plan.lora_rank)}
        changed |= {"checkpointing": str(plan.checkpointing).lower()}
    return changed


def _default(name: str) -> object:
    return FitRequest.model_fields[name].default
