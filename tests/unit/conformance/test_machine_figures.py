"""The machines of the conformance suite: complete, consistent, and as their files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import data, derive
from conformance.data import Machine, read_index, read_machine

NAMES = tuple(read_index())


@pytest.mark.parametrize("name", NAMES)
def test_figures_follow_from_the_files_of_the_machine(name: str) -> None:
    texts = derive.derived(name)

    assert {file: file.read_text() for file in texts} == dict(texts)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_reason_and_a_source_that_the_machine_has(name: str) -> None:
    machine = read_machine(name)

    assert machine.figures
    for key, figure in machine.figures.items():
        assert figure.reason, key
        assert figure.unit in ("bytes", "ratio"), key
        assert all(has_source(machine, source) for source in figure.source.split(", ")), (key, figure.source)


def has_source(machine: Machine, source: str) -> bool:
    return machine.state is not None if source == "nvml.state" else any(machine.host.glob(source))


@pytest.mark.parametrize("name", NAMES)
def test_right_value_is_no_known_mistake(name: str) -> None:
    """Or a tool that is right would be called wrong by the next change of the rules."""
    for key, figure in read_machine(name).figures.items():
        right = [figure.value, *(one.value for one in figure.also)]
        doubled = [one.value for one in figure.twice if one.together_with is None]
        assert not {one.value for one in figure.wrong} & {*right} - {0}, key
        assert not {*doubled} & {*right}, key


def test_suite_has_twenty_machines_with_unified_memory() -> None:
    assert sum(line["unified"] for line in read_index().values()) >= 20


def test_check_prints_the_file_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(derive, "HERE", tmp_path)

    assert derive.main(["--check", "gb10"]) == 1
    assert str(tmp_path / "machines/gb10/figures.json") in capsys.readouterr().out
    assert not (tmp_path / "machines").exists()

    assert derive.main(["gb10"]) == 0
    assert derive.main(["--check", "gb10"]) == 0


def test_data_of_another_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "machines.json"
    index.write_text(json.dumps({"format": 2, "machines": {}}))
    monkeypatch.setattr(data, "INDEX", index)

    with pytest.raises(ValueError, match="format 2 is not 1"):
        read_index()
