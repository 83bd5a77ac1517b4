"""The process that holds GPU memory, with each driver API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hardware.holder_process import HolderProcess, open_holder
from hardware.native import DEVICE, MANAGED, PINNED, DriverApiError
from simulators.driver_sim import CONTEXT_BYTES, Holdings, built_driver, held, serving
from support.waiting import wait_until

pytestmark = pytest.mark.process

MIB, GIB = 1 << 20, 1 << 30
LIBRARIES = {
    "cuda": ("libcuda.so.1", "cuda.c"),
    "hip": ("libamdhip64.so", "hip.c"),
    "level-zero": ("libze_loader.so.1", "level_zero.c"),
}
APIS = pytest.mark.parametrize("api", LIBRARIES)


class Seen:
    """Memory by process and kind, as the kernel shows it last."""

    def __init__(self) -> None:
        self.holdings: Holdings = {}

    def show(self, holdings: Holdings) -> None:
        self.holdings = {pid: dict(parts) for pid, parts in holdings.items()}

    def of(self, holder: HolderProcess) -> Mapping[str, int]:
        return {
            kind: size for kind, size in self.holdings.get(holder.pid, {}).items() if size and kind != "context"
        }


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Seen]:
    """Serve a GPU with 2 GiB to every API."""
    seen = Seen()
    for name, source in LIBRARIES.values():
        (tmp_path / name).symlink_to(built_driver(name, source))
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")]))
    facts = {"name": "GPU of the test", "pci": "0000:03:00.0"}
    with serving(facts, lambda holdings: (2 * GIB - held(holdings, *KINDS), 2 * GIB), seen.show) as environ:
        for variable, value in environ.items():
            monkeypatch.setenv(variable, value)
        yield seen


KINDS = ("context", DEVICE, MANAGED, PINNED)


@APIS
def test_memory_is_allocated_and_freed(api: str, kernel: Seen) -> None:
    holder = HolderProcess(api, 0)
    holder.allocate(DEVICE, 256 * MIB)
    holder.allocate(DEVICE, 64 * MIB)
    allocated = sum(kernel.of(holder).values())
    holder.free()
    freed = kernel.of(holder)
    holder.end()

    assert (allocated, freed) == (320 * MIB, {})
    assert holder.facts.pci == "0000:03:00.0"
    assert holder.facts.free_bytes in (2 * GIB - CONTEXT_BYTES, None)


@APIS
def test_killed_process_gives_its_memory_back(api: str, kernel: Seen) -> None:
    holder = HolderProcess(api, 0)
    holder.allocate(DEVICE, GIB)
    before = sum(kernel.of(holder).values())
    holder.kill()

    wait_until(lambda: not kernel.holdings)
    holder.end()
    assert before == GIB


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_each_kind_of_memory_is_held_as_that_kind(api: str, kernel: Seen) -> None:
    """Managed memory is touched, so that it has pages."""
    holder = HolderProcess(api, 0)
    for kind in holder.kinds:
        holder.allocate(kind, 32 * MIB)
    found = kernel.of(holder)
    holder.end()

    assert found == dict.fromkeys(holder.kinds, 32 * MIB)


@APIS
def test_failed_allocation_names_the_call_and_the_process_goes_on(api: str, kernel: Seen) -> None:
    holder = HolderProcess(api, 0)
    with pytest.raises(DriverApiError, match=r"(cuMemAlloc_v2|hipMalloc|zeContextMakeMemoryResident) failed: "):
        holder.allocate(DEVICE, 3 * GIB)
    holder.free()
    holder.allocate(DEVICE, 32 * MIB)
    found = sum(kernel.of(holder).values())
    holder.end()

    assert found == 32 * MIB


@APIS
def test_number_without_a_gpu_is_an_error(api: str, kernel: Seen) -> None:
    with pytest.raises(DriverApiError, match="has 1 GPUs, and none is number 5"):
        HolderProcess(api, 5)
    assert kernel.holdings == {}


def test_missing_libraries_are_all_named() -> None:
    with pytest.raises(DriverApiError, match=r"cuda: libcuda\.so\.1: .*; hip: libamdhip64.*; level-zero: libze_"):
        open_holder([], 0)
