"""Connection to an MQTT broker by the library paho-mqtt, which the extra `mqtt` installs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from paho.mqtt.client import Client, ConnectFlags, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from memwatch.cli.context import print_errors
from memwatch.cli.home_assistant import PASSWORD_VARIABLE, Topics, discovery_of, encode, values_of
from memwatch.cli.http import CommandError
from memwatch.core.http import GetError
from memwatch.core.linux.key_owner import KeyOwners, KeyUse, KnownOwners
from memwatch.core.linux.process_files import Passwd
from memwatch.core.snapshot import Snapshot

ONLINE, OFFLINE = "online", "offline"
CONNECT_SECONDS = 10.0
# Received bytes of one connection, at its start and for each second. The command subscribes to nothing: a broker
# sends 4 bytes for the connection and for each message, 2 for a ping. The library would read 256 MiB into memory.
MAX_START_BYTES, MAX_BYTES_PER_SECOND = 4096, 256


class Broker(Struct, frozen=True):
    """Address and login of a broker. `listener`: its user on this machine, empty for the one at the start."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = None
    listener: str = ""

    def __str__(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


class ForeignBrokerError(OSError):
    """Another user listens, or no process has accepted the connection. The library tries again after an OSError."""


class BoundedClient(Client):
    """Client that drops a broker which sends more than answers. The library then connects again, with a pause."""

    def __init__(self, name: str) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, name)
        self._opened_at, self._received_bytes = time.monotonic(), 0

    def start_counting(self) -> None:
        """Begin with a new connection."""
        self._opened_at, self._received_bytes = time.monotonic(), 0

    def _sock_recv(self, bufsize: int) -> bytes:
        data = super()._sock_recv(bufsize)
        self._received_bytes += len(data)
        seconds = time.monotonic() - self._opened_at
        if self._received_bytes > MAX_START_BYTES + MAX_BYTES_PER_SECOND * seconds:
            raise ConnectionError("the broker sends more than answers")
        return data


class MqttSession:
    """Connection that the library restores. The broker reports the machine as offline when it is lost.

    After each reconnection the retained messages are sent again: the broker may have forgotten them.
    """

    def __init__(self, broker: Broker, topics: Topics) -> None:
        self._broker, self._topics = broker, topics
        self._retained: dict[str, str] = {}
        self._answered, self._refusal = threading.Event(), ""
        self._client = BoundedClient(f"memwatch-{topics.node}")
        self._client.username_pw_set(broker.user, broker.password)
        if broker.tls:
            self._client.tls_set()
        self._client.will_set(topics.availability, OFFLINE, qos=1, retain=True)
        self._client.on_connect = self._on_connect
        self._client.on_socket_open = self._on_socket_open
        use = KeyUse("", str(broker), "password", "", "--broker-user")
        self._admit = KeyOwners(Passwd(Path("/etc/passwd")), KnownOwners()).admit(use, broker.listener)
        self._foreign: str | None = None

    def open(self) -> None:
        """Connect for the first time. Raise CommandError if that fails."""
        try:
            self._client.connect(self._broker.host, self._broker.port)
        except ForeignBrokerError as error:
            raise CommandError(f"cannot use the broker {self._broker}: {error}") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that is none in DNS
            why = getattr(error, "strerror", None) or str(error)
            raise CommandError(f"cannot reach the broker {self._broker}: {why}; check --broker") from None
        self._client.loop_start()
        if not self._answered.wait(CONNECT_SECONDS):
            self.close()
            raise CommandError(f"the broker {self._broker} does not answer in MQTT; check the port")
        if self._refusal:
            self.close()
            why = f"the broker {self._broker} refuses the login: {self._refusal}"
            raise CommandError(f"{why}; set --user and {PASSWORD_VARIABLE}")

    def show(self, snapshot: Snapshot) -> None:
        """Publish the values of a snapshot; the discovery only if sensors have come or gone.

        Values come before availability, so that a machine that is available has some.
        """
        self._retain(self._topics.config, encode(discovery_of(snapshot)))
        if self._client.is_connected():  # the library would queue old values
            self._publish(self._topics.state, encode(values_of(snapshot)))
        self._retain(self._topics.availability, ONLINE)

    def hide(self) -> None:
        """Report the machine as unavailable: there are no current values."""
        self._retain(self._topics.availability, OFFLINE)

    def close(self) -> None:
        if self._client.is_connected() and not self._refusal:
            with suppress(RuntimeError, ValueError):  # the connection was lost since
                self._publish(self._topics.availability, OFFLINE).wait_for_publish(CONNECT_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()

    def _retain(self, topic: str, text: str) -> None:
        if self._retained.get(topic) != text:
            self._retained[topic] = text
            if self._client.is_connected():
                self._publish(topic, text)

    def _publish(self, topic: str, text: str) -> MQTTMessageInfo:
        return self._client.publish(topic, text, qos=1, retain=True)

    def _on_socket_open(self, _client: Client, _data: object, connected: Any) -> None:  # noqa: ANN401  paho's own
        """Close a connection whose listener may not have the password, before the library sends it."""
        self._client.start_counting()
        if self._broker.password is None:
            return
        try:
            self._admit(connected, time.monotonic() + CONNECT_SECONDS)
        except (GetError, OSError) as error:
            # A socket that stays open would be read from: its listener could answer without a login.
            connected.close()
            why = "no process accepts the connection" if isinstance(error, TimeoutError) else str(error)
            if why != self._foreign and self._answered.is_set():
                print_errors([f"broker {self._broker}: {why}"])
            self._foreign = why
            raise ForeignBrokerError(why) from None
        self._foreign = None

    def _on_connect(
        self, _client: Client, _data: object, _flags: ConnectFlags, code: ReasonCode, _more: Properties | None
    ) -> None:
        self._refusal = str(code) if code.is_failure else ""
        self._answered.set()
        for topic, text in [] if self._refusal else list(self._retained.items()):
            self._publish(topic, text)
