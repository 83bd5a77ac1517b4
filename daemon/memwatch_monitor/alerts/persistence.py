"""Serialization of the state of alerts and silences, for restarts. Invalid data raises StateDecodeError.

The data may be of another version: unknown fields are ignored, and a missing one gets its default. Entries that
cannot be read are written back as they are, with their boot, for the version that wrote them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

from msgspec.structs import replace

from memwatch.core.clock import Moment
from memwatch.core.printable import printable
from memwatch.core.silences import MAX_SECONDS, MAX_SILENCES, Silence, in_force
from memwatch.core.snapshot import UNKNOWN_BOOT, Level, Reason
from memwatch.core.wire import Form, Shape, Wire
from memwatch_monitor.alerts.notification import Key
from memwatch_monitor.alerts.rules import COLLECTOR_FAILED, EVENTS, FACTS
from memwatch_monitor.alerts.state import MAX_ROUNDS, AlertState

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ALERTS = 10_000
MAX_TIME = 1e11
# Entries that this version cannot read.
UNREAD = "unread"
MAX_UNREAD = 100
Entry = dict[str, Any]
TIMES = ("since", "fired_at", "notified_at", "ended_at")


# Earlier versions read pairs, so the levels of reasons are apart.
REASONS = Form(
    list[list[str]],
    lambda reasons: [[why.signal, why.text] for why in reasons],
    lambda pairs: tuple(Reason(printable(str(signal)), printable(str(text))) for signal, text in pairs),
)
SAVED = Wire(
    (
        Shape(
            AlertState,
            without=("seen_at", "grouped_seconds"),
            forms={"before": Form(int, int, Level), "reasons": REASONS, "news": REASONS},
        ),
    )
)


class StateDecodeError(ValueError):
    """Invalid data in place of the state of alerts or silences."""


def encode_alert_states(
    states: Mapping[Key, AlertState], moment: Moment, boot_id: str, unread: Sequence[Entry] = ()
) -> bytes:
    """Serialize alerts that are firing, pending, or have been notified.

    Times count from boot, including suspend, so changes of the wall clock do not affect them.
    """
    asleep = moment.asleep_seconds
    kept = [_encode_state(key, state, asleep) for key, state in states.items() if is_worth_keeping(key, state)]
    return _encode({"boot_id": boot_id, "watches": kept}, unread)


def is_worth_keeping(key: Key, state: AlertState) -> bool:
    """Return True for an alert that is not at rest, and for the memory of a collector: see `evaluate_failed`."""
    is_active = state.firing or state.notified or state.since is not None or state.notified_at is not None
    return is_active or (key[0] == COLLECTOR_FAILED and state.before >= Level.HIGH)


def decode_alert_states(
    data: bytes, moment: Moment, boot_id: str, unread: list[Entry] | None = None
) -> dict[Key, AlertState]:
    """Restore the alerts. After a reboot, firing alerts keep firing and all timers start over.

    Entries that cannot be read are added to `unread`. Raises StateDecodeError.
    """
    entries = _load_entries(data, "watches", MAX_ALERTS)
    found = _parse_each("alerts", entries, lambda one, boot: _parse_state(one, moment, boot == boot_id), unread)
    return dict(found)


def encode_silences(silences: Iterable[Silence], boot_id: str, unread: Sequence[Entry] = ()) -> bytes:
    return _encode({"boot_id": boot_id, "silences": SAVED.encode_all(silences)}, unread)


def decode_silences(
    data: bytes, moment: Moment, boot_id: str, unread: list[Entry] | None = None
) -> tuple[Silence, ...]:
    """Restore the silences that have not ended meanwhile. Raises StateDecodeError.

    Entries that cannot be read are added to `unread`.

    In the same boot they end at the same boot time. After a reboot the wall clock counts, but no silence ends later
    than its whole duration from now.
    """
    entries = _load_entries(data, "silences", MAX_SILENCES)

    def parse(one: Entry, boot: object) -> Silence:
        return _parse_silence(one, moment, boot == boot_id != UNKNOWN_BOOT)

    return in_force(_parse_each("silences", entries, parse, unread), moment.boottime)


def _encode(state: Entry, unread: Sequence[Entry]) -> bytes:
    return json.dumps(state | ({UNREAD: list(unread)} if unread else {})).encode()


def _load_entries(data: bytes, name: str, most: int) -> list[tuple[Any, object]]:
    """Return the entries with the boot in which each was written. Raises StateDecodeError."""
    state = _load_object(data)
    try:
        entries = [(one, state.get("boot_id")) for one in state[name][:most]]
        kept = [(one["entry"], one["boot_id"]) for one in state.get(UNREAD, ())[:MAX_UNREAD]]
    except (KeyError, TypeError) as error:
        raise StateDecodeError(f"{name}: {type(error).__name__}") from None
    return entries + kept


def _parse_each(
    what: str,
    entries: Iterable[tuple[Any, object]],
    parse: Callable[[Entry, object], T],
    unread: list[Entry] | None,
) -> list[T]:
    """Parse the entries. Log the number of those that cannot be read, and add them to `unread`."""
    found, others = [], []
    for entry, boot in entries:
        one = _parse_or_none(entry, boot, parse)
        if one is None:
            others.append({"boot_id": boot, "entry": entry})
        else:
            found.append(one)
    if others:
        log.warning(
            "saved %s that this version cannot read; they are kept for the one that wrote them: %d",
            what,
            len(others),
        )
    if unread is not None:
        unread += others[:MAX_UNREAD]
    return found


def _parse_or_none(entry: Entry, boot: object, parse: Callable[[Entry, object], T]) -> T | None:
    try:
        return parse(entry, boot)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError):
        return None


def _load_object(data: bytes) -> dict[str, Any]:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        raise StateDecodeError("not JSON") from None
    if not isinstance(state, dict):
        raise StateDecodeError("not an object")
    return state


def _encode_state(key: Key, state: AlertState, asleep: float) -> dict[str, Any]:
    times: dict[str, Any] = {name: at + asleep for name in TIMES if (at := getattr(state, name)) is not None}
    times["news_at"] = {signal: at + asleep for signal, at in state.news_at.items()}
    return {
        "rule": key[0],
        "target": key[1],
        "levels": _levels_of(state.reasons),
        "news_levels": _levels_of(state.news),
        **SAVED.encode(replace(state, **times)),
    }


def _levels_of(reasons: Iterable[Reason]) -> list[int | None]:
    return [None if why.level is None else int(why.level) for why in reasons]


def _parse_state(one: dict[str, Any], moment: Moment, same_boot: bool) -> tuple[Key, AlertState]:
    if one["rule"] not in EVENTS or "firing" not in one:
        raise ValueError("not an alert of this version")
    saved: AlertState = SAVED.decode(AlertState, one)
    times = {name: _monotonic(getattr(saved, name), moment, same_boot) for name in TIMES}
    starts_now = {  # times of an earlier boot, and those that were not written
        "since": saved.since is not None and one["rule"] in FACTS,  # an event that waited
        "fired_at": saved.firing,
        "notified_at": saved.notified,
    }
    news_at = {signal: _monotonic(at, moment, same_boot) for signal, at in saved.news_at.items()}
    times |= {name: moment.monotonic for name, holds in starts_now.items() if holds and times[name] is None}
    state = replace(
        saved,
        before=saved.before if same_boot or saved.firing else Level.LOW,
        seen_at=moment.monotonic if saved.firing or times["since"] is not None else None,
        started_unix=_unix(saved.started_unix),
        reasons=_with_levels(saved.reasons, one.get("levels", ())),
        said={signal: int(Level(level)) for signal, level in saved.said.items()},
        news=_with_levels(saved.news, one.get("news_levels", ())),
        news_at={signal: at for signal, at in news_at.items() if at is not None},
        wait_seconds=_number(saved.wait_seconds),
        left_out=min(MAX_ALERTS, max(0, saved.left_out)),
        rounds=min(MAX_ROUNDS, max(0, saved.rounds)),
        **times,
    )
    return (one["rule"], printable(str(one["target"]))), state


def _with_levels(reasons: tuple[Reason, ...], levels: Iterable[int | None]) -> tuple[Reason, ...]:
    return tuple(
        replace(reason, level=None if level is None else Level(level))
        for reason, level in zip(reasons, chain(levels, repeat(None)), strict=False)
    )


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


def _parse_silence(one: dict[str, Any], moment: Moment, same_boot: bool) -> Silence:
    saved: Silence = SAVED.decode(Silence, one)
    return replace(
        saved,
        until_unix=_unix(saved.until_unix),
        created_unix=_unix(saved.created_unix),
        until_boottime=_end_of_silence(saved, "until_boottime" in one, moment, same_boot),
    )


def _end_of_silence(saved: Silence, has_boottime: bool, moment: Moment, same_boot: bool) -> float:
    """Return the boot time at which a silence ends."""
    duration = min(saved.until_unix - saved.created_unix, MAX_SECONDS)
    if same_boot and has_boottime:  # not written by earlier versions
        return min(_number(saved.until_boottime), moment.boottime + duration)
    return moment.boottime + min(saved.until_unix - moment.wall, duration)
