"""Settings from the environment: MEMWATCHD_<FLAG> and MEMWATCHD_<SECTION>_<KEY>. Unknown names are errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import get_args, get_origin

from msgspec import Struct

from memwatch.core.options import Section
from memwatchd.settings.messages import Problem, closest, name_text
from memwatchd.settings.schema import Sections
from memwatchd.settings.section import Key, is_section, section_keys, unwrap
from memwatchd.settings.values import from_text

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
    "speed": ("replay", "speed"),
    "salvage": ("replay", "salvage"),
    "record": ("recording", "file"),
    "procfs": ("sampling", "procfs"),
    "sysfs": ("sampling", "sysfs"),
    "rootfs": ("sampling", "rootfs"),
    "log_level": ("log", "level"),
}

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
    known = variables()
    found: dict[tuple[str, ...], EnvironmentValue] = {}
    problems = []
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
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
