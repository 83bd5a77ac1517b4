"""The files in a report are enough: collectors find the same figures in them, on every machine of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwatch.core.linux.files import Roots
from memwatch.core.linux.listeners import MAX_DESCRIPTORS
from memwatch.reporting.recording import Redactor
from memwatch.reporting.report.contents import EvidenceReader, summarize_files
from memwatch.reporting.report.redaction import TextRedactor
from scripts.machine_from_report import results_of, write_files
from support.paths import MACHINES
from support.report_bundle import Bundle, check_links

FOLDERS = sorted(folder.name for folder in MACHINES.iterdir() if (folder / "proc").is_dir())
# Redacted on purpose, or from command lines, which no report has. Placeholders of sizes would be an error.
NAMES = frozenset(
    [
        "pid",
        "name",
        "script",
        "rank",
        "user",
        "unit",
        "container",
        "own",
        "pod",
        "job",
        "uuid",
        "serial",
        "cgroup",
        "group",
        "key",
        "ids",
        "unique_id",
    ]
)
# Process ids are replaced, so only the number of processes or their figures stay. `seen` of the graphics drivers
# counts processes with readable descriptors, also those without a GPU, whose descriptors are not in a report.
BY_PID = frozenset({"pids", "held", "seen"})


def without_names(value: Any) -> Any:
    """Return the findings without names. Records are sorted, as their order can depend on process ids."""
    if isinstance(value, dict):
        return {without_ids(key): _field(key, part) for key, part in value.items() if key not in NAMES}
    if isinstance(value, list):
        return sorted((without_names(part) for part in value), key=lambda part: json.dumps(part, sort_keys=True))
    return value if not isinstance(value, str) or " " not in value else ""


def _field(key: str, value: Any) -> Any:
    if key not in BY_PID:
        return without_names(value)
    return sorted(value.values()) if isinstance(value, dict) else len(value) if isinstance(value, list) else None


def without_ids(key: str) -> str:
    return "" if "/" in key else key


def processes_of(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "proc").iterdir() if path.name.isdecimal())


@pytest.mark.parametrize("name", FOLDERS)
def test_collectors_find_the_same_in_a_report(name: str, tmp_path: Path) -> None:
    folder = MACHINES / name
    roots = Roots(folder / "proc", folder / "sys", folder / "root")
    evidence = EvidenceReader(roots, TextRedactor(Redactor(("pci",), {1: 1, 2: 2}, 1001))).read(
        processes_of(folder)
    )
    files = summarize_files(evidence, 0, None, "")

    write_files(
        Bundle({}, {}, b"", evidence.files, check_links(files, evidence.files), tuple(evidence.folders)),
        tmp_path / "made",
    )

    expected, found = results_of(folder, 4096), results_of(tmp_path / "made", 4096)
    assert found.keys() == expected.keys()
    for collector, findings in expected.items():
        assert without_names(found[collector]) == without_names(findings), collector
    assert evidence.unread == {}


def test_control_group_named_like_a_pattern_is_one_group(tmp_path: Path) -> None:
    """A user names groups below a delegated one: `*` in each level would list all groups of the machine."""
    for group in ("system.slice", "*", "[s]ystem.slice"):
        (tmp_path / "sys/fs/cgroup" / group).mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup" / group / "memory.current").write_text("1\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("22 21 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/*\n")
    roots = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)
    files = EvidenceReader(roots, TextRedactor(Redactor())).read([]).files
    assert [path for path in files if path.endswith("memory.current")] == ["sys/fs/cgroup/cgroup-1/memory.current"]


def test_descriptors_of_a_process_are_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "proc/77/fd"
    folder.mkdir(parents=True)
    for number in range(MAX_DESCRIPTORS + 1):
        (folder / str(number)).symlink_to("/dev/dri/card0")
    evidence = EvidenceReader(
        Roots(tmp_path / "proc", tmp_path / "sys", tmp_path), TextRedactor(Redactor((), {77: 1}))
    ).read([77])
    assert len(evidence.links) == MAX_DESCRIPTORS
    assert evidence.unread == {"proc/1/fd": "left out: descriptors after the first 4,096"}
