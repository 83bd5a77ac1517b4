"""`memwatch fit --on` and `--what`: machines that a user names, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from memwatch.cli.fit import fit
from memwatch.cli.http import EXIT_UNKNOWN, CommandError
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import to_bytes
from memwatch.planning import read_table
from memwatch.reporting.render.json import snapshot_json
from memwatch.reporting.render.words import SIMULATED
from support.sample_snapshots import critical_gb10, discrete_gpu, simulated


@pytest.fixture
def llama(tmp_path: Path) -> str:
    """Llama 3 70B, 135 GiB with a context of 8,192 tokens."""
    (tmp_path / "config.json").write_text(
        json.dumps({**read_table("models", dict)["Llama 3 70B"], "max_position_embeddings": 8192})
    )
    return str(tmp_path)


def unnamed_gpu() -> Snapshot:
    found = discrete_gpu()
    return replace(found, devices=tuple(replace(one, name="Unheard-of 9000") for one in found.devices))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(fit, [*arguments, "--url", "http://127.0.0.1:1"], standalone_mode=False)
    error = result.exception
    return result.return_value or 0, result.output if error is None else f"{result.output}{error}"


def test_model_that_does_not_fit_says_on_how_many_gpus_it_would(llama: str) -> None:
    code, output = run(llama, "--on", "h100 + 64GiB")

    assert code == 1
    assert f"{llama} on h100 + 64GiB, empty: needs 134.9 GiB" in output
    assert "Does not fit. It would fit with 8-bit weights (--dtype int8): 71.1 GiB." in output
    assert "It would fit on 2x h100 + 64gib." in output


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


@pytest.mark.parametrize(
    ("machine", "of_cpu", "code"),
    [("2x gb10", [], 1), ("h100", [None], 3), ("h100 + 64GiB", [False], 1), ("h100 + 512GiB", [True], 0)],
)
def test_cpu_is_unknown_where_its_memory_is_not_named(machine: str, of_cpu: list[bool | None], code: int) -> None:
    """The CPU of two GB10 has the memory of their GPUs, which is judged."""
    found, output = run("250GiB", "--on", machine, "--json")

    assert [one["fits"] for one in json.loads(output)["verdicts"] if one["device"] == "cpu"] == of_cpu
    assert found == code


def test_answer_without_system_ram_says_how_it_is_named(llama: str) -> None:
    """Beside what would fit, with fewer bits or more GPUs."""
    code, output = run(llama, "--on", "h100")
    moved, words = run(llama, "--on", "2x rtx4090", "--cpu-layers", "70")

    assert (code, moved) == (EXIT_UNKNOWN, EXIT_UNKNOWN)
    assert (
        "Not known if it fits: cpu: the size of System RAM is not known. Name it, for example --on 'h100 +"
        in output
    )
    assert "It would fit with 8-bit weights (--dtype int8): 71.1 GiB." in output
    assert "It would fit on 2x h100." in output
    assert "System RAM: the size of System RAM is not known" in words
    assert "Name it, for example --on '2x rtx4090 + 64GiB'." in words


def test_list_of_a_machine_without_a_known_size_is_unknown(tmp_path: Path) -> None:
    """An empty list would be a no."""
    path, found = tmp_path / "machine.json", critical_gb10()
    empty = {"size_bytes": 0, "used_bytes": 0, "available_bytes": 0, "free_bytes": 0, "unattributed_bytes": 0}
    pools = tuple(replace(one, **empty, contents=()) for one in found.pools)
    path.write_bytes(to_bytes(snapshot_json(replace(found, pools=pools, shares=(), devices=(), processes=()))))
    code, output = run("--what", "--on", str(path))

    assert code == EXIT_UNKNOWN
    assert "  not known: cpu: the size of System RAM is not known." in output
    assert json.loads(run("--what", "--on", str(path), "--json")[1])["unknown"]


def test_list_has_the_largest_models_of_each_format() -> None:
    code, output = run("--what", "--on", "gb10")

    assert code == 0
    assert output.startswith("Largest models that fit on gb10, context 8192:\n")
    assert "gpt-oss-120b" in output
    assert "tokens/s" in output


def test_saved_demo_is_named_as_simulated(llama: str, tmp_path: Path) -> None:
    """In text by a warning, in JSON by a field. A saved snapshot of a real machine has neither."""
    for build, is_simulated in ((simulated, True), (critical_gb10, False)):
        path = tmp_path / "machine.json"
        path.write_bytes(to_bytes(snapshot_json(build())))
        for arguments in ((llama,), ("--what",)):
            assert (SIMULATED in run(*arguments, "--on", str(path))[1]) is is_simulated
            answer = json.loads(run(*arguments, "--on", str(path), "--json")[1])
            assert answer.get("simulated", False) is is_simulated


def test_context_beyond_the_models_own_has_no_launch_line(llama: str) -> None:
    """There is room, and the engines would not start."""
    code, output = run(llama, "--on", "8x h200", "--context", "100000", "--launch", "vllm")

    assert code == 0
    assert "Its own maximum is 8,192 tokens: engines refuse 100,000 without a change" in output
    assert "No launch line for vLLM: the model's own maximum is 8192 tokens; ask for a smaller context." in output
    assert "Greatest that fits, other options as asked: a context of 8,192 tokens" in output
    assert "vllm serve" in run(llama, "--on", "8x h200", "--launch", "vllm")[1]


@pytest.mark.parametrize("subject", ["70B", "0.6b", "70 B"])
def test_number_of_parameters_is_no_size(subject: str) -> None:
    """Two commands to type, for 70 GB and for the weights."""
    _, output = run(subject, "--on", "gb10")
    count = float(subject.strip("bB "))

    assert f"For {count:g} GB of memory: memwatch fit {count:g}GB. For the weights of {count:g} billion" in output
    assert f"memwatch fit {2 * count:g}GB in 16 bits, memwatch fit " in output


def test_bytes_and_other_units_stay_sizes() -> None:
    for subject in ("512", "100000000B", "70GB", "70GiB"):
        assert run(subject, "--on", "gb10")[0] == 0


def test_least_rate_is_refused_where_no_bandwidth_is_known(tmp_path: Path) -> None:
    """An empty list would be a no."""
    path = tmp_path / "machine.json"
    path.write_bytes(to_bytes(snapshot_json(unnamed_gpu())))
    with pytest.raises(CommandError) as caught:
        CliRunner().invoke(
            fit,
            ["--what", "--min-speed", "5", "--on", str(path), "--url", "http://127.0.0.1:1"],
            standalone_mode=False,
            catch_exceptions=False,
        )

    assert caught.value.code == EXIT_UNKNOWN
    assert "the bandwidth of Unheard-of 9000 is not known, so that no rate is either; leave --min-speed out" in str(
        caught.value
    )


def test_list_says_what_the_context_leaves_out() -> None:
    _, output = run("--what", "--on", "8x h200", "--context", "131072")
    answer = json.loads(run("--what", "--on", "8x h200", "--context", "131072", "--json")[1])

    assert f"{len(answer['shorter'])} models have a shorter context and are left out." in output
    assert "GPT-2" in " ".join(answer["shorter"]) or "Llama 2 7B" in answer["shorter"]


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
