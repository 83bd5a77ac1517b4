"""Parameters and caches of the families of transformers: `python -m scripts.family_facts > FILE`, with torch, timm
and pillow. `python -m scripts.family_facts images > FILE` counts models that see, without caches, and
`python -m scripts.family_facts models > FILE` the caches of the published models in `models.json`.

Each model type is built without memory ("meta") from the defaults of its configuration class, or from a published
configuration (`models.json`) of a type whose class has none. Its parameters are counted, and two prompts fill its
cache. tests/support/family_facts.jsonl, image_facts.jsonl and model_facts.jsonl have the results, which `make test`
compares with the planner.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from memwatch.planning import read_table
from scripts.model_run import count_numbers, list_tensors

# Prompts, in tokens. The seconds that a family may take for both.
SHORT, LONG, SECONDS = 1000, 2000, 120
# The second prompt of published models is beyond their windows.
BEYOND = 10_000
ENCODERS = ("vision_config", "audio_config")
# Keys of `models.json` that are no part of a config.json.
OURS = ("model_type", "context", "compared", "quantization_config", "torch_dtype")
# Classes that decode for an encoder, and have no cache of a chat.
OTHERS = """
bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert cpmant ctrl data2vec-text
electra ernie marian mbart megatron-bert mvp pegasus plbart prophetnet reformer rembert roberta roberta-prelayernorm
roc_bert roformer speech_to_text_2 trocr whisper xlm xlm-roberta xlm-roberta-xl xmod
"""
# Keys without a meaning for sizes, by their ends, and whole names.
ENDS = ("_token_id", "_token_index", "_dropout", "_pdrop", "_eps", "_scale", "_scaling", "_bias_init", "_act")
NAMES = """
architectures chunk_size_feed_forward dtype id2label initializer_range is_encoder_decoder label2id output_attentions
output_hidden_states problem_type return_dict transformers_version use_cache _name_or_path rope_parameters
pretraining_tp
"""


def trim(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that may tell a size, those of parts included."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in NAMES.split() or key.endswith(ENDS) or value in (None, "", [], {}):
            continue
        if isinstance(value, dict):
            value = trim(value)
        elif isinstance(value, float) or (isinstance(value, str) and key != "model_type"):
            continue
        found[key] = value
    return found


def measure_model(name: str, kind: Any, config: Any) -> dict[str, Any]:
    """Return the numbers that a published model caches of two prompts."""
    import torch

    with torch.device("meta"):
        with contextlib.suppress(AttributeError):
            config._experts_implementation = "batched_mm"
        model = kind(config).eval()
    signal.alarm(SECONDS)
    cached = [count_cache(model, tokens) for tokens in (SHORT, BEYOND)]
    signal.alarm(0)
    return {"name": name, "cached": cached}


def measure(family: str, kind: Any, config: Any, cache: bool = True) -> dict[str, Any]:
    """Return the facts of one configuration of a family."""
    import torch

    with torch.device("meta"):
        with contextlib.suppress(AttributeError):
            config._experts_implementation = "batched_mm"
        model = kind(config).eval()
    parameters, buffers = count_numbers(model)
    facts: dict[str, Any] = {"type": family, "config": trim(json.loads(json.dumps(config.to_dict(), default=str)))}
    facts |= {"parameters": parameters, "buffers": buffers}
    if not cache:
        return facts
    with contextlib.suppress(Exception):
        signal.alarm(SECONDS)
        facts["cached"] = [count_cache(model, tokens) for tokens in (SHORT, LONG)]
    signal.alarm(0)
    return facts


def count_cache(model: Any, tokens: int) -> int:
    """Return the numbers of `past_key_values` after a prompt."""
    import torch

    with torch.no_grad():
        answer = model(torch.zeros((1, tokens), dtype=torch.long, device="meta"), use_cache=True)
    found = answer.get("past_key_values") or answer.get("cache_params")
    return sum(one.numel() for one in {id(one): one for one in list_tensors(found)}.values() if one.dim() > 2)


def list_classes() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """Yield each type of the causal-LM mapping with its class and the defaults of its configuration."""
    import transformers

    def build(family: str, name: str) -> tuple[Any, Any]:
        kind = getattr(transformers, name)
        config = transformers.AutoConfig.for_model(family)
        inner = config.get_text_config()
        return kind, inner if isinstance(inner, kind.config_class) else config

    for family, name in _list_mapping("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"):
        if family not in OTHERS.split():
            yield family, partial(build, family, name)


def list_image_classes() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """Yield each type of the mapping of models that see. Encoders that are off by default are on."""
    import transformers

    def build(family: str, name: str) -> tuple[Any, Any]:
        config = transformers.AutoConfig.for_model(family)
        absent = [part for part in ENCODERS if getattr(config, part, part) is None and part in config.sub_configs]
        parts = {part: config.sub_configs[part]().to_dict() for part in absent}
        return getattr(transformers, name), type(config)(**parts) if parts else config

    for family, name in _list_mapping("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"):
        yield family, partial(build, family, name)


def _list_mapping(name: str) -> Iterator[tuple[str, str]]:
    named = getattr(import_module("transformers.models.auto.modeling_auto"), name)
    for family, found in named.items():
        yield family, found[0] if isinstance(found, (list, tuple)) else found


def list_models() -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """Yield each published model of a type that transformers knows, with its class and configuration."""
    import transformers

    classes = dict(_list_mapping("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"))

    def build(family: str, row: Mapping[str, Any]) -> tuple[Any, Any]:
        kind = getattr(transformers, classes[family])
        config = transformers.AutoConfig.for_model(family, **row)
        inner = config.get_text_config()
        return kind, inner if isinstance(inner, kind.config_class) else config

    for name, row in read_table("models", dict).items():
        if row["model_type"] in classes:
            own = {key: value for key, value in row.items() if key not in OURS}
            yield name, partial(build, row["model_type"], own)


MODES: Mapping[str, tuple[Callable[[], Iterator[Any]], Callable[..., dict[str, Any]]]] = {
    "": (list_classes, measure),
    "images": (list_image_classes, partial(measure, cache=False)),
    "models": (list_models, measure_model),
}


def main() -> None:
    import transformers

    def stop(*_: object) -> None:
        raise TimeoutError

    transformers.logging.set_verbosity_error()
    transformers.PreTrainedModel.init_weights = lambda self: self.tie_weights()
    signal.signal(signal.SIGALRM, stop)
    listed, measured = MODES[sys.argv[1] if len(sys.argv) > 1 else ""]
    for family, build in listed():
        try:
            print(json.dumps(measured(family, *build())), flush=True)
        except Exception as error:  # noqa: PERF203  each class fails in its own way, and takes a minute
            print(f"{family}: its defaults build no model: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
