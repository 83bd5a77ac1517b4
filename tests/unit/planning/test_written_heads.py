"""Plans for files that the packages `gguf` and `safetensors` have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use
from support.checkpoint_files import gguf as plain_gguf
from support.gguf_keys import GGUF_KEYS
from support.written_models import random_weights, tensor_bytes, write_folder, write_gguf, write_keys

WEIGHTS = random_weights()
PARAMETERS = sum(weight.size for weight in WEIGHTS.values())
NORMS = sum(weight.size for weight in WEIGHTS.values() if weight.ndim == 1)


def test_folder_has_the_weights_that_safetensors_wrote(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", WEIGHTS)
    found = read_checkpoint(folder)

    with safe_open(folder / "model.safetensors", "np") as file:
        written = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    assert found.weights_bytes == written == 2 * PARAMETERS
    assert found.transformer is not None
    assert found.transformer.parameters == PARAMETERS


@pytest.mark.parametrize(
    ("form", "bits"), [("F32", 32), ("F16", 16), ("BF16", 16), ("Q8_0", 8.5), ("Q5_0", 5.5), ("Q4_0", 4.5)]
)
def test_gguf_has_the_weights_that_the_package_wrote(form: str, bits: float, tmp_path: Path) -> None:
    """Norms have 32 bits in every format."""
    path = write_gguf(tmp_path / "model.gguf", WEIGHTS, form)
    found = read_checkpoint(path)

    assert found.weights_bytes == tensor_bytes(path) == int((PARAMETERS - NORMS) * bits / 8) + 4 * NORMS


def test_gguf_and_folder_of_one_model_have_one_shape(tmp_path: Path) -> None:
    """3 layers, 2 KV heads of 64: 768 numbers a token for the keys and values."""
    of_gguf = read_checkpoint(write_gguf(tmp_path / "model.gguf", WEIGHTS))
    of_folder = read_checkpoint(write_folder(tmp_path / "model", WEIGHTS))

    assert of_gguf.transformer is not None
    assert of_gguf.transformer == of_folder.transformer
    assert of_gguf.context == of_folder.context == 4096
    assert compute_kv_cache(of_gguf.transformer, 1000, 1, 2) == 3 * 2 * 2 * 64 * 2 * 1000


def test_split_gguf_is_read_as_one_model(tmp_path: Path) -> None:
    whole = read_checkpoint(write_gguf(tmp_path / "whole.gguf", WEIGHTS))
    (tmp_path / "parts").mkdir()
    write_gguf(tmp_path / "parts" / "model.gguf", WEIGHTS, split_tensors=10)
    parts = read_checkpoint(tmp_path / "parts")

    assert len(list((tmp_path / "parts").iterdir())) == 3
    assert (parts.weights_bytes, parts.transformer) == (whole.weights_bytes, whole.transformer)


@pytest.mark.parametrize("name", GGUF_KEYS)
def test_keys_from_the_package_are_read_as_those_of_the_tests(name: str, tmp_path: Path) -> None:
    """The samples of other tests are in the form that the package writes."""
    ours = plain_gguf(tmp_path / "ours.gguf", GGUF_KEYS[name], {"t": (0, [8], 0)}, 32)
    theirs = write_keys(tmp_path / "theirs.gguf", GGUF_KEYS[name])
    found = [compute_checkpoint_need(read_checkpoint(path), Use(context=20_000)) for path in (ours, theirs)]

    assert found[0].parts == found[1].parts
    assert found[0].parts["kv_cache"] > 0
