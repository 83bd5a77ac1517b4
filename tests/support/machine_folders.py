"""Machines as folders: their /proc, /sys and /, and the values that the daemon must report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from memwatch.core.drivers.drm.records import DrmClient
from memwatch.core.drivers.tegra.records import TegraReading
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots
from memwatch.core.model import Content, Process, Share
from support.paths import MACHINES

# State of a simulated NVIDIA driver, in the format of `nvml_state_file`, in folders made from a report.
NVML_STATE = "nvml.state"
NAMES = tuple(sorted(folder.name for folder in MACHINES.iterdir() if (folder / "expected.json").is_file()))


class MachineFolder(Struct, frozen=True):
    """Machine. `expected` has the findings by collector: fields of `Findings`, or why it is unavailable.

    `report` is the composed result, for machines whose GPU is read without a driver of its vendor.
    """

    name: str
    roots: Roots
    page_size: int
    expected: Mapping[str, Any]
    report: Mapping[str, Any]


def machine_folder(name: str) -> MachineFolder:
    folder = MACHINES / name
    written = json.loads((folder / "expected.json").read_bytes())
    roots = Roots(folder / "proc", folder / "sys", folder / "root")
    return MachineFolder(name, roots, written["page_size"], written["collectors"], written.get("report", {}))


def plain(findings: Findings) -> dict[str, Any]:
    """Return findings in the form of expected.json, without fields that were not found, and without the search."""
    named = asdict(replace(findings, unlisted=None))
    return {
        name: _plain(value) for name, value in named.items() if value not in (None, (), False, 0, {}, frozenset())
    }


def _is_usual(record: Struct, name: str, value: Any) -> bool:
    """Check for the state of nearly every process and board, which expected.json leaves out."""
    if isinstance(record, Share):
        return name == "limit_throttles" and value is False
    return isinstance(record, Process | TegraReading | DrmClient) and name in USUAL and value == USUAL[name]


USUAL = {"visible": True, "orphan": False, "note": None, "script": None, "rank": None, "sign": "", "unread": ()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        if value and all(isinstance(part, Content) for part in value):
            return {part.kind: part.size_bytes for part in value}
        return [_plain(part) for part in value]
    if isinstance(value, Struct):
        return {name: _plain(part) for name, part in asdict(value).items() if not _is_usual(value, name, part)}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return value.value if hasattr(value, "value") else value
