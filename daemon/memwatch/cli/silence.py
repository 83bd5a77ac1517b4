"""`memwatch silence`: mute notifications for a while, list silences, end one."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import click

from memwatch.cli.address import Address
from memwatch.cli.context import ClientContext, build_context, common, seconds_within
from memwatch.cli.errors import CommandError
from memwatch.cli.http import RequestDeclinedError, ask
from memwatch.cli.tables import columns
from memwatch.cli.times import when
from memwatch.core.silences import Silence
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.json import WIRE
from memwatch.monitor.render.silence_words import build_notices, end_command, target_labels, until_local

Json = dict[str, Any]
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
    (notice,) = build_notices([WIRE.decode(Silence, created)], labels)
    yield notice.text(until_local(notice.until_unix, created["created_unix"]))
    yield end_command(notice.id)
    if created["note"]:
        yield f"note: {created['note']}"


def list_lines(found: list[Json], now: float | None) -> Iterator[str]:
    if not found:
        yield "No silences."
        return
    rows: list[tuple[str, ...]] = [("id", "target", "event", "until", "by", "comment")]
    for one in found:
        until = when(one["until_unix"], now or one["created_unix"])
        rows.append((one["id"], one["target"] or ALL, one["event"] or ALL, until, one["made_by"], one["comment"]))
    yield from columns(rows)
    yield from (f"{one['id']}: {one['note']}" for one in found if one["note"])
