"""docs/reference/models.md: families, models and machines that the planner knows, with their figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from memwatch.core.units import size
from memwatch.planning.huggingface import find_family, parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.model_table import list_models
from memwatch.planning.named_machines import Product
from memwatch.planning.sizes import InvalidInputError
from memwatch.planning.tables import read_table
from scripts.published_models import COUNTED
from support.paths import ROOT

LONG = 131_072
INTRO = """# Models, families and machines

What `memwatch fit` knows without a file: the rows of its tables, and their figures. `python -m scripts.reference`
writes this page.

## Models

`memwatch fit --what` chooses among these. The cache is that of one sequence of 131,072 tokens at 16 bits.
[Published models](memwatch.md#published-models) compares those marked ✓ with the parameters in their files. The
shapes of the others are those of classes in transformers 5.24 or as their publishers describe the models, were not
compared with files, and their parameters follow from the shape. `--what` marks them with ~.

| model | type | parameters | | cache |
|---|---|---:|---|---:|
"""
FAMILIES = """
## Families

Types of transformers' mapping of causal language models (5.24.0, torch 2.14.1), with the defaults of their classes.
Each was built without memory, and two prompts of 1,000 and 2,000 tokens filled its cache. Numbers per token are
those of the second 1,000. A test holds exact families to 0.1 % of the parameters and 3 % of the cache. An indexer's
keys and recurrent states have formats of their engines, and are compared elsewhere.

| type | parameters | counted | numbers per token | counted |
|---|---:|---:|---:|---:|
"""
UNKNOWN = """
Not planned from a `config.json`: the type is refused, or the answer names what it does not count. Encoders that can
decode (BERT, BART, T5, Whisper and others) are not planned either: the rule for cross attention is missing.

| type | missing |
|---|---|
"""
MACHINES = """
## Machines

Names for `--on`. Memory: what the driver reports, or MemTotal where GPU and CPU share one memory. Bandwidth: of
the product by its public specification, not measured here. The rate of decoding is 40 to 80 % of it by the bytes
that a token reads, and is told for GPUs with a name of this table only.

| name | GPU | memory | bandwidth |
|---|---|---:|---:|
"""


def render() -> str:
    facts = [json.loads(line) for line in (ROOT / "tests/support/family_facts.jsonl").read_text().splitlines()]
    rows = [_family(one) for one in facts]
    exact = "\n".join(row for row in rows if row.count("|") > MANY)
    other = "\n".join(row for row in rows if row.count("|") <= MANY)
    parts = (INTRO, "\n".join(_models()), "\n", FAMILIES, exact, "\n", UNKNOWN, other, "\n", MACHINES)
    return "".join(parts) + "\n".join(_machines()) + "\n"


MANY = 3


def _models() -> Iterator[str]:
    configs = read_table("models", dict[str, Any])
    for one in list_models():
        if one.transformer is None:
            continue
        cache = size(compute_kv_cache(one.transformer, LONG, 1, 2))
        kind = configs[one.name].get("text_config", configs[one.name]).get("model_type", "")
        mark = "✓" if one.name in COUNTED else ""
        yield f"| {one.name} | {kind} | {one.transformer.parameters:,} | {mark} | {cache} |"


def _family(facts: dict[str, Any]) -> str:
    name = facts["type"]
    try:
        found = parse_config(facts["config"], name)
    except InvalidInputError:
        row = find_family(name)
        return f"| {name} | {row.missing if row and row.missing else 'a row: its layers are not known'} |"
    if found.unknown:
        row = find_family(facts["config"].get("model_type", name)) or find_family(name)
        return f"| {name} | {row.missing if row and row.missing else found.unknown} |"
    shape, cached = found.transformer, facts.get("cached")
    growth = f"{(cached[1] - cached[0]) / 1000:,.0f}" if cached else "–"
    counted = (shape.count_cached_numbers(2000) - shape.count_cached_numbers(1000)) / 1000
    return f"| {name} | {facts['parameters']:,} | {shape.parameters:,} | {growth} | {counted:,.0f} |"


def _machines() -> Iterator[str]:
    for name, row in read_table("products", Product).items():
        memory = size(row.size_bytes) + (" of System RAM" if row.unified else "")
        yield f"| {name} | {row.names[0]} | {memory} | {row.bandwidth / 1e9:g} GB/s |"
