"""Documents that were read for the bandwidth of products.json: name, and version or date."""

from __future__ import annotations

LLMFIT = "llmfit, hardware.rs at 3f44fd30, 22 August 2026"
DATASHEETS = "astroC86/gpu-datasheet, README.md: NVIDIA's data sheets"
SOURCES = {
    **dict.fromkeys(
        (
            "a10", "a100", "a100-40gb", "h100", "h200", "l4", "l40s", "mi210", "mi300x", "rtx3060", "rtx3080",
            "rtx3090", "rtx3090ti", "rtx4060", "rtx4070", "rtx4070tisuper", "rtx4080", "rtx4080super", "rtx4090",
            "rtx5070", "rtx5070ti", "rtx5080", "rtx5090", "rtxa6000", "rx7900xtx", "strixhalo", "t4", "v100",
        ),
        LLMFIT,
    ),
    "a40": DATASHEETS,
    "agxorin": "whichllm, pull request 165: AGX Orin, 18 August 2026",
    "arca770": "svethardware.cz: Intel's specification of Arc A770, September 2022",
    "b200": "citsjtu2020/LLM-Prof, hardware_spec.md",
    "gb10": "ai-infrastructure.net, NVIDIA DGX Spark, June 2026",
    "m3ultra": "techpowerup.com, Mac Studio with M3 Ultra, March 2025; its GPU: logs of llama.cpp",
    "orinnano": "NVIDIA, Jetson Orin Nano Super data sheet, December 2024 (brojogopalsapui.com)",
    "rtx5060": "hi-tech.ua, GeForce RTX 5060, 8 May 2025",
    "rtx6000ada": "fpsbench.com, RTX 6000 Ada Generation",
    "rtxpro6000": "technical.city, RTX PRO 6000: 1.79 TB/s",
    "thor": "RidgeRun, NVIDIA Jetson AGX Thor: SoM overview",
}  # fmt: skip
