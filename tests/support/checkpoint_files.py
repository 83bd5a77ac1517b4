"""Small checkpoints in the formats safetensors, sharded or not, and GGUF."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTHS = {"F32": 4, "BF16": 2, "I8": 1}


def safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int]]], header: Any = None, cut: int = 0) -> Path:
    """Write a file with tensors of zeros; `header` replaces the correct one; the file is `cut` bytes too short."""
    right, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = WIDTHS[dtype]
        for one in shape:
            size *= one
        right[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = header if isinstance(header, bytes) else json.dumps(right if header is None else header).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(end)
    path.write_bytes(whole[: len(whole) - cut])
    return path


def gguf(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, tuple[int, list[int], int]], data: int) -> Path:
    """Write a file. `tensors`: type, dimensions and offset by name; `data` bytes follow the header."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for name, value in keys.items():
        head += _text(name) + _value(value)
    for name, (kind, dimensions, offset) in tensors.items():
        head += _text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", kind, offset)
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(data))
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list) and isinstance(value[0], bool):
        return struct.pack(f"<IIQ{len(value)}?", 9, 7, len(value), *value)
    if isinstance(value, list) and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack("<II", 4, value)


LLAMA_KEYS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 4096,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
