"""Options of `fit` that cannot change the answer for a size are refused, as the command and the API refuse them."""

from __future__ import annotations

import re
from typing import Any

import pytest

import memwatch

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
