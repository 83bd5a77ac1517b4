"""`make golden` writes what the tests of all machines compare, and counts differences by metric and collector."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from scripts import make_golden
from scripts.golden import HELP
from scripts.make_golden import describes, differences, expected_json, golden_texts, main, summarize
from support.paths import MACHINES


@pytest.mark.process
@pytest.mark.parametrize("name", ["jetson-tx2", "container-v2"])
def test_expected_file_of_an_unchanged_machine_stays_as_it_is(name: str) -> None:
    """With the report of a Jetson, whose processes the file has in another order."""
    text = (MACHINES / name / "expected.json").read_text()

    assert expected_json(name, json.loads(text)) == text


@pytest.mark.process
def test_every_expected_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_golden, "RUN_HERE", ("workstation",))
    monkeypatch.setattr(make_golden, "NAMES", ("workstation", "jetson-tx2"))

    texts = golden_texts()

    folder = MACHINES / "workstation"
    written = {folder / "metrics.txt", HELP, folder / "expected.json", MACHINES / "jetson-tx2/expected.json"}
    assert texts.keys() == written
    assert [file for file in texts.keys() - {HELP} if texts[file] != file.read_text()] == []
    assert texts[HELP].startswith("# HELP memwatch_")


def test_difference_is_counted_by_metric_and_collector(tmp_path: Path) -> None:
    metrics, expected = tmp_path / "metrics.txt", tmp_path / "expected.json"
    metrics.write_text('memwatch_a{pool="ram"} 1\nmemwatch_b 1\nmemwatch_c 1\n')
    expected.write_text(json.dumps({"collectors": {"psi": {"x": 1}, "numa": {}}, "report": {"used": 1}}))
    texts = {
        metrics: 'memwatch_a{pool="ram"} 2\nmemwatch_b 1\nmemwatch_d 1\n',
        expected: json.dumps({"collectors": {"psi": {"x": 2}, "numa": {}}, "report": {"used": 1}}),
        tmp_path / "new.txt": "memwatch_a 1\n",
    }

    found = differences(texts)

    assert found == Counter({"memwatch_a": 2, "memwatch_c": 1, "memwatch_d": 1, "psi": 1})
    assert summarize(found, 3, 3) == [
        "memwatch_a: 2 files",
        "memwatch_c: 1 files",
        "memwatch_d: 1 files",
        "psi: 1 files",
        "3 of 3 files differ",
    ]


def test_check_writes_nothing_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "metrics.txt"
    file.write_text("memwatch_a 1\n")
    monkeypatch.setattr(make_golden, "golden_texts", lambda: {file: "memwatch_a 2\n"})

    assert main(["--check"]) == 1
    assert file.read_text() == "memwatch_a 1\n"
    assert main([]) == 0
    assert file.read_text() == "memwatch_a 2\n"
    assert main(["--check"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["memwatch_a: 1 files", "1 of 1 files differ"]


def test_changed_result_of_a_collector_replaces_the_written_one() -> None:
    """A collector that the file does not list stays out, and a pattern that still describes the reason stays."""
    written = json.loads((MACHINES / "workstation/expected.json").read_bytes())
    text = json.dumps(written, indent=1) + "\n"
    changed = json.loads(text)
    changed["collectors"]["meminfo"]["pools"][0]["used_bytes"] = 1
    changed["collectors"]["zram"]["unavailable"] = "another reason"

    found = json.loads(expected_json("workstation", changed))

    assert expected_json("workstation", written) == text
    assert found["collectors"]["meminfo"] == written["collectors"]["meminfo"]
    assert found["collectors"]["zram"] == {"unavailable": "no\\ zram\\ device"}


def test_reason_is_compared_by_its_pattern() -> None:
    assert describes({"unavailable": "block: no (zram|swap)"}, "/sys/block: no zram device")
    assert not describes({"unavailable": "zram"}, "no NUMA node")
    assert not describes({"unavailable": "zram"}, "")
    assert not describes({"zram": {}}, "no zram device")
