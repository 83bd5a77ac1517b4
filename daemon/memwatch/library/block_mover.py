"""Tensors of one block of a PyTorch model, moved between System RAM and a device."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import nullcontext
from typing import Any


class CopyStream:
    """Side stream of a device for copies that overlap with computation. Without streams copies are in order."""

    def __init__(self, torch: Any, device: str) -> None:  # noqa: ANN401  a module
        self.device = torch.device(device)
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
        self.host = host.pin_memory() if pin else host
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
        self.slots = [Slot(tensor, pin) for tensor in tensors if id(tensor) not in shared]
        self.size_bytes = sum(slot.host.nbytes for slot in self.slots)

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
