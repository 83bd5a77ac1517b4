"""Options of `fit` that cannot change the answer for a size are refused, as the command and the API refuse them."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

import pytest

import memwatch
from memwatch.planning.parameters import list_parameters
from memwatch.planning.request import Use

fit: Any = memwatch.fit


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"context": 4096}, "context"),
        ({"batch": 2, "dtype": "int8"}, "batch, dtype"),
        ({"kv_dtype": "fp8"}, "kv_dtype"),
        ({"training": memwatch.TrainingPlan()}, "training"),
        ({"offload_kv": True, "cpu_layers": 3}, "offload_kv, cpu_layers"),
        ({"gpus": 2, "parallel": "pipeline", "zero": 2}, "zero, gpus, parallel"),
        ({"measure": True, "launch": "vllm", "reserve": "1GiB"}, "measure, launch"),
    ],
)
@pytest.mark.parametrize("size", ["1MiB", 1 << 20])
def test_option_without_effect_on_a_size_is_refused(size: str | int, options: dict[str, Any], named: str) -> None:
    expected = f'{size} is a size, which {named} cannot change; leave that out, or name a model, for example fit("'

    with pytest.raises(memwatch.InvalidInputError, match=re.escape(expected)):
        fit(size, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("context", one) for one in ("x", -1, 2.5, None)),
        *(("batch", one) for one in (0, "2")),
        ("dtype", "float99"),
        ("training", 1),
        ("offload_kv", "yes"),
        ("parallel", "data"),
        ("measure", 1),
        ("launch", "word"),
        ("reserve", "much"),
    ],
)
def test_wrong_value_is_refused_for_a_size_as_for_a_model(option: str, value: object) -> None:
    with pytest.raises(memwatch.InvalidInputError, match=option) as caught:
        fit("1MiB", **{option: value})

    assert str(caught.value)


def test_signature_has_the_options_of_a_use_with_their_types_and_defaults() -> None:
    """A type checker reads a literal signature, so the names and types of a use stand there again."""
    signature, types = inspect.signature(memwatch.fit).parameters, get_type_hints(memwatch.fit)
    of_use = get_type_hints(Use)
    # Measured by `measure`, and those of images, which the library does not plan.
    declared = {
        one.attribute if one.record else one.name: one.attribute
        for one in list_parameters(Use)
        if one.attribute not in ("runtime_bytes", "images")
    }

    assert [*declared] == [name for name in declared if name in signature]
    assert signature.keys() - declared.keys() == {"model", "measure", "launch", "online"}
    for name, attribute in declared.items():
        assert signature[name].default == getattr(Use(), attribute)
        assert types[name] == (str | int if name == "reserve" else of_use[attribute])
