"""Sections and keys, with defaults and bounds. `load` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from msgspec import Struct, defstruct, field
from msgspec.structs import asdict, astuple, replace

from memwatch.core.budget import KINDS, Kind, describe_share
from memwatch.core.collectors import load_collectors
from memwatch.core.collectors.base import BaseCollector, ScanOptions
from memwatch.core.doc import Doc
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
    duration_text,
    parse_duration,
    parse_size,
    seconds,
)
from memwatch.core.pressure.rules import PressureRules, TargetRules
from memwatch.core.processes.growth import LeakRules
from memwatch_monitor.history.tiers import TIER_SPECS
from memwatchd.settings.alerts import CHANNELS, Alerts, alerts_section
from memwatchd.settings.endpoints import (
    DiscoverySection,
    EngineServers,
    NeighbourSection,
    Otlp,
    parse_neighbours,
)
from memwatchd.settings.guardian import GuardianSection
from memwatchd.settings.keys import (
    AT_START,
    MAX_VALUE_LENGTH,
    ON_RELOAD,
    ON_RELOAD_OF_GUARDIAN,
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
# Every demo has its model loaded then, and 20 seconds later a program begins to leak.
DEMO_BEGINS = seconds(180)
# Defaults are those of the records that the settings become.
PRESSURE, LEAKS, SCAN, (FINE, MIDDLE, COARSE) = PressureRules(), LeakRules(), ScanOptions(), TIER_SPECS
Percent = Annotated[float, Bounds(0, 100, above=True)]
Folder = Annotated[Path, Converter(parse_folder), Accepts("an existing directory")]


class State(Section, frozen=True, kw_only=True):
    dir: Annotated[
        Path | None,
        Converter(parse_new_folder),
        Accepts("the path of a directory", '"/var/lib/memwatchd"'),
        Doc(
            "Directory for state that survives a restart (history, alerts, silences), created with mode 0700 "
            "if missing. Defaults to StateDirectory= of the unit. Without systemd it is not set, and state "
            "is kept in memory only."
        ),
    ] = None


class Replay(Section, frozen=True, kw_only=True):
    """Data to show in place of this machine."""

    demo: Annotated[
        Demo | None,
        Accepts(f"one of {', '.join(DEMOS)}", '"dgx-spark"'),
        Doc(f"A simulated machine: {', '.join(DEMOS)}."),
    ] = None
    file: Annotated[
        Path | None,
        Converter(parse_new_folder),
        Accepts("the path of a file", '"box.memwatch"'),
        Doc("A recording, played in a loop if no demo is set."),
    ] = None
    at: Annotated[
        timedelta | None,
        Converter(parse_duration),
        Bounds(seconds(0), seconds(86400)),
        Accepts("a duration from 0s to 24h", '"3m"'),
        Doc(
            "Where the demo or recording begins, as a time since its start. Defaults to 0s for a recording, and to "
            f"{duration_text(DEMO_BEGINS)} for a demo: shortly before its memory fills up."
        ),
    ] = None
    speed: Annotated[float, Bounds(0.1, 100), Doc("Playback speed, {bounds}.")] = 1.0
    salvage: Annotated[bool, Doc("Play the readable part of a damaged recording. Otherwise it is rejected.")] = (
        False
    )


class Recording(Section, frozen=True, kw_only=True):
    file: Annotated[
        Path | None,
        Converter(parse_new_folder),
        Accepts("the path of a file", '"box.memwatch"'),
        Doc("File to record to, for replay. Appends to an existing recording."),
    ] = None


class Sampling(Section, frozen=True, kw_only=True):
    interval: Annotated[
        Duration, Bounds(seconds(0.1), seconds(60)), ON_RELOAD_OF_MACHINE, Doc("Sampling interval, {bounds}.")
    ] = seconds(1)
    procfs: Annotated[
        Folder,
        AT_START,
        Doc("The host's /proc. Set it, sysfs and rootfs in a container that mounts these elsewhere."),
    ] = Path("/proc")
    sysfs: Annotated[Folder, AT_START, Doc("The host's /sys.")] = Path("/sys")
    rootfs: Annotated[Folder, AT_START, Doc("The host's root directory.")] = Path("/")
    lock_memory: Annotated[
        bool,
        AT_START,
        Doc("Lock memwatchd's pages in memory where permitted, so that it responds while the machine swaps."),
    ] = True


class History(Section, frozen=True, kw_only=True):
    length: Annotated[
        Duration,
        Bounds(seconds(60), seconds(86_400)),
        ON_RELOAD,
        Doc(
            "Retention at full resolution, {bounds}. A value takes 10 bytes: 100 series for an hour at one "
            "sample per second take 3.6 MB."
        ),
    ] = seconds(FINE.seconds)
    medium_length: Annotated[
        Duration,
        Bounds(seconds(600), seconds(30 * 86_400)),
        ON_RELOAD,
        Doc("Retention at 10 s resolution, with minimum, mean and maximum, {bounds}."),
    ] = seconds(MIDDLE.seconds)
    coarse_length: Annotated[
        Duration,
        Bounds(seconds(3600), seconds(366 * 86_400)),
        ON_RELOAD,
        Doc("Retention at 5 min resolution, {bounds}."),
    ] = seconds(COARSE.seconds)
    disk_size: Annotated[
        Size,
        Converter(parse_size),
        Bounds(Size(4 << 20), Size(4 << 30)),
        AT_START,
        Doc("Disk space of the history in the state directory, allocated at start, {bounds}."),
    ] = Size(64 << 20)


PERCENTS = ("medium_percent", "high_percent", "critical_percent")
MEDIUM, HIGH, CRITICAL = (round(100 * ratio, 1) for ratio in astuple(PRESSURE.thresholds))


class Target(Section, frozen=True, kw_only=True):
    """Overrides for one pool or share."""

    medium_percent: Annotated[Percent | None, Doc(examples=(MEDIUM,))] = None
    high_percent: Annotated[Percent | None, Doc(examples=(HIGH,))] = None
    critical_percent: Annotated[Percent | None, Doc(examples=(CRITICAL,))] = None
    limit: Annotated[
        Size | None,
        Converter(parse_size),
        Accepts("a size", '"20GiB"'),
        Doc("Budget: compute pressure as if it were only this large. For a pool or any share."),
    ] = None
    resident: Annotated[
        Size | Literal["auto"] | None,
        Converter(parse_resident),
        Accepts('a size or "auto"', '"96GiB"'),
        Doc(
            "Resident memory, such as the model that a machine always serves. Levels are computed without "
            'it. A size, or "auto" for the minimum used in the last 10 minutes.'
        ),
    ] = None
    min_available: Annotated[
        Size | None,
        Converter(parse_size),
        Accepts("a size", '"64GiB"'),
        Doc(
            "Send no notification while this much is available and usage is the only reason for the level; "
            "the level itself does not change. For machines where a few percent is plenty."
        ),
    ] = None


class Pressure(Section, frozen=True, kw_only=True):
    medium_percent: Annotated[
        Percent,
        Doc(
            "Thresholds: percentage of a pool or limited share that is used. OK below medium_percent, "
            "critical above critical_percent. They must be in ascending order."
        ),
    ] = MEDIUM
    high_percent: Percent = HIGH
    critical_percent: Percent = CRITICAL
    clear_points: Annotated[
        float,
        Bounds(0, 20),
        Doc("A level clears only after usage has been this many percentage points below its threshold, {bounds} …"),
    ] = round(100 * PRESSURE.clear_margin, 1)
    clear_after: Annotated[Duration, Bounds(seconds(0), seconds(3600)), Doc("… for this long, {bounds}.")] = (
        seconds(PRESSURE.clear_after_seconds)
    )
    targets: Annotated[
        dict[str, Target],
        Doc(
            "Overrides for one pool or share, by its id in /api/v1/snapshot. Every key is optional. Ids with "
            'a dot go in quotes: [pressure.targets."gpu0.gtt"].',
            ("ram",),
        ),
    ] = field(default_factory=dict)

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
    top: Annotated[int, Bounds(1, 1000), AT_START, Doc("Number of processes to show, largest first, {bounds}.")] = (
        SCAN.top
    )
    interval: Annotated[
        Duration, Bounds(seconds(1), seconds(300)), AT_START, Doc("Interval between process scans, {bounds}.")
    ] = seconds(SCAN.period_seconds)
    metrics: Annotated[
        bool,
        ON_RELOAD,
        Doc("Export the memory of each of them (memwatch_process_*_bytes) in /metrics: many short-lived series."),
    ] = False
    owners: Annotated[
        int,
        Bounds(0, 50),
        ON_RELOAD,
        Doc(
            "Number of owners of each kind (unit, container, pod, job, user) with separate series in "
            "/metrics, the largest first, {bounds}; 0 exports none. The others are one series."
        ),
    ] = 8
    command_lines: Annotated[
        bool,
        AT_START,
        Doc(
            "Read the command lines of shown processes, 256 characters each. Values that look like passwords "
            "and tokens are replaced by ***. They are never in /metrics, nor at an open network address."
        ),
    ] = False
    leak_window: Annotated[
        Duration,
        Bounds(seconds(60), seconds(604_800)),
        ON_RELOAD,
        Doc("A process that grew steadily for this long is a suspected leak, {bounds}, …"),
    ] = seconds(LEAKS.window_seconds)
    leak_least: Annotated[
        Size,
        Converter(parse_size),
        ON_RELOAD,
        Doc(
            "… if it grew by at least this much, and by 10% of its size. Creates an event and a hint on the "
            "page, not an alert."
        ),
    ] = Size(LEAKS.min_bytes)

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
    keys = [(kind.name, Annotated[kind.options, Doc(kind.about)], kind.options()) for kind in kinds]
    section = defstruct("Collectors", keys, bases=(Collectors,), module=__name__, frozen=True, kw_only=True)
    return cast("Collectors", section())


LabelName = Annotated[str, Converter(parse_label_name)]
LabelValue = Annotated[
    str,
    Converter(parse_label_value),
    Accepts(f"a text of 1 to {MAX_VALUE_LENGTH} printable characters", '"west"'),
]


class Budgets(Section, frozen=True, kw_only=True):
    """Base of the derived section with the maximum of each kind, by its name."""

    @property
    def limits(self) -> dict[str, int]:
        return asdict(self)


def budgets_section(kinds: Iterable[Kind]) -> Budgets:
    """Build the section of these kinds, with all defaults."""
    keys = [
        (
            one.name,
            Annotated[
                int,
                Bounds(4, 10_000),
                Doc(f"Maximum number of {one.about}, {{bounds}}; of one account {describe_share(one)}."),
            ],
            one.most,
        )
        for one in kinds
    ]
    section = defstruct("Budgets", keys, bases=(Budgets,), module=__name__, frozen=True, kw_only=True)
    return cast("Budgets", section())


class Systemd(Section, frozen=True, kw_only=True):
    pressure_sockets: Annotated[
        bool,
        Doc(
            "Serve systemd's memory pressure protocol: sockets for $MEMORY_PRESSURE_WATCH of other units, "
            "such as pressure-ram-high.sock. Any local user can connect. Not with replay."
        ),
    ] = False
    socket_dir: Annotated[
        Path,
        Converter(parse_new_folder),
        Accepts("the path of a directory"),
        Doc("Directory of these sockets, which must exist. Defaults to RuntimeDirectory= of the unit."),
    ] = Path("/run/memwatchd")


class Log(Section, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Doc('Least important messages to log: "debug", "info", "warning" or "error".'),
    ] = "info"


class Sections(Section, frozen=True, kw_only=True):
    """All sections of a configuration file."""

    web: Web = Web()
    state: Annotated[State, AT_START] = State()
    replay: Annotated[
        Replay,
        AT_START,
        Doc(
            "Data to show in place of this machine. All output is marked as simulated; no webhooks are sent, "
            "and no history is written."
        ),
    ] = Replay()
    recording: Annotated[Recording, AT_START] = Recording()
    sampling: Sampling = Sampling()
    history: History = History()
    pressure: Annotated[Pressure, ON_RELOAD] = Pressure()
    processes: Processes = Processes()
    alerts: Annotated[Alerts, ON_RELOAD] = alerts_section(CHANNELS)
    collectors: Annotated[
        Collectors,
        AT_START,
        Doc(
            "Where figures come from. A collector that this machine has no use for switches itself off; set "
            "enabled = false to do without one that works. The psutil ones are for systems other than Linux."
        ),
    ] = collectors_section(load_collectors())
    engines: Annotated[
        EngineServers,
        AT_START,
        Doc(
            "Model servers to ask that are not found: in a container's network, on another machine, or with "
            "an API key. Repeat the table for each; none by default."
        ),
    ] = ()
    neighbours: Annotated[
        tuple[NeighbourSection, ...],
        Converter(parse_neighbours),
        Accepts("a list of tables, each beginning with [[neighbours]]", "[[neighbours]]", shown=False),
        ON_RELOAD,
        Doc(
            "Other machines to follow, 30 at most: the page /machines, and the event neighbour.silent. "
            "Repeat the table for each; none by default."
        ),
    ] = ()
    discovery: Annotated[
        DiscoverySection,
        AT_START,
        Doc(
            "Announce this memwatchd in the local network by mDNS (_memwatch._tcp), if it listens on more "
            "than loopback, and show others on /machines as found, not joined. Needs the extra mdns. "
            "Announced names are not verified."
        ),
    ] = DiscoverySection()
    labels: Annotated[
        dict[LabelName, LabelValue],
        Converter(parse_labels),
        ON_RELOAD,
        Doc(
            "Labels of one's own, 16 at most, in notifications. Names are those of Prometheus; alertname, "
            "instance, job, severity and the like are reserved. Give Prometheus's targets the same labels.",
            ("cluster", '"west"'),
        ),
    ] = field(default_factory=dict)
    otlp: Annotated[
        Otlp,
        AT_START,
        Doc(
            "Metrics pushed over OTLP/HTTP to an OpenTelemetry Collector or a store, beside those of "
            "/metrics. Off without an endpoint. Needs the extra otel: pip install 'memwatchd[otel]'."
        ),
    ] = Otlp()
    systemd: Annotated[Systemd, AT_START] = Systemd()
    guardian: Annotated[
        GuardianSection,
        ON_RELOAD_OF_GUARDIAN,
        Doc(
            "Of memwatchd-guardian.service, a separate program that is off by default: it ends a process before "
            "the machine stops responding. The daemon does not use this section. Apply changes of it with "
            "systemctl reload memwatchd-guardian."
        ),
    ] = GuardianSection()
    log: Annotated[Log, ON_RELOAD] = Log()
    budgets: Annotated[
        Budgets,
        ON_RELOAD,
        Doc(
            "Shares of accounts: a user with the subordinate ids of /etc/subuid, a container with a user "
            "namespace, or a network address. A quarter of each number is kept for services and operators, and "
            "root is never refused. Event streams have max_streams under [web]."
        ),
    ] = budgets_section(KINDS.values())

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
