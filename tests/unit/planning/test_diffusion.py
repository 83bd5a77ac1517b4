"""Plans for diffusion models, from folders of diffusers and from single files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from memwatch.planning import diffusion, model_file
from memwatch.planning.answer import answer_model
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import Checkpoint, read_checkpoint
from memwatch.planning.diffusion import ImageUse, compute_components, compute_decoding, denoiser_fields
from memwatch.planning.need import MemoryNeed, compute_checkpoint_need, list_image_reductions
from memwatch.planning.number_formats import bits_per_weight
from memwatch.planning.request import Use
from memwatch.planning.training import TrainingPlan
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support import diffusers_folders as samples
from support.gpu_cards import cards

GIB = 1 << 30
GB = 10**9


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    folder = tmp_path_factory.mktemp("models")
    found = {name: getattr(samples, name)(folder / name) for name in ("sdxl", "flux", "sd15")}
    return {name: read_checkpoint(path) for name, path in found.items()}


def need_of(model: Checkpoint, batch: int = 1, dtype: str = "", **images: Any) -> MemoryNeed:
    return compute_checkpoint_need(model, Use(batch_size=batch, dtype=dtype, images=ImageUse(**images)))


def test_all_components_are_counted(models: dict[str, Checkpoint]) -> None:
    """SDXL: 6.94 GB in 16 bits, Flux: 23.8 GB and 9.5 GB of T5-XXL, as on their cards."""
    sdxl, flux = (need_of(models[name]).parts for name in ("sdxl", "flux"))

    assert sum(sdxl[part] for part in ("denoiser", "text_encoders", "vae")) == pytest.approx(6.94e9, rel=0.001)
    assert flux["denoiser"] == pytest.approx(23.8e9, rel=0.001)
    assert flux["text_encoders"] == pytest.approx(9.5e9 + 0.25e9, rel=0.005)


def test_single_file_is_planned_like_its_folder(models: dict[str, Checkpoint], tmp_path: Path) -> None:
    single = read_checkpoint(samples.single_file(tmp_path / "sd_xl_base_1.0.safetensors"))

    assert need_of(single).parts == need_of(models["sdxl"]).parts
    assert need_of(single, offload="model").demand == need_of(models["sdxl"], offload="model").demand


def test_sixteen_bit_variant_is_the_one_that_is_loaded(tmp_path: Path) -> None:
    """The folder of SDXL has each component in 32 and in 16 bits."""
    folder = samples.sdxl(tmp_path / "both", "F32")
    for part in ("unet", "vae", "text_encoder", "text_encoder_2"):
        (plain,) = (folder / part).glob("*.safetensors")
        samples.sparse_safetensors(folder / part / f"{plain.stem}.fp16.safetensors", {"a": [1000]}, "F16")

    assert read_checkpoint(folder).weights_bytes == 4 * 2000


def test_activations_grow_with_resolution_and_batch(models: dict[str, Checkpoint]) -> None:
    """The VAE has 6 numbers for each pixel and each of 128 channels, in 32 bits for SDXL and 16 for Flux."""
    small, large = (need_of(models["flux"], width=side, height=side).parts["activations"] for side in (512, 1024))

    assert large == 4 * small
    assert large == (6 * 128 + 3) * 1024 * 1024 * 2
    assert need_of(models["flux"], batch=3).parts["activations"] == 3 * large
    assert need_of(models["sdxl"]).parts["activations"] > 2 * large


def test_slicing_decodes_one_image_and_tiling_one_tile(models: dict[str, Checkpoint]) -> None:
    """Only images larger than a tile gain from tiling: 1,024 pixels for SDXL."""
    pipe = models["sdxl"].pipeline
    assert pipe is not None
    whole, sliced, tiled = (
        compute_decoding(pipe, ImageUse(2048, 2048, vae_tiling=tiling, vae_slicing=slicing), 4, pipe.vae_bytes)
        for slicing, tiling in ((False, False), (True, False), (True, True))
    )

    assert whole > 3 * sliced > 9 * tiled
    assert need_of(models["sdxl"], vae_tiling=True).parts == need_of(models["sdxl"]).parts


def test_attention_slicing_materializes_the_scores_of_half_the_heads(models: dict[str, Checkpoint]) -> None:
    """PyTorch's own attention materializes none, so slicing only helps where it is missing."""
    part = {
        kind: need_of(models["sd15"], attention=kind, vae_slicing=True, batch=8).parts["activations"]
        for kind in ("sdpa", "sliced", "full")
    }
    scores = 16 * 8 * (128 * 128) ** 2 * 2

    assert part["sdpa"] < part["sliced"] < part["full"]
    assert part["full"] - part["sliced"] == scores // 2


@pytest.mark.parametrize("name", ["sdxl", "flux", "sd15"])
@pytest.mark.parametrize("offload", ["model", "sequential"])
def test_offloading_moves_components_to_system_ram(name: str, offload: str, models: dict[str, Checkpoint]) -> None:
    """Components wait in System RAM. More of them wait when a small one is at work."""
    plain, found = need_of(models[name]), need_of(models[name], offload=offload)
    weights = [sum(need.parts[part] for part in ("denoiser", "text_encoders", "vae")) for need in (plain, found)]
    left = found.bytes - found.parts["activations"] - found.parts["runtime"]

    assert weights[0] == weights[1] == left + sum(found.moves.values())
    assert found.demand.ram_bytes > sum(found.moves.values()) or offload == "sequential"
    assert found.demand.ram_bytes <= weights[0]
    assert found.bytes < plain.bytes


@pytest.mark.parametrize(
    ("name", "use", "fits"),
    [
        ("sdxl", {}, True),
        ("flux", {}, False),
        ("flux", {"images": ImageUse(offload="model", vae_tiling=True)}, True),
        ("flux", {"dtype": "fp8"}, True),
        ("flux", {"dtype": "nf4"}, True),
    ],
)
def test_sdxl_and_flux_on_24_gb_as_published(
    name: str, use: dict[str, Any], fits: bool, models: dict[str, Checkpoint]
) -> None:
    """A card of 24 GiB holds SDXL; Flux in bfloat16 needs offloading or 8 bits."""
    found = answer_model(models[name], Use(**use), cards(1, 24 * GIB, 48 * GIB))

    assert (found.fit.best == "gpu0") is fits
    assert found.greatest is not None
    assert found.greatest.context is None


@pytest.mark.parametrize(
    ("ram_gib", "flags"),
    [(48, "--offload model --vae-tiling --vae-slicing"), (8, "--dtype fp8 --vae-tiling --vae-slicing")],
)
def test_cheapest_change_for_flux_depends_on_system_ram(
    ram_gib: int, flags: str, models: dict[str, Checkpoint]
) -> None:
    """Offloading needs room for 33.6 GB of components that wait. Without it 8 bits are proposed."""
    changes = list_image_reductions(Use())
    room = cards(1, 24 * GIB, ram_gib * GIB)
    first = next(
        name for _, name, use in changes if answer_model(models["flux"], use, room).fit.verdicts[0].fits is True
    )
    assert first == flags


def test_offloading_on_unified_memory_gains_nothing(models: dict[str, Checkpoint]) -> None:
    """A component that waits is in the same memory."""
    spark = next(read_frames(path_of("dgx-spark")))
    verdicts = [
        answer_model(models["flux"], Use(images=ImageUse(offload=offload)), spark).fit.verdicts[0]
        for offload in ("", "sequential")
    ]

    assert verdicts[1].need_bytes == verdicts[0].need_bytes
    assert "so nothing is gained" in verdicts[1].reason


def test_lora_trains_adapters_and_whole_training_all_weights(models: dict[str, Checkpoint]) -> None:
    """16 bytes a parameter of the denoiser; the text encoders and the VAE are frozen."""
    flux = models["flux"]
    lora, whole = (
        compute_checkpoint_need(flux, Use(training=TrainingPlan(lora_rank=rank, checkpointing=True))).parts
        for rank in (16, 0)
    )
    trained = 16 * (640 + 640 + 640 + 2048 + 640 + 640)

    assert lora["adapters"] == lora["gradients"] == 2 * trained
    assert lora["optimizer"] == 12 * trained
    assert whole["denoiser"] + whole["gradients"] + whole["optimizer"] == 16 * samples.FLUX
    assert lora["text_encoders"] == whole["text_encoders"]


def saved_for_backward(model: Checkpoint, checkpointing: bool, lora_rank: int) -> int:
    plan = TrainingPlan(checkpointing=checkpointing, lora_rank=lora_rank)
    use = Use(training=plan, images=ImageUse(offload="model"))
    return compute_checkpoint_need(model, use).parts["activations"]


@pytest.mark.parametrize("name", ["sdxl", "flux", "sd15"])
def test_checkpointing_keeps_less_than_a_third_for_the_backward_pass(
    name: str, models: dict[str, Checkpoint]
) -> None:
    """It keeps the inputs of blocks, so that frozen weights save little more: less than a fifth of it."""
    whole, adapters = (saved_for_backward(models[name], True, rank) for rank in (0, 16))

    assert 0.8 * whole < adapters < whole < saved_for_backward(models[name], False, 0) / 3
    assert adapters < saved_for_backward(models[name], False, 16) / 3


@pytest.mark.parametrize("lora_rank", [0, 16])
def test_checkpointing_of_flux_keeps_the_inputs_of_57_blocks(lora_rank: int, models: dict[str, Checkpoint]) -> None:
    """19 with two streams and 38 with one, in 16 bits for each token. One block is computed again at a time."""
    pipe = models["flux"].pipeline
    assert pipe is not None
    inputs = 57 * (64 * 64 + 512) * pipe.denoiser_width * 2
    block = saved_for_backward(models["flux"], False, 0) / 57

    assert inputs < saved_for_backward(models["flux"], True, lora_rank) < inputs + 2 * block


def test_training_with_cached_embeddings_moves_the_encoders(models: dict[str, Checkpoint]) -> None:
    plan = TrainingPlan(lora_rank=16, checkpointing=True, offload_optimizer=True)
    found = compute_checkpoint_need(models["sdxl"], Use(training=plan, images=ImageUse(offload="model")))

    assert set(found.moves) == {"text_encoders", "vae", "optimizer"}
    assert found.bytes < 6.5 * GB


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ({"context": 100}, "context: not for a diffusion model"),
        ({"gpus": 2, "kv_dtype": "q8_0"}, "kv_dtype, gpus: not for a diffusion model"),
        ({"training": TrainingPlan(swapped_blocks=2)}, "do not apply to training of images"),
        ({"training": TrainingPlan(), "dtype": "nf4"}, "quantized weights cannot be trained"),
    ],
)
def test_options_of_language_models_are_refused(
    use: dict[str, Any], words: str, models: dict[str, Checkpoint]
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        compute_checkpoint_need(models["flux"], Use(**use))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 0}, "width is 0"),
        ({"offload": "disk"}, 'offload is "disk", which is not one of model, sequential'),
        ({"attention": "magic"}, 'attention is "magic", which is not one of sdpa, full, sliced'),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        ImageUse(**options)


def test_unknown_denoiser_is_counted_with_a_note(tmp_path: Path) -> None:
    """Its weights are known. The note names the class."""
    folder = samples.flux(tmp_path / "novel")
    (folder / "transformer" / "config.json").write_text(json.dumps({"_class_name": "NovelTransformer2DModel"}))
    need = compute_checkpoint_need(read_checkpoint(folder), Use())

    assert need.parts["weights"] == 2 * (samples.FLUX + samples.CLIP_L + samples.T5_XXL + samples.VAE_FLUX)
    assert "the denoiser 'NovelTransformer2DModel' is not known" in need.note


def test_incomplete_folder_says_what_it_lacks(tmp_path: Path) -> None:
    folder = samples.sdxl(tmp_path / "model")
    next((folder / "unet").glob("*.safetensors")).unlink()
    with pytest.raises(InvalidInputError, match=r"unet: has no safetensors files; is the download complete\?"):
        read_checkpoint(folder)
    (folder / "model_index.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"model_index.json names no folder called unet or transformer"):
        read_checkpoint(folder)


def test_more_tensors_than_any_pipeline_has_are_refused(tmp_path: Path) -> None:
    names = [f"model.diffusion_model.{at}" for at in range(16_385)]
    path = samples.sparse_safetensors(tmp_path / "model.safetensors", {name: [1] for name in names}, "F16")
    with pytest.raises(InvalidInputError, match="has 16385 tensors; at most 16384"):
        read_checkpoint(path)


@pytest.mark.parametrize(("most", "is_read"), [(7, False), (8, True), (9, True)])
def test_tensors_of_all_files_of_a_component_count_together(
    most: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The denoiser has 4 tensors in its first file, and as many in a second one."""
    folder = samples.sd15(tmp_path / "model")
    shapes = {f"second.{at}": [1] for at in range(4)}
    samples.sparse_safetensors(folder / "unet" / "second.safetensors", shapes, "F16")
    monkeypatch.setattr(diffusion, "MAX_TENSORS", most)

    if is_read:
        assert read_checkpoint(folder).weights_bytes == 2 * (samples.UNET_SD15 + samples.CLIP_L + samples.VAE + 4)
    else:
        with pytest.raises(InvalidInputError, match="unet: has more than 7 tensors, the most that are read"):
            read_checkpoint(folder)


@pytest.mark.parametrize(("most", "is_read"), [(5, False), (6, True), (7, True)])
def test_single_file_may_have_the_most_tensors(
    most: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = samples.single_file(tmp_path / "model.safetensors")
    monkeypatch.setattr(diffusion, "MAX_TENSORS", most)

    if is_read:
        assert read_checkpoint(path).pipeline is not None
    else:
        with pytest.raises(InvalidInputError, match="has 6 tensors; at most 5"):
            read_checkpoint(path)


def test_names_of_one_file_count_once_in_a_component_and_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tensors have the same names, so that the number of tensors limits nothing."""
    folder = samples.sdxl(tmp_path / "model")
    expected = read_checkpoint(folder)
    (file,) = (folder / "unet").glob("*.safetensors")
    for number in range(300):
        (folder / f"unet/{number}.safetensors").symlink_to(file.name)
    with file.open("rb") as opened:
        header = int.from_bytes(opened.read(8), "little")
    monkeypatch.setattr(model_file, "MAX_MODEL_HEADER_BYTES", 20 * header)
    assert read_checkpoint(folder) == expected


def test_components_may_have_the_same_file(tmp_path: Path) -> None:
    """A cache of Hugging Face has one file for all of the same content."""
    folder = samples.sdxl(tmp_path / "model")
    (first,) = (folder / "text_encoder").glob("*.safetensors")
    (second,) = (folder / "text_encoder_2").glob("*.safetensors")
    second.unlink()
    second.symlink_to(first)
    pipeline = read_checkpoint(folder).pipeline
    assert pipeline is not None
    assert pipeline.encoder_bytes == 2 * pipeline.largest_encoder_bytes


@pytest.mark.parametrize("name", ["../unet", "/etc", "unet/../../x"])
def test_index_cannot_name_folders_elsewhere(name: str, tmp_path: Path) -> None:
    folder = samples.sdxl(tmp_path / "model")
    (folder / "model_index.json").write_text(json.dumps({name: ["a", "b"]}))
    with pytest.raises(InvalidInputError, match="names no folder"):
        read_checkpoint(folder)


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("bfloat16", 16), ("fp8", 16), ("nf4", 16)])
@pytest.mark.parametrize("name", ["sdxl", "flux", "sd15"])
def test_vae_is_not_quantized(name: str, dtype: str, bits: int, models: dict[str, Checkpoint]) -> None:
    """Quantizers leave the VAE at 16 bits. In 32 it grows with the others."""
    pipe = models[name].pipeline
    assert pipe is not None

    found = compute_components(pipe, dtype)

    assert found["vae"] == pipe.vae_parameters * bits // 8
    assert found["denoiser"] == math.ceil(pipe.denoiser_parameters * bits_per_weight(dtype) / 8)
    assert found["text_encoders"] == math.ceil(pipe.encoder_parameters * bits_per_weight(dtype) / 8)


@pytest.mark.parametrize(
    ("config", "width", "heads", "tokens"),
    [
        ({"_class_name": "FluxTransformer2DModel"}, 24 * 128, 24, 512),
        ({"_class_name": "FluxTransformer2DModel", "num_attention_heads": 8}, 8 * 128, 8, 512),
        ({"_class_name": "FluxTransformer2DModel", "attention_head_dim": 64}, 24 * 64, 24, 512),
        ({"_class_name": "SD3Transformer2DModel"}, 18 * 64, 18, 333),
        ({"_class_name": "SD3Transformer2DModel", "num_attention_heads": 38}, 38 * 64, 38, 333),
    ],
)
def test_shape_of_a_transformer_has_the_defaults_of_its_class(
    config: dict[str, Any], width: int, heads: int, tokens: int
) -> None:
    """As in diffusers' own classes: a file need not repeat them."""
    found = denoiser_fields(config)

    assert found["denoiser_width"] == width
    assert (found["attention_heads"], found["text_tokens"]) == (heads, tokens)
