"""Bytes that a plan takes from each pool."""

from __future__ import annotations

from msgspec import Struct


class Demand(Struct, frozen=True):
    """Bytes on each GPU, and bytes in System RAM for each GPU. `runtime_bytes`: a GPU's context, none on a CPU.

    `ram_at_peak_bytes`: bytes in System RAM while the GPU has most, if these are less: components that take turns.
    """

    device_bytes: int
    ram_bytes: int = 0
    runtime_bytes: int = 0
    ram_at_peak_bytes: int | None = None

    @property
    def beside_bytes(self) -> int:
        return self.ram_bytes if self.ram_at_peak_bytes is None else self.ram_at_peak_bytes

    @property
    def cpu_bytes(self) -> int:
        """Everything that a run on the CPU holds: nothing is moved there, and there is no context."""
        return self.device_bytes + self.beside_bytes
