"""`memwatch mqtt`: the machine as a device of Home Assistant, by MQTT discovery."""

from __future__ import annotations

import os
import signal
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import click

from memwatch.cli.context import (
    EXIT_OK,
    ClientContext,
    build_context,
    check_shape,
    common,
    print_errors,
    seconds_within,
)
from memwatch.cli.home_assistant import PASSWORD_VARIABLE, topics_of
from memwatch.cli.http import Address, CommandError
from memwatch.core.snapshot import Snapshot

if TYPE_CHECKING:
    from memwatch.cli._mqtt_session import MqttSession

PORTS = {"mqtt": 1883, "mqtts": 8883}
# A Date header has no fractions, so an age is known to the second.
MAX_INTERVALS = 3


def parse_broker(_ctx: click.Context, _option: click.Parameter, value: str) -> tuple[str, int, bool]:
    """Parse mqtt://HOST:PORT or mqtts://HOST:PORT to host, port and TLS."""
    try:
        parts = urlsplit(value)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        parts, port = urlsplit(""), 0
    if not parts.hostname or "@" in parts.netloc or parts.path.strip("/"):
        from memwatch.core.redaction import redact_text  # needed only after a mistake

        raise click.UsageError(
            f'--broker is "{redact_text(value)}", which is not mqtt://HOST:PORT or mqtts://HOST:PORT; for example mqtt://hass:1883'
        )
    return parts.hostname, port, parts.scheme == "mqtts"


@click.command(short_help="Show this machine in Home Assistant (MQTT).")
@click.option("--broker", required=True, metavar="URL", callback=parse_broker, help="mqtt://HOST:PORT or mqtts://.")
@click.option("--user", help=f"User at the broker; the password is read from {PASSWORD_VARIABLE}.")
@click.option(
    "--broker-user",
    metavar="NAME",
    default="",
    help="User whose process is the broker, on this machine.  [default: the one at the start]",
)
@click.option(
    "--interval",
    metavar="DURATION",
    default="30s",
    callback=seconds_within("1s", "1h", "30s"),
    help="Time between two messages, 1s to 1h.  [default: 30s]",
)
@common
def mqtt(
    broker: tuple[str, int, bool],
    user: str | None,
    broker_user: str,
    interval: float,
    url: Address | None,
    as_json: bool,
) -> int:
    """Publish pools, headroom and levels to an MQTT broker until SIGTERM or Ctrl-C.

    Home Assistant creates a device with sensors by itself. Needs the extra mqtt.
    """
    context = build_context(url, as_json)
    if find_spec("paho") is None:
        raise CommandError(
            "memwatch mqtt needs the library paho-mqtt; install it with: pip install 'memwatch[mqtt]'"
        )
    from memwatch.cli._mqtt_session import Broker, MqttSession

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = context.read_snapshot()
    session = MqttSession(Broker(*broker, user, os.environ.get(PASSWORD_VARIABLE), broker_user), topics_of(found))
    session.open()
    try:
        publish_for_ever(context, session, interval)
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        session.close()


def publish_for_ever(context: ClientContext, session: MqttSession, interval: float) -> NoReturn:
    """Publish each snapshot. Without a current one the machine is unavailable, which is reported once."""
    failed = ""
    while True:
        try:
            found = current_snapshot(context)
            with check_shape(context.address):
                session.show(found)
            failed = ""
        except CommandError as error:
            session.hide()
            if str(error) != failed:
                print_errors([str(error)])
            failed = str(error)
        time.sleep(interval)


def current_snapshot(context: ClientContext) -> Snapshot:
    """Ask for a snapshot. Raise CommandError if there is none, or an old one."""
    answer = context.ask_snapshot()
    with check_shape(context.address):
        snapshot, age = answer.snapshot, answer.age_seconds or 0.0
    if age > MAX_INTERVALS * snapshot.interval_seconds + 1:
        raise CommandError(f"memwatchd at {context.address} has not sampled for {age:.0f} s; check its log")
    return snapshot
