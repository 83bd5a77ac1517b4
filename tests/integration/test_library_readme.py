"""The README's examples of the library run, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import memwatch
from support import paths
from support.daemon_process import running_daemon
from support.library_process import run_program

README = paths.README.read_text()
SECTION = README.partition("\n## The library\n")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_example_runs(number: int, tmp_path: Path) -> None:
    """In a program of its own, where no daemon answers, with every warning an error."""
    done = run_program(f"import os; os.chdir({str(tmp_path)!r})\n{EXAMPLES[number]}")

    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr


def test_the_examples_run_with_a_daemon_as_well(tmp_path: Path) -> None:
    """All of them in one program; its marks are among the events."""
    code = "\n".join([f"import os; os.chdir({str(tmp_path)!r})", *EXAMPLES])
    with running_daemon(tmp_path) as running:
        running.get("/api/v1/events")  # its API is made
        done = run_program(code, running.url)
        texts = [event["text"] for event in running.get("/api/v1/events").json if event["kind"] == "mark"]

    assert done.returncode == 0, done.stderr
    assert any(text.startswith("[Before VAE Load] Free: ") for text in texts)


def test_every_name_for_programs_is_in_the_readme_or_comes_from_one_that_is() -> None:
    """Functions and what is made by hand; records that functions return need no mention."""
    returned = {
        "Advice",
        "InferenceEstimate",
        "Machine",
        "MemoryInfo",
        "MemoryStats",
        "PoolStats",
        "PressureChange",
    }
    returned |= {"TrainingEstimate", "Usage", "MemoryPool", "__version__", "BadInput", "is_out_of_memory"}
    further = {"discover_backends", "pools", "read_checkpoint", "unregister_pool"}

    assert len(EXAMPLES) == 4
    for name in set(memwatch.__all__) - returned - further:
        assert f"memwatch.{name}" in SECTION, name
