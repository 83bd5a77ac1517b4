"""Memory by holder: `memwatch owners`, `growth`, `history` and `engines`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

import click

from memwatch.cli.context import Number, build_context, check_shape, common, seconds_within
from memwatch.cli.http import Address, DaemonResponse, ask
from memwatch.cli.tables import BLOCKS, clock, columns, table
from memwatch.core.engines.records import Engine
from memwatch.core.model import NAMELESS, Absent, Bytes, Process, known_or, name_accelerators
from memwatch.core.owners import OwnerTotal
from memwatch.core.printable import shorten_ids
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.wire import Json
from memwatch.reporting.answers import History
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.summary import by_footprint

GROUPS = ("process", "container", "pod", "job", "unit", "user")
LIMIT = click.option("--limit", type=Number(1, 1000, 20), default=20, help="Maximum number of rows.  [default: 20]")
MAX_PLACES = 2


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
        if context.as_json:
            return context.show(ask(context.address, "/api/v1/processes").json, list)
        answer = context.ask_snapshot()
        return context.show(answer, lambda: process_lines(answer.snapshot, limit), answer.is_simulated)
    found = _ask_owners(context.address, by or "unit")
    with check_shape(context.address):
        has_owners = any(one.visible for one in read_owners(found.json))
    if by is None and not has_owners:
        # Without systemd, as in most containers and in small virtual machines.
        found = _ask_owners(context.address, "user")
    return context.show(found.json, lambda: owner_lines(found.json, limit), found.is_simulated)


def _ask_owners(address: Address, by: str) -> DaemonResponse:
    return ask(address, f"/api/v1/owners?{urlencode({'by': by})}")


def read_owners(found: Json) -> tuple[OwnerTotal, ...]:
    """Decode the owners of an answer. Early development versions send null for no memory of devices."""
    sent = [{**one, "device_bytes": one["device_bytes"] or {}} for one in found["owners"]]
    owners: tuple[OwnerTotal, ...] = RECORDS.decode(tuple[OwnerTotal, ...], sent)
    return owners


def owner_lines(found: Json, limit: int) -> Iterator[str]:
    owners = read_owners(found)
    labels = {pool["id"]: pool["label"] for pool in found.get("pools", ())}
    labels |= {share["id"]: share["relation"].partition(" ⊂ ")[0] for share in found.get("shares", ())}
    kinds = name_accelerators(place for owner in owners for place in owner.device_bytes)
    head = (found["by"], "processes", "footprint", "rss", f"{kinds} memory")
    rows = [_owner_row(owner, labels) for owner in owners[:limit]]
    yield from table(head, rows, _why_none(found), right=frozenset({1, 2, 3}))
    yield from _more(owners, limit)
    if found.get("note"):
        yield found["note"]


def _why_none(found: Json) -> str:
    if found.get("process_list") is None:
        return "The list of processes is not known."
    return f"No process has a {found['by']}; --by process lists them."


def process_lines(snapshot: Snapshot, limit: int) -> Iterator[str]:
    head = ("pid", "name", "footprint", "rss", f"{snapshot.accelerators} memory")
    rows = [_process_row(one, snapshot.labels) for one in by_footprint(snapshot.processes)[:limit]]
    yield from table(head, rows, "The list of processes is empty.", right=frozenset({0, 2, 3}))
    yield from _more(snapshot.processes, limit)


def _process_row(one: Process, labels: Mapping[str, str]) -> tuple[str, ...]:
    footprint = _size(one.footprint_bytes) if one.footprint_range is None else wording.footprint(one)
    return str(one.pid), one.title[:60], footprint, _size(one.rss_bytes), _devices(one.device_bytes, labels)


def _more(found: Sequence[object], limit: int) -> Iterator[str]:
    if len(found) > limit:
        yield f"{len(found) - limit} more; --limit shows them."


def _owner_row(owner: OwnerTotal, labels: Mapping[str, str]) -> tuple[str, ...]:
    held = _devices(owner.device_bytes, labels)
    return _owner_name(owner), str(owner.processes), _range(owner), _size(owner.rss_bytes), held


def _owner_name(owner: OwnerTotal) -> str:
    name = owner.pod_name or owner.container_name or known_or(owner.name or wording.DASH, wording.DASH)
    return shorten_ids(name)[:60]


def _range(one: OwnerTotal) -> str:
    if isinstance(one.footprint_bytes, Absent):
        return wording.between(one.footprint_low_bytes, one.footprint_high_bytes)
    return wording.size(one.footprint_bytes)


def _devices(held: Mapping[str, Bytes], labels: Mapping[str, str]) -> str:
    used = {place: count for place, count in held.items() if count != 0}
    if len(used) > MAX_PLACES:
        known = [count for count in used.values() if not isinstance(count, Absent)]
        return f"{wording.size(sum(known))} in {len(used)} places"
    return ", ".join(f"{_place(name, labels)} {_size(count)}" for name, count in used.items()) or wording.DASH


def _place(name: str, labels: Mapping[str, str]) -> str:
    gpu, _, instance = name.partition(".mig")
    return f"GPU {gpu.removeprefix('gpu')} · MIG {instance}" if instance else labels.get(name, name)


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
    rows = [_growth_row(one, found) for one in found["processes"] if one["grown_bytes"] > 0]
    head = ("pid", "name", "user", "growth", "in", "last minute", "now")
    yield from table(head, rows, "No process grew.", right=frozenset({0, 3, 5, 6}))
    if not rows:
        return
    for suspect in found.get("suspects") or ():
        words = f"{suspect['name'] or NAMELESS} (PID {suspect['pid']}) {wording.change(suspect['grown_bytes'])}"
        yield f"Suspected leak: {words}: {suspect['evidence']}"


def _growth_row(one: Json, found: Json) -> tuple[str, ...]:
    minute = one["windows"].get("60")
    return (
        str(one["pid"]),
        str(one["name"] or NAMELESS),
        str(one["user"] or wording.DASH),
        wording.change(one["grown_bytes"]),
        wording.duration(found["to"] - max(one["from_unix"], found["from"])),
        wording.DASH if minute is None else wording.change(minute),
        wording.size(one["to_bytes"]),
    )


@click.command(short_help="Min/avg/max over time.")
@click.option(
    "--series",
    multiple=True,
    metavar="NAME",
    help="Series, such as pool.ram.used_bytes or process.PID.footprint_bytes. May be repeated.",
)
@click.option(
    "--last",
    "seconds",
    default="10m",
    callback=seconds_within("1s", "366d", "10m"),
    metavar="DURATION",
    help="Time range, up to now.  [default: 10m]",
)
@click.option("--points", type=Number(2, 200, 20), default=20, help="Approximate number of rows.  [default: 20]")
@common
def history(series: tuple[str, ...], seconds: float, points: int, url: Address | None, as_json: bool) -> int:
    """Show min, avg and max of each pool, or of the given series, over a time range."""
    context = build_context(url, as_json)
    start = context.read_snapshot().unix - seconds
    query: list[tuple[str, object]] = [("from", start), ("points", points)]
    query += [("series", name) for name in series]
    answer = ask(context.address, f"/api/v1/history?{urlencode(query)}")
    return context.show(
        answer.json, lambda: history_lines(RECORDS.decode(History, answer.json)), answer.is_simulated
    )


def history_lines(found: History) -> Iterator[str]:
    for one in found.series:
        if not any(value is not None for value in one.max):
            yield f"{one.name}: no data in this time range"
            continue
        yield f"{one.name}  {sparkline(one.max)}"
        rows: list[tuple[str, ...]] = [("time", "min", "avg", "max")]
        for unix, *figures in zip(one.unix, one.min, one.avg, one.max, strict=True):
            rows.append((clock(unix), *(_in_unit(value, one.unit) for value in figures)))
        yield from columns(rows, right=frozenset({1, 2, 3}))


def _in_unit(value: float | None, unit: str) -> str:
    if value is None:
        return wording.DASH
    if unit == "bytes":
        return wording.size(int(value))
    return wording.ratio(value) if unit == "ratio" else f"{value:g}"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a sparkline scaled from 0 to the maximum. A gap is a space."""
    top = max((value for value in values if value is not None), default=0) or 1
    steps = len(BLOCKS) - 1
    return "".join(" " if value is None else BLOCKS[min(steps, round(value / top * steps))] for value in values)


NONE = "No model server runs here."
HEAD = ("engine", "model", "weights", "KV cache", "used", "rest", "requests", "tokens/s")
RIGHT = frozenset({2, 3, 4, 5, 7})


@click.command(short_help="Model servers: weights, KV cache, tokens per second.")
@common
def engines(url: Address | None, as_json: bool) -> int:
    """List model servers (vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI, TensorRT-LLM) and their use of memory.

    Rates are those of the last 5 s: a direct reading without memwatchd has none.
    """
    context = build_context(url, as_json)
    answer = context.snapshot()
    with check_shape(context.address):
        found = answer.json["engines"] if context.as_json else None
    return context.show(found, lambda: engine_lines(answer.snapshot), answer.is_simulated)


def engine_lines(snapshot: Snapshot) -> Iterator[str]:
    from memwatch.reporting.render.json import advice

    found = snapshot.engines
    if not found:
        yield NONE
        return
    head, *lines = columns([HEAD, *map(_row, found)], right=RIGHT)
    yield head
    for one, line in zip(found, lines, strict=True):
        yield line
        where = " ".join(word for word in (one.title, one.version, one.url) if isinstance(word, str) and word)
        user = wording.DASH if isinstance(one.user, Absent) else one.user
        yield f"      {where}" + (f", PID {one.pid} of {user}" if isinstance(one.pid, int) else "")
        if "draft_weights_bytes" in one.parts:
            yield f"      draft model {_size(one.draft_weights_bytes)}"
        yield from (f"      {note}" for note in (*one.notes, advice(one, snapshot)) if note)
    if snapshot.engines_not_followed:
        yield f"and {snapshot.engines_not_followed} more are not followed"


def _row(one: Engine) -> tuple[str, ...]:
    from memwatch.reporting.render.engine_view import describe_use

    part, rate = "", one.tokens_per_second
    if not isinstance(one.kv_cache_ratio, Absent):
        mean = known_or(one.kv_cache_mean_ratio, None)
        part = f" ({describe_use(one.kv_cache_ratio, mean, wording.ratio)})"
    used = one.kv_cache_used_bytes
    return (
        one.id,
        (wording.DASH if isinstance(one.model, Absent) else one.model)[:40],
        _size(one.weights_bytes),
        _size(one.kv_cache_bytes),
        (part.strip(" ()") or wording.DASH) if isinstance(used, Absent) else _size(used) + part,
        _size(one.remainder_bytes),
        _requests(one),
        wording.DASH if isinstance(rate, Absent) else f"{rate:.0f}",
    )


def _requests(one: Engine) -> str:
    waiting = wording.DASH if isinstance(one.requests_waiting, Absent) else one.requests_waiting
    running = one.requests_running
    return wording.DASH if isinstance(running, Absent) else f"{running} running, {waiting} waiting"


def _size(count: Bytes) -> str:
    return wording.DASH if isinstance(count, Absent) else wording.size(count)
