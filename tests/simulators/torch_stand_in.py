"""PyTorch with one GPU, as far as its allocator's counters go: they follow each allocation, as the real ones."""

from __future__ import annotations

from types import SimpleNamespace

MIB = 1 << 20


class CountingTorch:
    """Fake PyTorch by the names of torch/cuda/memory.py. `xpu` and `mps`: not in use."""

    def __init__(self) -> None:
        self.cuda = self
        self.xpu = None
        self.mps = None
        self.total_memory, self.is_integrated = 24 << 30, 0
        self.allocated = self.peak = self.reserved = self.reserved_peak = self.resets = 0

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def take(self, size: int) -> None:
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak, self.reserved_peak = max(self.peak, self.allocated), max(self.reserved_peak, self.reserved)

    def spike(self, size: int) -> None:
        """Allocate and free, as a step does; the allocator returns the memory to the driver as well."""
        self.take(size)
        self.allocated -= size
        self.empty_cache()

    def reset_peak_memory_stats(self, _device: int) -> None:
        self.peak, self.reserved_peak = self.allocated, self.reserved
        self.resets += 1

    def memory_stats_as_nested_dict(self, _device: int) -> dict[str, object]:
        def of(current: int, peak: int) -> dict[str, dict[str, int]]:
            return {"all": {"current": current, "peak": peak, "allocated": peak, "freed": 0}}

        return {
            "allocated_bytes": of(self.allocated, self.peak),
            "reserved_bytes": of(self.reserved, self.reserved_peak),
            "active_bytes": of(self.allocated, self.peak),
            "inactive_split_bytes": of(0, 0),
            "allocation": of(3, 4),
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def get_device_properties(self, _device: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=self.total_memory, is_integrated=0)

    def mem_get_info(self, _device: int) -> tuple[int, int]:
        return self.total_memory - self.reserved, self.total_memory

    def empty_cache(self) -> None:
        self.reserved = self.allocated
