"""Shape of a decoder-only transformer, and its exact number of parameters by kind."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from memwatch.planning.sizes import InvalidInputError, check_count

# Examples for error messages: Mistral 7B's values, except n_experts (Mixtral's).
EXAMPLES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "n_layers": 32,
    "vocab_size": 32000,
    "n_heads": 32,
    "n_kv_heads": 8,
    "head_dim": 128,
    "n_experts": 8,
    "norms_per_layer": 2,
}
MAX_DIMENSION = 1 << 28
# Limited because `matrices` lists each expert's matrices; the largest models have some hundreds of experts.
MAX_EXPERTS = 1 << 14

Biases = Literal["none", "qkv", "all"]


class Transformer(Struct, frozen=True):
    """Shape of a model. `n_kv_heads` below `n_heads`: grouped-query attention. `head_dim` 0: hidden_size / n_heads.

    `gated_mlp`: three matrices (SwiGLU, GeGLU) instead of two. `n_experts` above 1 adds a router.
    `biases`: of no matrix; of queries, keys and values; or of all matrices and norms. `learned_positions`: rows of
    the position table. `sliding_window`: most tokens that attention looks back, 0 for all.
    """

    hidden_size: int
    intermediate_size: int
    n_layers: int
    vocab_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int = 0
    tied_embeddings: bool = False
    gated_mlp: bool = True
    n_experts: int = 1
    biases: Biases = "none"
    qk_norm: bool = False
    norms_per_layer: int = 2
    learned_positions: int = 0
    sliding_window: int = 0

    def __post_init__(self) -> None:
        for name, example in EXAMPLES.items():
            minimum = 0 if name == "head_dim" else 1
            maximum = MAX_EXPERTS if name == "n_experts" else MAX_DIMENSION
            check_count(getattr(self, name), name, example, minimum, maximum)
        for name in ("learned_positions", "sliding_window"):
            check_count(getattr(self, name), name, 1024, 0, MAX_DIMENSION)
        if self.n_heads % self.n_kv_heads:
            raise InvalidInputError(
                f"n_kv_heads is {self.n_kv_heads}, which does not divide n_heads ({self.n_heads}); "
                f"for example {_divisor(self.n_heads, self.n_kv_heads)}"
            )
        if not self.head_dim:
            self._derive_head_dim()

    def _derive_head_dim(self) -> None:
        if self.hidden_size % self.n_heads:
            raise InvalidInputError(
                f"n_heads is {self.n_heads}, which does not divide hidden_size ({self.hidden_size}); "
                f"also give head_dim, or use {_divisor(self.hidden_size, self.n_heads)} heads"
            )
        force_setattr(self, "head_dim", self.hidden_size // self.n_heads)

    @property
    def kv_width(self) -> int:
        """Numbers per token in one layer's cache for the keys; the values take the same number."""
        return self.n_kv_heads * self.head_dim

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """The matrices of one layer, including all experts, as (inputs, outputs)."""
        hidden, wide = self.hidden_size, self.n_heads * self.head_dim
        attention = ((hidden, wide), (hidden, self.kv_width), (hidden, self.kv_width), (wide, hidden))
        into = ((hidden, self.intermediate_size),) * (2 if self.gated_mlp else 1)
        return attention + (*into, (self.intermediate_size, hidden)) * self.n_experts

    @property
    def matrix_parameters(self) -> int:
        """Parameters in the matrices of all layers, which quantization reduces."""
        return self.n_layers * sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def other_parameters(self) -> int:
        """Parameters of embeddings, the output matrix, norms, biases and routers."""
        tables = self.vocab_size * (1 if self.tied_embeddings else 2) + self.learned_positions
        norm = self.hidden_size * (2 if self.biases == "all" else 1)
        router = self.hidden_size * self.n_experts if self.n_experts > 1 else 0
        layer = self.norms_per_layer * norm + 2 * self.head_dim * self.qk_norm + router + self._biases()
        return tables * self.hidden_size + norm + self.n_layers * layer

    @property
    def parameters(self) -> int:
        return self.matrix_parameters + self.other_parameters

    def _biases(self) -> int:
        if self.biases == "none":
            return 0
        matrices = self.matrices[:3] if self.biases == "qkv" else self.matrices
        return sum(outputs for _, outputs in matrices)


def _divisor(number: int, near: int) -> int:
    """Return the largest divisor of `number` up to `near`."""
    return next(one for one in range(min(near, number, 4096), 0, -1) if number % one == 0)
