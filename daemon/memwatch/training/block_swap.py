"""Block swapping: a few blocks of a PyTorch model are on the device, and the others in System RAM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from types import TracebackType
from typing import Any
from weakref import WeakSet

from memwatch.core.printable import printable
from memwatch.core.units import size
from memwatch.library.machine import is_unified_memory_gpu
from memwatch.library.program_safety import log
from memwatch.library.visible_gpus import check_device
from memwatch.planning.arguments import InvalidInputError, check_count, check_flag, check_members, quote, refuse
from memwatch.training.oom_errors import is_out_of_memory

MAX_BLOCKS = 10_000
MODULE_METHODS = (
    "parameters", "buffers", "to", "register_forward_pre_hook", "register_full_backward_pre_hook"
)  # fmt: skip
# Modules with hooks of a BlockSwap: those of a second one would move the same tensors.
_swapped: WeakSet[Any] = WeakSet()

# Tensors of one block of a PyTorch model, moved between System RAM and a device.


class CopyStream:
    """Side stream of a device for copies that overlap with computation. Without streams copies are in order."""

    def __init__(self, torch: Any, device: str) -> None:  # noqa: ANN401  a module
        self.device: Any = torch.device(device)
        api = getattr(torch, self.device.type, None)
        self._api = api if hasattr(api, "Stream") and hasattr(api, "Event") and self.device.type != "cpu" else None
        self._stream = None if self._api is None else self._api.Stream(device=self.device)

    @property
    def is_side_stream(self) -> bool:
        return self._api is not None

    def use(self) -> Any:  # noqa: ANN401  a context manager
        return nullcontext() if self._api is None else self._api.stream(self._stream)

    def record(self) -> Any:  # noqa: ANN401  an event, or None
        if self._api is None:
            return None
        event = self._api.Event()
        event.record(self._stream)
        return event

    def wait(self, event: Any, tensors: list[Any]) -> None:  # noqa: ANN401
        """Make the current stream wait for a copy, and keep the memory until it has used it."""
        if self._api is None or event is None:
            return
        current = self._api.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)


class Slot:
    """A tensor with its copy in System RAM. `loaded`: the one on the device, if it is there."""

    def __init__(self, tensor: Any, pin: bool) -> None:  # noqa: ANN401  torch.Tensor
        self.tensor = tensor
        host = tensor.data.to("cpu")
        self.host: Any = host.pin_memory() if pin else host
        self.loaded: Any = None
        self.stays = False
        self._version = tensor._version
        tensor.data = self.host

    def load(self, torch: Any, device: Any) -> None:  # noqa: ANN401
        loaded = torch.empty_like(self.host, device=device)
        loaded.copy_(self.host, non_blocking=True)
        self.tensor.data = self.loaded = loaded
        self._version = self.tensor._version

    def evict(self) -> None:
        """Use the copy in System RAM again. It is updated if the tensor has changed, as buffers of a norm do."""
        if self.tensor._version != self._version:
            self.host.copy_(self.loaded)
        self.tensor.data, self.loaded = self.host, None


class BlockMover:
    """Moves the tensors of one block. Those that are trained, or shared with another block, stay on the device."""

    def __init__(
        self,
        torch: Any,  # noqa: ANN401  a module
        block: Any,  # noqa: ANN401  torch.nn.Module
        stream: CopyStream,
        shared: Collection[int],
        pin: bool,
    ) -> None:
        self._torch, self._stream = torch, stream
        self._event: Any = None
        tensors = list(list_tensors(block))
        for tensor in tensors:
            if id(tensor) in shared:
                tensor.data = tensor.data.to(stream.device)
        self.slots: list[Slot] = [Slot(tensor, pin) for tensor in tensors if id(tensor) not in shared]
        self.size_bytes: int = sum(slot.host.nbytes for slot in self.slots)

    @property
    def is_loaded(self) -> bool:
        return all(slot.loaded is not None for slot in self.slots)

    @property
    def loaded_bytes(self) -> int:
        return sum(slot.host.nbytes for slot in self.slots if slot.loaded is not None)

    def load(self) -> bool:
        """Start copying to the device what is not there. Returns False if all is. Raises when out of memory."""
        missing = [slot for slot in self.slots if slot.loaded is None]
        if not missing:
            return False
        with self._stream.use(), self._torch.no_grad():
            for slot in missing:
                slot.load(self._torch, self._stream.device)
        self._event = self._stream.record()
        return True

    def wait(self) -> None:
        """Let the computation that follows wait for the copies."""
        self._stream.wait(self._event, [slot.loaded for slot in self.slots if slot.loaded is not None])

    def keep_trained(self) -> None:
        """Keep what is trained on the device, where its gradient and the optimizer's state are."""
        for slot in self.slots:
            slot.stays = slot.stays or slot.tensor.requires_grad

    def evict(self, everything: bool = False) -> bool:
        """Release the device's memory. Returns False if nothing was there."""
        leaving = [slot for slot in self.slots if slot.loaded is not None and (everything or not slot.stays)]
        with self._torch.no_grad():
            for slot in leaving:
                slot.evict()
        return bool(leaving)


def list_tensors(block: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield parameters and buffers of a module, each once."""
    yield from block.parameters()
    yield from block.buffers()


def find_shared(blocks: list[Any]) -> set[int]:
    """Return the ids of tensors that are in several blocks."""
    seen: set[int] = set()
    shared: set[int] = set()
    for block in blocks:
        own = {id(tensor) for tensor in list_tensors(block)}
        shared |= own & seen
        seen |= own
    return shared


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
        self._blocks: list[Any] = []

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
        for block in self._blocks:
            _swapped.discard(block)
        self._blocks.clear()
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
        self._blocks = blocks
        _swapped.update(blocks)
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
    the device, and `note` says so. Raises InvalidInputError without blocks, for objects that are not modules, for
    blocks that are swapped already, and for a device that PyTorch refuses. Raises ImportError without PyTorch.
    """
    check_count(resident, "resident", 2, 1, MAX_BLOCKS)
    found, place = check_blocks(blocks), check_device(device)
    check_flag(pin_memory, "pin_memory", True)

    import torch

    try:
        torch.device(place)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = printable(str(error).splitlines()[0][:200])
        raise InvalidInputError(f'device is {quote(place)}: {reason}; for example "cuda:0"') from None
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


def check_blocks(blocks: object) -> list[Any]:
    """Return the blocks if all are modules that can be swapped."""
    if not isinstance(blocks, Iterable):
        raise refuse(blocks, "blocks", "a list of modules", "model.layers")
    found = list(islice(blocks, MAX_BLOCKS + 1))
    if not found:
        raise InvalidInputError("blocks is empty, which leaves nothing to swap; for example model.layers")
    if len(found) > MAX_BLOCKS:
        raise InvalidInputError(f"blocks has more than {MAX_BLOCKS} modules; for example model.layers")
    for index, block in enumerate(found):
        check_members(block, f"blocks[{index}]", MODULE_METHODS, "module of PyTorch", "model.layers")
        if block in _swapped:
            raise InvalidInputError(
                f"blocks[{index}] is swapped already; call remove() of the BlockSwap that has it first"
            )
    return found


def explain_inaction(device: str, count: int, resident: int) -> str:
    """Return why swapping would free nothing, empty if it would."""
    if is_unified_memory_gpu(device):
        return f"{device} allocates from System RAM: swapping blocks would free nothing, so all {count} are on it"
    return f"all {count} blocks are resident, so none is swapped" if resident >= count else ""
