"""Test `memwatch mqtt` with mosquitto, and the messages for Home Assistant without a broker."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.cli.home_assistant import discovery_of, topics_of, values_of
from memwatch.core.snapshot import Snapshot
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.client_process import SCRIPT, memwatch
from support.daemon_process import clean_environment, running_daemon
from support.dead_address import dead_address
from support.mosquitto import PASSWORD, USER, MqttBroker, mosquitto, watch
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS, wait_until

STATE, AVAILABILITY = "memwatch/spark_1a2b/state", "memwatch/spark_1a2b/availability"
CONFIG = "homeassistant/device/memwatch_spark_1a2b/config"
DEMOS = ("dgx-spark", "rtx4090", "h100x8-mig", "strix-halo", "macbook")


def demo(name: str) -> Snapshot:
    """Return the first snapshot of a demo."""
    return next(read_frames(path_of(name)))


@pytest.mark.parametrize("name", DEMOS)
def test_each_component_reads_a_value_of_its_kind(name: str) -> None:
    """A template names one key; sizes and percentages are numbers, levels one of the options. Ids are unique."""
    snapshot = demo(name)
    values, components = values_of(snapshot), discovery_of(snapshot)["components"]

    assert components.keys() == values.keys()
    assert len({one["unique_id"] for one in components.values()}) == len(components)
    for key, one in components.items():
        assert re.fullmatch(r"[A-Za-z0-9_]+", key)
        assert one["value_template"] == f"{{{{ value_json.{key} }}}}"
        if "options" in one:
            assert values[key] in one["options"]
            assert "state_class" not in one
        else:
            assert values[key] is None or isinstance(values[key], float | int)
            assert one["state_class"] == "measurement"


def test_sizes_are_those_of_the_snapshot_in_gib() -> None:
    snapshot = demo("rtx4090")
    values = values_of(snapshot)
    vram = next(pool for pool in snapshot.pools if pool.id == "gpu0")

    assert isinstance(vram.used_bytes, int)
    assert values["gpu0_size"] == pytest.approx(vram.size_bytes / 2**30, abs=0.01)
    assert values["gpu0_used"] == pytest.approx(100 * vram.used_bytes / vram.size_bytes, abs=0.1)


def test_topics_contain_no_separator_of_a_host_name() -> None:
    """A host may be named with dots, or, in a hostile recording, with a wildcard."""
    assert topics_of(replace(demo("rtx4090"), host="gpu.example/#+")).state == "memwatch/gpu_example___/state"


@pytest.mark.parametrize(
    "broker", ["hass:1883", "http://hass", "mqtt://", "mqtt://me:secret@hass", "mqtt://h:99999"]
)
def test_address_that_is_no_broker_is_a_usage_error(broker: str) -> None:
    done = memwatch("mqtt", "--broker", broker)

    assert done.returncode == 2
    assert "mqtt://HOST:PORT" in done.stderr


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
def test_broker_whose_name_is_none_is_an_error_of_one_line(shared_daemons: SharedDaemons, host: str) -> None:
    done = memwatch("--url", shared_daemons.demo("dgx-spark").url, "mqtt", "--broker", f"mqtt://{host}")

    assert done.returncode == 1
    assert f"cannot reach the broker mqtt://{host}:1883: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_broker_is_named_with_the_reason(shared_daemons: SharedDaemons) -> None:
    done = memwatch("--url", shared_daemons.demo("dgx-spark").url, "mqtt", "--broker", f"mqtt://{dead_address()}")

    assert done.returncode == 1
    assert "cannot reach the broker mqtt://127.0.0.1:" in done.stderr
    assert "Connection refused" in done.stderr


@contextmanager
def publishing(url: str, broker: str, password: str = PASSWORD) -> Iterator[subprocess.Popen[str]]:
    """Run the command as a service does, and end it with SIGTERM."""
    command = [*SCRIPT, "--url", url, "mqtt", "--broker", broker, "--user", USER, "--interval", "1s"]
    environment = clean_environment(MEMWATCH_MQTT_PASSWORD=password)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=MAX_WAIT_SECONDS)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MqttBroker]:
    with mosquitto(tmp_path) as running, watch(running) as watched:
        yield watched


@pytest.mark.long
def test_broker_receives_discovery_values_and_availability(tmp_path: Path, broker: MqttBroker) -> None:
    """SIGTERM ends the command with 0 and marks the machine as unavailable."""
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon:
        with publishing(daemon.url, broker.url) as process:
            broker.wait_for(AVAILABILITY, "online")
            values, config = json.loads(broker.last(STATE)), json.loads(broker.last(CONFIG))
        size = daemon.snapshot()["pools"][0]["size_bytes"]

    assert process.returncode == 0
    assert values["ram_size"] == pytest.approx(size / 2**30, abs=0.01)
    assert config["state_topic"] == STATE
    assert config["components"].keys() == values.keys()
    broker.wait_for(AVAILABILITY, "offline")


@pytest.mark.long
def test_broker_reports_a_killed_command_as_offline(tmp_path: Path, broker: MqttBroker) -> None:
    """The last will, which the broker sends by itself."""
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon, publishing(daemon.url, broker.url) as process:
        broker.wait_for(AVAILABILITY, "online")
        process.send_signal(signal.SIGKILL)
        broker.wait_for(AVAILABILITY, "offline")


@pytest.mark.long
def test_machine_is_unavailable_while_its_daemon_is_stopped(tmp_path: Path, broker: MqttBroker) -> None:
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon, publishing(daemon.url, broker.url) as process:
        broker.wait_for(AVAILABILITY, "online")
        daemon.terminate()
        broker.wait_for(AVAILABILITY, "offline")
        assert process.poll() is None


@pytest.mark.long
def test_restarted_broker_gets_the_discovery_again(tmp_path: Path) -> None:
    """It has forgotten all messages. The command reconnects by itself."""
    with (
        running_daemon(tmp_path, "--demo", "dgx-spark") as daemon,
        mosquitto(tmp_path) as first,
        publishing(daemon.url, first.url),
    ):
        with watch(first):
            first.wait_for(AVAILABILITY, "online")
        first.process.terminate()
        first.process.wait(MAX_WAIT_SECONDS)
        with mosquitto(tmp_path, first.port) as second, watch(second):
            second.wait_for(AVAILABILITY, "online")
            assert json.loads(second.last(CONFIG))["state_topic"] == STATE


@pytest.mark.long
def test_wrong_password_is_reported_without_it(tmp_path: Path, broker: MqttBroker) -> None:
    with running_daemon(tmp_path, "--demo", "dgx-spark") as daemon:
        done = memwatch(
            "--url",
            daemon.url,
            "mqtt",
            "--broker",
            broker.url,
            "--user",
            USER,
            MEMWATCH_MQTT_PASSWORD="wrong-secret",
        )

    assert done.returncode == 1
    assert "refuses the login: Not authorized" in done.stderr
    assert "wrong-secret" not in done.stderr


CONNACK = b"\x20\x02\x00\x00"
LENGTH_256_MIB = b"\xff\xff\xff\x7f"
FLOODS = {
    "connack": (b"\x20" + LENGTH_256_MIB, b"x" * 65_536),
    "message": (CONNACK + b"\x30" + LENGTH_256_MIB + b"\x00\x01a", b"x" * 65_536),
    "messages": (CONNACK, b"\x30\x05\x00\x01abc" * 9000),
    "messages to confirm": (CONNACK, b"\x34\x07\x00\x01a\x00\x07bc" * 9000),
}
# The buffers of the kernel hold up to 10 MiB of a connection that is not read.
MAX_SENT_BYTES = 32 << 20


class FloodingBroker:
    """A server that answers the first bytes of each connection, and then sends without end."""

    def __init__(self, start: bytes, more: bytes) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.sent: list[int] = []
        self._start, self._more = start, more
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.listening.getsockname()[1]}"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self.listening.accept()
                with connected:
                    self.sent.append(self._flood(connected))

    def _flood(self, connected: socket.socket) -> int:
        sent = 0
        with suppress(OSError):
            connected.recv(4096)
            connected.sendall(self._start)
            while sent < 2 * MAX_SENT_BYTES:
                sent += connected.send(self._more)
        return sent


@pytest.mark.long
@pytest.mark.parametrize("kind", FLOODS)
def test_broker_that_sends_without_end_is_disconnected(shared_daemons: SharedDaemons, kind: str) -> None:
    """Each time, after a few kilobytes. The command ends with SIGTERM."""
    broker = FloodingBroker(*FLOODS[kind])
    with publishing(shared_daemons.demo("dgx-spark").url, broker.url) as process:
        wait_until(lambda: len(broker.sent) >= 2)
    broker.listening.close()

    assert max(broker.sent) < MAX_SENT_BYTES
    assert process.returncode in (0, 130)
