"""The examples of the library run without a daemon too, and with one their marks arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemon_process import running_daemon
from support.library_process import run_program
from support.page_blocks import prepare
from support.pages import fences
from support.paths import ROOT

PAGE = (ROOT / "docs" / "howto" / "training.md").read_text()
EXAMPLES = [fence for fence in fences(PAGE) if fence.language == "python" and fence.directive is None]


def in_folder(folder: Path, code: str) -> str:
    return f"import os; os.chdir({str(folder)!r})\n{code}"


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs_without_a_daemon(number: int, tmp_path: Path) -> None:
    prepare(tmp_path)

    done = run_program(in_folder(tmp_path, EXAMPLES[number].code))

    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr


def test_marks_of_the_examples_arrive_at_the_daemon(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    prepare(work)
    code = "\n".join(example.code for example in EXAMPLES)
    with running_daemon(tmp_path) as running:
        running.get("/api/v1/events")  # its API is made
        done = run_program(in_folder(work, code), running.url)
        texts = [event["text"] for event in running.get("/api/v1/events").json if event["kind"] == "mark"]

    assert done.returncode == 0, done.stderr
    assert any(text.startswith("[Before VAE Load] Free: ") for text in texts)
