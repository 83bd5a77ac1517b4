"""Sections and keys, with defaults and bounds. `load` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from msgspec import Struct, defstruct, field
from msgspec.structs import astuple, replace

from memwatch.core.collectors import load_collectors
from memwatch.core.collectors.base import BaseCollector
from memwatch.core.model import Thresholds
from memwatch.core.options import (
    Accepts,
    Bounds,
    Converter,
    Duration,
    InvalidValueError,
    KeyPath,
    Section,
    Size,
    SwitchableOptions,
    parse_size,
    seconds,
)
from memwatch.core.pressure.rules import PressureRules, TargetRules
from memwatch.core.processes.leaks import LeakRules
from memwatchd.settings.alerts import CHANNELS, Alerts, alerts_section
from memwatchd.settings.endpoints import (
    DiscoverySection,
    EngineServers,
    NeighbourSection,
    Otlp,
    parse_neighbours,
)
from memwatchd.settings.keys import (
    AT_START,
    MAX_VALUE_LENGTH,
    ON_RELOAD,
    ON_RELOAD_OF_MACHINE,
    parse_folder,
    parse_label_name,
    parse_label_value,
    parse_labels,
    parse_new_folder,
    parse_resident,
    refuse_equal_names,
)
from memwatchd.settings.web import Web

Demo = Literal["dgx-spark", "jetson-orin", "strix-halo", "gh200", "h100x8-mig", "rtx4090", "macbook"]
DEMOS = get_args(Demo)
Percent = Annotated[float, Bounds(0, 100, above=True)]
Folder = Annotated[Path, Converter(parse_folder), Accepts("an existing directory")]


class State(Section, frozen=True, kw_only=True):
    dir: Annotated[
        Path | None,
        Converter(parse_new_folder),
        Accepts("the path of a directory", '"/var/lib/memwatchd"'),
    ] = None


class Replay(Section, frozen=True, kw_only=True):
    """Data to show in place of this machine."""

    demo: Annotated[
        Demo | None,
        Accepts(f"one of {', '.join(DEMOS)}", '"dgx-spark"'),
    ] = None
    file: Annotated[Path | None, Converter(parse_new_folder), Accepts("the path of a file", '"box.memwatch"')] = (
        None
    )
    speed: Annotated[float, Bounds(0.1, 100)] = 1.0
    salvage: bool = False


class Recording(Section, frozen=True, kw_only=True):
    file: Annotated[Path | None, Converter(parse_new_folder), Accepts("the path of a file", '"box.memwatch"')] = (
        None
    )


class Sampling(Section, frozen=True, kw_only=True):
    interval: Annotated[Duration, Bounds(seconds(0.1), seconds(60)), ON_RELOAD_OF_MACHINE] = seconds(1)
    procfs: Annotated[Folder, AT_START] = Path("/proc")
    sysfs: Annotated[Folder, AT_START] = Path("/sys")
    rootfs: Annotated[Folder, AT_START] = Path("/")
    lock_memory: Annotated[bool, AT_START] = True


class History(Section, frozen=True, kw_only=True):
    length: Annotated[Duration, Bounds(seconds(60), seconds(86_400)), ON_RELOAD] = seconds(3600)
    medium_length: Annotated[Duration, Bounds(seconds(600), seconds(30 * 86_400)), ON_RELOAD] = seconds(86_400)
    coarse_length: Annotated[Duration, Bounds(seconds(3600), seconds(366 * 86_400)), ON_RELOAD] = seconds(
        30 * 86_400
    )
    disk_size: Annotated[Size, Converter(parse_size), Bounds(Size(4 << 20), Size(4 << 30)), AT_START] = Size(
        64 << 20
    )


class Target(Section, frozen=True, kw_only=True):
    """Overrides for one pool or share."""

    medium_percent: Percent | None = None
    high_percent: Percent | None = None
    critical_percent: Percent | None = None
    limit: Annotated[Size | None, Converter(parse_size), Accepts("a size", '"20GiB"')] = None
    resident: Annotated[
        Size | Literal["auto"] | None,
        Converter(parse_resident),
        Accepts('a size or "auto"', '"96GiB"'),
    ] = None
    min_available: Annotated[Size | None, Converter(parse_size), Accepts("a size", '"64GiB"')] = None


PERCENTS = ("medium_percent", "high_percent", "critical_percent")
MEDIUM, HIGH, CRITICAL = (round(100 * ratio, 1) for ratio in astuple(Thresholds()))


class Pressure(Section, frozen=True, kw_only=True):
    medium_percent: Percent = MEDIUM
    high_percent: Percent = HIGH
    critical_percent: Percent = CRITICAL
    clear_points: Annotated[float, Bounds(0, 20)] = 3
    clear_after: Annotated[Duration, Bounds(seconds(0), seconds(3600))] = seconds(30)
    targets: dict[str, Target] = field(default_factory=dict)

    def percents_for(self, target: str) -> tuple[float, ...]:
        """Return the medium, high and critical thresholds of a target, in percent."""
        other = self.targets.get(target, Target())
        return tuple(getattr(self, name) if (own := getattr(other, name)) is None else own for name in PERCENTS)

    @property
    def rules(self) -> PressureRules:
        return PressureRules(
            Thresholds(*(percent / 100 for percent in self.percents_for(""))),
            {name: self._target_rules(name) for name in self.targets},
            self.clear_points / 100,
            self.clear_after.total_seconds(),
        )

    @property
    def min_available_bytes(self) -> dict[str, int]:
        """`min_available` by target, for the targets that set it."""
        return {name: one.min_available for name, one in self.targets.items() if one.min_available is not None}

    def _target_rules(self, name: str) -> TargetRules:
        percents = Thresholds(*(percent / 100 for percent in self.percents_for(name)))
        return TargetRules(percents, self.targets[name].limit, self.targets[name].resident)

    def __post_init__(self) -> None:
        own: tuple[KeyPath, ...] = tuple((name,) for name in PERCENTS)
        refuse_disorder(self.percents_for(""), "", own)
        for target in self.targets:
            keys: tuple[KeyPath, ...] = tuple(("targets", target, name) for name in PERCENTS)
            refuse_disorder(self.percents_for(target), f" of {target}", keys + own)


def refuse_disorder(percents: tuple[float, ...], whose: str, keys: tuple[KeyPath, ...]) -> None:
    medium, high, critical = percents
    if not medium < high < critical:
        found = f"{medium:g}, {high:g}, {critical:g}"
        why = (
            f"thresholds{whose} must ascend from medium to high to critical but are {found}; "
            f"use for example {MEDIUM:g}, {HIGH:g}, {CRITICAL:g}"
        )
        raise InvalidValueError(why, keys)


class Processes(Section, frozen=True, kw_only=True):
    top: Annotated[int, Bounds(1, 1000), AT_START] = 50
    interval: Annotated[Duration, Bounds(seconds(1), seconds(300)), AT_START] = seconds(10)
    metrics: Annotated[bool, ON_RELOAD] = False
    owners: Annotated[int, Bounds(0, 50), ON_RELOAD] = 8
    command_lines: Annotated[bool, AT_START] = False
    leak_window: Annotated[Duration, Bounds(seconds(60), seconds(604_800)), ON_RELOAD] = seconds(3600)
    leak_least: Annotated[Size, Converter(parse_size), ON_RELOAD] = Size(64 << 20)

    @property
    def leak_rules(self) -> LeakRules:
        return LeakRules(self.leak_window.total_seconds(), self.leak_least)


class Collectors(Section, frozen=True, kw_only=True):
    """Base of the derived section with a table for each collector, by the collector's name."""

    @property
    def options(self) -> tuple[SwitchableOptions, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__)

    @property
    def disabled(self) -> frozenset[str]:
        return frozenset(name for name in self.__struct_fields__ if not getattr(self, name).enabled)


def collectors_section(kinds: Iterable[type[BaseCollector]]) -> Collectors:
    """Build the section of these collectors, with all defaults."""
    keys = [(kind.name, kind.options, kind.options()) for kind in kinds]
    section = defstruct("Collectors", keys, bases=(Collectors,), module=__name__, frozen=True, kw_only=True)
    return cast("Collectors", section())


LabelName = Annotated[str, Converter(parse_label_name)]
LabelValue = Annotated[
    str,
    Converter(parse_label_value),
    Accepts(f"a text of 1 to {MAX_VALUE_LENGTH} printable characters", '"west"'),
]


class Systemd(Section, frozen=True, kw_only=True):
    pressure_sockets: bool = False
    socket_dir: Annotated[Path, Converter(parse_new_folder), Accepts("the path of a directory")] = Path(
        "/run/memwatchd"
    )


class Log(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Sections(Section, frozen=True, kw_only=True):
    """All sections of a configuration file."""

    web: Web = Web()
    state: Annotated[State, AT_START] = State()
    replay: Annotated[Replay, AT_START] = Replay()
    recording: Annotated[Recording, AT_START] = Recording()
    sampling: Sampling = Sampling()
    history: History = History()
    pressure: Annotated[Pressure, ON_RELOAD] = Pressure()
    processes: Processes = Processes()
    alerts: Annotated[Alerts, ON_RELOAD] = alerts_section(CHANNELS)
    collectors: Annotated[Collectors, AT_START] = collectors_section(load_collectors())
    engines: Annotated[EngineServers, AT_START] = ()
    neighbours: Annotated[
        tuple[NeighbourSection, ...],
        Converter(parse_neighbours),
        Accepts("a list of tables, each beginning with [[neighbours]]", "[[neighbours]]", shown=False),
        ON_RELOAD,
    ] = ()
    discovery: DiscoverySection = DiscoverySection()
    labels: Annotated[dict[LabelName, LabelValue], Converter(parse_labels), ON_RELOAD] = field(default_factory=dict)
    otlp: Annotated[Otlp, AT_START] = Otlp()
    systemd: Annotated[Systemd, AT_START] = Systemd()
    log: Annotated[Log, ON_RELOAD] = Log()

    def __post_init__(self) -> None:
        refuse_equal_names({"engines": self.engines}, "model server")
        refuse_equal_names({"neighbours": self.neighbours}, "neighbour")


class Given(Struct, frozen=True):
    """A configuration as it was given: the file's path and text, and the variables that set a key.

    The text may contain secrets and is never shown.
    """

    file: str | None = None
    text: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Given({self.file!r})"


class Settings(Sections, frozen=True, kw_only=True):
    """Settings in force. `origins` has the origin of each key that is not a default.

    `warnings` are for the log. `problems` are sentences about settings that are not in force. `given`: what the
    file and the variables say. `is_as_given` is false if some of it was left out or replaced. `access_is_closed`:
    [web] is at fault, and only this machine has access. `lasting_problems`: those that a reload does not end.
    `receivers_off`: names of receivers that cannot be used. What is queued for them is kept.
    """

    file: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    lasting_problems: tuple[str, ...] = ()
    given: Given = Given()
    is_as_given: bool = True
    access_is_closed: bool = False
    receivers_off: tuple[str, ...] = ()

    def with_lasting(self, problems: Iterable[str]) -> Settings:
        """Add problems that last until the next start."""
        more = tuple(problems)
        if not more:
            return self
        return replace(self, problems=(*self.problems, *more), lasting_problems=(*self.lasting_problems, *more))
