"""A model's config.json: a shape with estimates for inference and training, or a rejection."""

from __future__ import annotations

from contextlib import suppress

from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import CONFIG, describe_config
from memwatch.planning.huggingface import parse_config
from memwatch.planning.need import MemoryNeed, compute_checkpoint_need, list_reductions
from memwatch.planning.request import Use
from memwatch.planning.safetensors import parse_object
from memwatch.planning.training import TrainingPlan

USES = (
    Use(),
    Use(batch_size=3, dtype="int4"),
    Use(training=TrainingPlan()),
    Use(training=TrainingPlan(lora_rank=8)),
)


def check(data: bytes) -> None:
    with suppress(InvalidInputError):
        config = parse_config(parse_object(data, CONFIG), CONFIG)
        checkpoint = describe_config(config)
        assert config.transformer.parameters > 0
        for use in USES:
            with suppress(InvalidInputError):
                adds_up(compute_checkpoint_need(checkpoint, use))
            for change in list_reductions(checkpoint, use):
                adds_up(change.need)


def adds_up(need: MemoryNeed) -> None:
    assert need.bytes == sum(need.parts.values()) > 0
    assert all(size >= 0 for name, size in need.parts.items() if name not in ("waits_in_ram", "apart"))
