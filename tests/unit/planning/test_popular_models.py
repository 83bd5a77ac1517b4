"""The 100 models that people download most: yes, no, or unknown with what is missing."""

from __future__ import annotations

import pytest

from memwatch.planning.huggingface import parse_config
from memwatch.planning.model_table import read_models
from scripts.popular_models import MACHINES, POPULAR, Popular, plan

MIN_ANSWERED = 90
# Numbers in files that a GPU of 24 GiB has room for in 16 bits, and has none for in 4 bits.
SMALL, LARGE = 8 * 10**9, 80 * 10**9


def by_name(model: Popular) -> str:
    return model.name


@pytest.mark.parametrize("model", POPULAR, ids=by_name)
def test_answer_is_yes_no_or_what_is_missing(model: Popular) -> None:
    for machine in MACHINES:
        answer = plan(model, machine)

        assert answer in ("yes", "no") or "the rule for " in answer.lower()


def test_most_are_answered() -> None:
    answers = [plan(model, MACHINES[0]) for model in POPULAR]

    assert len(POPULAR) == 100
    assert sum(one in ("yes", "no") for one in answers) >= MIN_ANSWERED


def test_answers_follow_the_sizes_of_the_files() -> None:
    """A GPU of 24 GiB has room for 8 billion parameters in 16 bits, and none for 80 billion in 4 bits."""
    answers = [(model.parameters, plan(model, MACHINES[0])) for model in POPULAR]
    known = [(parameters, answer) for parameters, answer in answers if answer in ("yes", "no")]

    assert all(answer == "yes" for parameters, answer in known if parameters < SMALL)
    assert all(answer == "no" for parameters, answer in known if parameters > LARGE)


@pytest.mark.parametrize("model", [one for one in POPULAR if len(one.config) > 1], ids=by_name)
def test_shapes_that_no_table_has_are_those_of_the_files(model: Popular) -> None:
    """Files of GPT-NeoX and GPT-2 may also have masks, and those of OPT their positions twice or not."""
    counted = parse_config(model.whole, model.name).transformer.parameters

    assert counted == pytest.approx(model.parameters, rel=0.35)


def test_models_are_rows_of_the_table() -> None:
    assert {one.model for one in POPULAR if one.model} <= set(read_models())
