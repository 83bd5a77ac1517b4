"""Machines of every kind and state, whose ticks arrive as bytes: 23 neighbours of the machine that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from memwatch.core.model import Absent
from memwatch.core.snapshot import LevelOrUnknown, Snapshot
from memwatch.reporting.answers import ListedMachine, MachineTick
from memwatch_monitor.neighbours.book import NeighbourBook
from memwatch_monitor.neighbours.found import FoundMachine
from memwatch_monitor.neighbours.machines import Machine, list_machines
from memwatch_monitor.neighbours.neighbour import Failure
from memwatch_monitor.neighbours.tick import HolderTick, PoolTick, Tick, build_tick, encode_tick
from memwatch_monitor.neighbours.trend import STEP_SECONDS, TREND_SECONDS
from support.fakes import GIB, FakeClock

LEVELS: tuple[tuple[float, LevelOrUnknown], ...] = (
    (0.95, "critical"),
    (0.8, "high"),
    (0.6, "medium"),
    (0.0, "low"),
)


def listed_tick(**fields: Any) -> MachineTick:
    """Return the last tick of a GB10 with 40 of 128 GiB free, as the API has it."""
    room = {"headroom_bytes": 40 * GIB, "headroom_after_reclaim_bytes": 40 * GIB, "headroom_size_bytes": 128 * GIB}
    told: dict[str, Any] = {"host": "spark-2", "unix": 1e9, "interval_seconds": 1.0, "level": "low", "sentence": ""}
    return MachineTick(**{**told, **room, "headroom_of": "NVIDIA GB10", "pools": (), **fields})


def listed_machine(name: str, last_tick: MachineTick | Absent, **fields: Any) -> ListedMachine:
    """Return a machine of the API, a neighbour that is up unless other fields are given."""
    told = {"is_self": False, "url": f"http://{name}:6360", "state": "up", "text": "", "age_seconds": 1.0}
    none = {"last_tick_unix": 1e9, "clock_offset_seconds": Absent.NOT_AVAILABLE, "falling_bytes_per_second": None}
    return ListedMachine(**{"name": name, **told, **none, **fields}, last_tick=last_tick)


class Given(Struct, frozen=True):
    """A pool in GiB: `then` ten minutes ago, `now` at the end, and the parts of System RAM."""

    id: str
    label: str
    kind: str
    size: float
    then: float
    now: float
    gpu: float | None = None
    processes: float | None = None


class Neighbour(Struct, frozen=True):
    """`silent`: seconds since its last tick. `failure`: why there is none, None for one that sends them."""

    name: str
    kind: str
    pools: tuple[Given, ...]
    holder: tuple[str, float, float]
    headline: str = ""
    silent: float = 0.0
    failure: Failure | None = None


def ram(size: float, then: float, now: float, gpu: float | None = None, label: str = "System RAM") -> Given:
    return Given("ram", label, "system_ram", size, then, now, gpu, 0.7 * (now - (gpu or 0.0)))


def vram(size: float, *used: float, kind: str = "vram") -> tuple[Given, ...]:
    many = len(used) > 1
    return tuple(
        Given(
            f"gpu{number}", f"VRAM {number}" if many else "VRAM" if kind == "vram" else "HBM", kind, size, one, one
        )
        for number, one in enumerate(used)
    )


def sixteen() -> tuple[Given, ...]:
    """Return the pools of sixteen GPUs: beside System RAM, a tick has no room for the last one."""
    return vram(191.7, *[20.0 + 8 * number for number in range(16)])


CARVEOUT = Given("gpu0", "GPU carve-out", "carveout", 0.5, 0.4, 0.4)
DOWN = Failure("down", "connection refused")
NEIGHBOURS = (
    Neighbour("spark-1a2b", "DGX Spark", (ram(121.7, 80.0, 117.5, 64.0),), ("train.py", 20, 40), "Full in ~10 s"),
    Neighbour(
        "dgx-h100-03",
        "8 × H100",
        (ram(2016, 300, 416), *vram(79.6, 76.7, 75.1, 73.6, 72.1, 70.6, 69.0, 67.5, 44.3)),
        ("pt_main_thread", 66.0, 76.2),
        "VRAM 0 full in ~25 s",
    ),
    Neighbour("trainer-07", "4 × A100", (ram(503, 90, 92), *vram(79.6, 50, 55, 72.6, 60)), ("finetune.py", 60, 62)),
    Neighbour("evo-x3", "Strix Halo", (ram(125, 40, 105, 90.0), CARVEOUT), ("llama-server", 90.4, 90.4)),
    Neighbour("gh200-01", "GH200", (ram(480, 50, 54), *vram(95.6, 78.7, kind="hbm")), ("sglang", 78.7, 78.7)),
    Neighbour("lab-ws-4", "RTX 6000", (ram(125, 30, 31), *vram(47.5, 21.0)), ("python3", 20, 20), "", 183.0, DOWN),
    Neighbour("edge-12", "Jetson Orin", (ram(61.4, 30, 32, 20.0),), ("gst-launch", 1.1, 1.1), "", 5.0),
    Neighbour("spark-1a2c", "DGX Spark", (ram(121.7, 86, 86.9, 75.0),), ("VLLM::EngineCor", 75, 75)),
    Neighbour("ember", "RTX 4090", (ram(62.6, 15, 17), *vram(24.0, 16.0)), ("python3", 21.5, 21.5)),
    Neighbour("l40s-02", "4 × L40S", (ram(251, 20, 21), *vram(45.0, 20, 29.2, 28, 11)), ("tritonserver", 29, 29)),
    Neighbour("agx-orin", "Jetson AGX Orin", (ram(61.4, 30, 38.7, 22.0),), ("ros2", 8.0, 8.1)),
    Neighbour("mac", "M3 Ultra GPU", (ram(96, 53, 54, 20.0, "Unified memory"),), ("ollama", 31.2, 31.2)),
    Neighbour("ws-12", "RTX 4080", (ram(62.6, 20, 22), *vram(16, 8.3)), ("python3", 9.8, 9.8)),
    Neighbour("dgx-h100-04", "8 × H100", (ram(2016, 200, 210), *vram(79.6, *[41.0] * 8)), ("vllm", 41, 41)),
    Neighbour("mi300-1", "16 × MI300X", (ram(2263, 200, 210), *sixteen()), ("vllm", 66, 66)),
    Neighbour("edge-10", "Jetson Orin Nano", (ram(7.4, 3.1, 3.2, 1.0),), ("gst-launch", 1.1, 1.1)),
    Neighbour("ws-11", "RTX 5090", (ram(125, 20, 22), *vram(31.8, 11.2)), ("blender", 19.4, 19.4)),
    Neighbour("ci-1", "no GPU", (ram(31.1, 7.4, 7.6),), ("gradle", 3.3, 3.3)),
    Neighbour("new", "", (), ("", 0, 0), failure=DOWN),
    Neighbour("locked", "", (), ("", 0, 0), failure=Failure("refused", "it answers 401: check the token")),
    Neighbour(
        "</script><b>x", "<i>kind</i> with a long name", (ram(31.1, 3, 4),), ("<script>alert(1)</script>", 2, 2)
    ),
    Neighbour("a-machine-with-a-name-of-many-letters-01", "no GPU", (ram(31.1, 3, 4),), ("java", 1.9, 1.9)),
    Neighbour("older", "", (Given("ram", "System RAM", "", 62.6, 30, 31),), ("java", 1.9, 1.9)),
)


def build_given_tick(one: Neighbour, part: float, unix: float) -> Tick:
    """Return the tick of a neighbour after a part of the ten minutes, with the levels of its use."""
    pools = []
    for pool in one.pools:
        used = pool.then + (pool.now - pool.then) * part
        split = [None if held is None else int(held * part * GIB) for held in (pool.gpu, pool.processes)]
        level = next(word for least, word in LEVELS if used / pool.size >= least)
        size, bytes_used = int(pool.size * GIB), int(used * GIB)
        # A carve-out has no level.
        word: LevelOrUnknown = "unknown" if pool.kind == "carveout" else level
        pools.append(PoolTick(pool.id, pool.label, size, bytes_used, size - bytes_used, word, pool.kind, *split))
    order = [word for _, word in LEVELS]
    judged = [pool.level for pool in pools if pool.level in order]
    worst = min(judged, key=order.index)
    name, before, after = one.holder
    left = [pool for pool in pools if pool.kind != "system_ram"] or pools
    return Tick(
        schema=1,
        run=one.name[:64],
        host=one.name,
        unix=unix,
        interval=1.0,
        level=worst,
        sentence=f"{worst}",
        pools=tuple(pools[:16]),
        headroom=max(pool.available or 0 for pool in left),
        headroom_after_reclaim=max(pool.available or 0 for pool in left),
        headroom_of=one.kind if len(pools) > 1 else pools[0].label,
        holders=(HolderTick(name, int((before + (after - before) * part) * GIB)),),
        left_out=len(pools) > 16,
        kind=one.kind,
        headline=one.headline if part == 1.0 else "",
    )


class Fleet:
    """Neighbours that have sent ticks for ten minutes. Each call of `machines` is at the same moment."""

    def __init__(self, neighbours: Sequence[Neighbour] = NEIGHBOURS) -> None:
        clock = FakeClock()
        self._book = NeighbourBook("ops-1", clock)
        self._book.use([(one.name, f"http://{one.name}") for one in neighbours])
        steps = int(TREND_SECONDS / STEP_SECONDS)
        end = clock.now + TREND_SECONDS
        for step in range(steps + 1):
            for one in neighbours:
                if one.pools and clock.now <= end - one.silent:
                    tick = build_given_tick(one, step / steps, clock.wall())
                    self._book.take_tick(one.name, encode_tick(tick))
            if step < steps:
                clock.now += STEP_SECONDS
        for one in neighbours:
            if one.failure:
                self._book.on_failure(one.name, one.failure)
        self._book.on_read()
        self._views = self._book.views(self._book.statuses())

    def machines(self, snapshot: Snapshot) -> list[Machine]:
        return list_machines(build_tick(snapshot, "own"), self._views)

    def with_found(self, found: Sequence[FoundMachine]) -> Callable[[Snapshot], list[Machine]]:
        return lambda snapshot: list_machines(build_tick(snapshot, "own"), self._views, found)
