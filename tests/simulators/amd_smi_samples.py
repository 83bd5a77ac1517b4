"""Output of rocm-smi and amd-smi."""

from __future__ import annotations

# As printed for a Vega 10 by ROCm 4.3, and for a Navi 23 by ROCm 6.
ROCM_SMI = {
    "card0": {
        "PCI Bus": "0000:04:00.0",
        "VRAM Total Memory (B)": "17163091968",
        "VRAM Total Used Memory (B)": "17776640",
        "VIS_VRAM Total Memory (B)": "268435456",
        "VIS_VRAM Total Used Memory (B)": "13557760",
        "GTT Total Memory (B)": "17163091968",
        "GTT Total Used Memory (B)": "25608192",
    },
    "system": {"Driver version": "5.9.25"},
}


USAGE = {
    **{f"total_{kind}": {"value": 8176, "unit": "MB"} for kind in ("vram", "visible_vram")},
    **{f"used_{kind}": {"value": 202, "unit": "MB"} for kind in ("vram", "visible_vram")},
    "total_gtt": {"value": 64357, "unit": "MB"},
    "used_gtt": {"value": 65, "unit": "MB"},
}


AMD_SMI = [{"gpu": 0, "mem_usage": USAGE}]


PROCESS = {
    "name": "/usr/bin/python3.12",
    "pid": 213534,
    "memory_usage": {
        "gtt_mem": {"value": 6180000, "unit": "B"},
        "cpu_mem": {"value": 0, "unit": "B"},
        "vram_mem": {"value": 56000, "unit": "B"},
    },
    "mem_usage": {"value": 0, "unit": "B"},
}


WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
