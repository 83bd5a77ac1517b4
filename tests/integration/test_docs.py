"""Pages say what the code does: the generated pages are up to date, and further promises are kept."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import memwatch
import memwatch.core.pressure
from memwatch.reporting import recording
from memwatch.reporting.render import json
from memwatch.reporting.report import contents
from memwatch_build import debian_version, next_version
from memwatch_monitor.history import ring_file
from memwatch_monitor.notify import sqlite_store
from memwatch_web.api_app import DESCRIPTION_FILE
from scripts.reference import http_api
from scripts.reference.__main__ import FOLDER, PAGES
from scripts.reference.commands import WIDTH
from scripts.reference.metrics import subject_of
from scripts.reference.rules import signal_rows
from support.daemon_process import MEMWATCHD, run_program
from support.paths import ROOT

CLIENT = str(Path(MEMWATCHD).with_name("memwatch"))


# The one of incidents is compared where they are played: tests/incidents/test_incident_scenarios.py.
@pytest.mark.parametrize("name", [name for name in PAGES if name != "incident-samples.md"])
def test_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run: make reference"


def test_served_description_of_the_api_is_that_of_its_routes() -> None:
    assert DESCRIPTION_FILE.read_text() == http_api.render_description(), "run: make reference"


def test_every_reference_page_is_generated() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(PAGES)


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ([MEMWATCHD], "memwatchd.md"),
        ([CLIENT], "memwatch.md"),
        ([CLIENT, "fit"], "memwatch.md"),
    ],
    ids=["memwatchd", "memwatch", "memwatch fit"],
)
def test_help_that_a_command_prints_is_on_its_page(command: list[str], page: str) -> None:
    done = run_program(*command, "--help", COLUMNS=str(WIDTH))

    assert done.stdout.strip() in (FOLDER / page).read_text()


def test_every_signal_of_the_code_is_on_the_page_of_rules() -> None:
    (folder,) = memwatch.core.pressure.__path__
    code = "".join(file.read_text() for file in Path(folder).glob("*.py"))
    named = set(re.findall(r'\b(?:Signal|Reason)\(\s*"(\w+)"', code))

    assert len(named) >= 9
    assert named == {name for name, _, _ in signal_rows()}


def test_metric_without_a_subject_is_an_error() -> None:
    with pytest.raises(KeyError, match="memwatch_nonsense has no subject"):
        subject_of("memwatch_nonsense")


def test_every_dependency_has_a_reason() -> None:
    page = (ROOT / "docs" / "contributing" / "dependencies.md").read_text()
    table = page.partition("\n## In use\n")[2].partition("\n## ")[0]

    for requirement in requires("memwatchd") or []:
        name = re.split(r"[<>=!;\[ ]", requirement)[0]
        assert re.search(rf"\b{re.escape(name)}\b", table), name


def test_exit_codes_are_those_that_help_promises() -> None:
    def code(*arguments: str) -> int:
        return run_program(MEMWATCHD, *arguments).returncode

    assert code("--nonsense") == 2
    assert code("--config", "/nonexistent/memwatchd.toml", "--check-config") == 78
    assert code("--version") == 0


def test_importing_everything_reads_no_device_and_needs_no_root() -> None:
    web = "memwatch_web.pages_app, memwatch_web.api_app"
    modules = f"memwatch_monitor.loop, memwatch.core.collectors, {web}, memwatchd.http_server.server, memwatchd.run"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {modules}"], capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr.decode()


def test_format_versions_on_the_page_of_releases_are_those_of_the_code() -> None:
    """A new number in the code needs a line in the table, and a sentence on what other versions do with it."""
    page = (ROOT / "docs/contributing/releases.md").read_text()
    table = page.partition("\n## Compatibility\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    found = {row[0]: (row[1], row[2]) for row in rows[2:]}

    assert found == {
        "JSON of API and webhooks": (str(json.SCHEMA), "`schema` in each object"),
        "recording": (str(recording.FORMAT), "the header, its first line"),
        "report of `doctor`": (str(contents.FORMAT), f"the head of `{contents.SUMMARY}`"),
        "history on disk": (ring_file.MAGIC.decode()[-1], f"`{ring_file.MAGIC.decode()}` in each record"),
        "alerts, silences, queue": (str(sqlite_store.VERSION), "`user_version` of `outbox.sqlite`"),
    }


def test_versions_on_the_page_of_releases_are_those_that_builds_have() -> None:
    page = (ROOT / "docs/contributing/releases.md").read_text()

    versions = re.findall(r"`(0\.1\.0\.dev[1-9]\d*\+g[0-9a-f]{12})` \| `([^`]+)`", page)
    assert [debian_version(version) for version, _ in versions] == [debian for _, debian in versions]
    assert len(versions) == 1
    assert next_version("0.1.0") == "0.1.1"
