"""The runner of the conformance suite: it passes other tools where they are right, and fails a broken memwatchd."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.data import read_machine
from conformance.rules import Verdict
from conformance.runner import Homes, Result, result_of, run
from conformance.tools import TOOLS, Answers, Tool, parse_memwatchd

NEEDED_PROGRAMS = ("cc", "ip", "unshare")

# This environment has psutil and NVIDIA's binding, and memwatchd itself.
HERE = Homes(Path(sys.executable), Path(sys.executable))
ADAPTERS = {tool.name: tool for tool in TOOLS}


def measured(tool: Tool, machine: str = "gb10") -> Result:
    result = run(tool, read_machine(machine), HERE)
    assert not result.error, result.error
    return result


def verdicts(result: Result) -> dict[str, Verdict]:
    return {key: one.verdict for key, one in result.figures.items() if one.verdict is not Verdict.ABSENT}


def test_tool_of_the_host_alone_is_right_and_silent_about_the_gpu() -> None:
    found = verdicts(measured(ADAPTERS["psutil"]))

    assert set(found) == {"ram.size", "ram.used", "ram.available", "ram.free", "swap.size", "swap.used"}
    assert set(found.values()) == {Verdict.RIGHT}


def test_binding_of_nvml_is_right_about_processes_and_silent_about_memory_that_is_not_supported() -> None:
    found = verdicts(measured(ADAPTERS["nvidia-ml-py"]))

    assert found == dict.fromkeys(("gpu0.process.3921", "gpu0.process.2890", "gpu0.process.3105"), Verdict.RIGHT)


def test_binding_of_nvml_that_repeats_a_total_of_zero_is_wrong() -> None:
    found = measured(ADAPTERS["nvidia-ml-py"], "gb10-total-zero").figures

    assert found["gpu0.used"].verdict is Verdict.WRONG
    assert found["gpu0.used"].why == "0 for a value that the driver does not report"


def test_memwatchd_is_right_on_a_machine_whose_processes_hold_ram_by_fdinfo() -> None:
    found = verdicts(measured(ADAPTERS["memwatchd"], "n100"))

    assert found["gpu0.used"] is Verdict.RIGHT
    assert set(found.values()) == {Verdict.RIGHT}


def broken(text: str) -> Answers:
    """Parse the answer of a memwatchd that counts a process in two lists, and does not name the pool of RAM."""
    share = re.search(r"memwatch_share_used_bytes\{[^}]*cuda_pool[^}]*\} (\S+?)(?=\\n)", text)
    assert share, "no share of the GPU in the answer"
    doubled = text.replace(share[0], share[0].replace(share[1], str(2 * float(share[1]))))
    answers = parse_memwatchd(doubled)
    return {**answers, "gpu0.size": answers["ram.size"]}


def test_broken_memwatchd_fails() -> None:
    found = measured(replace(ADAPTERS["memwatchd"], parse=broken)).figures

    assert found["gpu0.used"].verdict is Verdict.WRONG
    assert found["gpu0.size"].verdict is Verdict.TWICE
    assert found["ram.size"].verdict is Verdict.RIGHT
    assert found["gpu0.process.3921"].verdict is Verdict.RIGHT


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["sh", "-c", "echo broken >&2; exit 3"], "broken"),
        (["sh", "-c", "echo no figures"], "no answer that can be read"),
        (["/nonexistent/monitor"], "No such file"),
    ],
)
def test_tool_without_an_answer_is_not_run_and_has_no_verdicts(command: list[str], error: str) -> None:
    result = run(replace(ADAPTERS["psutil"], command=command), read_machine("gb10"), HERE)

    assert error in result.error
    assert result.figures == {}


ADAPTER = """
import json
from conformance.rules import Answer
from conformance.tools import Tool

def parse(text):
    return {"ram.size": Answer(float(text) * 1024)}

TOOL = Tool("mine", "pip", "none", ["sh", "-c", "awk '/MemTotal/ { print $2 }' /proc/meminfo"], parse)
"""


def test_adapter_of_another_project_is_measured_and_its_fault_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, results = tmp_path / "mine.py", tmp_path / "results.json"
    command = [f"--adapter={adapter}", "--machine=gb10", "--check", f"--results={results}"]
    adapter.write_text(ADAPTER)

    assert main(command) == 0
    assert "mine on gb10\n  right: ram.size" in capsys.readouterr().out
    assert read_verdict(results) == "right"

    adapter.write_text(ADAPTER.replace("1024", "1000"))
    assert main(command) == 1
    assert read_verdict(results) == "wrong"


def read_verdict(results: Path) -> str:
    (result,) = json.loads(results.read_text())["results"]
    return str(result["figures"]["ram.size"]["verdict"])


def test_result_is_read_back_as_it_was_written() -> None:
    result = measured(ADAPTERS["psutil"])

    assert result_of(result.as_json()) == result
