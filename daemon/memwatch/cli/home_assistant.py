"""Messages of Home Assistant's MQTT discovery: one device with sensors, and their values as one JSON text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from memwatch import __version__
from memwatch.cli.terminal.moment import LEVELS, labels_of
from memwatch.core.model import Absent, Bytes
from memwatch.core.snapshot import Snapshot
from memwatch.core.units import GIB
from memwatch.core.wire import Json

DISCOVERY = "homeassistant"
# Variable with the password of the command's user at the broker.
PASSWORD_VARIABLE = "MEMWATCH_MQTT_PASSWORD"  # noqa: S105  a name
SIZE: Json = {"unit_of_measurement": "GiB", "device_class": "data_size", "suggested_display_precision": 1}
PERCENT: Json = {"unit_of_measurement": "%", "icon": "mdi:memory", "suggested_display_precision": 1}
LEVEL: Json = {"device_class": "enum", "options": list(LEVELS), "icon": "mdi:gauge"}


class Sensor(NamedTuple):
    """One figure: its key in the values, its name, its value or None if unknown, and how it is shown."""

    key: str
    name: str
    value: float | str | None
    kind: Json


class Topics(NamedTuple):
    """Topics of one machine. `node`: its host name as an id."""

    node: str

    @property
    def config(self) -> str:
        return f"{DISCOVERY}/device/memwatch_{self.node}/config"

    @property
    def state(self) -> str:
        return f"memwatch/{self.node}/state"

    @property
    def availability(self) -> str:
        return f"memwatch/{self.node}/availability"


def topics_of(snapshot: Snapshot) -> Topics:
    return Topics(to_id(snapshot.host))


def to_id(name: str) -> str:
    """Return a name as part of a topic and of a template."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)[:64] or "unknown"


def sensors_of(snapshot: Snapshot) -> Iterator[Sensor]:
    """Yield the sensors of a machine: pools, levels of all targets, and headroom of GPUs."""
    labels = labels_of(snapshot)
    for pool in snapshot.pools:
        key, label, size = to_id(pool.id), labels[pool.id], pool.size_bytes
        used = pool.used_bytes
        yield Sensor(f"{key}_size", f"{label} size", in_gib(size), SIZE)
        yield Sensor(f"{key}_available", f"{label} available", in_gib(pool.available_bytes), SIZE)
        yield Sensor(
            f"{key}_used",
            f"{label} used",
            None if isinstance(used, Absent) else round(100 * used / size, 1),
            PERCENT,
        )
    for one in snapshot.pressure:
        yield Sensor(f"{to_id(one.target)}_level", f"{labels[one.target]} level", one.level.word, LEVEL)
    for device in snapshot.devices:
        name = f"{device.id} can allocate"
        yield Sensor(f"{to_id(device.id)}_headroom", name, in_gib(device.headroom_bytes), SIZE)
        after, most = f"{name} after reclaim", in_gib(device.headroom_after_reclaim_bytes)
        yield Sensor(f"{to_id(device.id)}_headroom_after_reclaim", after, most, SIZE)


def in_gib(size: Bytes) -> float | None:
    return None if isinstance(size, Absent) else round(size / GIB, 2)


def values_of(snapshot: Snapshot) -> Json:
    """Return the values by key. Home Assistant shows null as unknown."""
    return {sensor.key: sensor.value for sensor in sensors_of(snapshot)}


def discovery_of(snapshot: Snapshot) -> Json:
    """Return the message by which Home Assistant creates the device and its sensors."""
    topics = topics_of(snapshot)
    name = snapshot.machine.name
    return {
        "device": {
            "identifiers": [f"memwatch_{topics.node}"],
            "name": snapshot.host,
            "model": "unknown" if isinstance(name, Absent) else name,
            "sw_version": __version__,
        },
        "origin": {"name": "memwatch", "sw_version": __version__},
        "components": {one.key: component_of(one, topics) for one in sensors_of(snapshot)},
        "state_topic": topics.state,
        "availability_topic": topics.availability,
        "qos": 1,
    }


def component_of(sensor: Sensor, topics: Topics) -> Json:
    return {
        "platform": "sensor",
        "unique_id": f"memwatch_{topics.node}_{sensor.key}",
        "name": sensor.name,
        "value_template": f"{{{{ value_json.{sensor.key} }}}}",
        **sensor.kind,
        **({} if sensor.kind is LEVEL else {"state_class": "measurement"}),
    }


def encode(message: Json) -> str:
    """Raise ValueError for a figure that JSON does not have, such as 1e999 in an answer."""
    return json.dumps(message, allow_nan=False)
