"""Simulated machines: recordings made by `tests/scripts/demo_machines.py` through the real accounting and rules."""

from __future__ import annotations

from pathlib import Path

DESCRIPTIONS = {
    "dgx-spark": "NVIDIA DGX Spark: one pool of 122 GiB with the CUDA Pool inside it",
    "jetson-orin": "NVIDIA Jetson AGX Orin: one pool of 61 GiB with the CUDA Pool inside it",
    "strix-halo": "AMD Ryzen AI Max (Strix Halo): System RAM with GTT inside it, and a separate carve-out",
    "gh200": "NVIDIA GH200: System RAM, and HBM that is part of MemTotal",
    "h100x8-mig": "server with 8 H100, one of them split into MIG instances",
    "rtx4090": "workstation with an RTX 4090 (dedicated memory)",
    "macbook": "Apple MacBook Pro: one pool with Metal's working set inside it",
}


def path_of(name: str) -> Path:
    """Return the recording of a simulated machine."""
    return Path(__file__).parent / f"{name}.memwatch"
