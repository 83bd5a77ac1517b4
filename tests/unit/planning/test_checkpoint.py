"""Test that checkpoints are measured by their headers alone, and that incomplete or hostile ones are rejected."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.planning import gguf as gguf_format
from memwatch.planning import model_file
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import Checkpoint, add_weights, read_checkpoint, with_projectors
from scripts.published_models import MODELS
from support.checkpoint_files import LLAMA_KEYS, gguf, safetensors

TWO = {"a": ("BF16", [3, 5]), "b": ("F32", [7])}
TWO_BYTES = 2 * 15 + 4 * 7


def test_safetensors_are_added_up_from_the_header(tmp_path: Path) -> None:
    """Size of dtype times shape, over all tensors."""
    found = read_checkpoint(safetensors(tmp_path / "model.safetensors", TWO))

    assert (found.weights_bytes, found.source, found.transformer) == (TWO_BYTES, "safetensors", None)


def test_folder_is_read_by_its_index_and_config(tmp_path: Path) -> None:
    """The index names the files; their headers give the sizes; config.json gives the shape."""
    safetensors(tmp_path / "model-1.safetensors", TWO)
    safetensors(tmp_path / "model-2.safetensors", {"c": ("I8", [11])})
    index = {"metadata": {"total_size": 1}, "weight_map": {"a": "model-1.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(MODELS[0].config))

    found = read_checkpoint(tmp_path)

    assert found.weights_bytes == TWO_BYTES + 11
    assert found.transformer is not None
    assert found.transformer.parameters == MODELS[0].parameters


def test_gguf_gives_its_size_and_shape(tmp_path: Path) -> None:
    """Blocks of Q4_K hold 256 numbers in 144 bytes; the vocabulary is as long as the tokenizer's list."""
    tensors = {"t": (12, [256, 4], 0), "u": (0, [10], 576 + 0)}

    found = read_checkpoint(gguf(tmp_path / "model.gguf", LLAMA_KEYS, tensors, 576 + 40))

    assert found.weights_bytes == 4 * 144 + 40
    assert found.context == 4096
    assert found.transformer is not None
    assert (found.transformer.n_layers, found.transformer.n_kv_heads, found.transformer.vocab_size) == (2, 2, 3)


def test_shape_that_varies_by_layer_is_unknown(tmp_path: Path) -> None:
    """With an array where a number is expected, the weights are known and the shape is not."""
    keys = {**LLAMA_KEYS, "llama.attention.head_count_kv": ["1", "2"]}
    found = read_checkpoint(gguf(tmp_path / "model.gguf", keys, {"t": (12, [256, 4], 0)}, 576))

    assert (found.weights_bytes, found.transformer) == (576, None)


def test_parts_of_a_gguf_are_one_model(tmp_path: Path) -> None:
    """All parts count together; a folder with several models, or with a missing part, is rejected by name."""
    for part, keys in ((1, LLAMA_KEYS), (2, {})):
        gguf(tmp_path / f"model-0000{part}-of-00002.gguf", keys, {"t": (12, [256, 4], 0)}, 576)
    found = read_checkpoint(tmp_path)
    (tmp_path / "model-00002-of-00002.gguf").rename(tmp_path / "other.gguf")

    assert found.weights_bytes == 2 * 576
    assert found.transformer is not None
    with pytest.raises(InvalidInputError, match="has 2 GGUF files; name one of them"):
        read_checkpoint(tmp_path)


BAD_SAFETENSORS: list[tuple[Any, str]] = [
    (b"{", "is not readable JSON"),
    (b"[" * 100_000, "is not readable JSON"),
    (b"[]", "is JSON, but not an object"),
    (b'{"a": 1, "a": 2}', "a key is repeated"),
    (b'{"a": ' + b"9" * 5000 + b"}", "is not readable JSON"),
    ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, "has no readable dtype"),
    ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "has no readable dtype"),
    ({"a": {"dtype": "F32", "shape": [10**18] * 40, "data_offsets": [0, 4]}}, "has no readable dtype"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}}, "which does not match its shape"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "begins at 4"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "but the file has 58"),
    ({"a": None}, "has no readable dtype"),
]


@pytest.mark.parametrize(("header", "words"), BAD_SAFETENSORS)
def test_hostile_headers_are_rejected(header: Any, words: str, tmp_path: Path) -> None:
    """Bombs, overlaps, gaps and wrong sizes: one message that names the file."""
    path = safetensors(tmp_path / "model.safetensors", TWO, header)

    with pytest.raises(InvalidInputError) as rejected:
        read_checkpoint(path)

    assert str(rejected.value).startswith(str(path))
    assert words in str(rejected.value)


def test_truncated_and_overlong_headers_are_rejected(tmp_path: Path) -> None:
    """A length beyond the file, a length beyond the limit, a file that ends early, an empty one."""
    path = tmp_path / "model.safetensors"
    for content, words in (
        (b"", "is the file complete"),
        (struct.pack("<Q", 1 << 63) + b"{}", "is the file complete"),
        (struct.pack("<Q", 2)[:5], "is the file complete"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=words):
            read_checkpoint(path)
    with path.open("wb") as file:  # sparse: it takes no space
        file.write(struct.pack("<Q", 40 << 20))
        file.truncate(50 << 20)
    with pytest.raises(InvalidInputError, match="at most 6291456 are read"):
        read_checkpoint(path)
    safetensors(path, TWO, cut=3)
    with pytest.raises(InvalidInputError, match="its tensors take 58 bytes, but the file has 55"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("length", "is_described"), [((1 << 20) - 1, True), (1 << 20, True), ((1 << 20) + 1, False)]
)
def test_damaged_header_of_up_to_1_mib_is_described(length: int, is_described: bool, tmp_path: Path) -> None:
    """It is parsed again, which takes ten times the time and memory. A larger one is only refused."""
    path = safetensors(tmp_path / "model.safetensors", {}, b'{"a": null}'.ljust(length))

    with pytest.raises(InvalidInputError) as rejected:
        read_checkpoint(path)

    assert ("the tensor 'a' has no readable dtype" in str(rejected.value)) is is_described
    assert ("is not readable JSON" in str(rejected.value)) is not is_described


@pytest.mark.parametrize(
    ("most", "words"), [(6, ""), (5, ""), (4, "more than 4 strings in all"), (2, "3 strings; at most 2")]
)
def test_strings_of_all_arrays_of_a_gguf_count_together(
    most: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tokens and two merges."""
    monkeypatch.setattr(gguf_format, "MAX_TEXTS", most)
    path = gguf(tmp_path / "model.gguf", {**LLAMA_KEYS, "tokenizer.ggml.merges": ["a b", "b c"]}, {}, 0)

    if words:
        with pytest.raises(InvalidInputError, match=words):
            read_checkpoint(path)
    else:
        shape = read_checkpoint(path).transformer
        assert shape is not None
        assert shape.vocab_size == 3


@pytest.mark.parametrize("strings", [1, 2])
def test_gguf_may_end_with_an_empty_string(strings: int, tmp_path: Path) -> None:
    """Its length takes the last 8 bytes of the file."""
    path, name = tmp_path / "model.gguf", b"n" * (16 - 8 * strings)
    head = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(name)) + name + struct.pack("<IIQ", 9, 8, strings)
    path.write_bytes(head + bytes(8 * strings))

    assert gguf_format.read_head(path).keys == {name.decode(): strings}
    path.write_bytes(head + bytes(8 * strings - 1))
    with pytest.raises(InvalidInputError, match="the header is truncated"):
        gguf_format.read_head(path)


@pytest.mark.parametrize("name", ["model-{:05}-of-00300.safetensors", "model-{:05}-of-00300.gguf"])
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_names_of_one_file_are_not_counted_twice(tmp_path: Path, name: str, kind: str) -> None:
    first = tmp_path / name.format(1)
    if first.suffix == ".gguf":
        gguf(first, LLAMA_KEYS, {}, 0)
    else:
        safetensors(first, {"a": ("I8", [4])})
    for number in range(2, 301):
        other = tmp_path / name.format(number)
        other.symlink_to(first.name) if kind == "link" else other.hardlink_to(first)
    with pytest.raises(InvalidInputError, match="is another name of a file that is already counted"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model-{:05}-of-00004.safetensors", "model-{:05}-of-00004.gguf"])
def test_headers_of_a_model_have_a_limit_together(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has its limit as well, and a folder thousands of files."""
    for number in range(1, 5):
        path = tmp_path / name.format(number)
        if path.suffix == ".gguf":
            gguf(path, LLAMA_KEYS, {}, 0)
        else:
            safetensors(path, {"a": ("I8", [4])})
    read_checkpoint(tmp_path)
    monkeypatch.setattr(model_file, "MAX_MODEL_HEADER_BYTES", 3 * path.stat().st_size)
    with pytest.raises(InvalidInputError, match="of a model's headers are read"):
        read_checkpoint(tmp_path)


def test_index_may_not_point_outside_its_folder(tmp_path: Path) -> None:
    """Only files beside it are read."""
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))

    with pytest.raises(InvalidInputError, match="which is not in the same folder"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGML", "is not a GGUF file: it does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1), "is GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors; at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "keys; at most"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "the header is truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "value of type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 5), "array of type 9"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 50),
            "strings; at most",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 50), "is truncated"),
        (b"", "the header is truncated"),
    ],
)
def test_hostile_gguf_is_rejected(content: bytes, words: str, tmp_path: Path) -> None:
    """Counts, lengths and types that the file cannot hold."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with pytest.raises(InvalidInputError, match=words):
        read_checkpoint(path)


def test_truncated_gguf_is_rejected(tmp_path: Path) -> None:
    """Its tensors must lie within the file."""
    path = gguf(tmp_path / "model.gguf", LLAMA_KEYS, {"t": (12, [256, 4], 0)}, 575)

    with pytest.raises(InvalidInputError, match="is the file complete"):
        read_checkpoint(path)


def test_gguf_with_overlapping_tensors_is_rejected(tmp_path: Path) -> None:
    """Bytes counted twice would let a small file claim any amount of memory."""
    tensors = {name: (0, [64], offset) for name, offset in (("a", 0), ("b", 128))}
    path = gguf(tmp_path / "model.gguf", LLAMA_KEYS, tensors, 384)

    with pytest.raises(
        InvalidInputError, match="a tensor begins at 128, before the end of the previous one at 256"
    ):
        read_checkpoint(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=300), suffix=st.sampled_from([".gguf", ".safetensors"]), magic=st.booleans())
def test_arbitrary_files_are_read_or_rejected(content: bytes, suffix: str, magic: bool, tmp_path: Path) -> None:
    """Arbitrary bytes yield sizes, or are rejected."""
    path = tmp_path / f"model{suffix}"
    path.write_bytes((b"GGUF\3\0\0\0" if magic and suffix == ".gguf" else b"") + content)
    try:
        found = read_checkpoint(path)
    except InvalidInputError:
        return
    assert found.weights_bytes is not None


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "config.json", "model.safetensors.index.json"])
def test_pipe_is_rejected_at_once(name: str, tmp_path: Path) -> None:
    """Opening a pipe without a writer would block."""
    os.mkfifo(tmp_path / name)

    with pytest.raises(InvalidInputError, match="is not a regular file"):
        read_checkpoint(tmp_path / name)


def test_missing_paths_and_other_files_are_rejected(tmp_path: Path) -> None:
    """A missing path, an empty folder, an oversized config, a text file."""
    (tmp_path / "config.json").write_bytes(b" " * (17 << 20))
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()

    for path, words in (
        (tmp_path / "none", "is no size, file or name; for example 20GiB"),
        (tmp_path / "empty", "has no safetensors files, no GGUF files"),
        (tmp_path / "config.json", "is larger than"),
        (tmp_path / "notes.txt", "is not a .safetensors"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            read_checkpoint(path)


def test_unknown_weights_stay_unknown_with_further_ones() -> None:
    """The size of a vision tower alone would be taken for that of the model, and fit anywhere."""
    known = Checkpoint("model", "GGUF", None, 1000, 0, 2.0, "")

    assert add_weights(known, 24).weights_bytes == 1024
    assert add_weights(replace(known, weights_bytes=None), 24).weights_bytes is None


def test_first_bytes_of_a_gguf_file_are_enough_up_to_its_tokenizer(tmp_path: Path) -> None:
    """Hubs are asked for no more. Converters write the tokenizer, most of a header, after the shape."""
    shape = {"general.architecture": "llama", "llama.block_count": 32}
    path = gguf(tmp_path / "m.gguf", {**shape, "tokenizer.ggml.tokens": ["token"] * 40}, {"t": (0, [8], 0)}, 32)
    data = path.read_bytes()
    begin, behind = data.index(b"tokenizer"), data.index(b"token\x05")

    whole = gguf_format.read_first_keys(data, "m")
    cut = gguf_format.read_first_keys(data[: behind + 20], "m")

    assert whole == cut == {**shape, "tokenizer.ggml.tokens": 40}
    # In the header itself, in the first key, between keys, and in the name of the tokenizer's key.
    for end in (10, 24, 30, data.index(b"llama.block_count"), begin + 4):
        with pytest.raises(InvalidInputError, match="truncated"):
            gguf_format.read_first_keys(data[:end], "m")


def test_largest_vision_tower_counts(tmp_path: Path) -> None:
    """Publishers offer it in several formats, of which a server loads one."""
    small, large = (
        gguf(tmp_path / f"mmproj-{name}.gguf", {"general.architecture": "clip"}, {"v": (0, [count], 0)}, 4 * count)
        for name, count in (("F16", 64), ("F32", 128))
    )
    found = with_projectors(Checkpoint("m", "gguf", None, 1000, 4096, 2.0), [large, small])

    assert (found.weights_bytes, found.projector) == (1000 + 512, str(large))
    assert with_projectors(found, []).weights_bytes == found.weights_bytes
