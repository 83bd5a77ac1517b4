"""`memwatch owners`, `growth`, `alerts` and `last-words`: tables of a daemon's answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import click

from memwatch.cli.address import Address
from memwatch.cli.context import Number, build_context, check_shape, common, seconds_within
from memwatch.cli.errors import CommandError
from memwatch.cli.http import DaemonResponse, RequestDeclinedError, ask
from memwatch.cli.tables import columns
from memwatch.cli.times import clock, stamp, when
from memwatch.core.model import NAMELESS, Absent
from memwatch.core.silences import Silence
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.silence_words import build_notices, notice_lines

Json = dict[str, Any]
GROUPS = ("process", "container", "pod", "job", "unit", "user")
LIMIT = click.option("--limit", type=Number(1, 1000, 20), default=20, help="Maximum number of rows.  [default: 20]")
# Rows of the last words: the newest, next to the prompt.
MAX_SAMPLES = 15
MAX_PLACES = 2
# Of a container in the name of its unit. Its first 12 digits are what docker ps shows.
LONG_ID = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")


@click.command(short_help="Memory by unit, container, user, …")
@click.option(
    "--by", type=click.Choice(GROUPS), help="Grouping.  [default: unit, or user where no process has a unit]"
)
@LIMIT
@common
def owners(by: str | None, limit: int, url: Address | None, as_json: bool) -> int:
    """Show who holds memory: processes summed up by unit, container, pod, job or user."""
    context = build_context(url, as_json)
    if by == "process":
        answer = ask(context.address, "/api/v1/processes")
        return context.show(
            answer.json, lambda: process_lines(answer.json, limit, ask_labels(context.address)), answer.is_simulated
        )
    found = _ask_owners(context.address, by or "unit")
    with check_shape(context.address):
        has_owners = any(one.get("visible", True) for one in found.json["owners"])
    if by is None and not has_owners:
        # Without systemd, as in most containers and in small virtual machines.
        found = _ask_owners(context.address, "user")
    return context.show(found.json, lambda: owner_lines(found.json, limit), found.is_simulated)


def _ask_owners(address: Address, by: str) -> DaemonResponse:
    return ask(address, f"/api/v1/owners?{urlencode({'by': by})}")


def ask_labels(address: Address) -> dict[str, str]:
    """Return the label of each pool and share by id."""
    places = [*ask(address, "/api/v1/pools").json, *ask(address, "/api/v1/shares").json]
    return {place["id"]: place["label"] for place in places}


def owner_lines(found: Json, limit: int) -> Iterator[str]:
    labels = {pool["id"]: pool["label"] for pool in found.get("pools", ())}
    labels |= {share["id"]: share["relation"].partition(" ⊂ ")[0] for share in found.get("shares", ())}
    rows: list[tuple[str, ...]] = [(found["by"], "processes", "footprint", "rss", "GPU memory")]
    rows += [_owner_row(owner, labels) for owner in found["owners"][:limit]]
    yield from columns(rows, right=frozenset({1, 2, 3})) if len(rows) > 1 else [_why_none(found)]
    yield from _more(found["owners"], limit)
    if found.get("note"):
        yield found["note"]


def _why_none(found: Json) -> str:
    if found.get("process_list") is None:
        return "The list of processes is not known."
    return f"No process has a {found['by']}; --by process lists them."


def process_lines(found: Sequence[Json], limit: int, labels: Json) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("pid", "name", "footprint", "rss", "GPU memory")]
    for one in sorted(found, key=lambda one: -_least(one))[:limit]:
        held = _devices(one["device_bytes"] or {}, labels)
        name = str(one["name"] or NAMELESS)[:60]
        rows.append((str(one["pid"]), name, _range(one), _known(one["rss_bytes"]), held))
    yield from columns(rows, right=frozenset({0, 2, 3})) if len(rows) > 1 else ["The list of processes is empty."]
    yield from _more(found, limit)


def _least(process: Json) -> int:
    """Return the footprint or its lower bound; -1 if unknown."""
    known = process["footprint_bytes"], process.get("footprint_low_bytes")
    return next((one for one in known if one is not None), -1)


def _more(found: Sequence[Json], limit: int) -> Iterator[str]:
    if len(found) > limit:
        yield f"{len(found) - limit} more; --limit shows them."


def _owner_row(owner: Json, labels: Json) -> tuple[str, ...]:
    held = _devices(owner["device_bytes"] or {}, labels)
    return _owner_name(owner), str(owner["processes"]), _range(owner), _known(owner["rss_bytes"]), held


def _owner_name(owner: Json) -> str:
    name = str(owner.get("pod_name") or owner.get("container_name") or owner["name"] or wording.DASH)
    return LONG_ID.sub(r"\1", name)[:60]


def _known(count: int | None) -> str:
    return wording.DASH if count is None else wording.size(count)


def _range(one: Json) -> str:
    low, high, exact = one.get("footprint_low_bytes"), one.get("footprint_high_bytes"), one["footprint_bytes"]
    if exact is None and low is not None:
        return wording.between(low, Absent.NOT_AVAILABLE if high is None else high)
    return _known(exact)


def _devices(held: Json, labels: Json) -> str:
    used = {place: count for place, count in held.items() if count != 0}
    if len(used) > MAX_PLACES:
        known = [count for count in used.values() if count is not None]
        return f"{wording.size(sum(known))} in {len(used)} places"
    return ", ".join(f"{_place(name, labels)} {_known(count)}" for name, count in used.items()) or wording.DASH


def _place(name: str, labels: Json) -> str:
    gpu, _, instance = name.partition(".mig")
    return f"GPU {gpu.removeprefix('gpu')} · MIG {instance}" if instance else str(labels.get(name, name))


@click.command(short_help="Processes that grow.")
@click.option(
    "--since",
    "seconds",
    default="10m",
    callback=seconds_within("1s", "1h", "10m"),
    metavar="DURATION",
    help="Time range, up to 1h.  [default: 10m]",
)
@LIMIT
@common
def growth(seconds: float, limit: int, url: Address | None, as_json: bool) -> int:
    """Show the processes that grew the most, with their rate, and suspected leaks."""
    context = build_context(url, as_json)
    answer = ask(context.address, f"/api/v1/growth?{urlencode({'since': f'{seconds:g}s', 'limit': limit})}")
    return context.show(answer.json, lambda: growth_lines(answer.json), answer.is_simulated)


def growth_lines(found: Json) -> Iterator[str]:
    grown = [one for one in found["processes"] if one["grown_bytes"] > 0]
    if not grown:
        yield "No process grew."
        return
    rows: list[tuple[str, ...]] = [("pid", "name", "user", "growth", "in", "last minute", "now")]
    for one in grown:
        span = found["to"] - one["from_unix"]
        minute = one["windows"].get("60")
        rows.append(
            (
                str(one["pid"]),
                str(one["name"] or NAMELESS),
                str(one["user"] or wording.DASH),
                wording.change(one["grown_bytes"]),
                wording.duration(min(span, found["to"] - found["from"])),
                wording.DASH if minute is None else wording.change(minute),
                wording.size(one["to_bytes"]),
            )
        )
    yield from columns(rows, right=frozenset({0, 3, 5, 6}))
    for suspect in found.get("suspects") or ():
        words = f"{suspect['name'] or NAMELESS} (PID {suspect['pid']}) {wording.change(suspect['grown_bytes'])}"
        yield f"Suspected leak: {words}: {suspect['evidence']}"


@click.command(short_help="Firing and pending alerts.")
@common
def alerts(url: Address | None, as_json: bool) -> int:
    """List firing and pending alerts, with their reasons, and the silences in force."""
    context = build_context(url, as_json)
    answer = ask(context.address, "/api/v1/alerts")

    def lines() -> Iterator[str]:
        yield from alert_lines(answer.json, answer.unix)
        from memwatch.monitor.render.json import WIRE

        found = ask(context.address, "/api/v1/silences")
        notices = build_notices((WIRE.decode(Silence, one) for one in found.json), {})
        yield from notice_lines(notices, found.unix or time.time())

    return context.show(answer.json, lines, answer.is_simulated)


def alert_lines(found: list[Json], now: float | None) -> Iterator[str]:
    if not found:
        yield "No alerts."
        return
    rows: list[tuple[str, ...]] = [("severity", "state", "since", "target", "alert", "reason")]
    for one in found:
        since = when(one["since_unix"], now or one["since_unix"]) if one.get("since_unix") else wording.DASH
        state = one["state"] + (", silenced" if one["silenced"] else "")
        reason = "; ".join(reason["text"] for reason in one["reasons"])
        rows.append((one["severity"], state, since, one["target"], one["rule"], reason))
    yield from columns(rows)


@click.command("last-words", short_help="The last data before a crash.")
@common
def last_words(url: Address | None, as_json: bool) -> int:
    """Show the last two minutes of the previous run, if it did not end cleanly."""
    context = build_context(url, as_json)
    try:
        answer = ask(context.address, "/api/v1/last-words")
    except RequestDeclinedError as error:
        if error.status != HTTPStatus.NOT_FOUND or not error.detail:
            raise
        raise CommandError(error.detail) from None
    return context.show(answer.json, lambda: last_word_lines(answer.json), answer.is_simulated)


def last_word_lines(found: Json) -> Iterator[str]:
    yield f"{found['text']}  ({stamp(found['unix'])})"
    last = found["last"]
    if last is not None:
        yield ""
        for one in last["pressure"]:
            reasons = [f"{wording.ratio(one['ratio'])} used", *(reason["text"] for reason in one["reasons"])]
            yield f"{one['label']}: {wording.level(one['level'])}, {'; '.join(reasons)}"
        yield from _last_processes(last.get("processes") or ())
    samples = found["samples"][-MAX_SAMPLES:]
    names = sorted(
        {name for one in samples for name in one["figures"] if name.endswith((".used_bytes", ".ratio_10s"))}
    )
    if names:
        yield ""
        rows: list[tuple[str, ...]] = [("time", *(_series_name(name) for name in names))]
        rows += [
            (clock(one["unix"]), *(_value(name, one["figures"].get(name)) for name in names)) for one in samples
        ]
        yield from columns(rows, right=frozenset(range(1, len(names) + 1)))


def _last_processes(processes: Sequence[Json]) -> Iterator[str]:
    rows = [("pid", "name", "footprint")]
    rows += [
        (str(one["pid"]), str(one["name"] or NAMELESS), _known(one.get("footprint_bytes"))) for one in processes
    ]
    yield from ["", *columns(rows, right=frozenset({0, 2}))] if len(rows) > 1 else []


def _series_name(name: str) -> str:
    return name.removeprefix("pool.").removeprefix("share.").removesuffix(".used_bytes").removesuffix(".ratio_10s")


def _value(name: str, value: float | None) -> str:
    return wording.DASH if value is None else wording.figure(value, "bytes" if name.endswith("_bytes") else "ratio")
