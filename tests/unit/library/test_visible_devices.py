"""Test the rules of the variables that choose GPUs against the vendors' documented examples."""

from __future__ import annotations

import pytest

from memwatch.library.visible_gpus import (
    DeviceError,
    DeviceName,
    parse_name,
    select_container,
    select_cuda,
    select_hip,
    select_level_zero,
    select_rocr,
)

NVIDIA = ["GPU-8932f937-d72c", "GPU-8932aaaa-0000", "GPU-5a3d0000-1111", "GPU-c0ffee00-2222"]
AMD = ["GPU-4f1c2b3a4d5e6f70", "GPU-4f1c2b3a4d5e6f71", "GPU-9f1c2b3a4d5e6f72"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2,1", [2, 1]),  # the programming guide's own examples
        ("0,2,-1,1", [0, 2]),
        ("", []),
        ("-1", []),
        ("0,9,1", [0]),
        ("GPU-5a3d", [2]),
        ("GPU-c0ffee00-2222,GPU-8932f", [3, 0]),
        ("GPU-8932", []),  # two GPUs share this prefix
        ("GPU-5a3d,GPU-none,GPU-c0ff", [2]),
        ("GPU-5a3d,1", [2]),
        ("1gpu2,2ampere", [1, 2]),  # PyTorch's test_cuda.py
        ("0, 1, 2, 1", []),
        ("2, +3, -0", [2, 3, 0]),
        ("one,two,3", []),
        ("3,two,one", [3]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_list_follows_cuda(value: str, expected: list[int]) -> None:
    assert select_cuda(value, NVIDIA) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1,0", [1, 0]),
        ("", []),
        ("0,GPU-9F1C2B3A4D5E6F72", [0, 2]),
        ("gpu-9f", [2]),
        ("GPU-4f1c", []),
        ("0,0,1", [0]),
        ("2,7,1", [2]),
        ("-1,0", []),
    ],
)
def test_rocr_list_follows_rocr(value: str, expected: list[int]) -> None:
    assert select_rocr(value, AMD) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2,0", [2, 0]),
        ("1,1,0", [1, 0]),
        ("0,x,1", [0]),
        ("-1", []),
        ("GPU-9f1c2b3a4d5e6f72,0", [2, 0]),
        ("01", []),
    ],
)
def test_hip_list_follows_hip(value: str, expected: list[int]) -> None:
    assert select_hip(value, AMD) == expected


def test_level_zero_mask_does_not_change_the_order() -> None:
    """A tile is an error: its memory is not known."""
    assert (select_level_zero("2, 0", 3), select_level_zero("1", 3), select_level_zero("7", 3)) == ([0, 2], [1], [])
    with pytest.raises(DeviceError, match="names tiles"):
        select_level_zero("0.1", 3)


def test_container_list_is_a_set() -> None:
    assert select_container("3,GPU-8932f", NVIDIA) == [0, 3]
    assert (select_container("all", NVIDIA), select_container("none", NVIDIA)) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize(
    ("wanted", "kind", "number"),
    [
        (None, "cpu", None),
        ("cpu", "cpu", None),
        (3, "gpu", 3),
        ("3", "gpu", 3),
        ("cuda:1", "cuda", 1),
        ("cuda", "cuda", None),
        ("hip:0", "hip", 0),
        ("xpu:0", "xpu", 0),
        ("mps", "mps", None),
        ("/device:GPU:1", "gpu", 1),
        ("gpu0", "id", None),
        (-1, "id", None),
        (True, "id", None),
        ("cuda:0x1", "id", None),
        ("GPU-5a3d", "id", None),
    ],
)
def test_name_of_a_framework_is_parsed(wanted: object, kind: str, number: int | None) -> None:
    found = parse_name(wanted)

    assert found == DeviceName(found.text, kind, number)


@pytest.mark.parametrize(("entry", "expected"), [("GPU-", []), ("GPU-4", [0]), (f"GPU-{'4' * 16}", [0])])
def test_rocr_uuid_has_1_to_16_digits(entry: str, expected: list[int]) -> None:
    """Any longer entry is invalid, even if a UUID begins with it."""
    uuid = f"GPU-{'4' * 17}"

    assert select_rocr(entry, [uuid]) == expected
    assert select_rocr(uuid, [uuid]) == []
