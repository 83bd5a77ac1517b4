"""The machines and their right figures, as written in machines.json and machines/*/figures.json.

README.md describes the format. Nothing here depends on memwatchd.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
HERE = Path(__file__).parent
INDEX = HERE / "machines.json"


@dataclass(frozen=True)
class Other:
    """Another value of a figure, and the reason for it. `together_with`: only beside that figure of the tool."""

    value: float
    reason: str
    together_with: str | None = None


@dataclass(frozen=True)
class Figure:
    """Right value of a figure; None: not known on this machine, so that any number is wrong."""

    value: float | None
    unit: str
    tolerance: float
    reason: str
    source: str
    within: str | None = None
    also: tuple[Other, ...] = ()
    twice: tuple[Other, ...] = ()
    wrong: tuple[Other, ...] = ()


@dataclass(frozen=True)
class Machine:
    """One line of machines.json with the folder of its /proc and /sys, its driver's state and its figures."""

    name: str
    title: str
    kind: str
    unified: bool
    host: Path
    state: Path | None
    figures: Mapping[str, Figure] = field(default_factory=dict)


def read_index() -> Mapping[str, Mapping[str, Any]]:
    """Return the lines of machines.json. Raises ValueError for another version of the format."""
    return _checked(INDEX)["machines"]  # type: ignore[no-any-return]


def read_machine(name: str) -> Machine:
    """Return a machine. Raises KeyError for a name that is not in machines.json."""
    line = read_index()[name]
    folder = HERE / "machines" / name
    state = folder / "nvml.state"
    return Machine(
        name,
        line["title"],
        line["kind"],
        line["unified"],
        host_folder(name, line),
        state if state.exists() else None,
        {key: parse_figure(one) for key, one in _checked(folder / "figures.json")["figures"].items()},
    )


def host_folder(name: str, line: Mapping[str, Any]) -> Path:
    """Return the folder with proc and sys: that of the machine itself, or `host` below tests/machines."""
    own = HERE / "machines" / name
    return own if (own / "proc").is_dir() else HERE.parent / "machines" / line.get("host", name)


def parse_figure(written: Mapping[str, Any]) -> Figure:
    others = {key: tuple(Other(**one) for one in written.get(key, ())) for key in ("also", "twice", "wrong")}
    return Figure(**{**written, **others})


def _checked(file: Path) -> Any:
    found = json.loads(file.read_bytes())
    if found.get("format") != FORMAT:
        raise ValueError(f"{file}: format {found.get('format')} is not {FORMAT}; take the runner of that format")
    return found
