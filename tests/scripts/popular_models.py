"""The models that people download most, with what the planner answers for each on machines that are named.

popular_models.jsonl: the first 100 by downloads in 30 days of llmfit's list of the hub, hf_models.json at 5bdc9df9,
of 12 May 2026, without encoders (embeddings, rankers, audio codecs) and random test models. `model` is a row of
models.json with the same shape; other shapes are in `config`, with the numbers of that list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from memwatch.planning.answer import check_model
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import describe_config
from memwatch.planning.fit import doubt
from memwatch.planning.huggingface import parse_config
from memwatch.planning.model_table import read_models
from memwatch.planning.named_machines import read_machine
from memwatch.planning.need import compute_need_here
from memwatch.planning.request import Use
from support.paths import ROOT

# System RAM smaller than the GPU's memory: the answer is that of the GPU.
MACHINES = ("rtx4090 + 16GiB", "gb10", "8x h200 + 64GiB")


class Popular(Struct, frozen=True):
    """`parameters`: the numbers in its files, packed ones and layers for multi-token prediction included."""

    name: str
    downloads: int
    parameters: int
    model: str = ""
    config: Mapping[str, Any] = {}
    quantization: Mapping[str, Any] = {}

    @property
    def whole(self) -> dict[str, Any]:
        """Return its config.json."""
        shape = dict(self.config or read_models()[self.model])
        if self.quantization:
            shape["quantization_config"] = dict(self.quantization)
        return shape


POPULAR = tuple(
    Popular(**json.loads(line)) for line in (ROOT / "tests/support/popular_models.jsonl").read_text().splitlines()
)


def plan(model: Popular, machine: str) -> str:
    """Return yes, no, or unknown with what is missing, of one sequence with 8,192 tokens.

    As `answer_model`, without its searches of the greatest context and batch, which take nine tenths of its time.
    """
    use, snapshot = Use(), read_machine(machine)
    try:
        checkpoint = describe_config(parse_config(model.whole, model.name))
        note, fit = compute_need_here(checkpoint, use, snapshot).note, check_model(checkpoint, use, snapshot)
    except InvalidInputError as error:
        return f"unknown: {str(error).partition('; ')[0]}"
    unknown = (doubt(fit, note) if note else fit).unknown or checkpoint.unknown
    if unknown:
        return f"unknown: {unknown}"
    return "yes" if fit.is_yes else "no"


def rows() -> Iterator[str]:
    for place, model in enumerate(POPULAR, 1):
        answers = [plan(model, machine) for machine in MACHINES]
        if all(one == answers[0] for one in answers) and answers[0].startswith("unknown"):
            answers = [answers[0], "", ""]
        shape = model.model or model.config.get("model_type", "")
        yield f"| {place} | {model.name} | {model.downloads:,} | {shape} | {' | '.join(answers)} |"
