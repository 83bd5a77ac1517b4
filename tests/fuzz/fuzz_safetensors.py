"""Headers of safetensors files and the index of shards: as many bytes as there are, or a rejection."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.oracle import as_file, numbers_of
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import INDEX, read_checkpoint
from memwatch.planning.safetensors import checked_bytes, parse_header, sum_tensor_bytes

# The last number of the header is usually the end of the last tensor; others are tried as well.
MAX_SIZES = 6


def check(data: bytes) -> None:
    """Check a header with every size that it mentions, a whole file, and an index beside a shard."""
    if data.startswith(b"{"):
        head(data)
        index(data)
    else:
        with as_file(data, ".safetensors") as path, suppress(InvalidInputError):
            assert 0 <= sum_tensor_bytes([path]).bytes <= len(data)


def head(data: bytes) -> None:
    with suppress(InvalidInputError):
        found = parse_header(data, "a")
        for room in sorted(numbers_of(data), reverse=True)[:MAX_SIZES]:
            with suppress(InvalidInputError):
                assert checked_bytes(found, room, "a") == room


def index(data: bytes) -> None:
    if b"weight_map" not in data:
        return
    with TemporaryDirectory(prefix="memwatch-fuzz-") as folder:
        shard = b'{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
        whole = len(shard).to_bytes(8, "little") + shard + b"abc"
        (Path(folder) / "a.safetensors").write_bytes(whole)
        (Path(folder) / INDEX).write_bytes(data)
        with suppress(InvalidInputError):
            assert read_checkpoint(Path(folder)).weights_bytes == 3
