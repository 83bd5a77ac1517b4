"""Memory of a diffusion pipeline: text encoders, a denoiser (UNet or transformer) and a VAE, one after the other.

On disk it is a folder with model_index.json, or one safetensors file with all components.

Activations are multiples of the latent image, measured with diffusers 0.42.1 and PyTorch 2.13 without data
(`make test-torch`, within 3 %): attention is not materialized, and convolutions need no workspace. On a GPU they
were not measured here. Published totals of SDXL are 8.2 to 10.5 GB; this gives 8.6 GB with a VAE in 16 bits, and
10.3 GB in 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal

from msgspec import Meta, Struct

from memwatch.core.doc import Doc
from memwatch.core.listing import some_of
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.config_keys import Json, number
from memwatch.planning.inference import UNQUANTIZED_BYTES
from memwatch.planning.model_file import HeaderLimit, ModelPath, list_files
from memwatch.planning.number_formats import bits_per_weight
from memwatch.planning.parameters import check_fields
from memwatch.planning.safetensors import checked_bytes, list_tensors, read_header, read_object
from memwatch.planning.training import MASTER_BYTES, OPTIMIZER_BYTES, TrainingPlan

# Numbers alive at the peak, for each number of the denoiser's first level or each token's hidden state. A UNet with
# attention at full resolution: Stable Diffusion 1.5; without: SDXL. Transformer: Flux.
LIVE = {"unet": 16.0, "unet_with_attention": 26.0, "transformer": 17.5}
# The same in training of all weights and of adapters on frozen ones, then both with gradient checkpointing.
SAVED = {"unet": (660.0, 515.0), "unet_with_attention": (363.0, 306.0), "transformer": (1502.0, 777.0)}
SAVED_CHECKPOINTING = {"unet": (69.0, 60.5), "unet_with_attention": (92.5, 90.0), "transformer": (92.0, 84.5)}
# Numbers alive in the VAE's decoder, for each pixel and each channel of its last level.
VAE_LIVE = 6
MAX_PIXELS = 1 << 14
DEFAULT_PIXELS = 1024
SIDE = Meta(ge=64, le=MAX_PIXELS)
PIXELS = Meta(ge=1, le=MAX_PIXELS)
WIDTH = Meta(ge=1, le=1 << 50)
SIZE = Meta(ge=0, le=1 << 50)


class Pipeline(Struct, frozen=True):
    """Sizes and shape of a pipeline. LoRA adapters are on all queries, keys, values and outputs of attention."""

    denoiser: Annotated[Literal["unet", "transformer"], Doc("A diffusion model with this denoiser.")]
    denoiser_parameters: Annotated[int, SIZE]
    denoiser_bytes: Annotated[int, SIZE]
    encoder_parameters: Annotated[int, Doc("Parameters of all text encoders."), SIZE]
    encoder_bytes: Annotated[int, SIZE]
    largest_encoder_bytes: Annotated[int, Doc("Size of the largest text encoder."), SIZE]
    vae_parameters: Annotated[int, SIZE]
    vae_bytes: Annotated[int, SIZE]
    largest_tensor_bytes: Annotated[int, Doc("Size of the largest tensor of all components."), SIZE]
    denoiser_width: Annotated[int, Doc("Channels of the first level, or the hidden size."), WIDTH]
    token_pixels: Annotated[int, Doc("Pixels along a side of a token or a latent number."), PIXELS]
    attention_pixels: Annotated[int, Doc("The same at the finest level with attention."), PIXELS]
    attention_heads: Annotated[int, WIDTH]
    text_tokens: Annotated[int, Doc("Tokens of the prompt beside those of the image."), SIZE] = 0
    lora_per_rank: Annotated[int, Doc("Parameters of LoRA adapters for each rank."), SIZE] = 0
    guidance: Annotated[bool, Doc("Each image is in a batch twice, with and without the prompt.")] = True
    vae_width: Annotated[int, Doc("Channels of the VAE's last level."), WIDTH] = 128
    vae_tile: Annotated[int, Doc("Pixels along the side of a tile."), WIDTH] = 512
    vae_32bit: Annotated[bool, Doc("The VAE overflows 16 bits and decodes in 32.")] = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def kind(self) -> str:
        has_fine_attention = self.denoiser == "unet" and self.attention_pixels == self.token_pixels
        return "unet_with_attention" if has_fine_attention else self.denoiser


class ImageUse(Struct, frozen=True):
    """Options for images. `offload`: each component ("model") or layer ("sequential") waits in System RAM until it
    is used. `attention`: without materialized scores ("sdpa"), with all, or with those of half the heads."""

    width: Annotated[int, Doc("Images: width in pixels."), SIDE] = DEFAULT_PIXELS
    height: Annotated[int, Doc("Images: height in pixels."), SIDE] = DEFAULT_PIXELS
    offload: Annotated[
        Literal["", "model", "sequential"], Doc("Images: components or layers wait in System RAM.")
    ] = ""
    attention: Annotated[Literal["sdpa", "full", "sliced"], Doc("Images: scores that attention materializes.")] = (
        "sdpa"
    )
    vae_tiling: Annotated[bool, Doc("Images: decode in tiles.")] = False
    vae_slicing: Annotated[bool, Doc("Images: decode one image of a batch at a time.")] = False

    def __post_init__(self) -> None:
        check_fields(self)


class PipelineNeed(Struct, frozen=True):
    """Bytes by part; of them those that wait in System RAM at the GPU's peak; and the most that ever wait there."""

    parts: Mapping[str, int]
    moves: Mapping[str, int]
    ram_peak_bytes: int


def compute_components(pipe: Pipeline, dtype: str) -> dict[str, int]:
    """Return the bytes of the components. A `dtype` other than the files' applies to all but the VAE."""
    if not dtype:
        return {"denoiser": pipe.denoiser_bytes, "text_encoders": pipe.encoder_bytes, "vae": pipe.vae_bytes}
    each = bits_per_weight(dtype) / 8
    denoiser, encoders = (math.ceil(count * each) for count in (pipe.denoiser_parameters, pipe.encoder_parameters))
    vae = math.ceil(pipe.vae_parameters * max(each, UNQUANTIZED_BYTES))
    return {"denoiser": denoiser, "text_encoders": encoders, "vae": vae}


def compute_denoising(pipe: Pipeline, use: ImageUse, batch: int) -> int:
    """Return the activations of one step."""
    images = batch * (2 if pipe.guidance else 1)
    live = LIVE[pipe.kind] * _numbers(pipe, use, images) * UNQUANTIZED_BYTES
    if use.attention == "sdpa":
        return math.ceil(live)
    tokens = _tokens(use, pipe.attention_pixels) + pipe.text_tokens
    heads = max(1, pipe.attention_heads // 2) if use.attention == "sliced" else pipe.attention_heads
    return math.ceil(live + images * heads * tokens * tokens * UNQUANTIZED_BYTES)


def compute_decoding(pipe: Pipeline, use: ImageUse, batch: int, vae_bytes: int) -> int:
    """Return the activations of the VAE's decoder, its weights in 32 bits where it needs them, and the images."""
    width, height = (min(side, pipe.vae_tile) if use.vae_tiling else side for side in (use.width, use.height))
    number = 4 if pipe.vae_32bit else 2
    images = 1 if use.vae_slicing else batch
    live = VAE_LIVE * images * width * height * pipe.vae_width * number
    widened = max(0, pipe.vae_parameters * number - vae_bytes)
    return live + widened + batch * 3 * use.width * use.height * number


def _numbers(pipe: Pipeline, use: ImageUse, images: int) -> int:
    return images * (_tokens(use, pipe.token_pixels) + pipe.text_tokens) * pipe.denoiser_width


def _tokens(use: ImageUse, pixels: int) -> int:
    return -(-use.width // pixels) * -(-use.height // pixels)


def plan_images(pipe: Pipeline, use: ImageUse, batch: int, dtype: str) -> PipelineNeed:
    """Return the need for a batch of images.

    Without offloading all components stay on the GPU. Model offloading keeps one of them there, sequential
    offloading one layer, of which the largest tensor is the estimate.
    """
    components = compute_components(pipe, dtype)
    working = {
        "text_encoders": 0,
        "denoiser": compute_denoising(pipe, use, batch),
        "vae": compute_decoding(pipe, use, batch, components["vae"]),
    }
    total = sum(components.values())
    most = max(working.values())
    if not use.offload:
        return PipelineNeed({**components, "activations": most}, {}, 0)
    if use.offload == "sequential":
        kept = min(total, pipe.largest_tensor_bytes)
        moves = _move(components, total - kept)
        return PipelineNeed({**components, "activations": most}, moves, total)
    part = pipe.largest_encoder_bytes / max(1, pipe.encoder_bytes)
    resident = {**components, "text_encoders": math.ceil(components["text_encoders"] * part)}
    peak = max(resident, key=lambda name: resident[name] + working[name])
    moves = {name: size - (resident[name] if name == peak else 0) for name, size in components.items()}
    least = min(size for size in resident.values() if size)
    return PipelineNeed({**components, "activations": working[peak]}, moves, total - least)


def _move(components: Mapping[str, int], size: int) -> dict[str, int]:
    """Return moves of `size` bytes in all, of the largest components first."""
    moves = {}
    for name in sorted(components, key=lambda one: -components[one]):
        moves[name] = min(size, components[name])
        size -= moves[name]
    return moves


def plan_training(pipe: Pipeline, use: ImageUse, batch: int, dtype: str, plan: TrainingPlan) -> PipelineNeed:
    """Return the need of training the denoiser, or LoRA adapters on its attention.

    Text encoders and VAE are frozen. With model offloading their results are cached first, and they wait in System
    RAM.
    """
    if plan.swapped_blocks or plan.offload_parameters or use.offload == "sequential":
        raise InvalidInputError(
            "swap_blocks, offload_parameters and offload sequential do not apply to training of images; "
            "use offload model, checkpointing or lora"
        )
    if plan.lora_rank and not pipe.lora_per_rank:
        raise InvalidInputError(
            "the matrices of attention are not named in this file; give the folder of diffusers"
        )
    components = compute_components(pipe, dtype)
    if components["denoiser"] < UNQUANTIZED_BYTES * pipe.denoiser_parameters and not plan.lora_rank:
        raise InvalidInputError("quantized weights cannot be trained; also give lora, for example 16")
    trained = plan.lora_rank * pipe.lora_per_rank if plan.lora_rank else pipe.denoiser_parameters
    copies = MASTER_BYTES if plan.master_weights else 0.0
    saved = (SAVED_CHECKPOINTING if plan.checkpointing else SAVED)[pipe.kind][bool(plan.lora_rank)]
    working = math.ceil(saved * _numbers(pipe, use, batch) * UNQUANTIZED_BYTES)
    if use.offload != "model":  # the encoder of the VAE has the decoder's layers
        working = max(working, compute_decoding(pipe, use, batch, components["vae"]))
    parts = {
        **components,
        "adapters": math.ceil(trained * UNQUANTIZED_BYTES) if plan.lora_rank else 0,
        "gradients": math.ceil(trained * UNQUANTIZED_BYTES),
        "optimizer": math.ceil(trained * (OPTIMIZER_BYTES[plan.optimizer] + copies)),
        "activations": working,
    }
    moved = ("text_encoders", "vae") * (use.offload == "model") + ("optimizer",) * plan.offload_optimizer
    moves = {name: parts[name] for name in moved}
    return PipelineNeed(parts, moves, sum(moves.values()))


MODEL_INDEX = "model_index.json"
# Components without weights.
WEIGHTLESS = ("scheduler", "tokenizer", "feature_extractor", "image_processor", "processor")
NAMED_COMPONENTS = 3
MAX_COMPONENTS = 16
# Published single files have up to 3,000 tensors.
MAX_TENSORS = 16_384
DENOISERS = ("unet", "transformer")
# Queries, keys, values and outputs of attention, where diffusers' training scripts put LoRA adapters.
ADAPTED = (".to_q.weight", ".to_k.weight", ".to_v.weight", ".to_out.0.weight")
# Prefixes of the components in single files of Stability AI, of Black Forest Labs, and of other tools.
SINGLE = {
    "model.diffusion_model.": "denoiser",
    "first_stage_model.": "vae",
    "vae.": "vae",
    "cond_stage_model.": "text_encoder",
    "conditioner.embedders.": "text_encoder",
    "text_encoders.": "text_encoder",
    "double_blocks.": "denoiser",
    "single_blocks.": "denoiser",
}
DENOISER_PREFIXES = tuple(prefix for prefix, kind in SINGLE.items() if kind == "denoiser")
T5_TOKENS, SD3_TOKENS = 512, 333
# Heads of SDXL's and Flux's attention have this many numbers, in files that do not say so.
SDXL_HEAD, FLUX_HEAD = 64, 128
SD1_HEADS = 8
VAE_TILE = 512

Tensors = Mapping[str, tuple[tuple[int, ...], int]]


class Part(Struct, frozen=True):
    """Sums over the tensors of one component. `adapted`: parameters of LoRA adapters for each rank."""

    parameters: int = 0
    size_bytes: int = 0
    largest_bytes: int = 0
    adapted: int = 0


class Found(Struct, frozen=True):
    """Components of a pipeline on disk. `problem`: why the denoiser's activations are not known. `unknown`: a
    sentence about components that are not there."""

    weights_bytes: int
    pipeline: Pipeline | None
    problem: str = ""
    unknown: str = ""


def read_folder(path: ModelPath) -> Found:
    """Read a folder of diffusers. Raises InvalidInputError."""
    index = read_object(path / MODEL_INDEX)
    names = [name for name, kind in index.items() if isinstance(kind, list) and not name.startswith("_")]
    known = [name for name in names if PurePosixPath(name).name == name and (path / name).is_dir()][:MAX_COMPONENTS]
    denoiser = next((name for name in DENOISERS if name in known), "")
    if not denoiser:
        raise InvalidInputError(f"{path}: {MODEL_INDEX} names no folder called unet or transformer")
    limit = HeaderLimit()
    parts = {name: _read_component(path / name, limit) for name in known}
    encoders = [part for name, part in parts.items() if name.startswith("text_encoder")]
    if not parts[denoiser].size_bytes:
        raise InvalidInputError(f"{path / denoiser}: has no safetensors files; is the download complete?")
    total = sum(part.size_bytes for part in parts.values())
    config = read_object(path / denoiser / "config.json")
    vae_config = read_object(path / "vae" / "config.json") if (path / "vae" / "config.json").exists() else {}
    try:
        shape = denoiser_fields(config)
    except InvalidInputError as error:
        return Found(total, None, str(error))
    # Only pipelines of UNets decode in 32 bits where the VAE asks for it.
    shape |= vae_fields(vae_config, may_widen=shape["denoiser"] == "unet")
    lacking = [name for name, kind in index.items() if _is_lacking(name, kind, path, parts)]
    return Found(total, _build(parts[denoiser], encoders, parts.get("vae", Part()), shape), unknown=_lacks(lacking))


def _is_lacking(name: str, kind: object, path: ModelPath, parts: Mapping[str, Part]) -> bool:
    """Return True for a component of the index without its weights. One that is switched off has no class."""
    if not isinstance(kind, list) or name.startswith("_") or None in kind:
        return False
    if name not in parts:
        return not name.startswith(WEIGHTLESS)
    return not parts[name].size_bytes and (path / name / "config.json").exists()


def _lacks(names: Iterable[str]) -> str:
    listed = some_of([name[:40] for name in names], NAMED_COMPONENTS)
    return f"Its files lack {listed}: that is not counted." if listed else ""


def _build(denoiser: Part, encoders: Iterable[Part], vae: Part, shape: Mapping[str, object]) -> Pipeline:
    texts = list(encoders)
    return Pipeline(
        denoiser_parameters=denoiser.parameters,
        denoiser_bytes=denoiser.size_bytes,
        encoder_parameters=sum(one.parameters for one in texts),
        encoder_bytes=sum(one.size_bytes for one in texts),
        largest_encoder_bytes=max((one.size_bytes for one in texts), default=0),
        vae_parameters=vae.parameters,
        vae_bytes=vae.size_bytes,
        largest_tensor_bytes=max(one.largest_bytes for one in (denoiser, vae, *texts)),
        lora_per_rank=denoiser.adapted,
        **shape,  # type: ignore[arg-type]
    )


def _read_component(path: ModelPath, limit: HeaderLimit) -> Part:
    """Sum the tensors of one component. Of several variants the one in 16 bits, which pipelines are loaded in."""
    limit.begin_component()
    files = list_files(path, "*.safetensors")
    small = [file for file in files if ".fp16" in file.name or ".bf16" in file.name]
    plain = [file for file in files if file not in small]
    tensors: dict[str, tuple[tuple[int, ...], int]] = {}
    for file in small or plain:
        header, room = read_header(file, limit)
        checked_bytes(header, room, str(file))
        if len(tensors) + len(header) > MAX_TENSORS:
            raise InvalidInputError(f"{path}: has more than {MAX_TENSORS} tensors, the most that are read")
        tensors |= list_tensors(header)
    return sum_tensors(tensors)


def sum_tensors(tensors: Tensors) -> Part:
    adapted = (shape for name, (shape, _) in tensors.items() if name.endswith(ADAPTED) and len(shape) == 2)
    return Part(
        sum(math.prod(shape) for shape, _ in tensors.values()),
        sum(size for _, size in tensors.values()),
        max((size for _, size in tensors.values()), default=0),
        sum(sum(shape) for shape in adapted),
    )


def denoiser_fields(config: Json) -> dict[str, object]:
    """Return the shape of a denoiser from its config.json. Raises InvalidInputError for an unknown class."""
    name = str(config.get("_class_name", ""))[:40]
    if name == "UNet2DConditionModel":
        return _unet(config)
    heads, head = number(config, "num_attention_heads"), number(config, "attention_head_dim")
    if name == "FluxTransformer2DModel":
        return _transformer((heads or 24) * (head or FLUX_HEAD), heads or 24, T5_TOKENS, guidance=False)
    if name == "SD3Transformer2DModel":
        return _transformer((heads or 18) * (head or 64), heads or 18, SD3_TOKENS, guidance=True)
    raise InvalidInputError(f"the denoiser {name!r} is not known")


def _transformer(hidden: int, heads: int, texts: int, guidance: bool) -> dict[str, object]:
    return {
        "denoiser": "transformer",
        "denoiser_width": hidden,
        "token_pixels": 16,
        "attention_pixels": 16,
        "attention_heads": heads,
        "text_tokens": texts,
        "guidance": guidance,
    }


def _unet(config: Json) -> dict[str, object]:
    found = config.get("block_out_channels")
    widths = [one for one in found if type(one) is int and one > 0] if isinstance(found, list) else [320]
    kinds = config.get("down_block_types")
    level = next((at for at, kind in enumerate(kinds) if "Attn" in str(kind)), 0) if isinstance(kinds, list) else 0
    # In configs of UNets this key has the number of heads.
    each = config.get("attention_head_dim")
    heads = each[min(level, len(each) - 1)] if isinstance(each, list) and each else each
    return _unet_shape(
        widths[0] if widths else 320, level, heads if type(heads) is int and heads > 0 else SD1_HEADS
    )


def _unet_shape(width: int, level: int, heads: int) -> dict[str, object]:
    return {
        "denoiser": "unet",
        "denoiser_width": width,
        "token_pixels": 8,
        "attention_pixels": 8 << min(level, 8),
        "attention_heads": heads,
    }


def vae_fields(config: Json, may_widen: bool) -> dict[str, object]:
    found = config.get("block_out_channels")
    width = found[0] if isinstance(found, list) and found and type(found[0]) is int and found[0] > 0 else 128
    return {
        "vae_width": width,
        "vae_tile": number(config, "sample_size") or VAE_TILE,
        "vae_32bit": may_widen and config.get("force_upcast") is True,
    }


def read_single_file(header: Mapping[str, object]) -> Found | None:
    """Return the components of one file, None if its tensors are not those of a diffusion model."""
    if not any(name.startswith(DENOISER_PREFIXES) for name in header):
        return None
    if len(header) > MAX_TENSORS:
        raise InvalidInputError(
            f"the file has {len(header)} tensors; at most {MAX_TENSORS} of a diffusion model are read"
        )
    tensors = list_tensors(header)
    groups: dict[str, dict[str, tuple[tuple[int, ...], int]]] = {}
    for name, tensor in tensors.items():
        kind = next((kind for prefix, kind in SINGLE.items() if name.startswith(prefix)), "")
        groups.setdefault(kind, {})[name] = tensor
    total = sum(size for _, size in tensors.values())
    shape = _single_shape(tensors)
    if not shape:
        return Found(total, None, "the denoiser of this file is not known")
    encoders = _split_encoders(groups.get("text_encoder", {}))
    denoiser = sum_tensors({**groups["denoiser"], **groups.get("", {})})
    vae = sum_tensors(groups.get("vae", {}))
    groups_of = {"text encoders": encoders, "the VAE": vae.size_bytes}
    lacking = [name for name, part in groups_of.items() if not part]
    return Found(total, _build(denoiser, encoders, vae, shape), unknown=_lacks(lacking))


def _split_encoders(tensors: Tensors) -> list[Part]:
    """Return a part for each encoder, by the first two words of the tensors' names, three of a numbered one."""
    groups: dict[str, dict[str, tuple[tuple[int, ...], int]]] = {}
    for name, tensor in tensors.items():
        words = name.split(".")
        groups.setdefault(".".join(words[: 3 if "embedders" in words[:2] else 2]), {})[name] = tensor
    return [sum_tensors(group) for group in groups.values()]


def _single_shape(tensors: Tensors) -> dict[str, object]:
    """Return the denoiser's shape from the tensors' shapes, empty if it is not known."""
    first_block = "double_blocks.0.img_attn.qkv.weight"
    flux = next((shape for name, (shape, _) in tensors.items() if name.endswith(first_block)), ())
    if len(flux) == 2:
        return _transformer(flux[1], max(1, flux[1] // FLUX_HEAD), T5_TOKENS, guidance=False)
    inner = "model.diffusion_model."
    first = tensors.get(f"{inner}input_blocks.0.0.weight", ((), 0))[0]
    if len(first) != 4:
        return {}
    if any(name.startswith(f"{inner}input_blocks.1.1.") for name in tensors):
        return _unet_shape(first[0], 0, SD1_HEADS)
    return {**_unet_shape(first[0], 1, max(1, 2 * first[0] // SDXL_HEAD)), "vae_32bit": True, "vae_tile": 1024}
