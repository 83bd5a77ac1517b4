"""Decode values from JSON: present, or absent with a reason."""

from __future__ import annotations

from typing import Any

from memwatch.core.model import Absent, Bytes, Vitals
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Level, Pressure, Reason
from memwatch.monitor.render import words as wording
from memwatch.monitor.render.silence_words import build_notices, notice_lines

Json = dict[str, Any]


def figure(record: Json, name: str) -> Bytes:
    """Return a size in bytes, or the reason of its absence."""
    value = record[name]
    return Absent(record["absent"][name]) if value is None else int(value)


def certain_headroom(device: Json) -> Bytes:
    """Return the headroom that needs no reclaim. Daemons before this version do not report it."""
    name = "headroom_certain_bytes"
    return figure(device, name) if name in device else Absent.NOT_AVAILABLE


def size(record: Json, name: str) -> str:
    """Format the size: "44.3 GiB", "— not supported"."""
    return wording.size(figure(record, name))


def least_footprint(process: Json) -> int:
    """Return the footprint or its lower bound; -1 if unknown. Older daemons do not send the bound."""
    known = process["footprint_bytes"], process.get("footprint_low_bytes")
    return next((one for one in known if one is not None), -1)


def decode_vitals(device: Json) -> Vitals:
    """Return the known values. Older daemons send none."""
    names = Vitals.__struct_fields__
    return Vitals(**{name: device[name] for name in names if device.get(name) is not None})


def decode_pressure(record: Json) -> Pressure:
    return Pressure(
        target=record["target"],
        level=Level[record["level"].upper()],
        base_level=Level[record["base_level"].upper()],
        ratio=record["ratio"],
        reasons=tuple(Reason(reason["signal"], reason["text"]) for reason in record["reasons"]),
        seconds_to_full=_seconds(record, "seconds_to_full"),
        clears_in_seconds=_seconds(record, "clears_in_seconds"),
    )


def decode_silence(record: Json) -> Silence:
    """Return a silence. The daemon does not report its end in boot time."""
    names = [name for name in Silence.__struct_fields__ if name != "until_boottime"]
    return Silence(until_boottime=0.0, **{name: record[name] for name in names})


def silence_lines(snapshot: Json) -> list[str]:
    """Return a line about each silence in force, and the command that ends it. Older daemons report none."""
    found = map(decode_silence, snapshot.get("silences", ()))
    return notice_lines(build_notices(found, place_labels(snapshot)), snapshot["unix"])


def place_labels(snapshot: Json) -> dict[str, str]:
    """Return the name of each pool, share and device by its id."""
    places = {one["id"]: one["label"] for one in (*snapshot["pools"], *snapshot["shares"])}
    return {**places, **{device["id"]: device["name"] for device in snapshot["devices"]}}


def _seconds(record: Json, name: str) -> float | Absent:
    """Return a duration. Older daemons may not send it."""
    if record.get(name) is not None:
        return float(record[name])
    return Absent(record["absent"].get(name, Absent.NOT_AVAILABLE.value))


def state_of(device: Json) -> str:
    return str(device["state"]).replace("_", " ")
