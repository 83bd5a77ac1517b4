"""Headers of GGUF files: tensors take no more than the file has, and the keys give a usable shape."""

from __future__ import annotations

from contextlib import suppress

from fuzz.oracle import as_file
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import read_checkpoint
from memwatch.planning.gguf import read_head
from memwatch.planning.need import compute_checkpoint_need, list_reductions
from memwatch.planning.request import Use


def check(data: bytes) -> None:
    with as_file(data, ".gguf") as path, suppress(InvalidInputError):
        head = read_head(path)
        assert 0 <= head.tensor_bytes <= len(data)
        assert 0 <= head.parameters <= 8 * len(data)
        checkpoint = read_checkpoint(path)
        assert checkpoint.weights_bytes == head.tensor_bytes
        with suppress(InvalidInputError):
            need = compute_checkpoint_need(checkpoint, Use())
            assert need.bytes >= head.tensor_bytes
        for change in list_reductions(checkpoint, Use()):
            assert change.need.bytes > 0
