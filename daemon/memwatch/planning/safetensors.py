"""Sizes of tensors from the header of a safetensors file. No tensor is read.

Format: the header's length in 8 bytes, little endian; the header in JSON; the tensors without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from io import BufferedReader
from typing import Any, NamedTuple, TypeGuard

from msgspec import MsgspecError, Struct, convert
from msgspec.json import Decoder

from memwatch.core.wire import Json
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.model_file import HeaderLimit, ModelPath, open_model, read_small

# The format allows 100 MB; 6 MB hold 50,000 tensors. A header with errors is described up to the second limit.
MAX_HEADER_BYTES = 6 << 20
MAX_DESCRIBED_BYTES = 1 << 20
# Published files: config.json up to 0.1 MB.
MAX_JSON_BYTES = 1 << 20
MAX_DIMENSIONS = 64
MAX_DIGITS_BITS = 62
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "BF16": 16, "F16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

PLAIN = frozenset({"F32", "BF16", "F16"})


class TensorBytes(NamedTuple):
    """Bytes of all tensors. `is_plain`: each is of floats of two bytes or more, so that bytes tell their number."""

    bytes: int
    is_plain: bool


def is_plain(header: Mapping[str, object]) -> bool:
    """Return True if no tensor of a header that was checked can be quantized."""
    return all(dtype in PLAIN for dtype, *_ in list_entries(header).values())


def sum_tensor_bytes(paths: Iterable[ModelPath]) -> TensorBytes:
    """Return the bytes of all tensors of several files.

    Raises InvalidInputError if a header does not match the size of its file, and for the reasons of HeaderLimit.
    """
    total, plain, limit = 0, True, HeaderLimit()
    for path in paths:
        with open_model(path) as (file, status):
            limit.check_new(status, str(path))
            header, room = _read_header(file, status.st_size, str(path), limit)
        total += checked_bytes(header, room, str(path))
        plain = plain and is_plain(header)
    return TensorBytes(total, plain)


def read_header(path: ModelPath, limit: HeaderLimit | None = None) -> tuple[Mapping[str, object], int]:
    """Return the header of a file and the bytes after it; nothing of a file that was read under another name.

    Raises InvalidInputError.
    """
    limit = limit or HeaderLimit()
    with open_model(path) as (file, status):
        return _read_header(file, status.st_size, str(path), limit) if limit.is_new(status) else ({}, 0)


def _read_header(
    file: BufferedReader, size: int, name: str, limit: HeaderLimit
) -> tuple[Mapping[str, object], int]:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise InvalidInputError(
            f"{name}: the header should have {length} bytes, but the file has {size}; is the file complete?"
        )
    if length > MAX_HEADER_BYTES:
        raise InvalidInputError(
            f"{name}: the header should have {length} bytes; at most {MAX_HEADER_BYTES} are read"
        )
    limit.spend(length, name)
    return parse_header(file.read(length), name), size - 8 - length


class Tensor(Struct, frozen=True, gc=False):
    """A tensor's entry in a header."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, ...] = ()


HEADER = Decoder(dict[str, Tensor])  # `__metadata__` has other fields, which are ignored


def parse_header(text: bytes, name: str) -> Mapping[str, object]:
    """Parse the entries of a header, in a tenth of the time and memory of `json`."""
    try:
        found = HEADER.decode(text)
    except (MsgspecError, RecursionError, UnicodeDecodeError) as error:
        if len(text) > MAX_DESCRIBED_BYTES:
            raise InvalidInputError(f"{name}: is not readable JSON ({str(error)[:80]})") from None
        return parse_object(text, name)
    return found


def parse_object(text: bytes, name: str) -> Json:
    """Parse a JSON object without repeated keys. Raises InvalidInputError for anything else."""
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name}: is not readable JSON ({str(error)[:80]})") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"{name}: is JSON, but not an object")
    return found


def read_object(path: ModelPath) -> Json:
    """Read a JSON object from a small file, such as config.json. Raises InvalidInputError and OSError."""
    return parse_object(read_small(path, MAX_JSON_BYTES), str(path))


def _without_repeats(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found


def checked_bytes(header: Mapping[str, Any], room: int, name: str) -> int:
    """Return the sum of the tensors' sizes. Raises InvalidInputError unless they fill the rest of the file without
    gaps."""
    spans = sorted(_span(tensor, key, name) for key, tensor in header.items() if key != "__metadata__")
    end = 0
    for start, stop in spans:
        if start != end:
            raise InvalidInputError(f"{name}: a tensor begins at {start}, but the previous one ends at {end}")
        end = stop
    if end != room:
        raise InvalidInputError(
            f"{name}: its tensors take {end} bytes, but the file has {room}; is the file complete?"
        )
    return end


def _span(tensor: object, key: str, name: str) -> tuple[int, int]:
    """Return a tensor's offsets. Raises InvalidInputError if its shape implies another size."""
    known: Json = tensor if isinstance(tensor, dict) else {}
    shape, offsets, dtype = known.get("shape"), known.get("data_offsets"), known.get("dtype")
    if isinstance(tensor, Tensor):
        shape, offsets, dtype = list(tensor.shape), list(tensor.data_offsets), tensor.dtype
    bits = BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise InvalidInputError(f"{name}: the tensor {key[:80]!r} has no readable dtype, shape and data_offsets")
    start, stop = offsets
    if stop - start != math.ceil(math.prod(shape) * bits / 8) or stop < start:
        raise InvalidInputError(
            f"{name}: the tensor {key[:80]!r} has {stop - start} bytes, which does not match its shape"
        )
    return start, stop


def list_tensors(header: Mapping[str, object]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return the shape and the bytes of each tensor of a header that was checked."""
    found = ((name, one) for name, one in header.items() if isinstance(one, Tensor) and one.data_offsets)
    return {name: (one.shape, one.data_offsets[1] - one.data_offsets[0]) for name, one in found}


def list_entries(header: Mapping[str, object]) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """Return dtype, shape, start and end of each tensor of a header that was checked."""
    tensors = {
        name: one if isinstance(one, Tensor) else convert(one, Tensor)
        for name, one in header.items()
        if name != "__metadata__"
    }
    return {name: (one.dtype, one.shape, one.data_offsets[0], one.data_offsets[1]) for name, one in tensors.items()}


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(type(one) is int and one >= 0 and one.bit_length() <= MAX_DIGITS_BITS for one in value)
        and math.prod(value).bit_length() <= 2 * MAX_DIGITS_BITS
    )
