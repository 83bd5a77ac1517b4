"""Load settings. Precedence: flags, environment, file, defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from msgspec import Struct, field

from memwatch.core.linux.daemon_connection import SOCKET_NAME
from memwatch.core.options import KeyPath, Section
from memwatchd.settings.credentials import SecretContext
from memwatchd.settings.diff import located
from memwatchd.settings.keys import ContextConverter, Key, from_text, is_section, section_keys, unwrap
from memwatchd.settings.schema import Given, Sections, Settings
from memwatchd.settings.toml import ConfigFileError, TomlFile, find_line, parse_toml, read_toml
from memwatchd.settings.validation import (
    Checker,
    Problem,
    ValueOrigin,
    closest,
    describe_mistake,
    dotted,
    name_text,
)
from memwatchd.settings.web import Web

PREFIX = "MEMWATCHD_"
CONFIG = "MEMWATCHD_CONFIG"
# systemd sets them to StateDirectory= and RuntimeDirectory= of the unit; several are separated by colons
# (systemd.exec(5)).
SYSTEMD_STATE = "STATE_DIRECTORY"
SYSTEMD_RUNTIME = "RUNTIME_DIRECTORY"

# The key that each flag sets; in the flag's name, _ stands for -.
FLAGS: Mapping[str, tuple[str, str]] = {
    "listen": ("web", "listen"),
    "insecure": ("web", "insecure"),
    "interval": ("sampling", "interval"),
    "state_dir": ("state", "dir"),
    "demo": ("replay", "demo"),
    "replay": ("replay", "file"),
    "at": ("replay", "at"),
    "speed": ("replay", "speed"),
    "salvage": ("replay", "salvage"),
    "record": ("recording", "file"),
    "procfs": ("sampling", "procfs"),
    "sysfs": ("sampling", "sysfs"),
    "rootfs": ("sampling", "rootfs"),
    "log_level": ("log", "level"),
}


def flag_key(flag: str) -> Key:
    section, name = FLAGS[flag]
    return section_keys(section_keys(Sections)[section].kind)[name]


# Kubernetes sets variables for every service in every pod. A service named memwatchd adds
# MEMWATCHD_SERVICE_HOST, MEMWATCHD_PORT=tcp://… and the like. They are neither settings nor mistakes.
SERVICE_NAME = re.compile(r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)")
SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*")


class Setting(Struct, frozen=True):
    """A key with a single value, and the type to parse its text as."""

    path: tuple[str, ...]
    kind: object


class EnvironmentValue(Struct, frozen=True):
    """A key's value from a variable."""

    path: tuple[str, ...]
    value: object
    variable: str


def read_environment(
    environ: Mapping[str, str], not_ours: Collection[str] = ()
) -> tuple[list[EnvironmentValue], list[Problem]]:
    """Return the values that variables set, and the problems. An empty variable counts as not set."""
    given = sorted(name for name in environ if name.startswith(PREFIX))
    known = variables() if given else {}  # takes 5 ms, which a command without a daemon would wait for
    found: dict[tuple[str, ...], EnvironmentValue] = {}
    problems = []
    for name in given:
        value = environ[name]
        if name == CONFIG or name in not_ours or is_service_link(name, value):
            continue
        if name not in known:
            problems.append(
                Problem(f"{name_text(name)} is not a setting; {guess_variable(name, [*known, CONFIG])}")
            )
        elif value:
            setting = known[name]
            twin = found.get(setting.path)
            if twin:
                problems.append(Problem(f"{twin.variable} and {name} set the same key; remove one of them"))
            found[setting.path] = EnvironmentValue(setting.path, from_text(value, setting.kind), name)
    return list(found.values()), problems


def guess_variable(wrong: str, known: Collection[str]) -> str:
    """Suggest the closest name, compared without the common prefix."""
    rest = [name.removeprefix(PREFIX) for name in known]
    close = closest(wrong.removeprefix(PREFIX), rest)
    meant = PREFIX + close if close else "MEMWATCHD_<SECTION>_<KEY>, such as MEMWATCHD_SAMPLING_INTERVAL"
    return f"did you mean {meant}?"


def variables() -> dict[str, Setting]:
    """Return every variable that sets a key. MEMWATCHD_CONFIG is not among them."""
    settings = {setting.path: setting for setting in _settings_in(Sections, ())}
    names = {PREFIX + "_".join(path).upper(): setting for path, setting in settings.items()}
    return names | {PREFIX + flag.upper(): settings[path] for flag, path in FLAGS.items()}


def is_service_link(name: str, value: str) -> bool:
    rest = name.removeprefix(PREFIX)
    if SERVICE_NAME.fullmatch(rest):
        return True
    return rest.endswith("PORT") and SERVICE_ADDRESS.fullmatch(value) is not None


def _settings_in(section: type[Section], path: tuple[str, ...]) -> Iterator[Setting]:
    for name, key in section_keys(section).items():
        if is_section(key.kind):
            yield from _settings_in(key.kind, (*path, name))
        elif get_origin(key.kind) is not dict and not _holds_tables(key):
            yield Setting((*path, name), get_origin(key.kind) or key.kind)


def _holds_tables(key: Key) -> bool:
    """True for a list of tables, which a variable cannot express."""
    return any(is_section(unwrap(inner)[0]) for inner in get_args(key.kind))


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
    if merged.file is None and not merged.places:
        return {}
    found = ((path, merged.find(place)) for path, place, _ in located(sections))
    return {".".join(path): origin.origin for path, origin in found if origin is not None}


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
