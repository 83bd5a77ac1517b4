"""What may be set, with defaults and bounds. Where it is set is the business of `sources`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, model_validator

from memwatch.alerts import AlertRules
from memwatch.pressure.rules import PressureRules, TargetRules, Thresholds
from memwatch_web.webhooks import Endpoint, Secret
from memwatchd.settings.secret import secret_from
from memwatchd.settings.section import Section
from memwatchd.settings.values import (
    Accepts,
    KeyPath,
    Refused,
    bytes_of,
    duration_of,
    folder_of,
    new_folder_of,
    program_of,
    resident_of,
    tuple_of,
)
from memwatchd.settings.web import Web, checked_endpoint

Duration = Annotated[timedelta, BeforeValidator(duration_of)]
Percent = Annotated[float, Field(gt=0, le=100)]
Folder = Annotated[Path, BeforeValidator(folder_of), Accepts("a folder that exists")]


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class State(Section):
    dir: Annotated[
        Path | None,
        BeforeValidator(new_folder_of),
        Accepts("the path of a folder", '"/var/lib/memwatchd"'),
    ] = None


class Sampling(Section):
    interval: Duration = Field(default=seconds(1), ge=seconds(0.1), le=seconds(60))
    procfs: Folder = Path("/proc")
    sysfs: Folder = Path("/sys")
    rootfs: Folder = Path("/")
    lock_memory: bool = True


class History(Section):
    length: Duration = Field(default=seconds(3600), ge=seconds(60), le=seconds(86_400))


class Target(Section):
    """What differs for one pool or share."""

    medium_percent: Percent | None = None
    high_percent: Percent | None = None
    critical_percent: Percent | None = None
    limit: Annotated[int | None, BeforeValidator(bytes_of), Accepts("a size", '"20GiB"')] = None
    resident: Annotated[
        int | Literal["auto"] | None,
        BeforeValidator(resident_of),
        Accepts('a size or "auto"', '"96GiB"'),
    ] = None


PERCENTS = ("medium_percent", "high_percent", "critical_percent")


class Pressure(Section):
    medium_percent: Percent = 60
    high_percent: Percent = 80
    critical_percent: Percent = 95
    clear_points: float = Field(default=3, ge=0, le=20)
    clear_after: Duration = Field(default=seconds(30), ge=seconds(0), le=seconds(3600))
    targets: dict[str, Target] = Field(default_factory=dict)

    def percents_of(self, target: str) -> tuple[float, ...]:
        """Where medium, high and critical begin for a target."""
        other = self.targets.get(target, Target())
        return tuple(getattr(self, name) if (own := getattr(other, name)) is None else own for name in PERCENTS)

    @property
    def rules(self) -> PressureRules:
        return PressureRules(
            Thresholds(*(percent / 100 for percent in self.percents_of(""))),
            {name: self._target_rules(name) for name in self.targets},
            self.clear_points / 100,
            self.clear_after.total_seconds(),
        )

    def _target_rules(self, name: str) -> TargetRules:
        percents = Thresholds(*(percent / 100 for percent in self.percents_of(name)))
        return TargetRules(percents, self.targets[name].limit, self.targets[name].resident)

    @model_validator(mode="after")
    def _refuse_disorder(self) -> Pressure:
        own: tuple[KeyPath, ...] = tuple((name,) for name in PERCENTS)
        refuse_disorder(self.percents_of(""), "", own)
        for target in self.targets:
            keys: tuple[KeyPath, ...] = tuple(("targets", target, name) for name in PERCENTS)
            refuse_disorder(self.percents_of(target), f" of {target}", keys + own)
        return self


def refuse_disorder(percents: tuple[float, ...], whose: str, keys: tuple[KeyPath, ...]) -> None:
    medium, high, critical = percents
    if not medium < high < critical:
        found = f"{medium:g}, {high:g}, {critical:g}"
        why = (
            f"percents{whose} must rise from medium to high to critical and are {found}; use for example 60, 80, 95"
        )
        raise Refused(why, keys)


class Processes(Section):
    top: int = Field(default=50, ge=1, le=1000)
    interval: Duration = Field(default=seconds(10), ge=seconds(1), le=seconds(300))
    metrics: bool = False


class Webhook(Section):
    name: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$"), Accepts("made of a to z, 0 to 9, - and _", '"operators"')
    ]
    url: Annotated[
        InstanceOf[Endpoint],
        BeforeValidator(checked_endpoint),
        PlainSerializer(str),
        Accepts("a URL", '"https://example.com/hook"', shown=False),
    ]
    secret: Annotated[
        InstanceOf[Secret],
        BeforeValidator(secret_from),
        PlainSerializer(str),
        Accepts(
            "file:/PATH, env:NAME, or whsec_ and the base64 of 24 to 64 bytes",
            '"file:/etc/memwatchd/webhook-secret"',
            shown=False,
        ),
    ]
    timeout: Duration = Field(default=seconds(15), ge=seconds(1), le=seconds(60))
    allow_link_local: bool = False


class Alerts(Section):
    pending_for: Duration = Field(default=seconds(5), ge=seconds(0), le=seconds(3600))
    gpu_pending_for: Duration = Field(default=seconds(60), ge=seconds(0), le=seconds(3600))
    resolve_after: Duration = Field(default=seconds(60), ge=seconds(0), le=seconds(86_400))
    webhooks: Annotated[
        tuple[Webhook, ...],
        BeforeValidator(tuple_of),
        Accepts("a list of tables, each beginning with [[alerts.webhooks]]", "[[alerts.webhooks]]", shown=False),
    ] = ()

    @property
    def rules(self) -> AlertRules:
        times = (self.pending_for, self.resolve_after, self.gpu_pending_for)
        return AlertRules(*(time.total_seconds() for time in times))

    @model_validator(mode="after")
    def _refuse_twins(self) -> Alerts:
        names = [webhook.name for webhook in self.webhooks]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Refused(
                    f'another webhook is named "{name}"; use a name of its own', (("webhooks", index, "name"),)
                )
        return self


class Collector(Section):
    enabled: bool = True


class CgroupCollector(Collector):
    scope: Literal["auto", "host", "cgroup"] = "auto"


class HelperCollector(Collector):
    restart_after: Duration = Field(default=seconds(60), ge=seconds(1), le=seconds(3600))


class TegraCollector(Collector):
    board: Literal["auto", "tegra210", "tegra186", "tegra194", "tegra234", "tegra264"] = "auto"


class TegrastatsCollector(Collector):
    path: Annotated[
        str, BeforeValidator(program_of), Accepts('"auto" or the path of a program', '"/usr/bin/tegrastats"')
    ] = "auto"
    interval: Duration = Field(default=seconds(1), ge=seconds(0.1), le=seconds(60))


class Collectors(Section):
    """One line for each line of the list in `memwatch.collectors`."""

    memory: Collector = Collector()
    psi: Collector = Collector()
    vmstat: Collector = Collector()
    buddyinfo: Collector = Collector()
    numa: Collector = Collector()
    zram: Collector = Collector()
    cgroup: CgroupCollector = CgroupCollector()
    machine: Collector = Collector()
    tegra: TegraCollector = TegraCollector()
    nvmap: Collector = Collector()
    tegrastats: TegrastatsCollector = TegrastatsCollector()
    nvml: HelperCollector = HelperCollector()
    amdgpu: Collector = Collector()
    amdgpu_sensors: Collector = Collector()
    amdsmi: HelperCollector = HelperCollector()
    amd_cli: Collector = Collector()
    drm: Collector = Collector()
    processes: Collector = Collector()
    psutil_host: Collector = Collector()
    psutil_processes: Collector = Collector()
    apple: Collector = Collector()


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Sections(Section):
    """Everything that a configuration file may hold."""

    web: Web = Web()
    state: State = State()
    sampling: Sampling = Sampling()
    history: History = History()
    pressure: Pressure = Pressure()
    processes: Processes = Processes()
    alerts: Alerts = Alerts()
    collectors: Collectors = Collectors()
    log: Log = Log()


class Settings(Sections):
    """The settings in force. `origins` says for each key that was set where it was; the others are defaults.

    `warnings` are for the log.
    """

    file: Path | None = None
    origins: Mapping[str, str] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
