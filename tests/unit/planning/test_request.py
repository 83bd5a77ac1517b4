"""A request is declared once: every surface has its parameters, with their limits."""

from __future__ import annotations

import inspect
import re
from typing import get_type_hints

import click
import pytest
from click.testing import CliRunner

import memwatch
from memwatch.cli.context import Number
from memwatch.cli.fit import fit as command
from memwatch.cli.fit import flag
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.diffusion import ImageUse
from memwatch.planning.parameters import build, list_parameters, walk_parameters, write_parameters
from memwatch.planning.request import IMAGES, PARAMETERS, PIPELINE_NEEDS, FitRequest, Use, parse_request
from memwatch.planning.training import TrainingPlan
from memwatch_web.api.fit_query import parse_query
from support.paths import ROOT

# Of the command and the function, beside the model and its use.
FURTHER = {"launch", "measure", "online"}
SMALL = {"hidden_size": 64, "intermediate_size": 64, "n_layers": 2, "vocab_size": 9, "n_heads": 2, "n_kv_heads": 2}


def test_function_of_the_library_has_the_fields_of_a_use() -> None:
    """By the names of requests, with the same types and defaults: a type checker reads only a literal signature.
    Images and the cost of a context are not among them."""
    given = inspect.signature(memwatch.fit).parameters.values()
    defaults = {one.name: one.default for one in given if one.kind is one.KEYWORD_ONLY and one.name not in FURTHER}
    declared = {one.attribute if one.record else one.name: one for one in list_parameters(Use)}
    expected = {name: declared[name].default for name in declared if name not in ("images", "runtime")}

    types, of_use = get_type_hints(memwatch.fit), get_type_hints(Use)

    assert defaults == {**expected, "reserve": 0}
    assert {name: types[name] for name in defaults} == {
        **{name: of_use[declared[name].attribute] for name in expected},
        "reserve": str | int,
    }


OTHER_MACHINES = {"machines", "machine", "what", "min_speed"}


def test_command_has_an_option_for_each_parameter_of_a_use() -> None:
    options = {one.name: one for one in command.params if isinstance(one, click.Option)}
    expected = [one for one in walk_parameters(Use) if one.name != "runtime"]

    assert set(options) == {one.name for one in expected} | FURTHER | OTHER_MACHINES | {"url", "as_json"}
    for one in expected:
        kind = options[one.name].type
        if isinstance(kind, Number):
            assert (kind.min, kind.max) == (one.limits.ge, one.limits.le), one.name


def test_inputs_of_the_page_are_parameters() -> None:
    page = (ROOT / "web/memwatch_web/templates/fit.html").read_text()
    named = set(re.findall(r'(?:number|choice|check)\("(\w+)"|<input name="(\w+)"', page))
    inputs = {one or other for one, other in named}

    assert "bytes" in inputs
    assert inputs <= set(PARAMETERS)


USES = (
    Use(),
    Use(context=512, batch_size=3, dtype="int4", kv_dtype="q8_0", offload_kv=True, cpu_layers=2),
    Use(gpus=4, parallel="pipeline", reserve_bytes=1 << 30, runtime_bytes=1 << 20),
    Use(training=TrainingPlan()),
    Use(training=TrainingPlan(optimizer="lion", lora_rank=8, swapped_blocks=1, accumulate=True), zero=1),
    Use(images=ImageUse(width=512, offload="model", vae_tiling=True)),
)


@pytest.mark.parametrize("use", USES)
def test_use_is_the_same_after_it_was_sent(use: Use) -> None:
    """The daemon reads the query that the command writes."""
    sent = write_parameters(use)
    kinds = {name: PARAMETERS[name].kind for name in sent}
    values = {
        name: text == "true" if kinds[name] is bool else int(text) if kinds[name] is int else text
        for name, text in sent.items()
    }

    assert build(Use, values) == use
    if use.images == ImageUse():
        found = parse_query({**{name: str(size) for name, size in SMALL.items()}, **sent})
        assert write_parameters(found.use) == {"context": "8192", "dtype": "bfloat16", **sent}


@pytest.mark.parametrize("name", [one.name for one in walk_parameters(Use) if one.kind is int])
def test_number_beyond_its_limits_has_the_same_sentence_everywhere(name: str) -> None:
    """The command and the query differ in the spelling of the name only."""
    one = PARAMETERS[name]
    low, high = one.bounds or (0, 0)
    words = f"which is not a whole number from {low} to {high}; for example {one.example}"
    beyond = str(high + 1)
    model = {"denoiser": "unet", **dict.fromkeys(PIPELINE_NEEDS, 8)} if name in IMAGES else SMALL
    query = {**{field: str(value) for field, value in model.items()}, "train": "true", name: beyond}

    with pytest.raises(InvalidInputError) as refused:
        parse_query(query)
    assert str(refused.value) == f"{name} is {beyond}, {words}"
    if name != "runtime":
        done = CliRunner().invoke(command, ["./model", flag(name), beyond])
        assert f'{flag(name)} is "{beyond}", {words}' in done.output


def test_no_name_is_that_of_two_parameters() -> None:
    names = [one.name for one in walk_parameters(FitRequest)]

    assert len(names) == len(set(names))


def test_record_without_a_value_is_the_default() -> None:
    """A size builds no use, and a model without an image builds none of one."""
    plain = FitRequest(bytes="1GiB")

    assert parse_request({"bytes": "1GiB"}).use is plain.use
    assert parse_request({**SMALL, "batch": 2}).use.images is plain.use.images
    assert parse_request({"bytes": "1GiB", "reserve": "1GiB"}).use.reserve_bytes == 1 << 30


def test_empty_reserve_is_none() -> None:
    assert parse_request({**SMALL, "reserve": ""}).use.reserve_bytes == 0
    assert parse_request({**SMALL, "reserve": "4GiB"}).use.reserve_bytes == 4 << 30
