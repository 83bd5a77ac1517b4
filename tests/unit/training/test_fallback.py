"""Test an allocation that falls back to the CPU: it says so, is counted, and hides no other error."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

import memwatch
from memwatch.library import memory_pool, program_safety
from memwatch.library.memory_pool import count_fallbacks
from memwatch.planning.arguments import InvalidInputError
from support.custom_pool import OwnPool

GIB = 1 << 30


class OutOfMemoryError(RuntimeError):
    """PyTorch's, by its name."""


OutOfMemoryError.__module__ = "torch"
MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.65 GiB"


class Gpu:
    """A GPU on which the first `failures` allocations fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[str] = []

    def make(self, device: str) -> bytearray:
        self.calls.append(device)
        if device != "cpu" and self.failures:
            self.failures -= 1
            raise OutOfMemoryError(MESSAGE)
        return bytearray(16)


@pytest.fixture(autouse=True)
def _nothing_counted_or_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pool, "_fallbacks", Counter())
    monkeypatch.setattr(program_safety, "_logged", set())


def test_allocation_that_fits_stays_on_the_device() -> None:
    gpu = Gpu(failures=0)

    buffer = memwatch.allocate_with_fallback(gpu.make, "cuda:0")

    assert (buffer.device, buffer.fell_back, buffer.error, gpu.calls) == ("cuda:0", False, "", ["cuda:0"])
    assert count_fallbacks("PyTorch", "cuda:0") == 0


def test_device_is_tried_again_after_its_caches_are_cleared() -> None:
    """Another framework may keep unused memory."""
    gpu, pool = Gpu(failures=1), OwnPool()
    memwatch.register_pool(pool)
    try:
        buffer = memwatch.allocate_with_fallback(gpu.make, "cuda:0")
    finally:
        memwatch.unregister_pool(pool)

    assert (buffer.device, buffer.fell_back, gpu.calls) == ("cuda:0", False, ["cuda:0", "cuda:0"])
    assert pool.reserved == 2 * GIB


@pytest.mark.process
def test_allocation_falls_back_to_the_cpu_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    gpu = Gpu(failures=9)

    with caplog.at_level(logging.WARNING, "memwatch"):
        buffers = [memwatch.allocate_with_fallback(gpu.make, "cuda:0") for _ in range(3)]

    assert [(one.device, one.fell_back, len(one.value)) for one in buffers] == [("cpu", True, 16)] * 3
    assert buffers[0].error == f"OutOfMemoryError: {MESSAGE}"
    assert gpu.calls == ["cuda:0", "cuda:0", "cpu"] * 3
    assert count_fallbacks("PyTorch", "cuda:0") == 3
    assert caplog.messages == ["out of memory on cuda:0: allocations fall back to the CPU."]


@pytest.mark.process
def test_fallback_of_the_current_device_counts_for_that_of_the_message() -> None:
    memwatch.allocate_with_fallback(Gpu(failures=9).make, "cuda")

    assert count_fallbacks("PyTorch", "cuda:1") == 1


@pytest.mark.parametrize("device", [None, "cpu"])
def test_cpu_has_nothing_to_fall_back_to(device: str | None) -> None:
    def make(_device: str) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        memwatch.allocate_with_fallback(make, device)


def test_other_errors_are_raised() -> None:
    def make(_device: str) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        memwatch.allocate_with_fallback(make, "cuda:0")


def test_error_keeps_no_variables_of_the_failed_call() -> None:
    """They may be the tensors whose memory the second attempt needs."""
    freed: list[int] = []

    class Large:
        def __del__(self) -> None:
            freed.append(len(calls))

    calls: list[str] = []

    def make(device: str) -> str:
        calls.append(device)
        large = Large()
        if len(calls) == 1:
            raise OutOfMemoryError(MESSAGE)
        return f"{device} after {type(large).__name__}"

    assert memwatch.allocate_with_fallback(make, "cuda:0").value == "cuda:0 after Large"
    assert freed[0] == 1


def test_sixteen_pools_may_be_registered() -> None:
    """Each is asked at every report to the daemon."""
    pools = [OwnPool() for _ in range(17)]
    try:
        for pool in pools[:16]:
            memwatch.register_pool(pool)
        memwatch.register_pool(pools[0])
        with pytest.raises(InvalidInputError, match="16 pools are registered"):
            memwatch.register_pool(pools[16])
    finally:
        for pool in pools:
            memwatch.unregister_pool(pool)
