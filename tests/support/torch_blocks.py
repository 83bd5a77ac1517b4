"""Stand-in for the parts of PyTorch that move a model's blocks, with a GPU whose calls are recorded in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


class OutOfMemoryError(RuntimeError):
    """As PyTorch names it."""


class Gpu:
    """Calls in order, and the bytes that fit."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.calls: list[str] = []
        self.room = room
        self.used = 0
        self.most = 0


class Storage:
    """Bytes of a tensor in one place. Those on the GPU are freed with the object."""

    def __init__(self, gpu: Gpu, name: str, nbytes: int, place: str, content: int) -> None:
        self.gpu, self.name, self.nbytes, self.place, self.content = gpu, name, nbytes, place, content
        if place == "cuda":
            if gpu.used + nbytes > gpu.room:
                self.place = ""
                raise OutOfMemoryError("CUDA out of memory")
            gpu.used += nbytes
            gpu.most = max(gpu.most, gpu.used)

    def __del__(self) -> None:
        if self.place == "cuda":
            self.gpu.used -= self.nbytes

    def to(self, place: object) -> Storage:
        return Storage(self.gpu, self.name, self.nbytes, kind_of(place), self.content)

    def pin_memory(self) -> Storage:
        self.gpu.calls.append(f"pin {self.name}")
        return self

    def copy_(self, other: Storage, non_blocking: bool = False) -> None:
        how = "start copy" if non_blocking else "copy"
        self.gpu.calls.append(f"{how} {self.name} to {self.place}")
        self.content = other.content

    def record_stream(self, stream: str) -> None:
        self.gpu.calls.append(f"{stream} uses {self.name}")


class Tensor:
    """A parameter or buffer."""

    def __init__(self, gpu: Gpu, name: str, nbytes: int = 10, requires_grad: bool = False) -> None:
        self.data = Storage(gpu, name, nbytes, "cpu", 1)
        self.requires_grad = requires_grad
        self._version = 0

    def change(self, content: int) -> None:
        """Change in place, as an optimizer or a running mean does."""
        self.data.content = content
        self._version += 1


class Hook:
    def __init__(self, hooks: list[Callable[..., None]], call: Callable[..., None]) -> None:
        self._hooks, self._call = hooks, call
        hooks.append(call)

    def remove(self) -> None:
        self._hooks.remove(self._call)


class Block:
    """A module with one parameter and one buffer."""

    def __init__(self, gpu: Gpu, name: str, trained: bool = False, extra: tuple[Tensor, ...] = ()) -> None:
        self.gpu, self.name = gpu, name
        self.weight = Tensor(gpu, name)
        self.mean = Tensor(gpu, f"{name}.mean", 1)
        self.adapter = Tensor(gpu, f"{name}.adapter", 2, requires_grad=True)
        self.tensors = [self.weight, *extra, *([self.adapter] if trained else [])]
        self.forward_hooks: list[Callable[..., None]] = []
        self.backward_hooks: list[Callable[..., None]] = []

    def parameters(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def buffers(self) -> Iterator[Tensor]:
        return iter([self.mean])

    def register_forward_pre_hook(self, call: Callable[..., None]) -> Hook:
        return Hook(self.forward_hooks, call)

    def register_full_backward_pre_hook(self, call: Callable[..., None]) -> Hook:
        return Hook(self.backward_hooks, call)

    def to(self, device: str) -> None:
        for tensor in (*self.tensors, self.mean):
            tensor.data = tensor.data.to(device)

    def forward(self) -> None:
        for hook in list(self.forward_hooks):
            hook(self, ())
        self._compute("forward")

    def backward(self) -> None:
        for hook in list(self.backward_hooks):
            hook(self, ())
        self._compute("backward")

    def _compute(self, what: str) -> None:
        places = {tensor.data.place for tensor in (*self.tensors, self.mean)}
        assert places == {"cuda"}, f"{what} of {self.name} with tensors in {places}"
        self.gpu.calls.append(f"{what} {self.name}")


def kind_of(device: object) -> str:
    return str(device).partition(":")[0]


class Device:
    def __init__(self, name: str) -> None:
        self._name, self.type = name, kind_of(name)

    def __str__(self) -> str:
        return self._name


class Cuda:
    """torch.cuda, with one side stream."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def Stream(self, device: Device) -> str:
        return f"side stream of {device}"

    def Event(self) -> Any:
        gpu = self._gpu

        class Event:
            def record(self, _stream: str) -> None:
                gpu.calls.append("event")

        return Event()

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self._gpu.calls.append(f"on {stream}")
        yield

    def current_stream(self, _device: Device) -> Any:
        gpu = self._gpu

        class Current:
            def wait_event(self, _event: object) -> None:
                gpu.calls.append("wait")

            def __str__(self) -> str:
                return "current stream"

        return Current()


class Torch:
    """The module."""

    device = Device

    def __init__(self, gpu: Gpu, has_streams: bool = True) -> None:
        self.grad = False
        self.cuda = Cuda(gpu) if has_streams else None

    def empty_like(self, host: Storage, device: Device) -> Storage:
        return Storage(host.gpu, host.name, host.nbytes, device.type, 0)

    def no_grad(self) -> Any:
        return nullcontext()

    def is_grad_enabled(self) -> bool:
        return self.grad
