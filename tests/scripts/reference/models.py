"""docs/reference/models.md: families, models and machines that the planner knows, with their figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from memwatch.core.units import size
from memwatch.planning import read_table
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.huggingface import find_family, parse_config
from memwatch.planning.inference import compute_kv_cache
from memwatch.planning.model_table import list_models
from memwatch.planning.named_machines import Product
from scripts.popular_models import MACHINES as NAMED
from scripts.popular_models import rows as popular_rows
from scripts.product_sources import SOURCES
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
compared with files or differ from them, and their parameters follow from the shape. `--what` marks them with ~.

Context: the longest of the model itself, in tokens, a dash where no source was found.

| model | type | parameters | | context | cache |
|---|---|---:|---|---:|---:|
"""
POPULAR = """
## What people download

The first 100 models by downloads in 30 days in llmfit's list of the hub of 12 May 2026 (`hf_models.json` at
5bdc9df9), without encoders and random test models. Their shapes are those of the row named, or the numbers of that
list. The answers are those of an empty machine, for one sequence of 8,192 tokens in the published format, and a
test asks them: {answered} of {all} are yes or no.

| | model | downloads | shape | {machines} |
|---:|---|---:|---|---|---|---|
"""
IMAGES = """
Of the {all} types, {exact} are exact: {part:.1%}.

Models that see: types of transformers' mapping of image-text models whose encoders are counted, with the defaults
of their classes.

| type | parameters | counted |
|---|---:|---:|
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

Names for `--on`: any of the first three columns, in any case, with or without spaces. Memory: what the driver
reports, or MemTotal where GPU and CPU share one memory, with the GPU's part where that is less by default.
Bandwidth: of the product, not measured here, as in the document named; – where none was read. The rate of decoding
is 40 to 80 % of it by the bytes that a token reads, and is told for GPUs with a name of this table only.

| name | GPU | also known as | memory | bandwidth | source |
|---|---|---|---:|---:|---|
"""


def render() -> str:
    facts = [json.loads(line) for line in (ROOT / "tests/support/family_facts.jsonl").read_text().splitlines()]
    rows = [_family(one) for one in facts]
    exact = "\n".join(row for row in rows if row.count("|") > MANY)
    count = len(exact.splitlines()) - len(OTHER_CLASS)
    images = IMAGES.format(all=len(facts), exact=count, part=count / len(facts)) + "\n".join(_images())
    other = "\n".join(row for row in rows if row.count("|") <= MANY)
    models = (INTRO, "\n".join(_models()), "\n", _popular(), "\n")
    parts = (*models, FAMILIES, exact, "\n", images, "\n", UNKNOWN, other, "\n", MACHINES)
    return "".join(parts) + "\n".join(_machines()) + "\n"


MANY = 3
# Its published files have other parameters than its class.
OTHER_CLASS = ("longcat_flash",)


def _popular() -> str:
    rows = list(popular_rows())
    answered = sum("| unknown" not in row for row in rows)
    return POPULAR.format(answered=answered, all=len(rows), machines=" | ".join(NAMED)) + "\n".join(rows)


def _images() -> Iterator[str]:
    for line in (ROOT / "tests/support/image_facts.jsonl").read_text().splitlines():
        facts = json.loads(line)
        with suppress(InvalidInputError):
            found = parse_config(facts["config"], facts["type"])
            if not found.unknown:
                yield f"| {facts['type']} | {facts['parameters']:,} | {found.transformer.parameters:,} |"


def _models() -> Iterator[str]:
    configs = read_table("models", dict[str, Any])
    for one in list_models():
        if one.transformer is None:
            continue
        cache = size(compute_kv_cache(one.transformer, LONG, 1, 2))
        kind = configs[one.name].get("text_config", configs[one.name]).get("model_type", "")
        mark = "✓" if one.name in COUNTED else ""
        context = configs[one.name].get("context")
        longest = f"{context:,}" if context else "–"
        yield f"| {one.name} | {kind} | {one.transformer.parameters:,} | {mark} | {longest} | {cache} |"


def _family(facts: dict[str, Any]) -> str:
    name = facts["type"]
    try:
        found = parse_config(facts["config"], name)
    except InvalidInputError:
        row = find_family(name)
        return f"| {name} | {row.missing if row and row.missing else 'its layers'} |"
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
        memory += f", {size(row.limit_bytes)} for the GPU" if row.limit_bytes else ""
        width = f"{row.bandwidth / 1e9:g} GB/s" if row.bandwidth else "–"
        also = ", ".join(row.aliases)
        yield f"| {name} | {row.names[0]} | {also} | {memory} | {width} | {SOURCES.get(name, '–')} |"
