"""What is written is true: the README fails the build when it lies."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from memwatch_web.routes import api_routes
from support.daemon_process import MEMWATCHD, clean_environment
from support.exported_metrics import exported_names
from support.paths import ROOT

README = (ROOT / "README.md").read_text()
SENTENCES = re.sub(r"\s+", " ", README)


def table_after(heading: str) -> str:
    return README.partition(heading)[2].partition("\n## ")[0].partition("\n### ")[0]


def test_every_metric_is_in_the_readme_and_no_other() -> None:
    """The table of metrics is the list of what is exported."""
    rows = re.findall(r"^\| (`[^|]*`) \|", table_after("## Metrics"), re.MULTILINE)
    written = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert written == exported_names()


def test_every_path_is_in_the_readme() -> None:
    """What the API describes, the README names."""
    paths = table_after("## Paths")

    for path in [route.path for route in api_routes()] + ["/docs", "/openapi.json"]:
        assert f"{path}" in paths or f"`{path.removeprefix('/api/v1')}`" in paths, path


def test_the_help_in_the_readme_is_the_help() -> None:
    """Word for word, at eighty columns."""
    done = subprocess.run(
        [MEMWATCHD, "--help"], capture_output=True, text=True, env=clean_environment(COLUMNS="80"), check=True
    )

    assert done.stdout.strip() in README


@pytest.mark.parametrize("command", [[], ["release"]], ids=["memwatch", "release"])
def test_the_clients_help_in_the_readme_is_its_help(command: list[str]) -> None:
    """Word for word, at eighty columns; what it says of release as well."""
    memwatch = Path(MEMWATCHD).with_name("memwatch")
    done = subprocess.run(
        [memwatch, *command, "--help"],
        capture_output=True,
        text=True,
        env=clean_environment(COLUMNS="80"),
        check=True,
    )

    assert done.stdout.strip() in README


def test_every_dependency_has_a_reason() -> None:
    """No library without a line in the table that says why."""
    table = table_after("### What it stands on")

    for requirement in requires("memwatchd") or []:
        name = re.split(r"[<>=!;\[ ]", requirement)[0]
        assert re.search(rf"\b{re.escape(name)}\b", table), name


def test_the_readme_names_only_targets_and_files_that_exist() -> None:
    """make targets, and links into this repository."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", README, re.MULTILINE)) <= targets
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_pictures_in_the_readme_are_small() -> None:
    """Three of the page, one of the bench, each of 60 KB at most: whoever clones this fetches them, for ever."""
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)

    assert len(pictures) == 4
    assert all(0 < (ROOT / picture).stat().st_size <= 60_000 for picture in pictures)


def test_the_promised_exit_codes_are_the_real_ones() -> None:
    """2 for a flag that does not exist, 78 for a file that cannot be read, 0 for a question answered."""

    def code(*arguments: str) -> int:
        return subprocess.run(
            [MEMWATCHD, *arguments], capture_output=True, env=clean_environment(), check=False
        ).returncode

    assert code("--nonsense") == 2
    assert code("--config", "/nonexistent/memwatchd.toml", "--check-config") == 78
    assert code("--version") == 0


def test_running_this_module_of_tests_needs_no_gpu_nor_root() -> None:
    """Importing everything reads no device and asks for nothing."""
    modules = "memwatch.monitor, memwatch.collectors, memwatch_web.app, memwatchd.http_server.server, memwatchd.run"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {modules}"], capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr.decode()
