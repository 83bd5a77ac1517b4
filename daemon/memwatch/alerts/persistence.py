"""Serialization of the state of alerts and silences, for restarts. Invalid data raises BadState."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from memwatch.alerts.rules import EVENTS
from memwatch.alerts.silences import SILENCES_MOST, Silence, in_force
from memwatch.alerts.state import Key, Watch
from memwatch.clock import Moment
from memwatch.snapshot import Level, Reason

WATCHES_MOST = 10_000
TIME_MOST = 1e11
TIMES = ("since", "fired_at", "said_at")


class BadState(ValueError):
    """Invalid data in place of the state of alerts or silences."""


def watches_to_bytes(watches: Mapping[Key, Watch], moment: Moment, boot_id: str) -> bytes:
    """Serialize alerts that are firing, pending, or have been notified.

    Times count from boot, including suspend, so changes of the wall clock do not affect them.
    """
    asleep = moment.asleep_seconds
    kept = [_watch_json(key, watch, asleep) for key, watch in watches.items() if is_worth_keeping(watch)]
    return json.dumps({"boot_id": boot_id, "watches": kept}).encode()


def is_worth_keeping(watch: Watch) -> bool:
    return watch.firing or watch.told or watch.since is not None or watch.said_at is not None


def watches_from_bytes(data: bytes, moment: Moment, boot_id: str) -> dict[Key, Watch]:
    """Restore the alerts. After a reboot, firing alerts keep firing and all timers start over. Raises BadState."""
    state = _loaded(data)
    same_boot = state.get("boot_id") == boot_id
    try:
        found = [_watch_of(one, moment, same_boot) for one in state["watches"][:WATCHES_MOST]]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise BadState(f"alerts: {type(error).__name__}") from None
    return {key: watch for key, watch in found if key[0] in EVENTS}


def silences_to_bytes(silences: Iterable[Silence]) -> bytes:
    return json.dumps({"silences": [asdict(one) for one in silences]}).encode()


def silences_from_bytes(data: bytes, unix: float) -> tuple[Silence, ...]:
    """Restore the silences that have not ended meanwhile. Raises BadState."""
    try:
        found = tuple(_silence_of(one) for one in _loaded(data)["silences"][:SILENCES_MOST])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadState(f"silences: {type(error).__name__}") from None
    return in_force(found, unix)


def _loaded(data: bytes) -> dict[str, Any]:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        raise BadState("not JSON") from None
    if not isinstance(state, dict):
        raise BadState("not an object")
    return state


def _watch_json(key: Key, watch: Watch, asleep: float) -> dict[str, Any]:
    times = {name: getattr(watch, name) for name in TIMES}
    return {
        "rule": key[0],
        "target": key[1],
        "firing": watch.firing,
        "told": watch.told,
        "before": int(watch.before),
        "started_unix": watch.started_unix,
        "reasons": [[why.signal, why.text] for why in watch.reasons],
        **{name: None if time is None else time + asleep for name, time in times.items()},
    }


def _watch_of(one: dict[str, Any], moment: Moment, same_boot: bool) -> tuple[Key, Watch]:
    firing = bool(one["firing"])
    since, fired_at, said_at = (_monotonic(one[name], moment, same_boot) for name in TIMES)
    watch = Watch(
        firing=firing,
        since=since,
        before=Level(one["before"]),
        fired_at=moment.monotonic if firing and fired_at is None else fired_at,
        said_at=moment.monotonic if one["told"] and said_at is None else said_at,
        told=bool(one["told"]),
        seen_at=moment.monotonic if firing else None,
        started_unix=_unix(one["started_unix"]),
        reasons=tuple(Reason(str(signal), str(text)) for signal, text in one["reasons"]),
    )
    return (str(one["rule"]), str(one["target"])), watch


def _monotonic(boottime: float | None, moment: Moment, same_boot: bool) -> float | None:
    """Convert seconds since boot to monotonic seconds, at most now. None after a reboot."""
    if boottime is None or not same_boot:
        return None
    return min(moment.monotonic, _number(boottime) - (moment.boottime - moment.monotonic))


def _number(value: float) -> float:
    """Check that a time is finite and in range. Raises ValueError."""
    if not abs(float(value)) < TIME_MOST:
        raise ValueError("not a time")
    return float(value)


def _unix(value: float) -> float:
    """Check a wall-clock time in Unix seconds. Raises ValueError."""
    if _number(value) < 0:
        raise ValueError("before 1970")
    return float(value)


def _silence_of(one: dict[str, Any]) -> Silence:
    def text(name: str) -> str | None:
        return None if one[name] is None else str(one[name])

    until, created = _unix(one["until_unix"]), _unix(one["created_unix"])
    made_by = str(one.get("made_by", ""))  # not written by earlier versions
    return Silence(str(one["id"]), until, created, text("event"), text("target"), str(one["comment"]), made_by)
