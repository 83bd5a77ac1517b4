"""Simulated machines: recordings made by `tests/scripts/demo_machines.py` through the real accounting and rules."""

from __future__ import annotations

from pathlib import Path

DESCRIPTIONS = {
    "dgx-spark": "NVIDIA DGX Spark: one pool of 122 GiB, and the CUDA Pool inside it",
    "jetson-orin": "NVIDIA Jetson AGX Orin: one pool of 61 GiB, and the CUDA Pool inside it",
    "strix-halo": "AMD Ryzen AI Max (Strix Halo): System RAM, a carve-out beside it and GTT inside it",
    "gh200": "NVIDIA GH200: System RAM, and HBM that Linux counts to the same total",
    "h100x8-mig": "a server with 8 H100, one of which is cut into MIG instances",
    "rtx4090": "a workstation with an RTX 4090 of its own memory",
    "macbook": "an Apple MacBook Pro: one pool, and Metal's working set inside it",
}


def path_of(name: str) -> Path:
    """The recording of a simulated machine."""
    return Path(__file__).parent / f"{name}.memwatch"
