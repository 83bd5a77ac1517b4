"""Tensors of a safetensors file, read one at a time by name. Neither PyTorch nor NumPy is needed for the list."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from msgspec import Struct

from memwatch.core.printable import describe_error
from memwatch.core.runtime.own_files import remedy_to_read
from memwatch.core.runtime.regular_file import open_descriptor
from memwatch.planning.arguments import InvalidInputError, check_path, check_text, quote
from memwatch.planning.safetensors import checked_bytes, list_entries, read_header

# Names of each dtype in PyTorch, and in NumPy or the package ml_dtypes. Missing: packed numbers below a byte.
NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


class TensorInfo(Struct, frozen=True):
    """A tensor's entry in the header. `dtype` as in the file, such as "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


class SafetensorsFile:
    """An open safetensors file. `tensors`: all entries by name. Use as `with open_safetensors(path) as file:`."""

    def __init__(self, path: str | Path) -> None:
        self.path: Path = check_path(path, "path", "model.safetensors")
        self._lock = threading.RLock()
        try:
            header, room = read_header(self.path)
            checked_bytes(header, room, str(self.path))
            self._file = open_descriptor(self.path)
            self._close_file = weakref.finalize(self, os.close, self._file)
            self._map = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            reason = describe_error(error)
            raise InvalidInputError(f"{self.path}: cannot be read ({reason}); {remedy_to_read(error)}") from None
        self._start = len(self._map) - room
        if self._start < 8:
            raise InvalidInputError(f"{self.path}: became shorter while it was read; is it still being written?")
        found = list_entries(header)
        self._offsets = {name: (start, end) for name, (_, _, start, end) in found.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                name: TensorInfo(name, dtype, shape, end - start)
                for name, (dtype, shape, start, end) in found.items()
            }
        )

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.tensors.values())

    def __len__(self) -> int:
        return len(self.tensors)

    def read(self, name: str) -> memoryview:
        """Return the bytes of one tensor, which the kernel reads from the file when they are used."""
        with self._lock:
            start, end = self._span(name)
            return memoryview(self._map)[start:end]

    def as_torch(self, name: str) -> Any:  # noqa: ANN401  torch.Tensor
        """Return one tensor for PyTorch, on the CPU, mapped from the file. Changes do not reach the file."""
        import torch

        info, kind = self._describe(name, torch, "torch")
        if not info.size_bytes:
            return torch.empty(info.shape, dtype=kind)
        return torch.frombuffer(self._map_tensor(name, kind.itemsize), dtype=kind).reshape(info.shape)

    def as_numpy(self, name: str) -> Any:  # noqa: ANN401  numpy.ndarray
        """Return one tensor as an array of NumPy. bfloat16 and 8-bit floats need the package ml_dtypes."""
        import numpy

        info, kind = self._describe(name, numpy, "numpy")
        if not info.size_bytes:
            return numpy.empty(info.shape, dtype=kind)
        return numpy.frombuffer(self._map_tensor(name, numpy.dtype(kind).itemsize), dtype=kind).reshape(info.shape)

    def close(self) -> None:
        """Unmap the file, or leave that to the last memoryview that was read from it."""
        with self._lock:
            self._close_file()
            with suppress(BufferError):
                self._map.close()

    def __enter__(self) -> SafetensorsFile:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _span(self, name: str) -> tuple[int, int]:
        self._find(name)
        start, end = self._offsets[name]
        return self._start + start, self._start + end

    def _map_tensor(self, name: str, item_bytes: int) -> memoryview | bytearray:
        """Map one tensor for a framework, which may write to it. Only the pages that are written take memory."""
        with self._lock:  # another thread may close the file, whose number the next open file gets
            start, end = self._span(name)
            if start % item_bytes:
                return bytearray(self.read(name))  # not aligned
            page = start - start % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(self._file, end - page, access=mmap.ACCESS_COPY, offset=page)
        return memoryview(mapped)[start - page :]

    def _check_open(self) -> None:
        if not self._close_file.alive:
            raise InvalidInputError(f"{self.path}: is closed; read its tensors before that, or open it again")

    def _find(self, name: str) -> TensorInfo:
        self._check_open()
        check_text(name, "name", next(iter(self.tensors), "lm_head.weight"))
        if name not in self.tensors:
            near = get_close_matches(name[:200], list(self.tensors)[:10_000], 3, 0.5) or list(self.tensors)[:3]
            known = ", ".join(one[:80] for one in near) or "none"
            raise InvalidInputError(f"{self.path}: has no tensor {quote(name)}; for example {known}")
        return self.tensors[name]

    def _describe(self, name: str, module: Any, called: str) -> tuple[TensorInfo, Any]:  # noqa: ANN401
        """Return an entry and its dtype in a framework."""
        info = self._find(name)
        kind = getattr(module, NAMES.get(info.dtype, ""), None)
        if kind is None and called == "numpy":
            with suppress(ImportError):
                import ml_dtypes

                kind = getattr(ml_dtypes, NAMES.get(info.dtype, ""), None)
        if kind is None:
            raise InvalidInputError(
                f"{self.path}: {called} has no dtype for {info.dtype} of {quote(name)}; read() returns its bytes"
            )
        return info, kind


def open_safetensors(path: str | Path) -> SafetensorsFile:
    """Open a safetensors file and read its header only. Raises InvalidInputError if it is not one, or not complete.

    Headers are checked as in `fit`: at most 6 MiB, sizes that match the shapes, no gaps and nothing after the end.
    """
    return SafetensorsFile(path)
