"""Headers of GGUF files: tensors take no more than the file has, and the keys give a usable shape."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import as_file
from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.gguf import read_head
from memwatch.planning.request import Use, changes_of, need_of_checkpoint
from memwatch.planning.sizes import BadInput


def check(data: bytes) -> None:
    with as_file(data, ".gguf") as path, suppress(BadInput):
        head = read_head(path)
        assert 0 <= head.tensor_bytes <= len(data)
        assert 0 <= head.parameters <= 8 * len(data)
        checkpoint = read_checkpoint(path)
        assert checkpoint.weights_bytes == head.tensor_bytes
        with suppress(BadInput):
            need = need_of_checkpoint(checkpoint, Use())
            assert need.bytes >= head.tensor_bytes
        for change in changes_of(checkpoint, Use()):
            assert change.need.bytes > 0
