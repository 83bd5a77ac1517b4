"""Block swapping: a few blocks of a PyTorch model are on the device, and the others in System RAM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from memwatch.core.units import size
from memwatch.library.block_mover import BlockMover, CopyStream, find_shared
from memwatch.library.machine import is_unified_memory_gpu
from memwatch.library.never_raise import log
from memwatch.library.oom_errors import is_out_of_memory
from memwatch.planning.sizes import InvalidInputError, check_count


class BlockSwap:
    """Blocks of a model that are swapped until `remove` or the end of a `with` block.

    `is_active`: False where swapping frees nothing; `note` has the reason. `loads` and `evictions` count moves.
    """

    def __init__(
        self, movers: list[BlockMover], resident: int, note: str, is_grad_enabled: Callable[[], bool]
    ) -> None:
        self.resident: int = resident
        self.note: str = note
        self.is_active: bool = bool(movers)
        self.loads: int = 0
        self.evictions: int = 0
        self._movers = movers
        self._is_grad_enabled = is_grad_enabled
        self._last: int | None = None
        self._hooks: list[Any] = []

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the blocks that are on the device now."""
        return sum(mover.loaded_bytes for mover in self._movers)

    @property
    def swapped_bytes(self) -> int:
        """Bytes of all blocks that can be swapped."""
        return sum(mover.size_bytes for mover in self._movers)

    def remove(self) -> None:
        """Remove the hooks. All blocks are in System RAM afterwards; `model.to(device)` moves them."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for mover in self._movers:
            mover.evict(everything=True)

    def __enter__(self) -> BlockSwap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _attach(self, blocks: list[Any]) -> None:
        """Register the hooks, and load the first blocks. Without room for them nothing is left behind."""
        for index, block in enumerate(blocks):
            self._hooks.append(block.register_forward_pre_hook(self._hook(index, self._before_forward)))
            self._hooks.append(block.register_full_backward_pre_hook(self._hook(index, self._before_backward)))
        try:
            for index in range(self.resident):
                self._load(index)
        except BaseException:
            self.remove()
            raise

    def _hook(self, index: int, call: Callable[[int], None]) -> Callable[..., None]:
        def hook(*_arguments: object) -> None:
            call(index)

        return hook

    def _before_forward(self, index: int) -> None:
        """Have a block on the device. In a backward pass with checkpoints blocks come in descending order."""
        trains = self._is_grad_enabled()
        step = choose_direction(self._last, index, len(self._movers))
        if trains:
            self._movers[index].keep_trained()
        self._use(index, choose_window(index, len(self._movers), self.resident, step, wraps=not trains))

    def _before_backward(self, index: int) -> None:
        """Have a block on the device for its backward pass, and then those before it."""
        self._use(index, choose_window(index, len(self._movers), self.resident, -1, wraps=False))

    def _use(self, index: int, window: list[int]) -> None:
        self._last = index
        for other, mover in enumerate(self._movers):
            if other not in window:
                self.evictions += mover.evict()
        self._load(index)
        self._movers[index].wait()
        for following in window[1:]:
            self._prefetch(following)

    def _load(self, index: int) -> None:
        self.loads += self._movers[index].load()

    def _prefetch(self, index: int) -> None:
        """Load a block early. If it does not fit, it is loaded when it is needed."""
        try:
            self._load(index)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._movers[index].evict()


def choose_direction(last: int | None, index: int, count: int) -> int:
    """Return 1 if blocks run in ascending order, -1 in descending order, as activation checkpoints run them."""
    if last is None or (index == 0 and last == count - 1 and count > 2):
        return 1
    if index == last:
        return -1 if index == count - 1 else 1
    return 1 if index > last else -1


def choose_window(index: int, count: int, resident: int, step: int, *, wraps: bool) -> list[int]:
    """Return the blocks to have on the device, in the order of their use. `wraps`: the first follows the last."""
    found = [index + step * ahead for ahead in range(min(resident, count))]
    if wraps:
        return [one % count for one in found]
    inside = [one for one in found if 0 <= one < count]
    # At the end of a pass the blocks before are the next ones.
    behind = [index - step * back for back in range(1, count)]
    return [*inside, *(one for one in behind if 0 <= one < count)][: min(resident, count)]


def swap_blocks(
    blocks: Iterable[Any], device: object = "cuda:0", resident: int = 2, *, pin_memory: bool = True
) -> BlockSwap:
    """Keep `resident` of a PyTorch model's blocks on a device, and the others in System RAM. Returns a `BlockSwap`.

    `blocks`: the modules in the order in which they run, such as `model.transformer_blocks`. Hooks load a block
    before it runs, then copy the next ones on a side stream, and release those that ran. Move the other parts of
    the model to the device yourself. Trained parameters (LoRA adapters) stay on the device; in training use
    activation checkpoints, since autograd keeps the weights of all blocks without them. `TrainingPlan` estimates
    it with `swapped_blocks`. `pin_memory`: copies in pinned pages overlap, and cannot be reclaimed.

    If the GPU allocates from System RAM, nothing is swapped, as that would free nothing: the blocks are moved to
    the device, and `note` says so. Raises InvalidInputError without blocks.
    """
    import torch

    found, place = list(blocks), str(device)
    check_count(resident, "resident", 2, 1, 1 << 20)
    if not found:
        raise InvalidInputError("blocks is empty, which leaves nothing to swap; for example model.layers")
    note = explain_inaction(place, len(found), resident)
    if note:
        for block in found:
            block.to(place)
        log.info("%s", note)
        return BlockSwap([], resident, note, torch.is_grad_enabled)
    stream, shared = CopyStream(torch, place), find_shared(found)
    pin = pin_memory and stream.is_side_stream
    movers = [BlockMover(torch, block, stream, shared, pin) for block in found]
    swap = BlockSwap(movers, resident, "", torch.is_grad_enabled)
    swap._attach(found)
    log.info(
        "%d of %d blocks on %s: %s of %s",
        resident,
        len(found),
        place,
        size(swap.loaded_bytes),
        size(swap.swapped_bytes),
    )
    return swap


def explain_inaction(device: str, count: int, resident: int) -> str:
    """Return why swapping would free nothing, empty if it would."""
    if is_unified_memory_gpu(device):
        return f"{device} allocates from System RAM: swapping blocks would free nothing, so all {count} are on it"
    return f"all {count} blocks are resident, so none is swapped" if resident >= count else ""
