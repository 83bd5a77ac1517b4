"""Past events: `memwatch incidents`, as a list, a report or Markdown, `events` and `last-words`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import click

from memwatch.cli.context import Number, build_context, check_shape, common
from memwatch.cli.http import Address, CommandError, DaemonResponse, RequestDeclinedError, ask
from memwatch.cli.tables import clock, columns, known_size, stamp
from memwatch.core.events import Event
from memwatch.core.listing import left_out_texts
from memwatch.core.model import NAMELESS, known_or
from memwatch.core.owners import describe_home
from memwatch.core.printable import printable_lines
from memwatch.core.snapshot_json import RECORDS
from memwatch.core.units import size
from memwatch.core.wire import Json
from memwatch.reporting.history.last_run import UncleanShutdown
from memwatch.reporting.history.notable_ticks import Holder
from memwatch.reporting.incidents.markdown import render
from memwatch.reporting.incidents.records import Incident, Suspect, Victim, title_of
from memwatch.reporting.incidents.words import INCIDENTS, NOT_KNOWN, Fact, list_facts, write_summary, write_title
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.json import read_last_words


@click.command(short_help="What took the memory, who was killed.")
@click.argument("incident", metavar="[ID]", required=False)
@click.option("--markdown", is_flag=True, help="Print a report in Markdown. Needs an ID, or uses the newest.")
@click.option(
    "--limit", type=Number(1, 100, 20), default=20, show_default=True, help="Maximum number of incidents."
)
@common
def incidents(incident: str | None, markdown: bool, limit: int, url: Address | None, as_json: bool) -> int:
    """List incidents, newest first, or show the one with ID: cause, killer, victims, evidence and timeline.

    An incident begins with a critical level (not with full GPU memory alone), a kill, a lost GPU, a gap in the
    samples, or an unclean end. A cause without enough evidence is reported as undecided, with the candidates.
    """
    context = build_context(url, as_json)
    address = context.address
    recent = f"/api/v1/incidents?limit={limit}"
    answer = ask(address, recent) if incident is None else _ask(address, incident)
    if markdown and incident is None:
        with check_shape(address):
            newest = answer.json[0]["id"] if answer.json else None
        answer = answer if newest is None else _ask(address, newest)
    if markdown and answer.json:
        return context.show_painted(
            answer.json, lambda: [printable_lines(render(read_incident(answer.json))).rstrip("\n")]
        )
    if isinstance(answer.json, list):
        kinds = ("incidents", "incidents_kept", "last_words")

        def lines() -> list[str]:
            return [*list_lines([read_incident(one) for one in answer.json]), *_left_out(address, *kinds)]

        return context.show(answer.json, lines, answer.is_simulated)
    return context.show(answer.json, lambda: report_lines(read_incident(answer.json)), answer.is_simulated)


def read_incident(found: Json) -> Incident:
    """Decode an incident. Raises TypeError, KeyError or ValueError for anything else."""
    incident: Incident = INCIDENTS.decode(Incident, found)
    return incident


def _ask(address: Address, incident: str) -> DaemonResponse:
    try:
        return ask(address, f"/api/v1/incidents/{quote(incident, safe='')}")
    except RequestDeclinedError as error:
        if incident and error.status != HTTPStatus.NOT_FOUND:  # without one, the address is that of the list
            raise
        raise CommandError(f'no incident "{incident}"; "memwatch incidents" lists those that are kept') from None


def _left_out(address: Address, *lists: str) -> list[str]:
    """Return sentences about what these lists leave out; none before the daemon's first tick."""
    try:
        answer = ask(address, "/api/v1/snapshot")
    except RequestDeclinedError:
        return []
    return read_left_out(answer.json, *lists)


def read_left_out(snapshot: Any, *lists: str) -> list[str]:  # noqa: ANN401  whatever a server has sent
    """Return sentences about what these lists of a snapshot leave out. Other versions may have no numbers."""
    found = snapshot.get("left_out") if isinstance(snapshot, dict) else None
    counts = found.items() if isinstance(found, dict) else ()
    return list(left_out_texts({name: count for name, count in counts if isinstance(count, int)}, *lists))


def list_lines(found: Sequence[Incident]) -> Iterator[str]:
    if not found:
        yield "No incidents."
    for index, one in enumerate(found):
        if index:
            yield ""
        state = f"{title_of(one.kind)}, {one.label}" + (f", {_state(one)}" if one.ended is None else "")
        yield f"{one.id}  {stamp(one.began)}  {state}"
        yield f"  {write_title(one)}"


def _state(one: Incident) -> str:
    """Return the state of an incident without an end."""
    return "not over" if one.quiet_until is None else f"over, being recorded until {clock(one.quiet_until)}"


def report_lines(found: Incident) -> Iterator[str]:
    end = _state(found) if found.ended is None else clock(found.ended)
    yield write_title(found)
    yield f"{found.id}  {stamp(found.began)} to {end}  {title_of(found.kind)}"
    if summary := write_summary(found):
        yield summary
    yield ""
    yield from columns([(fact.name, fact.value, _note(fact)) for fact in list_facts(found)])
    for one in found.candidates:
        yield f"Candidate: {_owner(one)}, grew by {size(one.growth_bytes)} since {clock(one.began)}"
    if found.killer is not None:
        yield f"Killer: {title_of(found.killer.kind)}"
    for victim in found.victims if len(found.victims) > 1 else ():
        yield f"Victim: {_owner(victim)}, {_known(victim.held_bytes)}, {_role(victim.is_cause)}"
    if found.evidence:
        yield ""
        yield from (f"- {one}" for one in found.evidence)
    if found.timeline:
        yield ""
        yield from columns([(clock(one.unix), one.kind, one.text) for one in found.timeline])


def _note(fact: Fact) -> str:
    """Return the note of a fact, with its time."""
    return ", ".join(part for part in (fact.note, "" if fact.unix is None else clock(fact.unix)) if part)


def _owner(one: Suspect | Victim) -> str:
    facts = [f"PID {one.pid}"] if one.pid is not None else []
    owner = describe_home(one.unit, one.container)
    facts += [owner] if owner else []
    return f"{one.who} ({', '.join(facts)})" if facts else one.who


def _known(count: int | None) -> str:
    return NOT_KNOWN if count is None else wording.size(count)


def _role(is_cause: bool | None) -> str:
    return "cause undecided" if is_cause is None else "the cause" if is_cause else "not the cause"


# Rows of the last words: the newest, next to the prompt.
MAX_SAMPLES = 15
SERIES_OF_TABLE = (".used_bytes", ".ratio_10s")


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
    return context.show(answer.json, lambda: last_word_lines(read_last_words(answer.json)), answer.is_simulated)


def last_word_lines(found: UncleanShutdown) -> Iterator[str]:
    yield f"{found.sentence}  ({stamp(found.unix)})"
    if found.last is not None:
        yield ""
        for one in found.last.pressure:
            reasons = dict.fromkeys([f"{wording.ratio(one.ratio)} used", *one.reasons])
            yield f"{one.label}: {wording.level(one.word)}, {'; '.join(reasons)}"
        yield from _last_processes(found.last.processes)
    samples = found.samples[-MAX_SAMPLES:]
    names = sorted({name for one in samples for name in one.figures if name.endswith(SERIES_OF_TABLE)})
    if names:
        yield ""
        rows: list[tuple[str, ...]] = [("time", *(_series_name(name) for name in names))]
        rows += [(clock(one.unix), *(_value(name, one.figures.get(name)) for name in names)) for one in samples]
        yield from columns(rows, right=frozenset(range(1, len(names) + 1)))


def _last_processes(processes: Sequence[Holder]) -> Iterator[str]:
    rows = [("pid", "name", "footprint")]
    rows += [
        (str(one.pid), one.name or NAMELESS, known_size(known_or(one.footprint_bytes, None))) for one in processes
    ]
    yield from ["", *columns(rows, right=frozenset({0, 2}))] if len(rows) > 1 else []


def _series_name(name: str) -> str:
    return name.removeprefix("pool.").removeprefix("share.").removesuffix(".used_bytes").removesuffix(".ratio_10s")


def _value(name: str, value: float | None) -> str:
    return wording.DASH if value is None else wording.figure(value, "bytes" if name.endswith("_bytes") else "ratio")


@click.command(short_help="Recent events, newest last.")
@click.option("--limit", type=Number(1, 1000, 20), default=20, show_default=True, help="Maximum number of events.")
@common
def events(limit: int, url: Address | None, as_json: bool) -> int:
    """List recent events, newest last: levels, alerts, OOM kills, failing collectors."""
    context = build_context(url, as_json)
    answer = ask(context.address, f"/api/v1/events?limit={limit}")

    def lines() -> list[str]:
        found = RECORDS.decode(tuple[Event, ...], answer.json)
        return [*_left_out(context.address, "marks"), *event_lines(found)]

    return context.show(answer.json, lines, answer.is_simulated)


def event_lines(events: Sequence[Event]) -> Iterator[str]:
    """Yield events oldest first, so that the newest is next to the prompt. `events` is newest first."""
    if not events:
        yield "No events yet."
        return
    rows = [(stamp(event.unix), event.kind, event.text) for event in reversed(events)]
    yield from columns(rows)
