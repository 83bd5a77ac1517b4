"""Test `memwatch status` as text for every sample machine, from the JSON that a daemon sends."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.cli.status import tree_lines
from memwatch.cli.tables import columns, device_lines
from memwatch.cli.terminal.moment import labels_of
from memwatch.core.model import Absent, Content, Vitals
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import build_snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render import words as wording
from memwatch.reporting.render.json import snapshot_json
from support.pattern_samples import leased
from support.sample_parts import GIB
from support.sample_snapshots import SAMPLES, critical_gb10, discrete_gpu, mig_server, simulated, unknown_figures


def sent(snapshot: Snapshot) -> Any:
    return json.loads(to_bytes(snapshot_json(snapshot)))


def lines_of(found: Any, age_seconds: float | None) -> list[str]:
    return list(tree_lines(build_snapshot(found), age_seconds))


def table_lines(found: Any) -> list[str]:
    return list(device_lines(build_snapshot(found)))


def text_of(snapshot: Snapshot, age_seconds: float | None = 0.2) -> str:
    return "\n".join(lines_of(sent(snapshot), age_seconds))


@pytest.mark.parametrize("name", SAMPLES)
def test_all_parts_of_a_machine_are_listed(name: str) -> None:
    """Each pool with its size, each share as a subset, each device, each level in words, each failing collector."""
    snapshot = SAMPLES[name]()

    text, labels = text_of(snapshot), labels_of(snapshot)

    for pool in snapshot.pools:
        assert any(
            line.startswith(pool.label) and wording.size(pool.size_bytes) in line for line in text.split("\n")
        )
    for share in snapshot.shares:
        assert labels[share.id] in text
    for device in snapshot.devices:
        assert f"{device.id}: {device.name}" in text
    for pressure in snapshot.pressure:
        assert wording.verdict(labels[pressure.target], pressure) in text
    for status in snapshot.collectors:
        assert (f"collector {status.name} is {status.state}" in text) == (status.state in ("failing", "stalled"))


def test_sensors_of_a_device_are_listed_below_it() -> None:
    """In `memwatch status`, `top` and `devices`. A daemon of an older version sends none."""
    hot = critical_gb10().devices[0].with_vitals(Vitals(91.0, 44.9, {"sm": 1_400_000_000}, ("hw_thermal",)))
    snapshot = sent(replace(critical_gb10(), devices=(hot,)))
    line = "91 °C, 45 W, SM clock 1,400 MHz, throttled: temperature (hardware)"
    shown, listed = "\n".join(lines_of(snapshot, 0.2)), "\n".join(table_lines(snapshot))
    for name in Vitals.__struct_fields__:
        del snapshot["devices"][0][name]

    assert re.search(rf"^gpu0: NVIDIA GB10 .*\n  {re.escape(line)}$", shown, re.MULTILINE)
    assert re.search(rf"^gpu0 .*\n      {re.escape(line)}$", listed, re.MULTILINE)
    assert "°C" not in "\n".join(lines_of(snapshot, 0.2))


def test_tree_of_a_unified_machine_adds_up() -> None:
    """The halves of System RAM add up to it, and the CUDA Pool stands below the part that it is inside."""
    ram = critical_gb10().pools[0]
    parts = [replace(one, size_bytes=one.size_bytes - GIB * (one.kind == "unattributed")) for one in ram.contents]
    split = replace(ram, contents=(*parts, Content("devices", GIB)), unattributed_bytes=parts[-3].size_bytes)
    lines = text_of(replace(critical_gb10(), pools=(split,))).splitlines()

    start = next(at for at, line in enumerate(lines) if line.startswith("System RAM  "))
    labels = [re.split(r" {2,}[0-9]", line)[0] for line in lines[start : start + 12]]
    assert labels == [
        "System RAM",
        "├─ used",
        "│  ├─ processes",
        "│  ├─ shared memory",
        "│  ├─ huge pages",
        "│  ├─ kernel",
        "│  ├─ unattributed",
        "│  └─ GPU and devices",
        "│     └─ CUDA Pool",
        "└─ available",
        "   ├─ page cache",
        "   └─ free",
    ]


def test_share_with_a_limit_shows_it() -> None:
    """A MIG instance: its use and its limit."""
    text = text_of(mig_server())

    assert "GPU 0 · MIG" in text
    assert "limit " in text
    assert " ⊂ " in text


def test_gpu_without_listed_processes_has_no_part_of_theirs() -> None:
    """A driver that lists none may not see them: 0 would be a claim."""
    ram, card, other = discrete_gpu().pools
    unlisted = replace(card, unattributed_bytes=card.used_bytes, reserved_bytes=0)

    text = text_of(replace(discrete_gpu(), pools=(ram, unlisted, other)))

    shown = text.partition(f"\n{card.label}  ")[2].partition("available")[0]
    assert "unattributed" in shown
    assert "processes" not in shown


def test_absent_value_is_a_dash_with_its_reason() -> None:
    """Never 0, and never the text None."""
    text = text_of(unknown_figures())

    assert "— " in text
    assert "None" not in text
    assert "null" not in text


def test_forecast_is_shown() -> None:
    """The time to full is shown beside the level."""
    snapshot = critical_gb10()
    soon = replace(snapshot.pressure[0], reasons=(), seconds_to_full=42.0)

    assert ": full in about 40 s at the current rate; 96.4% used." in text_of(replace(snapshot, pressure=(soon,)))


def test_simulated_data_is_marked() -> None:
    """Demo data must not be mistaken for this machine."""
    assert "Simulated data" in text_of(simulated())
    assert "simulated" not in text_of(critical_gb10())


@pytest.mark.parametrize(("age", "old"), [(None, False), (0.9, False), (3.9, False), (4.5, True), (600.0, True)])
def test_old_snapshot_is_marked_as_stale(age: float | None, old: bool) -> None:
    """A daemon that does not tick serves its last snapshot; after three intervals the text marks it as stale."""
    assert ("memwatchd is not sampling" in text_of(critical_gb10(), age)) is old


def test_notes_are_listed_below_their_device() -> None:
    """Notes of a device are shown by both status and devices."""
    snapshot = critical_gb10()
    noted = replace(snapshot, devices=(replace(snapshot.devices[0], notes=("CUDA calls less free.", "Two.")),))

    table = list(table_lines(sent(noted)))

    assert [line.strip() for line in table[2:4]] == ["CUDA calls less free.", "Two."]
    assert "\n  CUDA calls less free.\n  Two." in text_of(noted)


def test_both_bounds_of_a_headroom_are_shown() -> None:
    """A device of an older daemon has the upper one only."""
    found = sent(critical_gb10())
    after = found["devices"][0]["headroom_after_reclaim_bytes"]
    device = {k: v for k, v in found["devices"][0].items() if not k.startswith("headroom")}
    older = {**found, "devices": [{**device, "headroom_bytes": after}]}

    assert "can allocate 2.0 GiB at once, up to 4.3 GiB after reclaim" in "\n".join(lines_of(found, None))
    assert "can allocate up to 4.3 GiB after reclaim" in "\n".join(lines_of(older, None))
    assert list(table_lines(found))[1].split("  ")[-2:] == ["2.0 – 4.3 GiB", "ok"]
    assert list(table_lines(found))[2].startswith("Of a range, the lower end is free now")
    assert [line.split()[-3:] for line in table_lines(older)][1:] == [["4.3", "GiB", "ok"]]


def test_failed_device_shows_its_state() -> None:
    """Its state is shown beside its name, and its headroom is a dash."""
    snapshot = critical_gb10()
    lost = replace(snapshot.devices[0], state="needs_reset", headroom_after_reclaim_bytes=Absent.NOT_AVAILABLE)
    noted = sent(replace(snapshot, devices=(lost,)))

    assert ", needs reset): headroom — not available" in "\n".join(lines_of(noted, None))
    assert list(table_lines(noted))[1].endswith("— not available  needs reset")


def test_columns_are_aligned() -> None:
    """Text is left-aligned, numbers are right-aligned, and lines have no trailing blanks."""
    lines = columns([("a", "1", ""), ("bbb", "22", "")], right=frozenset({1}))

    assert lines == ["a     1", "bbb  22"]


def test_leases_are_listed_with_their_time_left() -> None:
    """With what has arrived. Daemons before leases send none."""
    shown, found = text_of(leased()), sent(leased())
    del found["leases"]

    assert "Leased: 14.0 GiB of System RAM to train.py (PID 4242), 1 min 20 s left, 6.0 GiB more arrived\n" in shown
    assert "Leased: 30.0 GiB of System RAM to llama-server (PID 4243), 30 min left\n" in shown
    assert "Leased" not in "\n".join(lines_of(found, 0.2))
