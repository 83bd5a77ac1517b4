"""Sizes of tensors and the keys of a model from the header of a GGUF file. No tensor is read.

Format, little endian: "GGUF", version, number of tensors, number of keys. Then the keys with their typed values,
and each tensor's name, dimensions, type and offset. Then the tensors, each at a multiple of the alignment.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from msgspec import Struct

from memwatch.core.printable import decode
from memwatch.planning.model_file import HeaderLimit, ModelPath, open_model
from memwatch.planning.sizes import InvalidInputError

# Published files have up to 100 keys, 2,500 tensors, 550,000 strings.
MAX_KEYS = 4096
MAX_TENSORS = 16_384
MAX_HEAD_BYTES = 64 << 20
MAX_TEXTS = 1_000_000
MAX_KEPT_NUMBERS = 16_384
MAX_LAYERS = 1024
BLOCK_BYTES = 1 << 18
LENGTH = struct.Struct("<Q")
MAX_KEPT_TEXT_LENGTH = 256
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# struct codes by value type: u8 i8 u16 i16 u32 i32 f32 bool, (8 is a string, 9 an array), u64 i64 f64.
WIDTHS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
# By tensor type: weights per block, bytes per block (ggml.h, November 2025).
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip

Numbers = tuple[int | float, ...]
Value = int | float | str | bool | Numbers


class ArrayLength(int):
    """Number of elements of a long array or one of strings, kept in place of the elements."""


class GgufHeader(Struct, frozen=True):
    """The header of a GGUF file. `keys`: metadata by name; of long arrays and those of strings only their
    lengths."""

    keys: Mapping[str, Value]
    tensor_bytes: int
    parameters: int


class GgufReader:
    """Reader of a header, limited to the file's size and to `MAX_HEAD_BYTES`."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file = file
        self._left = min(size, MAX_HEAD_BYTES)
        self._texts_left, self._numbers_left = MAX_TEXTS, MAX_KEPT_NUMBERS
        self.name = name

    def take(self, count: int) -> bytes:
        self._spend(count)
        return self._file.read(count)

    def skip(self, count: int) -> None:
        self._spend(count)
        self._file.seek(count, 1)

    def scalar(self, code: str) -> int | float:
        (found,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        return found  # type: ignore[no-any-return]

    def may_keep(self, count: int) -> bool:
        """Return True for an array as short as one for each layer, within a limit for all."""
        kept = count <= MAX_LAYERS and count <= self._numbers_left
        self._numbers_left -= count if kept else 0
        return kept

    def skip_texts(self, count: int) -> None:
        """Skip strings, each with its length before it. A tokenizer has up to 500,000 of them."""
        self._texts_left -= count
        if self._texts_left < 0:
            raise InvalidInputError(f"{self.name}: has arrays with more than {MAX_TEXTS} strings in all")
        block, at, length_of = b"", 0, LENGTH.unpack_from
        for _ in range(count):
            if at + 8 > len(block):
                self._leave(block, at)
                block, at = self._file.read(BLOCK_BYTES), 0
                if len(block) < LENGTH.size:
                    self._spend(self._left + 1)
            at += 8 + length_of(block, at)[0]
        self._leave(block, at)

    def _leave(self, block: bytes, at: int) -> None:
        """Go on at a position in or behind a block that was read."""
        self._spend(at)
        self._file.seek(at - len(block), 1)

    def count(self, code: str, maximum: int, what: str) -> int:
        found = int(self.scalar(code))
        if found > maximum:
            raise InvalidInputError(f"{self.name}: has {found} {what}; at most {maximum} are read")
        return found

    def text(self) -> str:
        """Read a string and return its first `MAX_KEPT_TEXT_LENGTH` bytes, decoded."""
        length = int(self.scalar("Q"))
        kept = self.take(min(length, MAX_KEPT_TEXT_LENGTH))
        self.skip(length - len(kept))
        return decode(kept)

    @property
    def position(self) -> int:
        return self._file.tell()

    def _spend(self, count: int) -> None:
        if count > self._left:
            raise InvalidInputError(f"{self.name}: the header is truncated; is the file complete?")
        self._left -= count


def read_heads(paths: Iterable[ModelPath]) -> list[GgufHeader]:
    """Read the headers of all parts of one model. Raises InvalidInputError as `read_head` and HeaderLimit do."""
    limit = HeaderLimit()
    return [read_head(path, limit) for path in paths]


def read_head(path: ModelPath, limit: HeaderLimit | None = None) -> GgufHeader:
    """Read the header of a GGUF file. Raises InvalidInputError for any other file and for a truncated one."""
    limit = limit or HeaderLimit()
    with open_model(path) as (file, status):
        limit.check_new(status, str(path))
        size = status.st_size
        reader = GgufReader(file, size, str(path))
        if reader.take(4) != b"GGUF":
            raise InvalidInputError(f"{path}: is not a GGUF file: it does not begin with GGUF")
        version = int(reader.scalar("I"))
        if version not in VERSIONS:
            raise InvalidInputError(f"{path}: is GGUF version {version}; versions 2 and 3 are read")
        tensors = reader.count("Q", MAX_TENSORS, "tensors")
        keys = dict(_key(reader) for _ in range(reader.count("Q", MAX_KEYS, "keys")))
        spans = [_tensor(reader) for _ in range(tensors)]
        limit.spend(reader.position, str(path))
        start = _align(reader.position, keys, reader.name)
    end = start + _find_end(spans, str(path))
    if end > size:
        raise InvalidInputError(
            f"{path}: its tensors end at byte {end}, but its size is {size}; is the file complete?"
        )
    return GgufHeader(keys, sum(length for _, length, _ in spans), sum(count for _, _, count in spans))


def _find_end(spans: Iterable[tuple[int, int, int]], name: str) -> int:
    """Return the end of the last tensor. Raises InvalidInputError if tensors overlap: their bytes would count
    twice."""
    end = 0
    for offset, length, _ in sorted(spans):
        if offset < end:
            raise InvalidInputError(
                f"{name}: a tensor begins at {offset}, before the end of the previous one at {end}"
            )
        end = offset + length
    return end


def _key(reader: GgufReader) -> tuple[str, Value]:
    name = reader.text()
    return name, _value(reader, int(reader.scalar("I")))


def _value(reader: GgufReader, kind: int) -> Value:
    if kind == TEXT:
        return reader.text()
    if kind == ARRAY:
        return _array(reader)
    if kind not in WIDTHS:
        raise InvalidInputError(f"{reader.name}: has a value of type {kind}, which is not a GGUF type")
    return reader.scalar(WIDTHS[kind])


def _array(reader: GgufReader) -> Value:
    """Return the numbers of a short array, such as one for each layer, else its length."""
    kind, length = int(reader.scalar("I")), int(reader.scalar("Q"))
    if kind in WIDTHS:
        width = struct.calcsize(WIDTHS[kind]) * length
        if reader.may_keep(length):
            return struct.unpack(f"<{length}{WIDTHS[kind]}", reader.take(width))
        reader.skip(width)
    elif kind == TEXT:
        if length > MAX_TEXTS:
            raise InvalidInputError(
                f"{reader.name}: has an array of {length} strings; at most {MAX_TEXTS} are read"
            )
        reader.skip_texts(length)
    else:
        raise InvalidInputError(f"{reader.name}: has an array of type {kind}, which is not read")
    return ArrayLength(length)


def _tensor(reader: GgufReader) -> tuple[int, int, int]:
    """Return the offset, the size in bytes and the number of weights of one tensor."""
    name = reader.text()
    dimensions = [int(reader.scalar("Q")) for _ in range(reader.count("I", 4, "dimensions of a tensor"))]
    kind, offset = int(reader.scalar("I")), int(reader.scalar("Q"))
    if kind not in BLOCKS:
        raise InvalidInputError(f"{reader.name}: the tensor {name[:80]!r} has the unknown type {kind}")
    numbers, (block, width) = math.prod(dimensions), BLOCKS[kind]
    if numbers % block:
        raise InvalidInputError(
            f"{reader.name}: the tensor {name[:80]!r} has {numbers} weights, not a multiple of its block of {block}"
        )
    return offset, numbers // block * width, numbers


def _align(position: int, keys: Mapping[str, Value], name: str) -> int:
    alignment = keys.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise InvalidInputError(f"{name}: general.alignment is {alignment!r}; for example {DEFAULT_ALIGNMENT}")
    return -(-position // alignment) * alignment
