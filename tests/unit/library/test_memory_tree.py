"""Test memory as one dictionary and the log of a program's start, on the sample machines."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from msgspec.structs import replace

import memwatch
from memwatch.core.model import Absent
from memwatch.library.machine_record import Machine, from_snapshot
from memwatch.library.memory_tree import build_lines, build_tree
from support.custom_pool import OwnPool
from support.sample_snapshots import SAMPLES

pytestmark = pytest.mark.process

GIB = 1 << 30


def machine_of(name: str) -> Machine:
    return from_snapshot(SAMPLES[name]())


def list_ids(here: Machine) -> list[str]:
    return [*(one.id for one in here.pools), *(one.id for one in here.shares), *(one.id for one in here.devices)]


def flatten(places: list[dict[str, Any]]) -> list[str]:
    return [one for place in places for one in (place["id"], *flatten(place["shares"]))]


@pytest.mark.parametrize("name", SAMPLES)
def test_each_pool_and_share_is_in_the_tree_once(name: str) -> None:
    here = machine_of(name)

    tree = build_tree(here)

    found = flatten(tree["pools"]) + flatten(tree["devices"]) + [one["id"] for one in tree.get("shares", ())]
    expected = list_ids(here)
    assert sorted(found) == sorted(expected)
    assert json.loads(json.dumps(tree)) == tree


@pytest.mark.parametrize("name", SAMPLES)
def test_each_share_is_inside_the_place_that_contains_it(name: str) -> None:
    here = machine_of(name)
    within = {share.id: share.within for share in here.shares}

    def check(place: dict[str, Any]) -> None:
        for share in place["shares"]:
            assert within[share["id"]] == place["id"]
            check(share)

    tree = build_tree(here)
    for place in (*tree["pools"], *tree["devices"]):
        check(place)


def test_absent_values_have_their_reasons() -> None:
    here = machine_of(next(iter(SAMPLES)))
    pool = replace(here.pools[0], used_bytes=Absent.STALE, available_bytes=Absent.STALE)
    found = build_tree(replace(here, pools=(pool, *here.pools[1:])))["pools"][0]

    assert (found["used_bytes"], found["absent"]["used_bytes"]) == (None, "stale")


def test_share_of_a_place_that_is_not_reported_is_not_lost() -> None:
    here = next(here for here in map(machine_of, SAMPLES) if here.shares)
    lost = replace(here.shares[0], id="x", within="elsewhere")

    tree = build_tree(replace(here, shares=(*here.shares, lost)))

    assert [one["id"] for one in tree["shares"]] == ["x"]


def test_shares_that_contain_each_other_end() -> None:
    here = next(here for here in map(machine_of, SAMPLES) if here.shares)
    pair = [replace(here.shares[0], id=one, within=other) for one, other in (("a", "b"), ("b", "a"))]

    assert {one["id"] for one in build_tree(replace(here, shares=tuple(pair)))["shares"]} == {"a", "b"}
    assert list(build_lines("x", replace(here, shares=tuple(pair)), {}))


def test_tree_of_this_machine_has_process_and_allocators() -> None:
    pool = OwnPool()
    memwatch.register_pool(pool)
    try:
        with memwatch.guard("20GiB"):
            process = memwatch.memory_tree()["process"]
    finally:
        memwatch.unregister_pool(pool)

    (own,) = process["allocators"]
    assert process["rss_bytes"] > 0
    assert process["guard_limit_bytes"] == 20 * GIB
    assert (own["name"], own["allocated_bytes"], own["reserved_bytes"], own["free_bytes"]) == (
        "Own",
        2 * GIB,
        4 * GIB,
        4 * GIB,
    )
    assert (own["hit_rate"], own["absent"]["hit_rate"]) == (None, "not_supported")


@pytest.mark.parametrize("name", SAMPLES)
def test_start_log_has_pools_shares_and_gpus(name: str) -> None:
    """In a few lines."""
    here = machine_of(name)

    lines = list(build_lines("train.py", here, {}))

    assert lines[0].startswith(f"[start] train.py on {here.host}")
    for pool in here.pools:
        assert any(line.startswith(f"  {pool.label} ") for line in lines)
    for share in here.shares:
        if share.within in list_ids(here):
            assert any(f"of which {share.label}: " in line for line in lines)
    for device in here.devices:
        assert any(f" = {device.name}: " in line for line in lines) or any(
            "are hidden by" in line for line in lines
        )
    assert len(lines) <= 12 + len(here.pools) + len(here.shares) + len(here.devices)


def test_start_log_warns_of_a_variable_that_should_not_be_set() -> None:
    here = next(here for here in map(machine_of, SAMPLES) if here.devices)
    amd = replace(here.devices[0], vendor="amd", name="AMD GPU", details={"gfx": "gfx1100"})
    environ = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "MIOPEN_FIND_MODE": "FAST"}

    lines = list(build_lines("x", replace(here, devices=(amd,)), environ))

    assert lines[-1].startswith("  HSA_OVERRIDE_GFX_VERSION is set: it makes ROCm load kernels of another GPU")
    assert not any("MIOPEN_FIND_MODE=" in line for line in lines)


def test_start_is_logged_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "memwatch"):
        text = memwatch.log_start("train.py")

    assert caplog.messages == text.split("\n")
    assert caplog.messages[0].startswith("[start] train.py on ")
