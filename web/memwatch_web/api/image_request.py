"""Parameters of /fit for diffusion models: the sizes of a pipeline, and the images."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import fields
from pydantic import BaseModel, Field

from memwatch.planning.pipeline import ImageUse, Pipeline
from memwatch.planning.sizes import InvalidInputError

# Sizes that a description of a pipeline must have.
NEEDED = (
    "denoiser_parameters",
    "denoiser_bytes",
    "denoiser_width",
    "token_pixels",
    "attention_pixels",
    "attention_heads",
)
PIPELINE = tuple(field.name for field in fields(Pipeline))
IMAGES = tuple(field.name for field in fields(ImageUse))


class SizeRequest(BaseModel):
    """A size, or the six numbers that every language model has. They are the first that an error message names."""

    bytes: str | None = Field(None, max_length=40, description="Size such as 20GiB, or a number of bytes.")
    hidden_size: int | None = None
    intermediate_size: int | None = None
    n_layers: int | None = None
    vocab_size: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None


class ImageRequest(SizeRequest):
    """A diffusion pipeline and the images that it makes."""

    denoiser: Literal["", "unet", "transformer"] = Field("", description="A diffusion model with this denoiser.")
    denoiser_parameters: int = 0
    denoiser_bytes: int = 0
    encoder_parameters: int = Field(0, description="Parameters of all text encoders.")
    encoder_bytes: int = 0
    largest_encoder_bytes: int = Field(0, description="Size of the largest text encoder.")
    vae_parameters: int = 0
    vae_bytes: int = 0
    largest_tensor_bytes: int = Field(0, description="Size of the largest tensor of all components.")
    denoiser_width: int = Field(0, description="Channels of the first level, or the hidden size.")
    token_pixels: int = Field(0, description="Pixels along a side of a token or a latent number.")
    attention_pixels: int = Field(0, description="The same at the finest level with attention.")
    attention_heads: int = 0
    text_tokens: int = Field(0, description="Tokens of the prompt beside those of the image.")
    lora_per_rank: int = Field(0, description="Parameters of LoRA adapters for each rank.")
    guidance: bool = Field(True, description="Each image is in a batch twice, with and without the prompt.")
    vae_width: int = Field(128, description="Channels of the VAE's last level.")
    vae_tile: int = Field(512, description="Pixels along the side of a tile.")
    vae_32bit: bool = Field(False, description="The VAE decodes in 32 bits.")
    width: int = Field(1024, description="Width of the images in pixels.")
    height: int = Field(1024, description="Height of the images in pixels.")
    offload: Literal["", "model", "sequential"] = Field("", description="Components wait in system RAM.")
    attention: Literal["sdpa", "full", "sliced"] = Field("sdpa", description="Scores that attention materializes.")
    vae_tiling: bool = False
    vae_slicing: bool = Field(False, description="One image of a batch at a time in the VAE.")

    def pipeline(self) -> Pipeline | None:
        """Return the pipeline, None if none is described. Raises InvalidInputError."""
        if not self.denoiser:
            given = [name for name in (*PIPELINE, *IMAGES) if name in self.model_fields_set and name != "denoiser"]
            if given:
                raise InvalidInputError(
                    f"{', '.join(given)}: for diffusion models only; add denoiser, for example unet"
                )
            return None
        missing = [name for name in NEEDED if not getattr(self, name)]
        if missing:
            raise InvalidInputError(f"a diffusion model also needs {', '.join(missing)}")
        return Pipeline(**{name: getattr(self, name) for name in PIPELINE})

    def images(self) -> ImageUse:
        return ImageUse(**{name: getattr(self, name) for name in IMAGES})
