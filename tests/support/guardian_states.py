"""States of a machine for the guardian's rules: one that is short, and any number of generated ones."""

from __future__ import annotations

import random
from math import inf

from msgspec.structs import replace

from memwatch.core.model import Absent, PoolKind
from memwatch.core.snapshot import Level
from memwatchd.guardian.records import Candidate, Decision, Limits, Match, MatchKind, Past, PoolState, State
from memwatchd.guardian.rules import SCANS_SECONDS, decide

GIB = 1 << 30
GROWING = 300e6
SLICES = ("system.slice", "user.slice/user-1000.slice", "machine.slice", "memwatchd.slice")
UNITS = (
    "ollama.service",
    "vllm.service",
    "ssh.service",
    "getty@tty1.service",
    "docker-1.scope",
    "memwatchd.service",
)
USERS = ("root", "ada", "ollama")
NAMES = (
    "ollama",
    "python3",
    "sshd",
    "systemd-logind",
    "dbus-daemon",
    "gdm-session-wor",
    "memwatchd",
    "kworker/0:1",
)
SIGNALS = ("util", "floor", "psi_full", "swap", "oom_kill", "driver", "ttf")
CONTAINERS = ("4f5a", "9bce")


def short_ram(available: int = 2 * GIB, seconds_to_full: float | None = 8.0, **given: object) -> PoolState:
    """Return 120 GiB of System RAM that are critical from 6 GiB on."""
    whole = {
        "id": "ram",
        "kind": PoolKind.SYSTEM_RAM,
        "size_bytes": 120 * GIB,
        "critical_bytes": 6 * GIB,
        "level": Level.CRITICAL,
        "evidence": ("util", "ttf"),
        **given,
    }
    return PoolState(available_bytes=available, seconds_to_full=seconds_to_full, **whole)  # type: ignore[arg-type]


def candidate(pid: int, footprint: int = 40 * GIB, growth: float | None = GROWING, **given: object) -> Candidate:
    """Return a model server of a unit, which may end and grows."""
    whole = {
        "start_time": 1000.0 + pid,
        "name": "python3",
        "device_bytes": footprint // 2,
        "device_age_seconds": 1.0,
        "commands": ("serve.py",),
        "user": "ada",
        "unit": "vllm.service",
        "container": None,
        "cgroup": "/system.slice/vllm.service",
        "slice": "system.slice",
        "max_growth_bytes_per_second": max(0.0, growth or 0.0),
        **given,
    }
    return Candidate(pid, footprint_bytes=footprint, growth_bytes_per_second=growth, **whole)  # type: ignore[arg-type]


def confirmed(state: State, limits: Limits = Limits()) -> Decision:  # noqa: B008  frozen
    """Return the decision when the state was seen two seconds and one second before as well."""
    return decide(state, limits, Past(state.read_at - SCANS_SECONDS, state.read_at - 1.0))[0]


def falling(state: State) -> State:
    """Return the state with System RAM falling as fast as its processes grow."""
    grown = sum(max(0.0, one.growth_bytes_per_second or 0.0) for one in state.candidates)
    return replace(state, fall_bytes_per_second=grown or 1e8)


def generate_state(chance: random.Random) -> State:
    """Return a state in which every property of a pool and of 0 to 12 processes is drawn."""
    size = chance.choice((8, 64, 128)) * GIB
    critical = size // 20
    pool = PoolState(
        "ram",
        PoolKind.SYSTEM_RAM,
        size,
        chance.choice((0, critical // 4, critical // 2, critical, critical + 1, size // 2)),
        critical,
        chance.choice((Level.HIGH, *[Level.CRITICAL] * 9)),
        ("util", *chance.sample(SIGNALS, 3)) if chance.random() < 0.7 else tuple(chance.sample(SIGNALS, 2)),
        chance.choice((None, 0.3, 1.9, 2.0, 9.0, 600.0)),
    )
    pids = chance.sample(range(1, 400), chance.randint(0, 12))
    candidates = tuple(_generate_candidate(chance, pid, size) for pid in pids)
    now = 1e6 + chance.random()
    own = frozenset(chance.sample(pids, min(len(pids), 1)))
    return falling(State(now, now - chance.choice((0.0, 0.2, 0.4, 0.9, 1.1, 10.0)), (pool,), candidates, own))


def _generate_candidate(chance: random.Random, pid: int, size: int) -> Candidate:
    footprint = round(size * chance.random())
    unknown = Absent.NOT_PERMITTED
    return candidate(
        pid,
        footprint,
        chance.choice((None, 0.0, -1e6, 1e5, 1e8, 1e9)),
        name=chance.choice((*NAMES, *["python3", "llama-server", "ollama"] * 6)),
        device_bytes=round(footprint * chance.random()),
        device_age_seconds=chance.choice((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 5.1, inf)),
        commands=(chance.choice(("serve.py", "train.py")),),
        user=chance.choice((*USERS, unknown)),
        unit=chance.choice((*UNITS, *UNITS, None, None, unknown)),
        container=chance.choice((*CONTAINERS, None, unknown)),
        slice=chance.choice((*SLICES, "system.slice", "system.slice", unknown)),
        visible=chance.random() < 0.9,
        kernel_thread=chance.random() < 0.1,
        engine=chance.random() < 0.5,
    )


def generate_limits(chance: random.Random) -> Limits:
    """Return limits with up to two patterns in each list."""
    kinds: dict[MatchKind, tuple[str, ...]] = {
        "unit": ("ollama*", "*.service", "docker-*"),
        "user": USERS,
        "command": ("train.py", "python*"),
        "container": ("4f*",),
    }

    def draw() -> tuple[Match, ...]:
        drawn = [chance.choice(list(kinds)) for _ in range(chance.randint(0, 2))]
        return tuple(Match(kind, chance.choice(kinds[kind])) for kind in drawn)

    return Limits(draw(), draw(), draw(), chance.choice(("none", "slice", "any")), chance.random() < 0.5)
