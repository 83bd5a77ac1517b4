"""`memwatch fit --on` and `--what`: machines that a user names, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from memwatch.cli.fit import fit
from memwatch.planning.tables import read_table


@pytest.fixture
def llama(tmp_path: Path) -> str:
    """Llama 3 70B, 135 GiB with a context of 8,192 tokens."""
    (tmp_path / "config.json").write_text(json.dumps(read_table("models", dict)["Llama 3 70B"]))
    return str(tmp_path)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(fit, [*arguments, "--url", "http://127.0.0.1:1"], standalone_mode=False)
    error = result.exception
    return result.return_value or 0, result.output if error is None else f"{result.output}{error}"


def test_model_that_does_not_fit_says_on_how_many_gpus_it_would(llama: str) -> None:
    code, output = run(llama, "--on", "h100")

    assert code == 1
    assert f"{llama} on h100, empty: needs 134.9 GiB" in output
    assert "Does not fit. It would fit with 8-bit weights (--dtype int8): 71.1 GiB." in output
    assert "It would fit on 2x h100." in output


def test_model_that_fits_has_an_estimated_rate(llama: str) -> None:
    code, output = run(llama, "--on", "h200")

    assert code == 0
    assert "Fits: use gpu0." in output
    assert "tokens a second (estimated: 132.0 GiB are read for each, at 40 to 80 % of 4800 GB/s)." in output


def test_json_has_the_rate_and_the_machine(llama: str) -> None:
    _, output = run(llama, "--on", "h200", "--json")
    found = json.loads(output)

    assert (found["on"], found["best"], found["more_gpus"]) == ("h200", "gpu0", None)
    assert found["decode_rate"]["quality"] == "estimated"


@pytest.mark.parametrize(("machine", "has_cpu"), [("2x gb10", False), ("h100", False), ("h100 + 512GiB", True)])
def test_cpu_is_judged_only_where_its_memory_is_named(llama: str, machine: str, has_cpu: bool) -> None:
    _, output = run(llama, "--on", machine, "--json")

    assert any(one["device"] == "cpu" for one in json.loads(output)["verdicts"]) is has_cpu


def test_move_to_system_ram_of_an_unknown_size_is_refused(llama: str) -> None:
    assert "rtx4090: its System RAM is not known" in run(llama, "--on", "rtx4090", "--offload-kv")[1]
    assert "needs" in run(llama, "--on", "rtx4090 + 64GiB", "--offload-kv")[1]


def test_list_has_the_largest_models_of_each_format() -> None:
    code, output = run("--what", "--on", "gb10")

    assert code == 0
    assert output.startswith("Largest models that fit on gb10, context 8192:\n")
    assert "gpt-oss-120b" in output
    assert "tokens/s" in output


def test_list_is_empty_where_nothing_is_fast_enough() -> None:
    code, output = run("--what", "--on", "orinnano", "--min-speed", "5000")

    assert code == 1
    assert ":\n  none\n" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "takes a model, a size or --what; for example memwatch fit 20GiB"),
        (("20GiB", "--what"), "leave out one of them"),
        (("20GiB", "--min-speed", "5"), "--min-speed: only with --what"),
        (("20GiB", "--on", "gb10", "--machines"), "--on names another machine than --machines"),
        (("20GiB", "--on", "abacus"), "'abacus' is not a machine that is known"),
        (("20GiB", "--on", " "), "--on has no machine"),
        (("--what", "--dtype", "q4_k"), "--dtype: not with --what"),
        (("--what", "--on", "rtx4090", "--cpu-layers", "8"), "its System RAM is not known"),
        (("--what", "--on", "abacus"), "'abacus' is not a machine that is known"),
    ],
)
def test_contradictions_are_refused_with_what_would_do(arguments: tuple[str, ...], words: str) -> None:
    assert words in run(*arguments)[1]
