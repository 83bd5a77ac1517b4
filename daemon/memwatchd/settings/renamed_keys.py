"""Keys of earlier versions: their successor is used, or they are ignored. A warning names each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memwatch.core.options import KeyPath
from memwatchd.settings.environment import PREFIX
from memwatchd.settings.toml import TomlFile, find_line

# Names until 25 November 2026. The files shipped before had a table for each collector.
RENAMED: Mapping[tuple[str, ...], tuple[str, ...] | None] = {
    ("collectors", "memory"): ("collectors", "meminfo"),
    ("collectors", "squeezed"): ("collectors", "cgroup_pressure"),
    ("web", "patterns"): None,  # a page for developers, until 28 November 2026
}


def use_successors(file: Path, toml: TomlFile) -> tuple[TomlFile, list[str]]:
    """Return the file with the keys of now, and a warning for each that had another name."""
    lines: dict[KeyPath, int] = dict(toml.lines)
    warnings = []
    for old, new in RENAMED.items():
        found = take(toml.values, old)
        if found is None:
            continue
        line = find_line(toml.lines, old)
        warnings.append(f"{file}{f' line {line}' if line else ''}: {describe(old, new)}")
        if new is None:
            continue
        add(toml.values, new, found)
        for path, number in toml.lines.items():
            if path[: len(old)] == old:
                lines.setdefault((*new, *path[len(old) :]), number)
    return TomlFile(toml.values, lines, toml.public, toml.text), warnings


def use_successors_of_variables(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables with the names of now, and a warning for each that had another one."""
    found = dict(environ)
    warnings = []
    for old, new in RENAMED.items():
        variable = f"{PREFIX}{'_'.join(old).upper()}"
        if new is None:
            if found.pop(variable, None) is not None:
                warnings.append(f"{variable} is gone; remove it")
            continue
        before, now = f"{variable}_", f"{PREFIX}{'_'.join(new).upper()}_"
        for name in sorted(name for name in environ if name.startswith(before)):
            successor = now + name.removeprefix(before)
            found.setdefault(successor, found.pop(name))
            warnings.append(f"{name} is now {successor}; rename it")
    return found, warnings


def describe(old: tuple[str, ...], new: tuple[str, ...] | None) -> str:
    if new is None:
        return f"{'.'.join(old)} is gone; remove it"
    return f"{'.'.join(old)} is now {'.'.join(new)}; rename it"


def take(values: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401  nested tables
    """Remove a key, and return its value. None if it is not there."""
    for name in path[:-1]:
        values = values.get(name) if isinstance(values, dict) else None
    return values.pop(path[-1], None) if isinstance(values, dict) else None


def add(values: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    """Put a value. What is there already wins; of two tables, each key that is there."""
    for name in path[:-1]:
        values = values[name]  # `take` found the table
    there = values.setdefault(path[-1], value)
    if there is not value and isinstance(there, dict) and isinstance(value, dict):
        values[path[-1]] = {**value, **there}
