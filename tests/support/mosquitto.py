"""Mosquitto from Debian: an MQTT broker on a free port, and its own client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from support.bound_process import start_bound
from support.free_ports import free_port
from support.waiting import MAX_WAIT_SECONDS, wait_until

NEEDED_PROGRAMS = ("mosquitto", "mosquitto_passwd")
USER, PASSWORD = "hass", "a-password-of-tests"


class MqttBroker(Struct):
    """A running broker, and all messages since `watch` began, by topic."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    messages: dict[str, list[str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def last(self, topic: str) -> str:
        return self.messages.get(topic, [""])[-1]

    def wait_for(self, topic: str, text: str) -> None:
        wait_until(lambda: self.last(topic) == text, describe=lambda: f"{topic}: {self.messages}")


@contextmanager
def mosquitto(folder: Path, port: int = 0) -> Iterator[MqttBroker]:
    """Run a broker with one user. It keeps retained messages in memory only."""
    port = port or free_port()
    passwords, config, log = folder / "passwords", folder / "mosquitto.conf", folder / "mosquitto.log"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, USER, PASSWORD], check=True, capture_output=True)
    passwords.chmod(0o644)
    config.write_text(f"listener {port} 127.0.0.1\nuser root\npassword_file {passwords}\nallow_anonymous false\n")
    with log.open("ab") as output:
        process = start_bound(["mosquitto", "-c", config], output, output)
    try:
        yield MqttBroker(process, port, log)
    finally:
        process.terminate()
        process.wait(MAX_WAIT_SECONDS)


@contextmanager
def watch(broker: MqttBroker) -> Iterator[MqttBroker]:
    """Collect all messages as another client of the broker does."""
    client = Client(CallbackAPIVersion.VERSION2, "watcher")
    client.username_pw_set(USER, PASSWORD)
    client.on_message = lambda _client, _data, message: add(broker, message)
    connect(client, broker.port)
    client.subscribe("#", qos=1)
    client.loop_start()
    try:
        yield broker
    finally:
        client.disconnect()
        client.loop_stop()


def add(broker: MqttBroker, message: MQTTMessage) -> None:
    broker.messages.setdefault(message.topic, []).append(message.payload.decode())


def connect(client: Client, port: int) -> None:
    """Connect as soon as the broker listens."""
    wait_until(lambda: is_connected(client, port), describe=lambda: "mosquitto does not listen")


def is_connected(client: Client, port: int) -> bool:
    try:
        client.connect("127.0.0.1", port)
    except OSError:
        return False
    return True
