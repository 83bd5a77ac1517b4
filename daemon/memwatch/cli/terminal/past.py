"""The past: snapshots that were received, compressed, and figures of the daemon's history. No I/O."""

from __future__ import annotations

import json
import time
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memwatch.cli.terminal.memory_map import is_device_share
from memwatch.cli.terminal.moment import LEVELS
from memwatch.cli.terminal.trend import Trend
from memwatch.core.model import Absent

Json = dict[str, Any]
# Ten minutes at 1 Hz. A compressed snapshot of a machine with 8 GPUs has 4 kB.
MAX_KEPT = 600
# Processes whose footprints are kept over time: 600 KiB in all.
MAX_SIZES = 64
RECENT_SECONDS = 600.0
# Processes of a tick are shown with moments that are at most this far from it.
NEAR_SECONDS = 300.0
NO_PROCESSES = "Processes at this time are not in the history."


class Recent:
    """The last snapshots, compressed, and trends that grow with each of them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, bytes]] = deque(maxlen=MAX_KEPT)
        self._trends: dict[str, tuple[deque[float], deque[float | None], deque[float | None]]] = {}
        self._sizes: dict[int, tuple[float, array[float], array[float]]] = {}

    def add(self, snapshot: Json) -> None:
        """Append a snapshot, unless there was no tick since the last one."""
        unix = float(snapshot["unix"])
        if self._kept and unix <= self._kept[-1][0]:
            return
        self._kept.append((unix, zlib.compress(json.dumps(snapshot).encode(), 1)))
        self._add_sizes(snapshot)
        for name, value in figures_of(snapshot).items():
            times, values, lows = self._series(name)
            if not times or unix > times[-1]:
                times.append(unix)
                values.append(value)
                lows.append(value)
                while unix - times[0] > RECENT_SECONDS + 60:
                    times.popleft()
                    values.popleft()
                    lows.popleft()

    def _add_sizes(self, snapshot: Json) -> None:
        """Add the footprints of the largest processes. A process that is not among them keeps no past."""
        largest = sorted(snapshot["processes"], key=lambda one: -(one.get("footprint_low_bytes") or 0))[:MAX_SIZES]
        before, self._sizes = self._sizes, {}
        for one in largest:
            size = one.get("footprint_low_bytes")
            if size is None:
                continue
            started = one["start_time"] or 0.0
            kept = before.get(one["pid"])
            times, values = kept[1:] if kept and kept[0] == started else (array("d"), array("d"))
            times.append(float(snapshot["unix"]))
            values.append(size)
            if len(times) > MAX_KEPT:
                del times[0], values[0]
            self._sizes[one["pid"]] = started, times, values

    def sizes(self, pid: int) -> dict[int, Trend]:
        """Return the footprints of a process over time by its PID. Empty if it has none."""
        kept = self._sizes.get(pid)
        return {pid: Trend(tuple(kept[1]), tuple(kept[2]))} if kept else {}

    def prepend(self, history: Mapping[str, Trend]) -> None:
        """Add the daemon's history before the first snapshot that was received."""
        for name, trend in history.items():
            times, values, lows = self._series(name)
            rows = zip(trend.unix, trend.values, trend.lows or trend.values, strict=True)
            older = [row for row in rows if not times or row[0] < times[0]]
            times.extendleft(unix for unix, _, _ in reversed(older))
            values.extendleft(value for _, value, _ in reversed(older))
            lows.extendleft(low for _, _, low in reversed(older))

    def _series(self, name: str) -> tuple[deque[float], deque[float | None], deque[float | None]]:
        return self._trends.setdefault(name, (deque(), deque(), deque()))

    def trends(self) -> dict[str, Trend]:
        columns = self._trends.items()
        return {name: Trend(tuple(times), tuple(values), tuple(lows)) for name, (times, values, lows) in columns}

    @property
    def oldest(self) -> float:
        """Return the time of the oldest figure, received or of the daemon's history."""
        firsts = [times[0] for times, _, _ in self._trends.values() if times]
        return min(firsts, default=0.0)

    def snapshot_at(self, unix: float) -> Json | None:
        """Return the last snapshot up to a time, None if it was before the first."""
        place = bisect_right([when for when, _ in self._kept], unix) - 1
        if place < 0:
            return None
        found: Json = json.loads(zlib.decompress(self._kept[place][1]))
        return found


def figures_of(snapshot: Json) -> dict[str, float | None]:
    """Return the values of a snapshot by the names of their series in the history."""
    found: dict[str, float | None] = {}
    for pool in snapshot["pools"]:
        for kind in ("used", "available"):
            found[f"pool.{pool['id']}.{kind}_bytes"] = pool[f"{kind}_bytes"]
    for share in snapshot["shares"]:
        found[f"share.{share['id']}.used_bytes"] = share["used_bytes"]
    for one in snapshot["pressure"]:
        found[f"pressure.{one['target']}.level"] = LEVELS.index(one["level"])
    if snapshot["psi"]:
        found["psi.some.ratio_10s"] = snapshot["psi"]["some"]["ratio_10s"]
    if snapshot["swap"]:
        found["swap.used_bytes"] = snapshot["swap"]["used_bytes"]
    return found


def decode_history(answer: Json) -> dict[str, Trend]:
    """Return the series of a response to /api/v1/history, each with its extremes."""
    found = answer["series"]
    return {one["name"]: Trend(tuple(one["unix"]), tuple(one["max"]), tuple(one["min"])) for one in found}


def join(parts: Iterable[Mapping[str, Trend]]) -> dict[str, Trend]:
    return {name: trend for part in parts for name, trend in part.items()}


def nearest_tick(ticks: Sequence[Json], unix: float) -> Json | None:
    """Return the notable tick that is nearest to a time, None if none is near."""
    near = [one for one in ticks if abs(one["unix"] - unix) <= NEAR_SECONDS]
    return min(near, key=lambda one: abs(one["unix"] - unix), default=None)


def note_of(tick: Json | None) -> str:
    """Return the time of the processes that are shown with a past moment."""
    if tick is None:
        return NO_PROCESSES
    clock = time.strftime("%H:%M:%S", time.localtime(tick["unix"]))
    return f"Processes are those of {clock}, the nearest in the history."


def past_snapshot(
    latest: Json, trends: Mapping[str, Trend], unix: float, tolerance: float, tick: Json | None = None
) -> Json:
    """Return the latest snapshot with the figures of an earlier time, and without what is not in the history.

    The processes are those of `tick`, with the figures that it has.
    """

    def value(name: str) -> Any:  # noqa: ANN401  a number or None
        trend = trends.get(name)
        found = None if trend is None else trend.at(unix, tolerance)
        return None if found is None else round(found)

    pools = [_past_pool(pool, value, latest["shares"]) for pool in latest["pools"]]
    shares = [{**share, "used_bytes": value(f"share.{share['id']}.used_bytes")} for share in latest["shares"]]
    sizes = {pool["id"]: pool["available_bytes"] for pool in latest["pools"]}
    pressure = [_past_pressure(one, value, pools, sizes.get(one["target"])) for one in latest["pressure"]]
    stall = trends.get("psi.some.ratio_10s", Trend()).at(unix, tolerance)
    swap = latest["swap"] and {**latest["swap"], "used_bytes": value("swap.used_bytes")}
    return {
        **latest,
        "unix": unix,
        "pools": pools,
        "shares": shares,
        "pressure": [one for one in pressure if one is not None],
        "psi": None if stall is None else {"some": {"ratio_10s": stall}, "full": None},
        "swap": swap if swap and swap["used_bytes"] is not None else None,
        "devices": [_past_device(device) for device in latest["devices"]],
        "processes": [_past_process(one) for one in tick["processes"]] if tick else [],
        "claims": [],
        "silences": [],
    }


def _past_process(process: Json) -> Json:
    unknown = ("swap_bytes", "start_time")
    absent = {**process.get("absent", {}), **dict.fromkeys(unknown, Absent.NOT_AVAILABLE.value)}
    defaults = {"footprint_basis": "", "command": None, **dict.fromkeys(unknown), "absent": absent}
    return {"footprint_low_bytes": process["footprint_bytes"], **process, **defaults}


def _past_pool(pool: Json, value: Any, shares: list[Json]) -> Json:  # noqa: ANN401  a function
    used, available = (value(f"pool.{pool['id']}.{kind}_bytes") for kind in ("used", "available"))
    if available is None and used is not None:
        available = max(0, pool["size_bytes"] - used)
    contents: Json = {}
    if used is not None and pool["kind"] == "system_ram":
        inside = [share["id"] for share in shares if is_device_share(share, pool)]
        held = sum(value(f"share.{name}.used_bytes") or 0 for name in inside)
        contents = {"devices_bytes": held, "other_bytes": max(0, used - held), "available_bytes": available}
    gone: Json = {"unattributed_bytes": None, "reserved_bytes": None, "contents": contents}
    return {**pool, **gone, "used_bytes": used, "available_bytes": available}


def _past_pressure(pressure: Json, value: Any, pools: list[Json], latest_available: int | None) -> Json | None:  # noqa: ANN401  a function
    level = value(f"pressure.{pressure['target']}.level")
    if level is None:
        return None
    pool = next((one for one in pools if one["id"] == pressure["target"]), None)
    known = pool is not None and pool["used_bytes"] is not None
    ratio = pool["used_bytes"] / pool["size_bytes"] if pool is not None and known else 0.0
    word = LEVELS[max(0, min(3, level))]
    left, counted = pool["available_bytes"] if pool is not None else None, pressure["available_bytes"]
    if left is not None and counted is not None and latest_available is not None:
        counted = left - (latest_available - counted)  # a budget is judged by its own rest
    unknown = ("seconds_to_full", "clears_in_seconds")
    gone = {"ratio": ratio, "reasons": [], "available_bytes": counted, **dict.fromkeys(unknown)}
    absent = {**pressure.get("absent", {}), **dict.fromkeys(unknown, Absent.NOT_AVAILABLE.value)}
    return {**pressure, "level": word, "base_level": word, **gone, "absent": absent}


def _past_device(device: Json) -> Json:
    gone = (
        "headroom_bytes",
        "headroom_certain_bytes",
        "busy_ratio",
        "temperature_celsius",
        "power_watts",
        "clock_hertz",
    )
    absent = dict.fromkeys(gone, Absent.NOT_AVAILABLE.value)
    return {**device, **dict.fromkeys(gone), "api_free_bytes": {}, "throttled": [], "absent": absent}
