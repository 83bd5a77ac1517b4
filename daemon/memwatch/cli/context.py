"""Shared parts of the commands: daemon address, requests, output."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click
from click.core import ParameterSource
from msgspec import Struct

from memwatch import __version__
from memwatch.cli.http import (
    DEFAULT,
    EXIT_FAILURE,
    SECONDS,
    Address,
    CommandError,
    DaemonResponse,
    DaemonUnreachableError,
    RequestDeclinedError,
    ask,
    default_address,
    parse_url,
)
from memwatch.core.leases import OWN_LEASE
from memwatch.core.linux.daemon_connection import INQUIRY_SECONDS
from memwatch.core.options import InvalidValueError, parse_duration
from memwatch.core.printable import printable

if TYPE_CHECKING:
    from types import ModuleType

    from memwatch.core.reading.machine import DirectReading
    from memwatch.core.snapshot import Snapshot
    from memwatch.planning.answer import FitAnswer

EXIT_OK, EXIT_USAGE = 0, 2

Json = Any
Command = Callable[..., int]


class UnexpectedResponseError(CommandError):
    """A response without the expected structure."""


@contextmanager
def check_shape(address: Address) -> Iterator[None]:
    """Convert lookup and type errors to UnexpectedResponseError. Wrap only access to a response of `address`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UnexpectedResponseError(
            f"unexpected response from {address} ({type(error).__name__}: {error}); "
            f"check that memwatchd {__version__} is running there"
        ) from None


class SnapshotAnswer(Struct, frozen=True, dict=True):
    """A snapshot of a daemon, as it was `sent`, or one of this machine, `read` directly.

    `unix`: the daemon's Date header, if any. `is_simulated`: demo or replay data.
    """

    sent: Json = None
    read: Snapshot | None = None
    unix: float | None = None
    is_simulated: bool = False

    @cached_property
    def snapshot(self) -> Snapshot:
        """Decode what was sent. Raises SnapshotDecodeError."""
        if self.read is not None:
            return self.read
        from memwatch.core.snapshot_json import build_snapshot  # not needed to print JSON

        return build_snapshot(self.sent)

    @cached_property
    def json(self) -> Json:
        if self.read is None:
            return self.sent
        from memwatch.reporting.render.json import snapshot_json

        return snapshot_json(self.read)

    @property
    def age_seconds(self) -> float | None:
        """Return the age of the snapshot when it was sent, None if it was read directly."""
        return None if self.unix is None else self.unix - self.snapshot.unix


class ClientContext(Struct, frozen=True):
    """Daemon address and output format of a command. `is_chosen`: the address was given with --url."""

    address: Address
    as_json: bool
    is_chosen: bool = False

    def snapshot(self, reading: DirectReading | None = None) -> SnapshotAnswer:
        """Return the snapshot of the daemon. Without one it is read by `reading`, by default with the settings."""
        try:
            return self.ask_snapshot()
        except DaemonUnreachableError as error:
            self._print_fallback(error)
            return SnapshotAnswer(read=_local().snapshot(reading))

    def read_snapshot(self, seconds: float = SECONDS) -> Snapshot:
        """Return the snapshot of the daemon."""
        found = self.ask_snapshot(seconds)
        with check_shape(self.address):
            return found.snapshot

    def ask_snapshot(self, seconds: float = SECONDS) -> SnapshotAnswer:
        found = ask(self.address, "/api/v1/snapshot", seconds=seconds)
        return SnapshotAnswer(found.json, None, found.unix, found.is_simulated)

    def backends(self) -> DaemonResponse:
        return self._or_local("/api/v1/backends", INQUIRY_SECONDS, lambda: _local().backends())

    def doctor(self) -> DaemonResponse:
        return self._or_local("/api/v1/doctor", INQUIRY_SECONDS, lambda: _local().doctor())

    def snapshots(self, interval_seconds: float) -> Iterator[SnapshotAnswer]:
        """Yield snapshots of the daemon or of this machine. Repeats a snapshot if there was no tick since."""
        found, here = self.first_snapshot(interval_seconds)
        yield found
        if here is not None:
            yield from here
            return
        while True:
            time.sleep(interval_seconds)
            yield self.ask_snapshot()

    def first_snapshot(self, interval_seconds: float) -> tuple[SnapshotAnswer, Iterator[SnapshotAnswer] | None]:
        """Return a snapshot. If no daemon runs here, it is of this machine; the iterator yields the next ones."""
        try:
            return self.ask_snapshot(), None
        except DaemonUnreachableError as error:
            self._print_fallback(error)
            here = (SnapshotAnswer(read=one) for one in _local().snapshots(interval_seconds))
            return next(here), here

    def fit(self, query: str, answer: Callable[[Snapshot], FitAnswer]) -> DaemonResponse:
        """Ask the daemon. A daemon reports on the machine, so within a limit of this program its snapshot answers.

        That is also so if it is of a version that does not know the request.
        """
        from memwatch.library.host import as_used_here, read_own_share

        own = os.environ.get(OWN_LEASE, "")
        lease = f"&{urlencode({'lease': own})}" if own else ""
        if read_own_share() is not None and (found := self._fit_within_limit(answer)):
            return found
        path = f"/api/v1/fit?{query}{lease}"
        try:
            return self._or_local(path, SECONDS, lambda: _local().fit(lambda seen: answer(as_used_here(seen))))
        except RequestDeclinedError as error:
            if error.status != http.client.UNPROCESSABLE_ENTITY:
                raise
            return self._fit_as_declined(answer, error)

    def _fit_within_limit(self, answer: Callable[[Snapshot], FitAnswer]) -> DaemonResponse | None:
        """Answer from the daemon's snapshot, if it is of this machine and can be used."""
        from memwatch.cli.headroom import is_this_machine
        from memwatch.core.snapshot_json import SnapshotDecodeError
        from memwatch.library.host import as_used_here

        with suppress(DaemonUnreachableError, SnapshotDecodeError):
            response = self.ask_snapshot()
            if is_this_machine(response.snapshot):
                return _fit_from(response, lambda seen: answer(as_used_here(seen)))
        return None

    def _fit_as_declined(
        self, answer: Callable[[Snapshot], FitAnswer], declined: RequestDeclinedError
    ) -> DaemonResponse:
        from memwatch.core.snapshot_json import SnapshotDecodeError

        try:
            found = _fit_from(self.ask_snapshot(), answer)
        except SnapshotDecodeError as error:
            raise CommandError(f"{declined}, and its snapshot cannot be used ({error}); {self._update}") from None
        print_errors(
            [f"memwatchd at {self.address} does not know this request; answered from its snapshot; {self._update}"]
        )
        return found

    @property
    def _update(self) -> str:
        return f"install memwatchd {__version__} there"

    def show(self, found: Json, lines: Callable[[], Iterable[str]], is_simulated: bool = False) -> int:
        """Print JSON, or lines with control characters escaped, with a warning on stderr if `is_simulated`."""
        return self.show_painted(found, lambda: map(printable, lines()), is_simulated)

    def show_painted(self, found: Json, lines: Callable[[], Iterable[str]], is_simulated: bool = False) -> int:
        """Print JSON, or lines that may contain colours, in which names are escaped already."""
        if self.as_json:
            found = found.json if isinstance(found, SnapshotAnswer) else found
            print(json.dumps(found, separators=(",", ":")))
            return EXIT_OK
        with check_shape(self.address):
            text = "\n".join(lines())
        self.print_simulated(is_simulated)
        print(text)
        return EXIT_OK

    def print_simulated(self, is_simulated: bool) -> None:
        """Warn on stderr about simulated data. JSON contains the field `simulated` instead."""
        if is_simulated and not self.as_json:
            from memwatch.reporting.render import words as wording

            print_errors([wording.SIMULATED])

    def _or_local(self, path: str, seconds: float, here: Callable[[], Json]) -> DaemonResponse:
        try:
            return ask(self.address, path, seconds=seconds)
        except DaemonUnreachableError as error:
            self._print_fallback(error)
            return DaemonResponse(here(), None)

    def _print_fallback(self, error: DaemonUnreachableError) -> None:
        if self.is_chosen or not self.address.is_here:
            raise error
        print_errors([f"cannot reach memwatchd at {error.address} ({error.reason}); reading this machine directly"])


def to_address(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Address | None:
    try:
        return None if value is None else parse_url(value)
    except InvalidValueError as error:
        from memwatch.core.redaction import redact_text  # needed only after a mistake

        why = str(error) or "is not http://HOST:PORT, https://HOST:PORT or unix:/PATH"
        raise click.UsageError(f'the URL "{redact_text(value or "")}" {why}; for example {DEFAULT}') from None


def seconds_within(
    minimum: str, maximum: str, example: str
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Return a click callback that parses a duration or a number of seconds; None passes through."""

    def to_seconds(_ctx: click.Context, option: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        try:
            duration = parse_duration(value)
        except InvalidValueError:
            duration = None
        if duration is None or not parse_duration(minimum) <= duration <= parse_duration(maximum):
            words = f"which is not a duration from {minimum} to {maximum}; for example {example}"
            raise click.UsageError(f'{option.opts[0]} is "{value}", {words}')
        return duration.total_seconds()

    return to_seconds


class Number(click.IntRange):
    """An integer option. Its error message includes an example."""

    def __init__(self, minimum: int, maximum: int, example: int) -> None:
        super().__init__(minimum, maximum)
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            name = param.opts[0] if param else "a number"
            words = f"which is not a whole number from {self.min} to {self.max}; for example {self.example}"
            raise click.UsageError(f'{name} is "{value}", {words}') from None


def _fit_from(response: SnapshotAnswer, answer: Callable[[Snapshot], FitAnswer]) -> DaemonResponse:
    """Answer from a daemon's snapshot, beside the leases of others. Raises SnapshotDecodeError."""
    from memwatch.planning.answer import answer_beside_leases
    from memwatch.reporting.render.fit_json import fit_json

    found = fit_json(answer_beside_leases(response.snapshot, os.environ.get(OWN_LEASE, ""), answer))
    return DaemonResponse(
        {**found, **({"simulated": True} if response.is_simulated else {})}, response.unix, response.is_simulated
    )


def _local() -> ModuleType:
    """Return the module that reads this machine. It is imported if no daemon answers."""
    from memwatch.cli import local

    return local


def common(command: Command) -> Command:
    """Add the options that are valid before and after the command name."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    return click.option("--url", metavar="URL", callback=to_address, help="Daemon address.")(command)


def build_context(url: Address | None, as_json: bool) -> ClientContext:
    """Build the context. An option after the command name overrides one before it."""
    parent = click.get_current_context().parent
    before = parent.params if parent else {}
    is_chosen = url is not None or (
        parent is not None and parent.get_parameter_source("url") is ParameterSource.COMMANDLINE
    )
    address = url or before.get("url") or default_address()
    return ClientContext(address, as_json or bool(before.get("as_json")), is_chosen)


def print_errors(sentences: Sequence[str], code: int = EXIT_FAILURE) -> int:
    """Print each as one line: a sentence may quote a server's answer."""
    for sentence in sentences:
        print(f"memwatch: {printable(sentence)}", file=sys.stderr)
    return code
