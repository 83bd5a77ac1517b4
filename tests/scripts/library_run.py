"""Run the library's helpers for weights and memory with PyTorch on the CPU: `make test-torch`.

Block swapping is compared with a model without it, to the last bit. While a block is not loaded, its tensors are
NaN, so that a result shows each use of one.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.training import block_swap

WIDTH, BLOCKS = 64, 6


class Block(torch.nn.Module):
    """Layer with an adapter (LoRA) and a buffer that each forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.down = torch.nn.Parameter(torch.randn(4 * WIDTH, 4) * 0.1)
        self.up = torch.nn.Parameter(torch.randn(4, WIDTH) * 0.1)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        hidden = torch.relu(self.wide(self.norm(given)))
        return given + self.narrow(hidden) + hidden @ self.down @ self.up


class PoisonedSlot(block_swap.Slot):
    """Slot whose tensor is NaN while it is not loaded."""

    def __init__(self, tensor: torch.Tensor, pin: bool) -> None:
        super().__init__(tensor, pin)
        self.clean = self.host.clone()
        self.host.fill_(torch.nan)

    def load(self, module: object, device: object) -> None:
        self.host.copy_(self.clean)
        super().load(module, device)
        self.host.fill_(torch.nan)

    def evict(self) -> None:
        self.clean.copy_(self.loaded)
        super().evict()
        self.host.fill_(torch.nan)


def build() -> torch.nn.ModuleList:
    torch.manual_seed(1)
    return torch.nn.ModuleList([Block() for _ in range(BLOCKS)])


def run(model: torch.nn.ModuleList, given: torch.Tensor, with_checkpoints: bool = False) -> torch.Tensor:
    for block in model:
        given = checkpoint(block, given, use_reentrant=False) if with_checkpoints else block(given)
    return given


def check_inference(given: torch.Tensor) -> None:
    with torch.no_grad():
        expected = run(build().eval(), given)
        for resident in range(1, BLOCKS):
            model = build().eval()
            with memwatch.swap_blocks(model, "cpu", resident) as swap:
                for _ in range(3):
                    assert torch.equal(run(model, given), expected)
                assert swap.loaded_bytes * BLOCKS == swap.swapped_bytes * resident
                print(f"swapping, {resident} of {BLOCKS} resident: {swap.loads} loads, {swap.evictions} evictions")


def train(model: torch.nn.ModuleList, given: torch.Tensor, with_checkpoints: bool) -> list[torch.Tensor]:
    """Train three steps and return the outputs."""
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        out = run(model, given, with_checkpoints)
        out.square().mean().backward()
        optimizer.step()
        found.append(out.detach())
    return found


def check_training(given: torch.Tensor) -> None:
    for with_checkpoints in (False, True):
        for trains_all in (False, True):
            plain, swapped = build(), build()
            for model in (plain, swapped):
                for name, one in model.named_parameters():
                    one.requires_grad_(trains_all or name.endswith(("down", "up")))
            swap = memwatch.swap_blocks(swapped, "cpu", 2)
            pairs = zip(train(plain, given, with_checkpoints), train(swapped, given, with_checkpoints), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
            print(
                f"training, checkpoints {with_checkpoints}, all weights {trains_all}: "
                f"{swap.loads} loads, {swap.loaded_bytes:,} of {swap.swapped_bytes:,} bytes stay"
            )


def check_restored(given: torch.Tensor) -> None:
    """Check that a model after `remove` has the weights and buffers of training."""
    plain, swapped = build(), build()
    with memwatch.swap_blocks(swapped, "cpu", 2):
        for model in (plain, swapped):
            train(model, given, with_checkpoints=True)
    for one, other in zip(plain.state_dict().values(), swapped.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def check_fallback() -> None:
    """Check PyTorch's own error on the CPU, in the place of one on a GPU."""

    def make(device: str) -> torch.Tensor:
        return torch.empty(1 << 50 if device == "cuda:0" else 8, dtype=torch.uint8)

    buffer = memwatch.allocate_with_fallback(make, "cuda:0")
    print(f"fallback: {buffer.device}, because of {buffer.error[:70]}")
    assert buffer.fell_back
    assert buffer.value.shape == (8,)


def check_safetensors(folder: Path) -> None:
    from safetensors.torch import save_file

    kinds = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.uint16,
        torch.bool,
    )
    tensors = {str(kind): torch.randint(0, 2, (3, 5)).to(kind) for kind in kinds} | {"empty": torch.zeros(0, 4)}
    save_file(tensors, folder / "model.safetensors")
    with memwatch.open_safetensors(folder / "model.safetensors") as file:
        for name, tensor in tensors.items():
            found = file.as_torch(name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert bytes(file.read(name)) == bytes(tensor.contiguous().view(torch.uint8).numpy())
    print(f"safetensors: {len(tensors)} tensors are the same")


def check_calls() -> None:
    memwatch.log_start("library_run")
    assert memwatch.memory_tree()["process"]["rss_bytes"] > 0
    held = [bytearray(1 << 12) for _ in range(50_000)]
    del held
    for one in memwatch.clear():
        print(f"clear: {one.name} released {one.released_bytes} bytes with {one.call}")
    assert memwatch.preset("training").settings["dtype"] == "bfloat16"


def check_cost(given: torch.Tensor) -> None:
    """Check what the hooks add to a block whose weights are loaded."""
    model = build().eval()
    swap = memwatch.swap_blocks(model, "cpu", 5)
    with torch.no_grad():
        run(model, given)
        swap._before_forward(1)
        began = time.perf_counter()
        for _ in range(1000):
            swap._before_forward(1)
        print(f"hook of a loaded block: {(time.perf_counter() - began) * 1e3:.0f} µs")


def main() -> None:
    warnings.simplefilter("error")
    print(f"PyTorch {torch.__version__}")
    given = torch.randn(8, WIDTH)
    check_cost(given)
    check_restored(given)
    block_swap.Slot = PoisonedSlot  # type: ignore[misc]
    check_inference(given)
    check_training(given)
    check_fallback()
    with tempfile.TemporaryDirectory() as folder:
        check_safetensors(Path(folder))
    check_calls()
    print("the helpers work with PyTorch")


if __name__ == "__main__":
    main()
