"""A model's config.json: a shape with estimates for inference and training, or a rejection."""

from __future__ import annotations

from contextlib import suppress

from memwatch.planning.checkpoint import CONFIG, Checkpoint
from memwatch.planning.huggingface import config_of
from memwatch.planning.request import Need, Use, changes_of, need_of_checkpoint
from memwatch.planning.safetensors import parse_object
from memwatch.planning.sizes import BadInput, bits_of
from memwatch.planning.training import TrainingPlan

USES = (
    Use(),
    Use(batch_size=3, dtype="int4"),
    Use(training=TrainingPlan()),
    Use(training=TrainingPlan(lora_rank=8)),
)


def check(data: bytes) -> None:
    with suppress(BadInput):
        config = config_of(parse_object(data, CONFIG), CONFIG)
        dtype_bytes = bits_of(config.dtype) / 8
        checkpoint = Checkpoint(CONFIG, CONFIG, config.transformer, None, config.context, dtype_bytes)
        assert config.transformer.parameters > 0
        for use in USES:
            with suppress(BadInput):
                adds_up(need_of_checkpoint(checkpoint, use))
            for change in changes_of(checkpoint, use):
                adds_up(change.need)


def adds_up(need: Need) -> None:
    assert need.bytes == sum(need.parts.values()) > 0
    assert all(size >= 0 for name, size in need.parts.items() if name != "waits_in_ram")
