"""Load settings. Precedence: flags, environment, file, defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from msgspec import Struct, field

from memwatch.core.options import KeyPath
from memwatch.core.runtime.daemon_address import SOCKET_NAME
from memwatchd.settings.diff import flat
from memwatchd.settings.environment import CONFIG, FLAGS, SYSTEMD_RUNTIME, SYSTEMD_STATE, read_environment
from memwatchd.settings.last_good import Given
from memwatchd.settings.messages import Problem, ValueOrigin, describe_mistake, dotted
from memwatchd.settings.renamed_keys import use_successors, use_successors_of_variables
from memwatchd.settings.schema import Sections, Settings
from memwatchd.settings.secrets_source import SecretContext
from memwatchd.settings.section import ContextConverter, is_section, section_keys, unwrap
from memwatchd.settings.toml import ConfigFileError, TomlFile, find_line, parse_toml, read_toml
from memwatchd.settings.validation import Checker
from memwatchd.settings.web import Web

DEFAULT_FILE = Path("/etc/memwatchd/memwatchd.toml")
MAX_PROBLEMS = 25
SOCKET_DIR = ("systemd", "socket_dir")


class SettingsError(Exception):
    """Invalid settings. `problems` has a sentence for each reason, MAX_PROBLEMS at most.

    `usage` is true if all problems are on the command line.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = [problem.text for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            self.problems.append(f"{len(problems) - MAX_PROBLEMS} more problems are not shown")
        self.usage = all(problem.from_flag for problem in problems)
        super().__init__("; ".join(self.problems))


class MergedInput(Struct):
    """Merged values from all sources, with their origins."""

    file: Path | None
    toml: TomlFile
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, ValueOrigin] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def put(self, path: tuple[str, ...], value: object, place: ValueOrigin) -> None:
        """Override a key. A section that is not a table is left as it is; validation rejects it later."""
        section: object = self.values
        for name in path[:-1]:
            section = section.setdefault(name, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section[path[-1]] = value
            self.places[path] = place

    def find(self, path: KeyPath) -> ValueOrigin | None:
        """Return the origin of a key or of the nearest table or list around it, or None if it is not set."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        if self.file is None or not is_in(self.toml.values, path):
            return None
        line = find_line(self.toml.lines, path)
        return ValueOrigin(f"{self.file}{f' line {line}' if line else ''}", dotted(path))


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    default_file: Path = DEFAULT_FILE,
    had_file: bool = False,
) -> Settings:
    """Return the settings in force. Raises SettingsError with all problems.

    `flags` has the values of the command line: `config` and the names in FLAGS. None means not given. `had_file`: a
    default file that is missing was there before. Its login and its receivers must not vanish with it.
    """
    problems: list[Problem] = []
    merged = merge(flags, environ, default_file, problems, had_file=had_file)
    context = SecretContext(environ, str(merged.file) if merged.toml.public else None)
    sections = validate(merged, context, problems)
    if problems:
        raise SettingsError(problems)
    return build_settings(sections, merged, context)


def merge(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    default_file: Path,
    problems: list[Problem],
    given: MergedInput | None = None,
    had_file: bool = False,
) -> MergedInput:
    """Merge all sources. `given`: a file that is not read again."""
    merged = given or read_file(flags, environ, default_file, problems, had_file)
    environ, renamed = use_successors_of_variables(environ)
    merged.warnings += renamed
    found, mistakes = read_environment(environ, not_ours=secret_variables(merged.values))
    problems += mistakes
    systemd_state = environ.get(SYSTEMD_STATE, "").partition(":")[0]
    if systemd_state and not is_in(merged.values, FLAGS["state_dir"]):
        merged.put(FLAGS["state_dir"], systemd_state, ValueOrigin(SYSTEMD_STATE, from_variable=True))
    runtime_folder = environ.get(SYSTEMD_RUNTIME, "").partition(":")[0]
    # A folder that is not writable belongs to another unit, which has started this program.
    if runtime_folder and os.access(runtime_folder, os.W_OK):
        use_runtime_folder(merged, runtime_folder)
    for variable in found:
        merged.put(variable.path, variable.value, ValueOrigin(variable.variable, from_variable=True))
        merged.variables[variable.variable] = environ[variable.variable]
    for flag, path in FLAGS.items():
        if flags.get(flag) not in (None, ()):
            merged.put(path, flags[flag], ValueOrigin(f"--{flag.replace('_', '-')}", from_flag=True))
    return merged


def build_settings(sections: Sections, merged: MergedInput, context: SecretContext) -> Settings:
    """Add what is known about the origin of the sections."""
    return Settings(
        **{name: getattr(sections, name) for name in section_keys(Sections)},
        file=merged.file,
        origins=origins(sections, merged),
        warnings=(*merged.warnings, *context.warnings),
        given=Given(str(merged.file) if merged.file else None, merged.toml.text, merged.variables),
    )


def parse_given(given: Given) -> MergedInput:
    """Return a file that was kept. Raises ConfigFileError."""
    if given.file is None:
        return MergedInput(None, TomlFile())
    file = Path(given.file)
    return merge_file(file, parse_toml(file, given.text.encode()))


def merge_file(file: Path, toml: TomlFile) -> MergedInput:
    toml, warnings = use_successors(file, toml)
    return MergedInput(file, toml, toml.values, warnings=warnings)


def use_runtime_folder(merged: MergedInput, folder: str) -> None:
    """Put the socket files into the folder of the unit, unless the file says otherwise."""
    origin = ValueOrigin(SYSTEMD_RUNTIME, from_variable=True)
    if not is_in(merged.values, FLAGS["listen"]):
        merged.put(FLAGS["listen"], [*map(str, Web().listen), f"unix:{folder}/{SOCKET_NAME}"], origin)
    if not is_in(merged.values, SOCKET_DIR):
        merged.put(SOCKET_DIR, folder, origin)


def read_file(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    default_file: Path,
    problems: list[Problem],
    had_file: bool,
) -> MergedInput:
    """Read the configuration file. A named file must exist; the default file is optional unless it was there."""
    named = flags.get("config") or environ.get(CONFIG)
    file = Path(named) if named else default_file
    try:
        toml = read_toml(file)
    except ConfigFileError as bad:
        if named or not bad.missing:
            problems.append(Problem(str(bad)))
        elif had_file:
            problems.append(Problem(f"{bad}; for a start without settings, leave an empty file there"))
        return MergedInput(None, TomlFile())
    return merge_file(file, toml)


def validate(merged: MergedInput, context: SecretContext, problems: list[Problem]) -> Sections:
    checker = Checker(context)
    sections = checker.section(Sections, merged.values)
    problems += [describe_mistake(mistake, merged.find) for mistake in checker.mistakes]
    return sections or Sections()


def origins(sections: Sections, merged: MergedInput) -> dict[str, str]:
    """Return the origin of each setting that is not a default."""
    found = {}
    lists = sections.alerts.channels
    indexes = {one.name: index for name in lists for index, one in enumerate(getattr(sections.alerts, name))}
    engines = {one.name: index for index, one in enumerate(sections.engines)}
    neighbours = {one.name: index for index, one in enumerate(sections.neighbours)}
    for path, _ in flat(sections):
        at: KeyPath = path
        if path[0] == "alerts" and path[1] in lists and len(path) > 2:
            at = (*path[:2], indexes[path[2]], *path[3:])
        elif path[0] == "engines" and len(path) > 1:
            at = (path[0], engines[path[1]], *path[2:])
        elif path[0] == "neighbours" and len(path) > 1:
            at = (path[0], neighbours[path[1]], *path[2:])
        place = merged.find(at)
        if place is not None:
            found[".".join(path)] = place.origin
    return found


def secret_variables(values: object, kind: Any = Sections) -> frozenset[str]:  # noqa: ANN401  as a key is declared
    """Return the variables that secrets are read from. They may start with MEMWATCHD_ but are not settings."""
    if isinstance(values, list) and get_origin(kind) is tuple:
        inside = unwrap(get_args(kind)[0])[0]
        return frozenset().union(*(secret_variables(item, inside) for item in values))
    if not isinstance(values, dict) or not is_section(kind):
        return frozenset()
    found: set[str] = set()
    for name, key in section_keys(kind).items():
        value = values.get(name)
        is_secret = any(isinstance(extra, ContextConverter) for extra in key.extras)
        if is_secret and isinstance(value, str) and value.startswith("env:"):
            found.add(value.removeprefix("env:"))
        found |= secret_variables(value, key.kind)
    return frozenset(found)


def is_in(values: object, path: KeyPath) -> bool:
    """True if nested tables and lists have a value at this path."""
    for part in path:
        if isinstance(values, dict) and part in values:
            values = values[str(part)]
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            return False
    return True
