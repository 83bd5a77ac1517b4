"""`memwatch alerts`, `silence` and `check`: firing alerts, pauses of their notifications, an exit code by level."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from urllib.parse import quote, urlencode

import click

from memwatch.cli.context import ClientContext, build_context, check_shape, common, seconds_within
from memwatch.cli.http import EXIT_UNKNOWN, Address, CommandError, RequestDeclinedError, ask
from memwatch.cli.tables import table, when
from memwatch.cli.terminal.moment import LEVELS, labels_of
from memwatch.core.model import Absent
from memwatch.core.printable import printable
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.wire import Json
from memwatch.reporting.answers import AlertRow
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.summary import (
    build_notices,
    end_command,
    notice_lines,
    target_labels,
    until_local,
)


@click.command(short_help="Firing and pending alerts.")
@common
def alerts(url: Address | None, as_json: bool) -> int:
    """List firing and pending alerts, with their reasons, and the silences in force."""
    context = build_context(url, as_json)
    answer = ask(context.address, "/api/v1/alerts")

    def lines() -> Iterator[str]:
        yield from alert_lines(RECORDS.decode(tuple[AlertRow, ...], answer.json), answer.unix)
        found = ask(context.address, "/api/v1/silences")
        notices = build_notices(RECORDS.decode(tuple[Silence, ...], found.json), {})
        yield from notice_lines(notices, found.unix or time.time())

    return context.show(answer.json, lines, answer.is_simulated)


def alert_lines(found: Iterable[AlertRow], now: float | None) -> Iterator[str]:
    head, rows = ("severity", "state", "since", "target", "alert", "reason"), []
    for one in found:
        since = when(one.since_unix, now or one.since_unix) if one.since_unix else wording.DASH
        state = one.state + (", silenced" if one.silenced else "")
        reason = describe_clear(one, now) + "; ".join(reason.text for reason in one.reasons)
        rows.append((one.severity, state, since, one.target, one.rule, reason))
    yield from table(head, rows, "No alerts.")


def describe_clear(one: AlertRow, now: float | None) -> str:
    """Return since and until when an alert fires although its condition has ended, before its reasons of then."""
    clear, end = one.clear_since_unix, one.resolves_unix
    if clear is None:
        return ""
    ends = "" if end is None else f", resolves at {when(end, now or clear)} unless it returns"
    return f"clear since {when(clear, now or clear)}{ends}" + ("; before: " if one.reasons else "")


SILENCES = "/api/v1/silences"
ALL = "all"
USAGE = 'name a TARGET, such as "memwatch silence ram --for 1h", or use --list or --end ID'


@click.command(short_help="Mute notifications for a while.")
@click.argument("target", required=False)
@click.option(
    "--for",
    "seconds",
    callback=seconds_within("1s", "30d", "1h"),
    default="1h",
    metavar="DURATION",
    help="Duration, 1s to 30d.  [default: 1h]",
)
@click.option("--comment", default="", metavar="TEXT", help="Reason, for those who see the silence.")
@click.option("--event", metavar="EVENT", help="Only this event, such as pressure.critical.  [default: all]")
@click.option("--list", "lists", is_flag=True, help="List the silences in force.")
@click.option("--end", "ended", metavar="ID", help="End the silence with this id.")
@common
def silence(
    target: str | None,
    seconds: float,
    comment: str,
    event: str | None,
    lists: bool,
    ended: str | None,
    url: Address | None,
    as_json: bool,
) -> int:
    """Mute notifications about TARGET, an id such as ram or gpu0, or about everything with "all".

    Alerts that still fire when the silence ends are sent then. Alerts of Prometheus are not muted.
    """
    if (target is not None) + lists + (ended is not None) != 1:
        raise click.UsageError(USAGE)
    context = build_context(url, as_json)
    if target is not None:
        return _create(context, target, seconds, event, comment)
    if ended is not None:
        return _end(context, ended)
    answer = ask(context.address, SILENCES)
    return context.show(answer.json, lambda: list_lines(answer.json, answer.unix), answer.is_simulated)


def _create(context: ClientContext, target: str, seconds: float, event: str | None, comment: str) -> int:
    query = {"seconds": f"{seconds:g}", "comment": comment}
    query |= {} if target == ALL else {"target": target}
    query |= {} if event is None else {"event": event}
    answer = ask(context.address, f"{SILENCES}?{urlencode(query)}", "POST")
    labels = target_labels(context.read_snapshot())
    return context.show(answer.json, lambda: created_lines(answer.json[-1], labels), answer.is_simulated)


def _end(context: ClientContext, silence_id: str) -> int:
    try:
        answer = ask(context.address, f"{SILENCES}/{quote(silence_id, safe='')}", "DELETE")
    except RequestDeclinedError as error:
        if silence_id and error.status != HTTPStatus.NOT_FOUND:  # without one, the address is that of the list
            raise
        raise CommandError(f'no silence "{silence_id}"; "memwatch silence --list" lists those in force') from None
    left = f"; {wording.count(len(answer.json), 'silence')} left" if answer.json else ""
    return context.show(answer.json, lambda: [f"silence ended: {silence_id}{left}"], answer.is_simulated)


def created_lines(created: Json, labels: dict[str, str]) -> Iterator[str]:
    (notice,) = build_notices([RECORDS.decode(Silence, created)], labels)
    yield notice.text(until_local(notice.until_unix, created["created_unix"]))
    yield end_command(notice.id)
    if created["note"]:
        yield f"note: {created['note']}"


def list_lines(found: list[Json], now: float | None) -> Iterator[str]:
    head, rows = ("id", "target", "event", "until", "by", "comment"), []
    for one in RECORDS.decode(tuple[Silence, ...], found):
        until = when(one.until_unix, now or one.created_unix)
        rows.append((one.id, one.target or ALL, one.event or ALL, until, one.made_by, one.comment))
    yield from table(head, rows, "No silences.")
    yield from (f"{one['id']}: {one['note']}" for one in found if one["note"])


STATUS_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
CHOICES = click.Choice(LEVELS[1:])
MAX_NAMED = 3
# OK, a warning, critical and unknown as node-problem-detector counts: 1 is a problem, every other code unknown.
NODE_PROBLEM_CODES = (0, 0, 1, 2)
# `max_output_length` of node-problem-detector's own examples.
MAX_MESSAGE_LENGTH = 80


@click.command(short_help="Exit code by level, for Nagios and scripts.")
@click.option("--fail-on", type=CHOICES, default="critical", help="Level that is critical.  [default: critical]")
@click.option("--warn-on", type=CHOICES, help="Level that is a warning.  [default: high, or a lower --fail-on]")
@click.option(
    "--target", metavar="ID", multiple=True, help="Only this pool, limit or MIG instance. May be repeated."
)
@click.option(
    "--node-problem",
    is_flag=True,
    help="Exit as a plugin of Kubernetes' node-problem-detector: 0 (OK), 1 (--fail-on is reached) or 2 (unknown).",
)
@common
def check(
    fail_on: str,
    warn_on: str | None,
    target: tuple[str, ...],
    node_problem: bool,
    url: Address | None,
    as_json: bool,
) -> int:
    """Print the worst level with performance data in one line, as Nagios plugins do.

    Exits with 0 (OK), 1 (warning), 2 (critical) or 3 (unknown: no daemon, no data, or stale data).
    """
    if warn_on and LEVELS.index(warn_on) > LEVELS.index(fail_on):
        raise click.UsageError(f"--warn-on is {warn_on}, above --fail-on ({fail_on}): there would be no warning")
    warn_on = warn_on or min("high", fail_on, key=LEVELS.index)
    try:
        context = build_context(url, as_json)
        answer = context.snapshot()
        with check_shape(context.address):
            code, line = judge(answer.snapshot, answer.age_seconds or 0.0, fail_on, warn_on, target)
            figures = perfdata(answer.snapshot, target, fail_on, warn_on)
    except CommandError as error:
        code, line, figures = EXIT_UNKNOWN, str(error), ""
        as_json = as_json or bool(
            (click.get_current_context().parent or click.get_current_context()).params.get("as_json")
        )
    else:
        as_json = context.as_json
    if node_problem:
        print(printable(shorten(line)))
        return NODE_PROBLEM_CODES[code]
    if as_json:
        print(json.dumps({"status": STATUS_WORDS[code].lower(), "exit_code": code, "text": line}))
    else:
        print(printable(f"MEMWATCH {STATUS_WORDS[code]} - {line}{f' | {figures}' if figures else ''}"))
    return code


def shorten(line: str) -> str:
    """Return a line that node-problem-detector does not cut."""
    return line if len(line) <= MAX_MESSAGE_LENGTH else line[: MAX_MESSAGE_LENGTH - 1] + "…"


def judge(snapshot: Snapshot, age: float, fail_on: str, warn_on: str, targets: tuple[str, ...]) -> tuple[int, str]:
    """Return the exit code and a sentence."""
    known = [one for one in snapshot.pressure if not targets or one.target in targets]
    missing = [name for name in targets if name not in {one.target for one in known}]
    if missing:
        ids = ", ".join(one.target for one in snapshot.pressure)
        return EXIT_UNKNOWN, f"no level for {', '.join(missing)}; targets are {ids or 'none'}"
    if not known:
        return EXIT_UNKNOWN, "no memory data"
    # A Date header has no fractions, so an age is known to the second.
    if age > 3 * snapshot.interval_seconds + 1:
        return EXIT_UNKNOWN, f"stale data, from {wording.age(age)}: memwatchd is not sampling"
    known.sort(key=lambda one: (one.level, one.ratio), reverse=True)
    worst = known[0].level
    code = 2 if worst >= LEVELS.index(fail_on) else 1 if worst >= LEVELS.index(warn_on) else 0
    labels = labels_of(snapshot)
    shown = [one for one in known if one.level == worst] if worst else known[:1]
    sentences = [wording.verdict(labels[one.target], one) for one in shown[:MAX_NAMED]]
    more = f"; {len(shown) - MAX_NAMED} more" if len(shown) > MAX_NAMED else ""
    return code, "; ".join(sentences) + more


def perfdata(snapshot: Snapshot, targets: tuple[str, ...], fail_on: str, warn_on: str) -> str:
    """Return the use and the level of each target as performance data of a Nagios plugin, with their thresholds."""
    found, steps = [], [LEVELS.index(level) for level in (warn_on, fail_on)]
    for one in snapshot.pressure:
        if not targets or one.target in targets:
            name = one.target.replace("'", "").replace("=", "")
            used = ";".join(
                "" if isinstance(one.thresholds, Absent) else f"{one.thresholds.entry(level) * 100:g}"
                for level in steps
            )
            # A plugin's range alerts above its end.
            levels = ";".join(str(level - 1) for level in steps)
            found.append(f"'{name}'={one.ratio * 100:.1f}%;{used};0;100")
            found.append(f"'{name}_level'={int(one.level)};{levels};0;3")
    return " ".join(found)
