"""What the commands have in common: whom to ask, and how to show what comes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from msgspec import Struct

from memwatch import __version__
from memwatch.options import InvalidValueError, parse_duration
from memwatchd.client.address import DEFAULT, Address, parse_url
from memwatchd.client.errors import EXIT_FAILURE, CommandError
from memwatchd.client.http import SECONDS, DaemonResponse, DaemonUnreachableError, ask

EXIT_OK, EXIT_USAGE = 0, 2
# Drivers are asked for ten seconds at most; a minute later they are asked again.
INQUIRY_SECONDS = 30.0

Json = Any
Command = Callable[..., int]


class UnexpectedResponseError(CommandError):
    """An answer that is not shaped as this program expects."""


@contextmanager
def check_shape(address: Address) -> Iterator[None]:
    """Only for looking at what `address` answered: whatever cannot be found in it, it is the answer's fault."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UnexpectedResponseError(
            f"what {address} answered is not as memwatch {__version__} expects it "
            f"({type(error).__name__}: {error}): is a memwatchd of that version there?"
        ) from None


class ClientContext(Struct, frozen=True):
    """Whom to ask, and how to print what comes."""

    address: Address
    as_json: bool

    def snapshot(self) -> DaemonResponse:
        return self._or_local("/api/v1/snapshot", SECONDS, _snapshot_here)

    def backends(self) -> DaemonResponse:
        return self._or_local("/api/v1/backends", INQUIRY_SECONDS, _backends_here)

    def doctor(self) -> DaemonResponse:
        return self._or_local("/api/v1/doctor", INQUIRY_SECONDS, _doctor_here)

    def snapshots(self, interval_seconds: float) -> Iterator[Json]:
        """One after the other, of the daemon or of this machine; the same again where it has not ticked since."""
        try:
            found = ask(self.address, "/api/v1/snapshot").json
        except DaemonUnreachableError as error:
            self._print_fallback(error)
            yield from _snapshots_here(interval_seconds)
            return
        yield found
        while True:
            time.sleep(interval_seconds)
            yield ask(self.address, "/api/v1/snapshot").json

    def fit(self, need: int) -> DaemonResponse:
        return self._or_local(f"/api/v1/fit?bytes={need}", SECONDS, lambda: _fit_here(need))

    def show(self, found: Json, lines: Callable[[], Iterable[str]], is_simulated: bool = False) -> int:
        """As JSON, or as lines that no name somebody chose can break; then `is_simulated` is said beside them."""
        if self.as_json:
            print(json.dumps(found, separators=(",", ":")))
            return EXIT_OK
        from memwatch.render import words as wording

        with check_shape(self.address):
            text = "\n".join(wording.printable(line) for line in lines())
        self.print_simulated(is_simulated)
        print(text)
        return EXIT_OK

    def print_simulated(self, is_simulated: bool) -> None:
        """On stderr, for people: figures of a machine that is none look like any others. JSON says it itself."""
        if is_simulated and not self.as_json:
            from memwatch.render import words as wording

            print_errors([wording.SIMULATED])

    def _or_local(self, path: str, seconds: float, here: Callable[[], Json]) -> DaemonResponse:
        try:
            return ask(self.address, path, seconds=seconds)
        except DaemonUnreachableError as error:
            self._print_fallback(error)
            return DaemonResponse(here(), None)

    def _print_fallback(self, error: DaemonUnreachableError) -> None:
        if not self.address.is_here:
            raise error
        print_errors([f"no memwatchd answers at {error.address} ({error.reason}): this machine is read directly"])


def to_address(_ctx: click.Context, _option: click.Parameter, value: str | None) -> Address | None:
    try:
        return None if value is None else parse_url(value)
    except InvalidValueError as error:
        why = str(error) or "is not http://HOST:PORT, https://HOST:PORT or unix:/PATH"
        raise click.UsageError(f'the URL "{value}" {why}; for example {DEFAULT}') from None


def seconds_within(
    minimum: str, maximum: str, example: str
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """What reads a duration as the settings have them, or a number of seconds; None where there is none."""

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
    """A whole number; what is none is told with one that would do."""

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


def _snapshot_here() -> Json:
    from memwatchd.client import local as direct

    return direct.snapshot()


def _snapshots_here(interval_seconds: float) -> Iterator[Json]:
    from memwatchd.client import local as direct

    return direct.snapshots(interval_seconds)


def _fit_here(need: int) -> Json:
    from memwatchd.client import local as direct

    return direct.fit(need)


def _doctor_here() -> Json:
    from memwatchd.client import local as direct

    return direct.doctor()


def _backends_here() -> Json:
    from memwatchd.client import local as direct

    return direct.backends()


def common(command: Command) -> Command:
    """The options that may stand before a command or behind it."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)
    return click.option("--url", metavar="URL", callback=to_address, help="Where the daemon is.")(command)


def build_context(url: Address | None, as_json: bool) -> ClientContext:
    """What stands behind the command wins over what stands before it."""
    parent = click.get_current_context().parent
    before = parent.params if parent else {}
    return ClientContext(url or before.get("url") or DEFAULT, as_json or bool(before.get("as_json")))


def print_errors(sentences: Sequence[str], code: int = EXIT_FAILURE) -> int:
    for sentence in sentences:
        print(f"memwatch: {sentence}", file=sys.stderr)
    return code
