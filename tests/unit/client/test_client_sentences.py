"""Test the sentences of `memwatch fit`, of `memwatch doctor --report`, and about a wrong command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.cli.cli import main
from memwatch.cli.doctor_report import check_writable, recording_text
from memwatch.cli.fit import describe_missing_gpus, fit_lines, launch_lines, name_answer, read_answer
from memwatch.cli.http import CommandError
from memwatch.cli.record import Recorded
from memwatch.cli.tables import check_lines
from memwatch.core.snapshot_json import RECORDS
from memwatch.planning.engines.placement import Flag, Launch
from memwatch.reporting.answers import Examination, Verdict
from memwatch.reporting.render.fit_json import FIT, FitReply
from memwatch.reporting.render.json import WIRE
from memwatchd.cli import main as daemon_main


@pytest.mark.parametrize(
    ("wanted", "gpus", "sentence"),
    [
        (0, 0, ""),
        (1, 0, ""),
        (2, 2, ""),
        (4, 1, "The plan is for 4 GPUs: this machine has 1."),
        (2, 0, "The plan is for 2 GPUs: this machine has none."),
    ],
)
def test_plan_for_more_gpus_than_there_are_has_a_reason(wanted: int, gpus: int, sentence: str) -> None:
    devices = [*(f"gpu{number}" for number in range(gpus)), "cpu"]

    assert describe_missing_gpus(wanted, devices) == sentence


@pytest.mark.parametrize(
    ("recorded", "text"),
    [
        (Recorded(60), "60 snapshots in 60 s"),
        (Recorded(1), "1 snapshot in 60 s"),
        (Recorded(8, interrupted_after=7.2), "8 snapshots: interrupted after 7 of 60 s"),
    ],
)
def test_interrupted_recording_has_the_seconds_until_then(recorded: Recorded, text: str) -> None:
    assert recording_text(recorded, 60.0) == text


def test_missing_folder_of_a_report_is_not_called_a_missing_permission(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"its folder does not exist; name a file in another one$"):
        check_writable(tmp_path / "missing/box.tar.gz", overwrite=False)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("status --nope", "; see memwatch status --help"),
        ("status extra", "; see memwatch status --help"),
        ("autopsy", "; see memwatch autopsy --help"),
        ("nosuch", "; see memwatch --help"),
        ("status --url", "; see memwatch --help"),
        ("run", "COMMAND is missing; for example memwatch run -- python train.py"),
    ],
)
def test_wrong_command_line_has_a_remedy(command: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first part is click's, and changes with its version."""
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{remedy}\n")
    assert ".;" not in error


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("nosuch", "see memwatchd --help"),
        ("--listen", "see memwatchd --help"),
        (
            "install-service --uninstall",
            "install the Debian package, or copy the unit files of the package as docs/start/install.md shows "
            "under Other Linux",
        ),
    ],
)
def test_wrong_command_line_of_the_daemon_has_a_remedy(
    command: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert daemon_main(command.split()) == 2
    assert capsys.readouterr().err.endswith(f"; {remedy}\n")


def test_doctor_of_an_early_daemon_names_no_version() -> None:
    checks = [{"id": "psi", "verdict": "hint", "text": "no PSI", "remedy": None}]
    early: Examination = RECORDS.decode(Examination, {"worst": "hint", "checks": checks})
    current = replace(early, version="0.1.0", revision="unknown")

    assert early.worst is Verdict.HINT
    assert list(check_lines(early)) == ["! no PSI", "", "No problems, 1 hint: see the lines marked !."]
    assert "memwatchd 0.1.0, revision unknown" in list(check_lines(current))
    assert RECORDS.decode(Examination, WIRE.encode(current)) == current


def test_answer_of_an_early_daemon_to_fit_is_shown() -> None:
    """Without what later versions add, and with the parts that move in place of their sum."""
    room = {"size_bytes": 24 << 30, "headroom_after_reclaim_bytes": 20 << 30, "spare_bytes": -(1 << 30)}
    verdict = {"device": "gpu0", "name": "RTX 4090", "fits": False, "reason": "short by 1.0 GiB", **room}
    sent = {"bytes": 21 << 30, "best": None, "verdicts": [verdict], "moves": {"kv_cache": 2 << 30}}
    lines = list(fit_lines(read_answer(name_answer(sent, "./model", ""))))

    assert lines[0] == "./model needs 21.0 GiB on a GPU and 2.0 GiB in System RAM"
    assert any("gpu0, RTX 4090" in line and line.endswith("short by 1.0 GiB") for line in lines)
    assert lines[-1] == "Does not fit right now."


def test_launch_line_keeps_its_lines() -> None:
    launch = Launch("vllm", "vllm serve \\\n  model\x1b", (Flag("model", "the model"),))
    sent = FIT.encode(FitReply(1 << 30, "gpu0", (), launch=(launch,)))

    assert [line for line in launch_lines(read_answer(sent)) if line][1:3] == ["vllm serve \\", "  model\\u001b"]
