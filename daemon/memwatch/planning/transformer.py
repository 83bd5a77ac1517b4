"""Shape of a decoder-only transformer: its number of parameters by kind, and the numbers that its layers cache."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from memwatch.core.doc import Doc
from memwatch.planning.arguments import InvalidInputError, check_count
from memwatch.planning.parameters import check_fields

MAX_DIMENSION = 1 << 28
# The largest models have some hundreds of experts.
MAX_EXPERTS = 1 << 14
MAX_PARAMETERS = 1 << 46
COUNT = Meta(ge=1, le=MAX_DIMENSION)
# Of what a plain model does not have.
DETAIL = Meta(ge=0, le=MAX_DIMENSION)
MANY = Meta(ge=0, le=MAX_PARAMETERS)
# Counts of layers, at most `n_layers`, that a plain model does not have.
LAYER_COUNTS = ("full_layers", "shared_kv_layers", "attention_layers", "linear_layers", "mlp_layers", "moe_layers")

Biases = Literal["none", "qkv", "attention", "all"]


class Transformer(Struct, frozen=True):
    """Shape of a model. `n_kv_heads` below `n_heads`: grouped-query attention. Details after
    `sliding_window` are 0 in a plain model.

    `n_experts` above 1 adds a router. `biases`: of no matrix; of queries, keys and values; of all of attention; or
    of all matrices and norms. With MLA `head_dim` is that of a query. The state of `linear_layers` does not grow
    with the context. Layers without experts are `dense_intermediate_size` wide, 0 for `intermediate_size`.
    `side_numbers` are in the cache's format, `side_bytes` in one of their own. `fp8_token_bytes` includes scales.
    """

    hidden_size: Annotated[int, Doc("", (4096,)), COUNT]
    intermediate_size: Annotated[int, Doc("", (14336,)), COUNT]
    n_layers: Annotated[int, Doc("", (32,)), COUNT]
    vocab_size: Annotated[int, Doc("", (32000,)), COUNT]
    n_heads: Annotated[int, Doc("", (32,)), COUNT]
    n_kv_heads: Annotated[int, Doc("", (8,)), COUNT]
    head_dim: Annotated[int, Doc("0: hidden_size / n_heads.", (128,)), DETAIL] = 0
    tied_embeddings: bool = False
    gated_mlp: Annotated[bool, Doc("Three MLP matrices, as in SwiGLU, instead of two.")] = True
    n_experts: Annotated[int, Doc("", (8,)), Meta(ge=1, le=MAX_EXPERTS)] = 1
    biases: Biases = "none"
    qk_norm: bool = False
    norms_per_layer: Annotated[int, Doc("", (2,)), DETAIL] = 2
    learned_positions: Annotated[int, Doc("Rows of the learned position table; 0: none."), DETAIL] = 0
    sliding_window: Annotated[int, Doc("Attention window in tokens; 0: unlimited."), DETAIL] = 0
    full_layers: Annotated[int, Doc("Layers without the window; 0: none.")] = 0
    full_kv_width: Annotated[
        int, Doc("Numbers of a token's keys in those, if other than in the others."), DETAIL
    ] = 0
    full_kv_heads: Annotated[int, Doc("KV heads of those, if other than in the others."), DETAIL] = 0
    shared_kv_layers: Annotated[int, Doc("Layers that read the KV cache of another.")] = 0
    attention_layers: Annotated[int, Doc("Layers with attention; 0: all but linear_layers.")] = 0
    linear_layers: Annotated[int, Doc("Layers without a KV cache: linear attention, state-space.")] = 0
    linear_parameters: Annotated[int, Doc("Parameters of each of those."), MANY] = 0
    state_bytes: Annotated[int, Doc("State of each of those, for one sequence."), MANY] = 0
    kv_lora_rank: Annotated[int, Doc("MLA: rank of the cached vector; 0: no MLA."), DETAIL] = 0
    q_lora_rank: Annotated[int, Doc("MLA: rank of the queries; 0: one matrix."), DETAIL] = 0
    qk_rope_head_dim: Annotated[int, Doc("MLA: cached numbers with positions."), DETAIL] = 0
    v_head_dim: Annotated[int, Doc("Head dimension of values; 0: head_dim."), DETAIL] = 0
    mlp_layers: Annotated[int, Doc("Layers with an MLP; 0: all.")] = 0
    moe_layers: Annotated[int, Doc("Layers with experts; 0: all with an MLP.")] = 0
    dense_intermediate_size: Annotated[int, Doc("Width of layers without experts."), DETAIL] = 0
    shared_intermediate_size: Annotated[int, Doc("Width of the shared experts."), DETAIL] = 0
    active_experts: Annotated[int, Doc("Experts of a token; 0: two."), DETAIL] = 0
    o_groups: Annotated[int, Doc("Groups of heads with an output matrix of low rank; 0: one matrix."), DETAIL] = 0
    o_lora_rank: Annotated[int, Doc("Rank of each of those."), DETAIL] = 0
    fp8_token_bytes: Annotated[int, Doc("MLA: bytes of the cached vector in 8 bits; 0: one a number."), DETAIL] = 0
    side_numbers: Annotated[
        int, Doc("Cached numbers of a token beside keys and values, in all layers."), DETAIL
    ] = 0
    side_bytes: Annotated[int, Doc("The same in bytes of a format of their own, such as an indexer's."), DETAIL] = 0
    extra_parameters: Annotated[int, Doc("Parameters of a vision tower and others, not quantized."), MANY] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in LAYER_COUNTS:
            check_count(getattr(self, name), name, self.n_layers, 0, self.n_layers)
        if self.n_heads % self.n_kv_heads:
            raise InvalidInputError(
                f"n_kv_heads is {self.n_kv_heads}, which does not divide n_heads ({self.n_heads}); "
                f"for example {_divisor(self.n_heads, self.n_kv_heads)}"
            )
        if self.shared_kv_layers + self.full_layers > self.with_attention:
            raise InvalidInputError(
                f"full_layers and shared_kv_layers are {self.full_layers} and {self.shared_kv_layers}, but "
                f"{self.with_attention} layers have attention; for example full_layers {self.with_attention // 6}"
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
    def with_attention(self) -> int:
        return self.attention_layers or self.n_layers - self.linear_layers

    @property
    def cached_numbers(self) -> int:
        """Numbers per token in one layer's cache. MLA keeps one latent vector in place of keys and values."""
        if self.kv_lora_rank:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return self.n_kv_heads * (self.head_dim + (self.v_head_dim or self.head_dim))

    def count_cached_numbers(self, tokens: int, ranks: int = 1) -> int:
        """Return the numbers of one sequence on each of `ranks` GPUs with tensor parallelism, in all layers.

        KV heads are divided, and copied beyond their number. Latent vectors and what is beside them are copied.
        """
        owners = self.with_attention - self.shared_kv_layers
        full = self.full_layers if self.sliding_window else owners
        near, kept = owners - full, min(tokens, self.sliding_window or tokens)
        if self.kv_lora_rank:
            return self.cached_numbers * (full * tokens + near * kept) + self.side_numbers * tokens
        heads = -(-self.n_kv_heads // ranks)
        narrow = self.cached_numbers // self.n_kv_heads * heads
        wide = narrow
        if self.full_kv_width:
            others = self.full_kv_heads or self.n_kv_heads
            wide = -(-2 * self.full_kv_width * -(-others // ranks) // others)
        return full * wide * tokens + near * narrow * kept + self.side_numbers * tokens

    @property
    def attention_matrices(self) -> tuple[tuple[int, int], ...]:
        """The matrices of one layer's attention, as (inputs, outputs)."""
        hidden, wide, values = self.hidden_size, self.n_heads * self.head_dim, self.v_head_dim or self.head_dim
        back = (self.n_heads * values, hidden)
        if not self.kv_lora_rank:
            return (hidden, wide), (hidden, self.kv_width), (hidden, self.n_kv_heads * values), back
        rank, queries = self.q_lora_rank, (hidden, wide)
        into = ((hidden, rank), (rank, wide)) if rank else (queries,)
        latent = self.kv_lora_rank
        if self.o_lora_rank:  # one vector for keys and values, and groups of heads with an output of low rank
            ranks, groups = self.o_lora_rank * (self.o_groups or 1), self.o_groups or 1
            out = (self.n_heads * values // groups, ranks), (ranks, hidden)
            return (*into, (hidden, latent + self.qk_rope_head_dim), *out)
        outputs = self.n_heads * (self.head_dim - self.qk_rope_head_dim + values)
        return (*into, (hidden, latent + self.qk_rope_head_dim), (latent, outputs), back)

    def mlp_matrices(self, width: int) -> tuple[tuple[int, int], ...]:
        into = ((self.hidden_size, width),) * (2 if self.gated_mlp else 1)
        return (*into, (width, self.hidden_size)) if width else ()

    @property
    def with_experts(self) -> int:
        return (self.moe_layers or self.with_mlp) if self.n_experts > 1 else 0

    @property
    def with_mlp(self) -> int:
        return self.mlp_layers or self.n_layers

    @property
    def active_width(self) -> int:
        """Width of the MLP that one token passes: of its experts together, or of the widest dense layer."""
        used = (self.active_experts or 2) if self.n_experts > 1 else 1
        return max(used * self.intermediate_size + self.shared_intermediate_size, self.dense_intermediate_size)

    def list_matrices(self) -> tuple[tuple[str, int, int, int], ...]:
        """Return (part of the model, count in the whole model, inputs, outputs) of all matrices."""
        dense, width = self.with_mlp - self.with_experts, self.dense_intermediate_size or self.intermediate_size
        groups = (
            ("attention", self.with_attention, self.attention_matrices),
            ("mlp", dense, self.mlp_matrices(width)),
            ("shared", self.with_experts, self.mlp_matrices(self.shared_intermediate_size)),
            ("experts", self.with_experts * self.n_experts, self.mlp_matrices(self.intermediate_size)),
        )
        return tuple((part, count, *matrix) for part, count, matrices in groups if count for matrix in matrices)

    def count_parameters(self, *parts: str) -> int:
        """Return the parameters in matrices of these parts of the model, of all parts if none is named."""
        linear = self.linear_layers * self.linear_parameters if not parts or "linear" in parts else 0
        return linear + sum(
            count * rows * columns
            for part, count, rows, columns in self.list_matrices()
            if not parts or part in parts
        )

    @property
    def matrix_parameters(self) -> int:
        """Parameters in the matrices of all layers, which quantization reduces."""
        return self.count_parameters()

    @property
    def other_parameters(self) -> int:
        """Parameters of embeddings, the output matrix, norms, biases, routers and the vision tower."""
        tables = self.vocab_size * (1 if self.tied_embeddings else 2) + self.learned_positions
        norm = self.hidden_size * (2 if self.biases == "all" else 1)
        routers = self.hidden_size * self.n_experts * self.with_experts
        latents = (self.q_lora_rank + self.kv_lora_rank) * self.with_attention
        attention = self.with_attention * (2 * self.head_dim * self.qk_norm) + latents + self._biases()
        layers = self.n_layers * self.norms_per_layer * norm
        return tables * self.hidden_size + norm + layers + attention + routers + self.extra_parameters

    @property
    def parameters(self) -> int:
        return self.matrix_parameters + self.other_parameters

    def _biases(self) -> int:
        if self.biases == "none":
            return 0
        if self.biases == "all":
            return sum(count * outputs for _, count, _, outputs in self.list_matrices())
        matrices = self.attention_matrices[:3] if self.biases == "qkv" else self.attention_matrices
        return self.with_attention * sum(outputs for _, outputs in matrices)


def _divisor(number: int, near: int) -> int:
    """Return the largest divisor of `number` up to `near`."""
    return next(one for one in range(min(near, number, 4096), 0, -1) if number % one == 0)
