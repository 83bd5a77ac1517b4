"""A small Llama in PyTorch, to measure what plans estimate. Needs no download."""

from __future__ import annotations

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

import memwatch

WIDTH, WIDE, LAYERS, VOCABULARY, HEADS, KV_HEADS = 2048, 5632, 8, 32000, 16, 4
STEPS = 3


def shape_of() -> memwatch.Transformer:
    return memwatch.Transformer(WIDTH, WIDE, LAYERS, VOCABULARY, HEADS, KV_HEADS)


class Norm(torch.nn.Module):
    """Llama's norm, which computes in 32 bits for any input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        wide = given.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(given.dtype)


class Layer(torch.nn.Module):
    """Layer of a Llama."""

    def __init__(self, width: int, wide: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norms = torch.nn.ModuleList([Norm(width), Norm(width)])
        sizes = (width, kv_heads * self.head_width, kv_heads * self.head_width)
        self.into = torch.nn.ModuleList([torch.nn.Linear(width, size, bias=False) for size in sizes])
        self.out = torch.nn.Linear(width, width, bias=False)
        self.gates = torch.nn.ModuleList([torch.nn.Linear(width, wide, bias=False) for _ in range(2)])
        self.down = torch.nn.Linear(wide, width, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](given)
        parts = [one(normed).view(*given.shape[:2], -1, self.head_width).transpose(1, 2) for one in self.into]
        attended = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        given = given + self.out(attended.transpose(1, 2).reshape(given.shape))
        normed = self.norms[1](given)
        return given + self.down(torch.nn.functional.silu(self.gates[0](normed)) * self.gates[1](normed))


class Adapted(torch.nn.Module):
    """Matrix with a LoRA adapter of 32 bits, as PEFT makes it, which alone is trained."""

    def __init__(self, matrix: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.matrix = matrix.requires_grad_(requires_grad=False)
        self.down = torch.nn.Parameter(torch.randn(rank, matrix.in_features))
        self.up = torch.nn.Parameter(torch.zeros(matrix.out_features, rank))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.matrix(given) + linear(linear(given, self.down), self.up)
        return found


class Llama(torch.nn.Module):
    """Llama of 0.5 billion parameters."""

    def __init__(self, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList([Layer(WIDTH, WIDE, HEADS, KV_HEADS) for _ in range(LAYERS)])
        self.norm = Norm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        if any(not one.requires_grad for one in self.parameters()):
            hidden.requires_grad_()  # for checkpoints of layers whose own parameters are adapters
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False) if self.checkpoints else layer(hidden)
        found: torch.Tensor = self.head(self.norm(hidden))
        return found

    def adapt(self, rank: int) -> None:
        """Train adapters on every matrix of every layer, and nothing else."""
        self.requires_grad_(requires_grad=False)
        for module in list(self.layers.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(module, name, Adapted(child, rank))


def train_steps(plan: memwatch.TrainingPlan, device: str) -> None:
    """Train for three steps as Hugging Face's Trainer: with autocast, or in the weights' type without a copy."""
    has_copies = plan.master_weights and plan.dtype_bytes < 4
    model = Llama(checkpoints=plan.checkpointing)
    if plan.lora_rank or not has_copies:
        model.to(torch.float32 if plan.dtype_bytes == 4 else torch.bfloat16)
    if plan.lora_rank:
        model.adapt(plan.lora_rank)
    model.to(device)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizers = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = optimizers[plan.optimizer](trained, lr=1e-4, fused=True)
    for _ in range(STEPS):
        for _ in range(2 if plan.accumulate else 1):
            tokens = torch.randint(0, VOCABULARY, (plan.batch_size, plan.seq_len), device=device)
            with torch.autocast("cuda", torch.bfloat16, enabled=has_copies):
                logits = model(tokens)
                loss = loss_of(logits, tokens)
            loss.backward()
            del logits, loss
        optimizer.step()
        optimizer.zero_grad()


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Compute the loss in 32 bits, in a copy that ends with this function."""
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def make_cache(batch: int, tokens: int, device: str) -> list[torch.Tensor]:
    """Return the keys and values of every layer in 16 bits."""
    size = (batch, KV_HEADS, tokens, WIDTH // HEADS)
    return [torch.empty(size, dtype=torch.bfloat16, device=device) for _ in range(2 * LAYERS)]


def saved_bytes(model: torch.nn.Module, given: torch.Tensor) -> int:
    """Return the bytes that PyTorch saves for the backward pass, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(given)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
