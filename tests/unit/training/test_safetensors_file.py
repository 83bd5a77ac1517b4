"""Test reading tensors of a safetensors file by name: only what is used is read, and hostile files are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import memwatch
from memwatch.planning.arguments import InvalidInputError

WEIGHT = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
STEPS = numpy.array([7, 8], dtype=numpy.int64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a file with the format's own library."""
    target = tmp_path / "model.safetensors"
    save_file({"layer.weight": WEIGHT, "steps": STEPS, "none": numpy.zeros((0, 4), numpy.float16)}, target)
    return target


def file_of(folder: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    target = folder / "made.safetensors"
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    target.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return target


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_tensors_are_listed_with_dtype_shape_and_bytes(path: Path) -> None:
    with memwatch.open_safetensors(path) as file:
        found = {one.name: (one.dtype, one.shape, one.size_bytes) for one in file}

    assert found == {"layer.weight": ("F32", (3, 4), 48), "steps": ("I64", (2,), 16), "none": ("F16", (0, 4), 0)}
    assert len(file) == 3
    assert file.tensors["steps"].size_bytes == 16


def test_one_tensor_is_read_by_name(path: Path) -> None:
    with memwatch.open_safetensors(path) as file:
        raw, array = file.read("steps"), file.as_numpy("layer.weight")

        assert (bytes(raw), raw.readonly) == (STEPS.tobytes(), True)
        assert numpy.array_equal(array, WEIGHT)
        assert file.as_numpy("none").shape == (0, 4)


def test_changes_of_an_array_do_not_reach_the_file(path: Path) -> None:
    before = path.read_bytes()
    with memwatch.open_safetensors(path) as file:
        file.as_numpy("steps")[:] = 0

    assert path.read_bytes() == before


def test_array_outlives_the_closed_file(path: Path) -> None:
    with memwatch.open_safetensors(str(path)) as file:
        array = file.as_numpy("layer.weight")

    assert float(array.sum()) == float(WEIGHT.sum())


def test_reading_maps_pages_and_does_not_read_the_file(tmp_path: Path) -> None:
    """A file with 1 TiB of holes opens at once, and only the used page is read."""
    size = 1 << 40
    target = file_of(tmp_path, {"big": entry("U8", [size], 0, size), "last": entry("U8", [1], size, size + 1)})
    os.truncate(target, target.stat().st_size + size + 1)

    with memwatch.open_safetensors(target) as file:
        assert file.read("big").nbytes == size
        assert bytes(file.read("last")) == b"\0"


def test_unknown_name_is_refused_with_near_ones(path: Path) -> None:
    with (
        memwatch.open_safetensors(path) as file,
        pytest.raises(InvalidInputError, match=r'has no tensor "layer.wieght"; for example layer.weight'),
    ):
        file.read("layer.wieght")


def test_dtype_that_numpy_lacks_is_refused_with_what_works(tmp_path: Path) -> None:
    target = file_of(tmp_path, {"x": entry("F4", [4], 0, 2)}, b"ab")
    with memwatch.open_safetensors(target) as file:
        with pytest.raises(
            InvalidInputError, match=r'numpy has no dtype for F4 of "x"; read\(\) returns its bytes'
        ):
            file.as_numpy("x")
        assert bytes(file.read("x")) == b"ab"


def test_metadata_is_no_tensor(tmp_path: Path) -> None:
    """Whatever it has: `shape` and `dtype` are fields of tensors."""
    header = {"__metadata__": {"shape": "wide", "format": "pt"}, "x": entry("U8", [2], 0, 2)}

    with memwatch.open_safetensors(file_of(tmp_path, header, b"ab")) as file:
        assert list(file.tensors) == ["x"]
        assert bytes(file.read("x")) == b"ab"


@pytest.mark.parametrize(
    ("header", "data", "length", "words"),
    [
        ({}, b"", 1 << 60, "should have 1152921504606846976 bytes, but the file has"),
        (b"{", b"", None, "is not readable JSON"),
        (b"[]", b"", None, "is JSON, but not an object"),
        ({"x": entry("F32", [2], 0, 4)}, b"abcd", None, "has 4 bytes, which does not match its shape"),
        ({"x": entry("U8", [2], 2, 4)}, b"abcd", None, "begins at 2, but the previous one ends at 0"),
        ({"x": entry("U8", [2], 0, 2)}, b"abcd", None, "tensors take 2 bytes, but the file has 4"),
        ({"x": entry("U8", [4], 0, 4)}, b"ab", None, "tensors take 4 bytes, but the file has 2"),
        ({"x": entry("U8", [-1], 0, -1)}, b"", None, "no readable dtype, shape and data_offsets"),
        ({"x": entry("Q8", [1], 0, 1)}, b"a", None, "no readable dtype, shape and data_offsets"),
    ],
    ids=["length", "cut", "list", "shape", "gap", "rest", "short", "negative", "dtype"],
)
def test_hostile_header_is_refused(
    tmp_path: Path, header: object, data: bytes, length: int | None, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        memwatch.open_safetensors(file_of(tmp_path, header, data, length))


def test_missing_and_irregular_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(InvalidInputError, match="is not a regular file"):
        memwatch.open_safetensors(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match=r"cannot be read \(no such file or directory\); check the name$"):
        memwatch.open_safetensors(tmp_path / "none")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_random_bytes_are_refused_or_consistent(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, length: int
) -> None:
    """Never another error, and never a tensor outside of the file."""
    target = tmp_path_factory.getbasetemp() / "random.safetensors"
    target.write_bytes(length.to_bytes(8, "little") + text)
    try:
        with memwatch.open_safetensors(target) as file:
            assert sum(file.read(one.name).nbytes for one in file) == len(text) - length
    except InvalidInputError:
        pass
