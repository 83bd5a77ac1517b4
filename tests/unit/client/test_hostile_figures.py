"""A program that took the daemon's port answers with figures of any kind: labels and messages stay valid."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.cli import home_assistant, node_features
from memwatch.cli.context import check_shape
from memwatch.cli.http import CommandError, parse_url
from memwatch.core.snapshot_json import build_snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import snapshot_json
from support.sample_snapshots import critical_gb10

HERE = parse_url("http://127.0.0.1:1")
ODD: tuple[Any, ...] = (None, "x\x1b[2J\n", [], {}, 1e308, -1, 0, True, 10**300, float("inf"), [[[]]])


def odd_snapshots() -> Iterator[Any]:
    """Yield a snapshot for each place with each odd value there."""
    snapshot = json.loads(to_bytes(snapshot_json(critical_gb10())))
    for place in places(snapshot):
        for value in ODD:
            yield put(snapshot, place, value)


def put(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    changed = copy.copy(value)
    changed[place[0]] = put(value[place[0]], place[1:], new)
    return changed


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to each value that labels and messages are made of, and to their first neighbours."""
    keys = value if isinstance(value, dict) else range(min(1, len(value))) if isinstance(value, list) else ()
    for key in keys:
        if way or key in ("host", "machine", "pools", "shares", "pressure", "devices"):
            yield (*way, key)
            yield from places(value[key], (*way, key))


def read(what: Callable[[], str]) -> str:
    """Return the text, empty if the answer is refused in one sentence."""
    try:
        with check_shape(HERE):
            return what()
    except CommandError:
        return ""


def labels_in(found: Any) -> dict[str, str]:
    return dict(node_features.labels_of(build_snapshot(found)))


def test_labels_of_a_node_are_names_and_plain_values() -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for snapshot in odd_snapshots():
        labels = dict[str, str]()
        text = read(lambda: node_features.feature_file(labels_in(snapshot), None, now))  # noqa: B023
        for line in text.splitlines():
            name, _, value = line.partition("=")
            labels[name] = value
        assert all(name.startswith(node_features.PREFIX) for name in labels)
        assert all(node_features.VALUE.fullmatch(value) for value in labels.values()), labels


@pytest.mark.parametrize("of", [home_assistant.values_of, home_assistant.discovery_of])
def test_messages_of_home_assistant_are_json_with_plain_keys(of: Callable[[Any], Any]) -> None:
    for snapshot in odd_snapshots():
        text = read(lambda: home_assistant.encode(of(build_snapshot(snapshot))))  # noqa: B023
        found = json.loads(text or "{}", parse_constant=pytest.fail)
        keys = found.get("components", found)
        assert all(key == home_assistant.to_id(key) for key in keys)


def test_topics_of_a_hostile_host_have_one_level() -> None:
    topics = home_assistant.topics_of(replace(critical_gb10(), host="#/+/\x1b[2J\n" * 50))
    assert set(topics.node) <= set("_2J")
    assert topics.state.count("/") == 2
    assert len(topics.node) <= 64
