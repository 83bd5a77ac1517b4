"""Bytes that a plan takes from each pool."""

from __future__ import annotations

from msgspec import Struct


class Demand(Struct, frozen=True):
    """Bytes on each GPU, and bytes in System RAM for each GPU. `runtime_bytes`: a GPU's context, none on a CPU."""

    device_bytes: int
    ram_bytes: int = 0
    runtime_bytes: int = 0

    @property
    def cpu_bytes(self) -> int:
        """Everything that a run on the CPU holds: nothing is moved there, and there is no context."""
        return self.device_bytes + self.ram_bytes
