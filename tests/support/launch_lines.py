"""Launch lines of published models on the machines of the demos."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from msgspec.structs import replace

from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import FitAnswer, answer_model
from memwatch.planning.checkpoint import Checkpoint, describe_config
from memwatch.planning.device_totals import reported_total
from memwatch.planning.engines import select_engines
from memwatch.planning.engines.placement import Launch
from memwatch.planning.huggingface import parse_config
from memwatch.planning.request import Use
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from scripts.published_models import MODELS

CONFIGS = {model.name: model.config for model in MODELS}
FOLDER = "/models/it's a model"


@cache
def machine(name: str) -> Snapshot:
    return next(read_frames(path_of(name)))


def model(name: str, gguf: bool = False) -> Checkpoint:
    found = describe_config(parse_config(CONFIGS[name], name))
    return replace(found, name=FOLDER + ".gguf", source="GGUF") if gguf else replace(found, name=FOLDER)


def ask(snapshot: Snapshot, checkpoint: Checkpoint, engine: str = "all", **use: Any) -> FitAnswer:
    return answer_model(checkpoint, Use(**use), snapshot, select_engines(engine))


def line(snapshot: Snapshot, checkpoint: Checkpoint, engine: str, **use: Any) -> Launch:
    answer = ask(snapshot, checkpoint, engine, **use)
    assert answer.launches.refused == {}
    return answer.launches.lines[0]


def option(launch: Launch, name: str) -> float:
    found = re.search(rf"{re.escape(name)}[ =:]+([0-9.]+)", launch.command)
    assert found, f"{name} is not in {launch.command}"
    return float(found[1])


def total_of(snapshot: Snapshot) -> int:
    total = reported_total(snapshot.devices[0], snapshot)
    assert isinstance(total, int)
    return total
