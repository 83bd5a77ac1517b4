"""Alert rules: each evaluates a snapshot or matches events. And the collectors that read the target of an alert, as
some may have stopped. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.events import Event
from memwatch.core.guardian_report import ACTED, WOULD_HAVE_ACTED
from memwatch.core.model import RAM, STALLED, Absent, Device, Pool, PoolKind, find_own_limit, find_root
from memwatch.core.pressure.rules import FILLED_ON_PURPOSE
from memwatch.core.snapshot import CollectorState, CollectorStatus, Level, Pressure, Reason, Snapshot
from memwatch.core.units import size

Severity = Literal["critical", "warning", "info"]

URGENT = frozenset({"floor", "oom_kill", "livelock"})
URGENT_SECONDS = 15.0
CRITICAL = "pressure.critical"
COLLECTOR_FAILED = "collector.failed"
NEIGHBOUR_SILENT = "neighbour.silent"
# The rule about kills, its kind of event, and the target of kills at limits of cgroups and of unknown scope.
KILLS, OOM_KILL, KERNEL = "kernel.oom_kill", "oom_kill", "kernel"
# Target of what memwatch-guardian did.
GUARDIAN = "guardian"
# The limit of a cgroup is read at least once in this time.
LIMIT_SECONDS = 3.0
# Receivers that list no events get these.
DEFAULT_EVENTS = (CRITICAL, COLLECTOR_FAILED, ACTED)
# Signal of the reason why an alert ended although its level has not changed.
ENOUGH = "available"
# Without readings for this time while memory was high, nothing would report that it is full.
FAILED_SECONDS = 30.0


class AlertRules(Struct, frozen=True):
    """Enabled rules and their times.

    `pending_seconds`: a condition must hold for that time before its alert fires. `gpu_pending_seconds`
    replaces it for dedicated GPU memory, which model servers fill on purpose, unless it will be full sooner.
    Other urgent conditions (`URGENT`, or full within `URGENT_SECONDS`) fire at once. `resolve_seconds`: a
    condition must be clear for that time before its alert resolves. An alert also fires for at least
    `keep_firing_seconds`. While it fires, it is notified again every `repeat_seconds` (0: never). If it fires
    again after it resolved, it waits until `again_seconds` after its last notification. `min_available_bytes`:
    while a target has that many bytes available, its level raises no alert if usage is the only reason for it;
    4 % of 2 TiB are 80 GiB.
    """

    pending_seconds: float = 5.0
    resolve_seconds: float = 60.0
    gpu_pending_seconds: float = 60.0
    keep_firing_seconds: float = 120.0
    repeat_seconds: float = 14_400.0
    again_seconds: float = 300.0
    collector_pending_seconds: float = 60.0
    forecast_seconds: float = 300.0
    events: frozenset[str] = frozenset(DEFAULT_EVENTS)
    min_available_bytes: Mapping[str, int] = field(default_factory=dict)

    def pending_for(self, verdict: Pressure) -> float:
        if verdict.kind in FILLED_ON_PURPOSE:
            return self.gpu_pending_for(verdict.seconds_to_full)
        return 0.0 if is_urgent(verdict) else self.pending_seconds

    def gpu_pending_for(self, seconds_to_full: float | Absent) -> float:
        """Return the pending time of dedicated GPU memory that will be full in some seconds.

        A load that stops below the edge ends its forecast within `pending_seconds`.
        """
        early = not isinstance(seconds_to_full, Absent) and seconds_to_full < self.gpu_pending_seconds
        return min(self.pending_seconds, self.gpu_pending_seconds) if early else self.gpu_pending_seconds

    def describe_enough(self, verdict: Pressure) -> tuple[Reason, ...]:
        """Return the reason why a level that only usage supports is no alert; empty if it is one."""
        enough, available = self.min_available_bytes.get(verdict.target), verdict.available_bytes
        if enough is None or verdict.corroborated or isinstance(available, Absent) or available < enough:
            return ()
        return (Reason(ENOUGH, f"{size(available)} available, at least {size(enough)} (min_available)"),)


class Condition(Struct, frozen=True):
    """Result of one rule for one target. `fact`: a one-off event that never resolves.

    `source`: the first word of the source of a true condition's figures. `kept`: the level to remember for a rule
    without levels. `least`: the condition counts only if the remembered level is not lower. `unseen`: it is the
    last known one, of a target without a reading now.
    """

    rule: str
    target: str
    true: bool
    pending_seconds: float = 0.0
    urgent: bool = False
    level: Level | None = None
    reasons: tuple[Reason, ...] = ()
    fact: bool = False
    source: str = ""
    kept: Level | None = None
    least: Level = Level.LOW
    unseen: bool = False


Evaluate = Callable[[str, Snapshot, Sequence[Event], AlertRules], Iterator[Condition]]


class Rule(Struct, frozen=True):
    """An alert rule: its name for subscriptions, its severity and text, and the function that evaluates it.

    `alert`: its name in Alertmanager. `runbook`: the section of the runbooks, by default the one of that name.
    `was`: its condition in the words of "critical before nvml stopped answering", "" without a source that can
    stop. `fact`: its alerts are one-off events.
    """

    name: str
    severity: Severity
    words: str
    evaluate: Evaluate
    alert: str
    runbook: str = ""
    was: str = ""
    fact: bool = False


def evaluate_rules(snapshot: Snapshot, events: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    """Evaluate the enabled rules. A target without data has no condition: its alert neither fires nor resolves."""
    for rule in RULES:
        if rule.name in rules.events:
            yield from rule.evaluate(rule.name, snapshot, events, rules)


def is_urgent(verdict: Pressure) -> bool:
    full = verdict.seconds_to_full
    if not isinstance(full, Absent) and full < URGENT_SECONDS:
        return True
    return bool(verdict.reasons) and any(reason.signal in URGENT for reason in verdict.reasons)


def evaluate_level(level: Level) -> Evaluate:
    def evaluate(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
        for one in snapshot.pressure:
            urgent = is_urgent(one) and one.kind not in FILLED_ON_PURPOSE
            enough = rules.describe_enough(one) if one.level >= level else ()
            true = one.level >= level and not enough
            source = source_of(one.target, snapshot) if true else ""
            wait, reasons = rules.pending_for(one), (*enough, *one.reasons)
            yield Condition(name, one.target, true, wait, urgent, one.level, reasons, source=source)

    return evaluate


def evaluate_forecast(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    for one in snapshot.pressure:
        seconds = one.seconds_to_full
        true = not isinstance(seconds, Absent) and seconds < rules.forecast_seconds
        source = source_of(one.target, snapshot) if true else ""
        wait, urgent = rules.pending_for(one), is_urgent(one)
        yield Condition(name, one.target, true, wait, urgent, one.level, one.reasons, source=source)


def evaluate_collectors(
    name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules
) -> Iterator[Condition]:
    for status in snapshot.collectors:
        if status.state == "ok" or status.state in STOPPED:
            why = (Reason(status.state, f"{status.name} is {status.state}: {status.error}"),)
            wait = rules.collector_pending_seconds
            yield Condition(name, status.name, status.state != "ok", wait, reasons=why)


def evaluate_failed(name: str, snapshot: Snapshot, _: Sequence[Event], __: AlertRules) -> Iterator[Condition]:
    """Remember the level of the memory that each collector reads, for the time when it reads none."""
    high = high_levels_by_collector(snapshot)
    for status in snapshot.collectors:
        if status.name not in OF_MEMORY:
            continue
        if status.state == "ok":
            yield Condition(name, status.name, False, kept=high.get(status.name, Level.LOW))
        elif status.state in NOT_ANSWERING:
            why = (Reason(status.state, f"memory was high before {describe_failure(status)}"),)
            yield Condition(
                name, status.name, True, FAILED_SECONDS, reasons=why, source=status.name, least=Level.HIGH
            )


def describe_failure(status: CollectorStatus) -> str:
    if status.state == "starting":
        return f"{status.name} stopped answering; it has not since memwatchd started"
    return f"{status.name} stopped answering: {status.error}"


def evaluate_devices(name: str, snapshot: Snapshot, _: Sequence[Event], rules: AlertRules) -> Iterator[Condition]:
    """Skip a stalled GPU (driver released, or failing collector): its alert neither fires nor resolves."""
    for device in snapshot.devices:
        if device.state == STALLED:
            continue
        why = (Reason("state", f"{device.name} is {device.state.replace('_', ' ')}"),)
        lost, source = device.state != "ok", source_of_device(device)
        yield Condition(name, device.id, lost, rules.pending_seconds, reasons=why, source=source)


def evaluate_engines(name: str, snapshot: Snapshot, _: Sequence[Event], __: AlertRules) -> Iterator[Condition]:
    """Skip an engine that does not report waiting requests and the use of its cache."""
    for engine in snapshot.engines:
        full = is_cache_full(engine)
        if not isinstance(full, Absent):
            why = (Reason("kv_full", describe_full_cache(engine, snapshot)),)
            yield Condition(name, engine.id, full, KV_PENDING_SECONDS, reasons=why, source="engines")


KV_FULL_RATIO = 0.95
# A pool with this part available has room for a larger cache.
KV_ROOM_RATIO = 0.15
KV_PENDING_SECONDS = 30.0
# Options that raise the size of the cache, and that lower its use.
RAISE_KV = {
    "vllm": "--gpu-memory-utilization",
    "sglang": "--mem-fraction-static",
    "llama.cpp": "-c",
    "ollama": "OLLAMA_CONTEXT_LENGTH",
    "tensorrt-llm": "--kv_cache_free_gpu_memory_fraction",
}
LOWER_KV = {
    "vllm": "--max-num-seqs or --max-model-len",
    "sglang": "--max-running-requests or --context-length",
    "llama.cpp": "-np",
    "ollama": "OLLAMA_NUM_PARALLEL",
    "tensorrt-llm": "--max_batch_size",
}


def is_cache_full(engine: Engine) -> bool | Absent:
    """Return True while requests wait and the cache is full. Absent if the engine does not report both."""
    waiting, ratio = engine.requests_waiting, engine.kv_cache_ratio
    if isinstance(waiting, Absent) or isinstance(ratio, Absent):
        return waiting if isinstance(waiting, Absent) else Absent.NOT_AVAILABLE
    return waiting > 0 and ratio >= KV_FULL_RATIO


def describe_full_cache(engine: Engine, snapshot: Snapshot) -> str:
    """Return what is wrong, and what to change: by whether the pool of the engine has memory left."""
    waiting, ratio = engine.requests_waiting, engine.kv_cache_ratio
    used = f"{ratio:.0%}" if isinstance(ratio, float) else "nearly"
    of = f" of {size(engine.kv_cache_bytes)}" if isinstance(engine.kv_cache_bytes, int) else ""
    problem = f"{engine.id}: {waiting} requests wait, and its KV cache{of} is {used} full"
    pool = find_engine_pool(engine, snapshot)
    if pool is None or isinstance(pool.available_bytes, Absent):
        return problem
    left = f"{pool.label} has {size(pool.available_bytes)} available"
    if pool.available_bytes >= KV_ROOM_RATIO * pool.size_bytes:
        return f"{problem}; {left}: raise {RAISE_KV.get(engine.kind, 'the size of its cache')}"
    return f"{problem}; {left} only: lower {LOWER_KV.get(engine.kind, 'the number of its requests at once')}"


def find_engine_pool(engine: Engine, snapshot: Snapshot) -> Pool | None:
    """Return the pool in which an engine holds most device memory; System RAM for one that holds none."""
    within = {share.id: share.within for share in snapshot.shares}
    held = {place: figure for place, figure in engine.held_bytes.items() if isinstance(figure, int)}
    place = find_root(max(held, key=lambda one: held[one], default=RAM), within)
    return next((pool for pool in snapshot.pools if pool.id == place), None)


def evaluate_neighbours(name: str, snapshot: Snapshot, _: Sequence[Event], __: AlertRules) -> Iterator[Condition]:
    """Skip a neighbour of which this process has received nothing yet: its alert neither fires nor resolves."""
    for status in snapshot.neighbours:
        if status.state == "starting":
            continue
        why = (Reason("silent", f"{status.name}: {status.text}"),)
        yield Condition(name, status.name, status.notifies, urgent=True, reasons=why)


def evaluate_events(kind: str, target: str) -> Evaluate:
    """Build a rule for one-off events. It yields a condition at every tick so that the alert's timers run."""

    def ask(name: str, _: Snapshot, events: Sequence[Event], __: AlertRules) -> Iterator[Condition]:
        yield build_fact(name, target, [event for event in events if event.kind == kind])

    return ask


def evaluate_kills(name: str, snapshot: Snapshot, events: Sequence[Event], _: AlertRules) -> Iterator[Condition]:
    """Kills for lack of System RAM are an alert of System RAM, so that they are one incident with its level.

    So are kills at the limit of memwatchd's own cgroup. Its level may be read a moment after the kill.
    """
    kills = [event for event in events if event.kind == OOM_KILL]
    waits = {pool.id: 0.0 for pool in snapshot.pools if pool.kind is PoolKind.SYSTEM_RAM}
    own = find_own_limit(snapshot.shares)
    if own is not None:
        waits[own] = LIMIT_SECONDS
    for target, wait in waits.items():
        yield replace(
            build_fact(name, target, [event for event in kills if event.target == target]), pending_seconds=wait
        )
    yield build_fact(name, KERNEL, [event for event in kills if event.target not in waits])


def build_fact(name: str, target: str, events: Sequence[Event]) -> Condition:
    why = tuple(Reason(event.kind, event.text) for event in events)
    return Condition(name, target, bool(why), reasons=why, fact=True)


RULES = (
    Rule(
        CRITICAL, "critical", "memory is critical", evaluate_level(Level.CRITICAL), "MemoryCritical", was="critical"
    ),
    Rule(
        "pressure.high",
        "warning",
        "memory is high or critical",
        evaluate_level(Level.HIGH),
        "MemoryHigh",
        "MemoryHighForLong",
        "high",
    ),
    Rule(
        "pressure.medium",
        "info",
        "memory is medium or worse",
        evaluate_level(Level.MEDIUM),
        "MemoryMedium",
        "MemoryHighForLong",
        "medium",
    ),
    Rule(
        "pressure.forecast",
        "warning",
        "memory will be full soon",
        evaluate_forecast,
        "MemoryFullSoon",
        was="full soon",
    ),
    Rule(
        COLLECTOR_FAILED,
        "warning",
        "a collector failed while its memory was high",
        evaluate_failed,
        "MemwatchCollectorFailed",
        "MemwatchCollectorDown",
    ),
    Rule("collector.failing", "warning", "a collector has failed", evaluate_collectors, "MemwatchCollectorDown"),
    Rule(
        "engine.kv_full",
        "warning",
        "a model server's KV cache is full",
        evaluate_engines,
        "EngineKVCacheFull",
        was="full",
    ),
    Rule("device.lost", "critical", "a GPU is lost or needs a reset", evaluate_devices, "GPULost", was="lost"),
    Rule(KILLS, "warning", "the OOM killer killed a process", evaluate_kills, "MemoryOOMKill", fact=True),
    Rule(
        "driver.error",
        "warning",
        "a GPU driver reported an error",
        evaluate_events("driver", "driver"),
        "GPUMemoryErrors",
        fact=True,
    ),
    Rule(
        "daemon.unclean_restart",
        "warning",
        "memwatchd ended unexpectedly",
        evaluate_events("unclean", "memwatchd"),
        "MemwatchRestarted",
        fact=True,
    ),
    Rule(
        ACTED,
        "warning",
        "memwatch-guardian acted on a process",
        evaluate_events(ACTED, GUARDIAN),
        "GuardianActed",
        fact=True,
    ),
    Rule(
        WOULD_HAVE_ACTED,
        "info",
        "memwatch-guardian would have acted on a process (dry run)",
        evaluate_events(WOULD_HAVE_ACTED, GUARDIAN),
        "GuardianWouldHaveActed",
        "GuardianActed",
        fact=True,
    ),
    Rule(NEIGHBOUR_SILENT, "critical", "another machine is silent", evaluate_neighbours, "NeighbourSilent"),
)
WORDS = {rule.name: rule.words for rule in RULES}
SEVERITY = {rule.name: rule.severity for rule in RULES}
FACTS = frozenset(rule.name for rule in RULES if rule.fact)
WAS = {rule.name: rule.was for rule in RULES if rule.was}
EVENTS = tuple(rule.name for rule in RULES)
LEVELS = {CRITICAL: Level.CRITICAL, "pressure.high": Level.HIGH, "pressure.medium": Level.MEDIUM}
EVENT_KINDS = frozenset({OOM_KILL, "driver", "unclean", ACTED, WOULD_HAVE_ACTED})


def possible_targets(snapshot: Snapshot, events: Iterable[str] = EVENTS) -> tuple[str, ...]:
    """Return the targets that alerts of these events can have on this machine now."""
    rules = AlertRules(events=frozenset(events))
    return tuple(dict.fromkeys(one.target for one in evaluate_rules(snapshot, (), rules)))


# Names in Alertmanager, and sections of the runbooks. An alert that Prometheus's shipped rules also have gets their
# name and labels, so that routes, silences and inhibitions in Alertmanager apply to both, and the same alert from
# both is one.
# The same expression as in deploy/prometheus/rules/alerts.yml: a GPU's own memory, or a MIG instance.
GPU_MEMORY = re.compile(r"gpu[0-9]+([.]mig[0-9]+)?")
_NAMES = {rule.name: rule.alert for rule in RULES}
_RUNBOOKS = {rule.name: rule.runbook or rule.alert for rule in RULES}
_TARGET_LABELS = {
    "collector.failing": "collector",
    "device.lost": "device",
    "engine.kv_full": "engine",
    COLLECTOR_FAILED: "collector",
    NEIGHBOUR_SILENT: "neighbour",
}


def alert_name(rule: str, target: str) -> str:
    """Return the alert's name: MemoryCritical for pressure.critical, GPUMemoryCritical for a GPU's own memory."""
    return f"GPU{_NAMES[rule]}" if is_gpu_memory(rule, target) else _NAMES.get(rule, "MemwatchTest")


def find_runbook(rule: str, target: str) -> str | None:
    """Return the name of the alert's section of the runbooks. None for a test notification."""
    return "GPUMemoryCritical" if is_gpu_memory(rule, target) else _RUNBOOKS.get(rule)


def runbook_anchor(rule: str, target: str) -> str | None:
    """Return the anchor of that section on /runbooks."""
    name = find_runbook(rule, target)
    return name.lower() if name else None


def title_rule(name: str) -> str:
    """Return the words of a rule as a title: "Memory is critical". The names of programs stay as they are."""
    words = WORDS.get(name, name)
    return words if words.startswith("memwatch") else words[:1].upper() + words[1:]


def target_labels(rule: str, target: str, fact: bool) -> Mapping[str, str]:
    """Return the label with the alert's target. None for a one-off event, whose target is a fixed word."""
    return {} if fact else {_TARGET_LABELS.get(rule, "target"): target}


def is_gpu_memory(rule: str, target: str) -> bool:
    return rule.startswith("pressure.") and GPU_MEMORY.fullmatch(target) is not None


STOPPED: tuple[CollectorState, ...] = ("failing", "stalled")
NOT_ANSWERING: tuple[CollectorState, ...] = (*STOPPED, "starting")
# A collector that has not answered for this time after a start hangs.
STARTING_SECONDS = 30.0
# The first word of a source, where that is not the name of a collector.
COLLECTORS: Mapping[str, tuple[str, ...]] = {
    "amd-smi": ("amdsmi", "amd_cli"),
    "cgroup1": ("cgroup",),
    "cgroup2": ("cgroup",),
    "cgroup": ("dmem",),
    "debugfs": ("drm",),
    "fdinfo": ("drm",),
    "ioreg": ("apple",),
    "lxcfs": ("meminfo",),
    "psutil": ("psutil_host",),
    "rocm-smi": ("amd_cli",),
    "sysfs": ("amdgpu", "drm", "numa"),
}
# Collectors that read pools and limits; the others can stop without hiding any.
OF_MEMORY = frozenset(name for names in COLLECTORS.values() for name in names) | {
    "nvml",
    "nvmap",
    "tegra",
    "tegrastats",
}
VENDORS: Mapping[str, str] = {"NVIDIA": "nvml", "AMD": "amdgpu", "Intel": "drm", "Apple": "apple"}
_WORD = re.compile(r"[^: ]*")


def source_word(source: str) -> str:
    """Return the first word of a source: "nvml" of "nvml:memory_info_v2"."""
    match = _WORD.match(source)
    return match[0] if match else ""


def source_of(target: str, snapshot: Snapshot) -> str:
    """Return the first word of the source of a pool or a share, "" for another target."""
    found = [pool.source for pool in snapshot.pools if pool.id == target]
    found += [share.source for share in snapshot.shares if share.id == target]
    return source_word(found[0]) if found else ""


def source_of_device(device: Device) -> str:
    return VENDORS.get(device.vendor, "")


def collectors_of(source: str) -> tuple[str, ...]:
    """Return the collectors that may have read a figure, by the first word of its source."""
    return COLLECTORS.get(source, (source,))


def collector_states(snapshot: Snapshot) -> Mapping[str, CollectorState]:
    return {one.name: one.state for one in snapshot.collectors}


def waiting_of(source: str, states: Mapping[str, CollectorState], silent_seconds: float) -> tuple[str, ...]:
    """Return the collectors that may have read a figure, and that do not answer.

    `silent_seconds`: time since the figure was read, or since memwatchd started. Collectors need time to start.
    """
    waiting = STOPPED if silent_seconds < STARTING_SECONDS else NOT_ANSWERING
    return tuple(name for name in collectors_of(source) if states.get(name) in waiting)


def high_levels_by_collector(snapshot: Snapshot) -> Mapping[str, Level]:
    """Return the highest level, from high on, of the targets that each collector reads."""
    found: dict[str, Level] = {}
    for one in snapshot.pressure:
        if one.level >= Level.HIGH:
            for name in collectors_of(source_of(one.target, snapshot)):
                found[name] = max(one.level, found.get(name, one.level))
    return found
