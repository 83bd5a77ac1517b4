"""Compare plans for images with diffusers, without data: `make test-torch`.

PyTorch's fake tensors run the real code of a model and allocate nothing. Their sizes are added up while they live:
the peak is what a GPU's allocator would have, without workspaces and rounding. Attention is not materialized.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from msgspec import NODEFAULT
from msgspec.structs import fields
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memwatch.planning.diffusion import (
    SAVED,
    SAVED_CHECKPOINTING,
    ImageUse,
    Pipeline,
    compute_decoding,
    compute_denoising,
    denoiser_fields,
)
from support import diffusers_folders as samples

TOLERANCE = 0.03
SDXL = {
    "sample_size": 128, "block_out_channels": (320, 640, 1280), "cross_attention_dim": 2048,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (5, 10, 20), "transformer_layers_per_block": (1, 2, 10), "use_linear_projection": True,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
SD15 = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
VAE = {
    "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
}  # fmt: skip


class Peak(TorchDispatchMode):  # type: ignore[misc]
    """The most bytes that storages had at one time, without those of `model`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.now, self.peak = 0, 0
        self._live: dict[int, int] = {}
        self._known = {one.untyped_storage()._cdata for one in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return found

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._live or key in self._known:
            return
        self._live[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._live.pop(key, 0)


def unet_inputs(config: dict[str, Any], side: int, images: int) -> dict[str, Any]:
    number = torch.float16
    added = {
        "text_embeds": torch.zeros(images, 1280, dtype=number),
        "time_ids": torch.zeros(images, 6, dtype=number),
    }
    return {
        "sample": torch.zeros(images, 4, side // 8, side // 8, dtype=number),
        "timestep": 1,
        "encoder_hidden_states": torch.zeros(images, 77, config["cross_attention_dim"], dtype=number),
        **({"added_cond_kwargs": added} if "addition_embed_type" in config else {}),
    }


def flux_inputs(_: Any, side: int, images: int) -> dict[str, Any]:
    number, tokens = torch.bfloat16, (side // 16) ** 2
    return {
        "hidden_states": torch.zeros(images, tokens, 64, dtype=number),
        "encoder_hidden_states": torch.zeros(images, 512, 4096, dtype=number),
        "pooled_projections": torch.zeros(images, 768, dtype=number),
        "timestep": torch.ones(images, dtype=number),
        "img_ids": torch.zeros(tokens, 3),
        "txt_ids": torch.zeros(512, 3),
        "guidance": torch.ones(images),
    }


# By name: class, its configuration, inputs, configuration as in config.json, parameters, image side.
DENOISERS: dict[str, tuple[Any, dict[str, Any], Callable[..., Any], dict[str, Any], int, int]] = {
    "SDXL": (diffusers.UNet2DConditionModel, SDXL, unet_inputs, samples.SDXL_UNET_CONFIG, samples.UNET_SDXL, 1024),
    "SD 1.5": (diffusers.UNet2DConditionModel, SD15, unet_inputs, samples.SD15_UNET_CONFIG, samples.UNET_SD15, 512),
    "Flux.1": (
        diffusers.FluxTransformer2DModel, {"guidance_embeds": True}, flux_inputs, samples.FLUX_CONFIG, samples.FLUX,
        1024,
    ),
}  # fmt: skip


def build(kind: Any, config: dict[str, Any], number: torch.dtype) -> Any:
    torch.set_default_dtype(number)
    try:
        return kind(**config)
    finally:
        torch.set_default_dtype(torch.float32)


def plan_for(config: dict[str, Any]) -> Pipeline:
    """Return a pipeline of which only the shape matters."""
    shape: Any = {field.name: 0 for field in fields(Pipeline) if field.default is NODEFAULT}
    return Pipeline(**{**shape, **denoiser_fields(config)})


def check(name: str, measured: float, planned: float) -> None:
    print(f"{name}: {measured:,.0f} measured, {planned:,.0f} planned, {planned / measured - 1:+.1%}")
    assert abs(planned / measured - 1) < TOLERANCE, name


def check_denoiser(name: str) -> None:
    kind, config, inputs, written, parameters, side = DENOISERS[name]
    pipe, use = plan_for(written), ImageUse(side, side)
    with FakeTensorMode():
        model = build(kind, config, torch.bfloat16 if name == "Flux.1" else torch.float16).eval()
        assert sum(one.numel() for one in model.parameters()) == parameters
        given, peak = inputs(config, side, 2 if pipe.guidance else 1), Peak(model)
        with torch.no_grad(), peak:
            model(**given)
    check(f"{name}, one step", peak.peak, compute_denoising(pipe, use, 1))
    numbers = ((side // pipe.token_pixels) ** 2 + pipe.text_tokens) * pipe.denoiser_width * 2
    for checkpointing, table in ((False, SAVED), (True, SAVED_CHECKPOINTING)):
        for frozen in (False, True):
            measured = train(name, checkpointing, frozen)
            words = f"{name}, training{', frozen' * frozen}{', checkpointing' * checkpointing}"
            check(words, measured, table[pipe.kind][frozen] * numbers)


def train(name: str, checkpointing: bool, frozen: bool) -> int:
    """Return the peak of a step beside weights and gradients, each of which is dropped when it is complete."""
    kind, config, inputs, _, _, side = DENOISERS[name]
    with FakeTensorMode():
        model = build(kind, config, torch.bfloat16 if name == "Flux.1" else torch.float16).train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        model.requires_grad_(not frozen)
        given = inputs(config, side, 1)
        given["hidden_states" if name == "Flux.1" else "sample"].requires_grad_(True)
        for parameter in model.parameters() if not frozen else ():
            parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
        peak = Peak(model)
        with peak:
            model(**given)[0].float().mean().backward()
    return peak.peak


def check_vae() -> None:
    for side, images, number in ((1024, 1, torch.float16), (1024, 1, torch.float32), (512, 4, torch.float16)):
        pipe = plan_for(samples.SDXL_UNET_CONFIG)
        with FakeTensorMode():
            model = build(diffusers.AutoencoderKL, VAE, number).eval()
            assert sum(one.numel() for one in model.parameters()) == samples.VAE
            given, peak = torch.zeros(images, 4, side // 8, side // 8, dtype=number), Peak(model)
            with torch.no_grad(), peak:
                model.decode(given)
        planned = compute_decoding(pipe, ImageUse(side, side), images, 0) * (number.itemsize // 2)
        check(f"VAE, {images} of {side} pixels in {8 * number.itemsize} bits", peak.peak, planned)


def main() -> None:
    warnings.simplefilter("ignore")
    diffusers.logging.set_verbosity_error()
    print(f"diffusers {diffusers.__version__}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    check_vae()
    for name in DENOISERS:
        check_denoiser(name)


if __name__ == "__main__":
    main()
