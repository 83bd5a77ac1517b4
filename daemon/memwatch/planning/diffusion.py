"""A diffusion pipeline on disk: a folder with model_index.json, or one safetensors file with all components."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from msgspec import Struct

from memwatch.planning.config_keys import Json, number
from memwatch.planning.model_file import HeaderLimit, ModelPath, list_files, read_small
from memwatch.planning.pipeline import Pipeline
from memwatch.planning.safetensors import checked_bytes, list_tensors, parse_object, read_header
from memwatch.planning.sizes import InvalidInputError

MODEL_INDEX = "model_index.json"
MAX_JSON_BYTES = 1 << 20
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
SD1_WIDTH = 768
VAE_TILE = 512

Tensors = Mapping[str, tuple[tuple[int, ...], int]]


class Part(Struct, frozen=True):
    """Sums over the tensors of one component. `adapted`: parameters of LoRA adapters for each rank."""

    parameters: int = 0
    size_bytes: int = 0
    largest_bytes: int = 0
    adapted: int = 0


class Found(Struct, frozen=True):
    """Components of a pipeline on disk. `problem`: why the denoiser's activations are not known."""

    weights_bytes: int
    pipeline: Pipeline | None
    problem: str = ""


def read_folder(path: ModelPath) -> Found:
    """Read a folder of diffusers. Raises InvalidInputError."""
    index = _object(path / MODEL_INDEX)
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
    config = _object(path / denoiser / "config.json")
    vae_config = _object(path / "vae" / "config.json") if (path / "vae" / "config.json").exists() else {}
    try:
        shape = denoiser_fields(config)
    except InvalidInputError as error:
        return Found(total, None, str(error))
    # Only pipelines of UNets decode in 32 bits where the VAE asks for it.
    shape |= vae_fields(vae_config, may_widen=shape["denoiser"] == "unet")
    return Found(total, _build(parts[denoiser], encoders, parts.get("vae", Part()), shape))


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
    return Found(total, _build(denoiser, encoders, vae, shape))


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


def _object(path: ModelPath) -> Json:
    return parse_object(read_small(path, MAX_JSON_BYTES), str(path))
