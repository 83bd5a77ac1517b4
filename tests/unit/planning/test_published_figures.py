"""Every published figure: weights and cache within 3 %, sizes that were measured in all within 10 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.planning.checkpoint import Checkpoint, describe_config, read_checkpoint
from memwatch.planning.huggingface import parse_config
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use
from scripts.published_models import MODELS
from support import diffusers_folders

GB, GIB = 1e9, float(1 << 30)
CONFIGS = {model.name: model.config for model in MODELS}
LONG = Use(context=131_072)


def model(name: str) -> Checkpoint:
    return describe_config(parse_config(CONFIGS[name], name))


@pytest.mark.parametrize(
    ("name", "part", "published", "use", "within"),
    [
        ("Llama 3 8B", "weights", 16.06 * GB, Use(), 0.03),  # model card
        ("Llama 3 8B", "kv_cache", 1.07 * GB, Use(context=8192), 0.03),  # config
        ("Llama 3 8B", "weights", 4.92 * GB, Use(dtype="q4_k"), 0.03),  # the file Q4_K_M
        ("Llama 3 8B", "weights", 4.58 * GIB, Use(dtype="q4_k"), 0.05),  # the same file, in GiB
        ("Llama 3 70B", "weights", 141.1 * GB, Use(), 0.03),  # the files
        ("gpt-oss-20b", "kv_cache", 3.05 * GIB, LONG, 0.03),  # gpustack/gguf-parser-go#32
        ("gpt-oss-20b", "weights", 13_761_264_768, Use(), 0.03),  # total_size of its index
        ("Gemma 3 27B", "kv_cache", 10.4 * GIB, LONG, 0.03),  # unslothai/unsloth#4757
        ("Llama 4 Scout", "weights", 203 * GIB, Use(), 0.03),  # model card
    ],
)
def test_part_equals_the_published_figure(name: str, part: str, published: float, use: Use, within: float) -> None:
    assert compute_checkpoint_need(model(name), use).parts[part] == pytest.approx(published, rel=within)


def test_llama_4_scout_has_the_published_parameters() -> None:
    shape = model("Llama 4 Scout").transformer

    assert shape is not None
    assert shape.parameters == pytest.approx(109e9, rel=0.03)


def test_sdxl_is_in_the_measured_range(tmp_path: Path) -> None:
    """8.2 to 10.5 GB for one image, by the kind of VAE; PyTorch counts no context. It decodes in 32 bits here."""
    parts = compute_checkpoint_need(read_checkpoint(diffusers_folders.sdxl(tmp_path)), Use()).parts
    allocated = sum(size for part, size in parts.items() if part != "runtime")

    assert 8.2 * GB < allocated < 10.5 * GB
    assert allocated == pytest.approx(10.5 * GB, rel=0.03)


def test_flux_has_the_published_sizes(tmp_path: Path) -> None:
    """The transformer 23.8 GB = 22.2 GiB; 33 to 35 GB with T5, CLIP and VAE."""
    parts = compute_checkpoint_need(read_checkpoint(diffusers_folders.flux(tmp_path)), Use()).parts
    weights = sum(parts[part] for part in ("denoiser", "text_encoders", "vae"))

    assert parts["denoiser"] == pytest.approx(23.8 * GB, rel=0.03)
    assert parts["denoiser"] == pytest.approx(22.2 * GIB, rel=0.03)
    assert 33 * GB < weights < 35 * GB
