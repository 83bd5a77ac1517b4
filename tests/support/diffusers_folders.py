"""Folders of diffusers and single files of published pipelines: their parameters, without data.

Sums of parameters as diffusers 0.42.1 and transformers 5.24 count them (`make test-torch`); the tensors are fewer.
Files are sparse: they have a head and a size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "F16": 2, "BF16": 2}
UNET_SDXL, UNET_SD15 = 2_567_463_684, 859_520_964
CLIP_L, CLIP_G, T5_XXL = 123_060_480, 694_659_840, 4_762_310_656
VAE, VAE_FLUX = 83_653_863, 83_819_683
FLUX = 11_901_408_320
Shapes = Mapping[str, list[int]]

SDXL_UNET_CONFIG = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "attention_head_dim": [5, 10, 20],
}
SD15_UNET_CONFIG = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [320, 640, 1280, 1280],
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "attention_head_dim": 8,
}
FLUX_CONFIG = {
    "_class_name": "FluxTransformer2DModel",
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "guidance_embeds": True,
}
VAE_CONFIG = {"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512]}


def sparse_safetensors(path: Path, shapes: Shapes, dtype: str) -> Path:
    head: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = BYTES[dtype]
        for one in shape:
            size *= one
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(head).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


def component(folder: Path, parameters: int, config: Any, dtype: str, stem: str, **more: list[int]) -> None:
    """Write a component with one large tensor, and `more` with their shapes."""
    named = {name.replace("__", "."): shape for name, shape in more.items()}
    rest = parameters - sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in named.values())
    sparse_safetensors(folder / f"{stem}.safetensors", {**named, "rest": [rest]}, dtype)
    (folder / "config.json").write_text(json.dumps(config))


def sdxl(folder: Path, dtype: str = "F16") -> Path:
    index = {"_class_name": "StableDiffusionXLPipeline"}
    parts = {"unet": UNET_SDXL, "text_encoder": CLIP_L, "text_encoder_2": CLIP_G, "vae": VAE}
    configs = {"unet": SDXL_UNET_CONFIG, "vae": {**VAE_CONFIG, "force_upcast": True, "sample_size": 1024}}
    return write(folder, index, parts, configs, dtype)


def flux(folder: Path, dtype: str = "BF16") -> Path:
    index = {"_class_name": "FluxPipeline"}
    parts = {"transformer": FLUX, "text_encoder": CLIP_L, "text_encoder_2": T5_XXL, "vae": VAE_FLUX}
    configs = {"transformer": FLUX_CONFIG, "vae": {**VAE_CONFIG, "force_upcast": True, "sample_size": 1024}}
    return write(folder, index, parts, configs, dtype)


def sd15(folder: Path, dtype: str = "F16") -> Path:
    index = {"_class_name": "StableDiffusionPipeline"}
    parts = {"unet": UNET_SD15, "text_encoder": CLIP_L, "vae": VAE}
    configs = {"unet": SD15_UNET_CONFIG, "vae": {**VAE_CONFIG, "sample_size": 512}}
    return write(folder, index, parts, configs, dtype)


def write(folder: Path, index: Any, parts: Mapping[str, int], configs: Any, dtype: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    named = {name: ["diffusers", "Class"] for name in parts}
    (folder / "model_index.json").write_text(
        json.dumps({**index, **named, "scheduler": ["diffusers", "Scheduler"], "feature_extractor": [None, None]})
    )
    adapted = {"a__to_q__weight": [640, 640], "a__to_k__weight": [640, 2048], "a__to_out__0__weight": [640, 640]}
    for name, parameters in parts.items():
        stem = "model" if "encoder" in name else "diffusion_pytorch_model"
        more = adapted if name in ("unet", "transformer") else {}
        component(folder / name, parameters, configs.get(name, {}), dtype, stem, **more)
    return folder


def single_file(path: Path) -> Path:
    """Write SDXL as one file of Stability AI's layout."""
    inner = "model.diffusion_model."
    shapes: dict[str, list[int]] = {
        f"{inner}input_blocks.0.0.weight": [320, 4, 3, 3],
        f"{inner}input_blocks.4.1.transformer_blocks.0.attn1.to_q.weight": [640, 640],
        f"{inner}rest": [UNET_SDXL - 320 * 36 - 640 * 640],
        "conditioner.embedders.0.transformer.rest": [CLIP_L],
        "conditioner.embedders.1.model.rest": [CLIP_G],
        "first_stage_model.rest": [VAE],
    }
    return sparse_safetensors(path, shapes, "F16")
