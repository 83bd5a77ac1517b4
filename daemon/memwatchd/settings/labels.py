"""Labels of one's own in alerts and in the metric machine_info, and the labels that Prometheus gives a target."""

from __future__ import annotations

import re

from memwatch.core.options import InvalidValueError

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", re.ASCII)
MAX_LABELS, MAX_VALUE_LENGTH = 16, 128
# Labels of alerts, those that Prometheus adds to each series, and those of memwatch_machine_info.
RESERVED = {
    "alertname": "names the alert",
    "collector": "names the collector of an alert",
    "device": "names the device of an alert",
    "severity": "is the severity of an alert",
    "target": "names the target of an alert",
    "instance": "comes from the scrape, or from instance under [alerts]",
    "job": "comes from the scrape, or from job under [alerts]",
    **dict.fromkeys(
        ("hostname", "model", "architecture", "kernel", "memory"), "is a label of memwatch_machine_info"
    ),
}


def parse_labels(value: object) -> dict[str, object]:
    """Check the type of the table and the number of labels."""
    if not isinstance(value, dict):
        raise InvalidValueError
    if len(value) > MAX_LABELS:
        raise InvalidValueError(f"has {len(value)} labels; leave {MAX_LABELS} at most", has_example=False)
    return value


def parse_label_name(value: object) -> str:
    if not isinstance(value, str) or not LABEL_NAME.fullmatch(value):
        raise refusal("is not a label name: letters, digits and _, 64 at most, and no digit first")
    if value.startswith("__"):
        raise refusal("begins with __, which Prometheus reserves for itself")
    if value in RESERVED:
        raise refusal(f"is reserved: this label {RESERVED[value]}")
    return value


def refusal(why: str) -> InvalidValueError:
    return InvalidValueError(f"{why}; use a name such as cluster or rack", has_example=False)


def parse_label_value(value: object) -> str:
    """Return a label's value. An empty one is refused: Prometheus drops such a label."""
    if isinstance(value, str) and 0 < len(value) <= MAX_VALUE_LENGTH and value.isprintable():
        return value
    raise InvalidValueError
