"""Serialization of the state of alerts and silences, for restarts. Invalid data raises StateDecodeError."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from memwatch.alerts.rules import EVENTS
from memwatch.alerts.silences import MAX_SILENCES, Silence, in_force
from memwatch.alerts.state import AlertState, Key
from memwatch.clock import Moment
from memwatch.printable import printable
from memwatch.snapshot import Level, Reason

MAX_ALERTS = 10_000
MAX_TIME = 1e11
# The names of times in what is written, and their fields.
TIMES = {"since": "since", "fired_at": "fired_at", "said_at": "notified_at"}


class StateDecodeError(ValueError):
    """Invalid data in place of the state of alerts or silences."""


def encode_alert_states(states: Mapping[Key, AlertState], moment: Moment, boot_id: str) -> bytes:
    """Serialize alerts that are firing, pending, or have been notified.

    Times count from boot, including suspend, so changes of the wall clock do not affect them.
    """
    asleep = moment.asleep_seconds
    kept = [_state_json(key, state, asleep) for key, state in states.items() if is_worth_keeping(state)]
    return json.dumps({"boot_id": boot_id, "watches": kept}).encode()


def is_worth_keeping(state: AlertState) -> bool:
    return state.firing or state.notified or state.since is not None or state.notified_at is not None


def decode_alert_states(data: bytes, moment: Moment, boot_id: str) -> dict[Key, AlertState]:
    """Restore the alerts. After a reboot, firing alerts keep firing and all timers start over. Raises
    StateDecodeError."""
    state = _load_object(data)
    same_boot = state.get("boot_id") == boot_id
    try:
        found = [_parse_state(one, moment, same_boot) for one in state["watches"][:MAX_ALERTS]]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise StateDecodeError(f"alerts: {type(error).__name__}") from None
    return {key: state for key, state in found if key[0] in EVENTS}


def encode_silences(silences: Iterable[Silence]) -> bytes:
    return json.dumps({"silences": [asdict(one) for one in silences]}).encode()


def decode_silences(data: bytes, unix: float) -> tuple[Silence, ...]:
    """Restore the silences that have not ended meanwhile. Raises StateDecodeError."""
    try:
        found = tuple(_parse_silence(one) for one in _load_object(data)["silences"][:MAX_SILENCES])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateDecodeError(f"silences: {type(error).__name__}") from None
    return in_force(found, unix)


def _load_object(data: bytes) -> dict[str, Any]:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        raise StateDecodeError("not JSON") from None
    if not isinstance(state, dict):
        raise StateDecodeError("not an object")
    return state


def _state_json(key: Key, state: AlertState, asleep: float) -> dict[str, Any]:
    times = {name: getattr(state, field) for name, field in TIMES.items()}
    return {
        "rule": key[0],
        "target": key[1],
        "firing": state.firing,
        "told": state.notified,
        "before": int(state.before),
        "started_unix": state.started_unix,
        "reasons": [[why.signal, why.text] for why in state.reasons],
        **{name: None if time is None else time + asleep for name, time in times.items()},
    }


def _parse_state(one: dict[str, Any], moment: Moment, same_boot: bool) -> tuple[Key, AlertState]:
    firing = bool(one["firing"])
    since, fired_at, said_at = (_monotonic(one[name], moment, same_boot) for name in TIMES)
    state = AlertState(
        firing=firing,
        since=since,
        before=Level(one["before"]),
        fired_at=moment.monotonic if firing and fired_at is None else fired_at,
        notified_at=moment.monotonic if one["told"] and said_at is None else said_at,
        notified=bool(one["told"]),
        seen_at=moment.monotonic if firing else None,
        started_unix=_unix(one["started_unix"]),
        reasons=tuple(Reason(printable(str(signal)), printable(str(text))) for signal, text in one["reasons"]),
    )
    return (str(one["rule"]), printable(str(one["target"]))), state


def _monotonic(boottime: float | None, moment: Moment, same_boot: bool) -> float | None:
    """Convert seconds since boot to monotonic seconds, at most now. None after a reboot."""
    if boottime is None or not same_boot:
        return None
    return min(moment.monotonic, _number(boottime) - (moment.boottime - moment.monotonic))


def _number(value: float) -> float:
    """Check that a time is finite and in range. Raises ValueError."""
    if not abs(float(value)) < MAX_TIME:
        raise ValueError("not a time")
    return float(value)


def _unix(value: float) -> float:
    """Check a wall-clock time in Unix seconds. Raises ValueError."""
    if _number(value) < 0:
        raise ValueError("before 1970")
    return float(value)


def _parse_silence(one: dict[str, Any]) -> Silence:
    def text(name: str) -> str | None:
        return None if one[name] is None else printable(str(one[name]))

    until, created = _unix(one["until_unix"]), _unix(one["created_unix"])
    made_by = printable(str(one.get("made_by", "")))  # not written by earlier versions
    comment = printable(str(one["comment"]))
    return Silence(printable(str(one["id"])), until, created, text("event"), text("target"), comment, made_by)
