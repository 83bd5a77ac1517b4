"""Compact ticks: of a bounded size, without users and command lines, and safe to read from any sender."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.backends.devices import compute_capacity
from memwatch.core.events import Event
from memwatch.core.model import Process
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Level, Reason, Snapshot
from memwatch_monitor.neighbours.tick import (
    MAX_BYTES,
    MAX_RECEIVED_BYTES,
    HolderTick,
    TickError,
    build_tick,
    decode_tick,
    encode_tick,
)
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.fakes import GIB


def demo(name: str = "dgx-spark", seconds: int = 0) -> Snapshot:
    return next(islice(read_frames(path_of(name)), seconds, None))


def plain(**fields: Any) -> dict[str, Any]:
    fit: dict[str, Any] = json.loads(encode_tick(build_tick(demo(), "run1")))
    return fit | fields


def test_tick_has_pools_headroom_and_holders() -> None:
    snapshot = demo()
    tick = decode_tick(encode_tick(build_tick(snapshot, "run1")))

    assert [(pool.id, pool.size) for pool in tick.pools] == [("ram", snapshot.pools[0].size_bytes)]
    assert tick.headroom == snapshot.devices[0].headroom_bytes
    assert tick.headroom_after_reclaim == snapshot.devices[0].headroom_after_reclaim_bytes
    assert [holder.name for holder in tick.holders][:1] == ["VLLM::EngineCor"]
    assert tick.run == "run1"


def test_tick_names_the_silence_of_the_level_without_its_author() -> None:
    """Its end is kept if the sentence has to be cut."""
    snapshot = replace(demo(), unix=1_795_780_800.0)
    made = Silence("sil_1", snapshot.unix + 3600, snapshot.unix, 0.0, target="ram", made_by="ada (uid 1000)")
    long = Silence("sil_2", snapshot.unix + 3600, snapshot.unix, 0.0, target="ram", event="pressure.critical")
    loud = replace(snapshot.pressure[0], reasons=(Reason("psi", "x" * 200),))

    short_one = build_tick(replace(snapshot, silences=(made,)), "run1").sentence
    cut_one = build_tick(replace(snapshot, silences=(long,), pressure=(loud,)), "run1").sentence

    assert short_one == (
        f"{build_tick(snapshot, 'run1').sentence}; System RAM is silenced until 13:00 UTC: no one is notified of it"
    )
    assert cut_one.endswith(
        "xx…; pressure.critical alerts of System RAM are silenced until 13:00 UTC: no one is notified of them"
    )
    assert len(cut_one) == 160
    assert decode_tick(encode_tick(build_tick(replace(snapshot, silences=(long,)), "run1"))).host == snapshot.host


@pytest.mark.parametrize(("on_gpu", "sent"), [(2, 2), (3, 3), (4, 3), (8, 3)])
def test_at_most_three_of_five_holders_are_those_of_the_gpu(on_gpu: int, sent: int) -> None:
    """The others are the largest, which may have no memory there."""
    snapshot = demo("rtx4090")
    pool = snapshot.devices[0].allocates_from[0]

    def process(pid: int, footprint: int, held: int) -> Process:
        places = {pool: held} if held else {}
        return Process(
            pid=pid,
            start_time=1.0,
            name="gpu" if held else "java",
            rss_bytes=GIB,
            footprint_bytes=footprint,
            footprint_basis="rss + vram",
            device_bytes=places,
        )

    large = [process(pid, 90 * GIB, 0) for pid in range(1, 9)]
    users = [process(pid, 8 * GIB, 7 * GIB) for pid in range(11, 11 + on_gpu)]
    tick = decode_tick(encode_tick(build_tick(replace(snapshot, processes=(*large, *users)), "run1")))

    assert [one.name for one in tick.holders] == ["java"] * (5 - sent) + ["gpu"] * sent


def test_holders_of_the_gpu_are_sent_beside_larger_processes() -> None:
    """Each with its memory there: the rest of a footprint is in System RAM."""
    snapshot = demo("rtx4090")
    gpu, pool = snapshot.devices[0], snapshot.devices[0].allocates_from[0]
    large = [
        Process(
            pid=pid, start_time=1.0, name="java", rss_bytes=GIB, footprint_bytes=90 * GIB, footprint_basis="rss"
        )
        for pid in range(1, 9)
    ]
    small = Process(
        pid=9,
        start_time=1.0,
        name="ollama",
        rss_bytes=GIB,
        footprint_bytes=8 * GIB,
        footprint_basis="rss + vram",
        device_bytes={pool: 7 * GIB},
    )
    tick = decode_tick(encode_tick(build_tick(replace(snapshot, processes=(*large, small)), "run1")))

    assert (tick.headroom_of, tick.headroom_size) == (gpu.name, compute_capacity(gpu, snapshot))
    assert [(one.name, one.held_bytes) for one in tick.holders] == [("java", 0)] * 4 + [("ollama", 7 * GIB)]


def test_largest_process_of_the_worst_pool_is_sent_with_its_memory_there() -> None:
    """Five larger ones have their memory in System RAM, three others theirs on the GPU with the headroom."""
    snapshot = demo("h100x8-mig")
    full = next(pool.id for pool in snapshot.pools if pool.id == "gpu7")
    roomy = max(snapshot.devices, key=lambda one: (one.headroom_after_reclaim_bytes, one.name)).allocates_from[0]
    places = [*({} for _ in range(5)), *({roomy: 2 * GIB} for _ in range(3)), {full: 7 * GIB}, {full: GIB}]
    processes = tuple(
        Process(
            pid=90 - number,
            start_time=1.0,
            name=f"one{number}",
            rss_bytes=GIB,
            footprint_bytes=(9 if held else 90) * GIB,
            footprint_basis="rss + vram",
            device_bytes=held,
        )
        for number, held in enumerate(places)
    )
    pressure = tuple(
        replace(one, level=Level.CRITICAL if one.target == full else Level.LOW) for one in snapshot.pressure
    )
    tick = decode_tick(encode_tick(build_tick(replace(snapshot, processes=processes, pressure=pressure), "run1")))

    assert tick.worst == full
    assert len(tick.holders) == 5
    assert tick.largest_there == HolderTick("one8", 9 * GIB, 0, 7 * GIB)


def test_largest_process_of_a_machine_with_one_pool_is_that_by_footprint() -> None:
    """It is in the pool as a whole, so its memory there is not sent."""
    tick = build_tick(demo(), "run1")

    assert tick.largest_there == max(tick.holders, key=lambda one: one.bytes)
    assert {one.there for one in tick.holders} == {None}


def test_users_command_lines_and_marks_are_not_sent() -> None:
    secret = Process(
        pid=7,
        start_time=1.0,
        name="python3",
        rss_bytes=1 << 40,
        footprint_bytes=1 << 40,
        footprint_basis="rss",
        user="alice",
        command="python3 --password hunter2",
    )
    snapshot = replace(demo(), processes=(secret,))
    events = [Event(1, 1.0, kind, "alice did it") for kind in ("mark", "lease", "silence", "test", "release")]

    data = encode_tick(build_tick(snapshot, "run1", events)).decode()

    assert '"python3"' in data
    assert "alice" not in data
    assert "hunter2" not in data


def test_names_of_any_length_stay_within_the_limit() -> None:
    holders = tuple(
        Process(pid=pid, start_time=1.0, name="\u2603" * 500, rss_bytes=1, footprint_bytes=1, footprint_basis="rss")
        for pid in range(1, 9)
    )
    data = encode_tick(build_tick(replace(demo(), host="h" * 5000, processes=holders), "run1"))

    assert len(data) <= MAX_BYTES


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "schema 2, and this version reads 1: use one version on both machines"),
        ({"schema": "1"}, "data that is not a tick"),
        ({"host": 7}, "data that is not a tick"),
        ({"unix": -1}, "data that is not a tick"),
        ({"unix": 1e300}, "data that is not a tick"),
        ({"interval": 0}, "data that is not a tick"),
        ({"level": "fine"}, "data that is not a tick"),
        ({"headroom": -1}, "data that is not a tick"),
        ({"headroom": 1 << 62}, "data that is not a tick"),
        ({"holders": [{"name": "a", "bytes": 1}] * 6}, "data that is not a tick"),
        ({"sees": {str(number): "up" for number in range(31)}}, "data that is not a tick"),
        ({"sentence": "x" * 161}, "data that is not a tick"),
        ({"more": "x" * 4096}, "a tick of more than 4096 bytes"),
    ],
)
def test_invalid_tick_is_rejected_with_a_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(TickError) as caught:
        decode_tick(json.dumps(plain(**change)).encode())

    assert str(caught.value) == why


HOLDER, POOL = {"name": "a", "bytes": 1}, {"id": "a", "label": "A", "size": 1}
EVENT, RAISED = {"unix": 1, "kind": "level", "text": "a"}, {"target": "a", "level": "high", "reasons": ["b"] * 3}


@pytest.mark.parametrize(
    ("field", "value", "more"),
    [
        ("holders", [HOLDER] * 5, [HOLDER] * 6),
        ("events", [EVENT] * 3, [EVENT] * 4),
        ("pools", [POOL] * 16, [POOL] * 17),
        ("levels", [RAISED] * 16, [RAISED] * 17),
        ("levels", [RAISED], [RAISED | {"reasons": ["b"] * 4}]),
        ("sees", dict.fromkeys(map(str, range(30)), "up"), dict.fromkeys(map(str, range(31)), "up")),
        ("sees", {"x" * 64: "up"}, {"x" * 65: "up"}),
        ("host", "x" * 64, "x" * 65),
        ("sentence", "x" * 160, "x" * 161),
        ("interval", 3600, 3600.001),
        ("headroom", (1 << 60) - 1, 1 << 60),
        ("unix", 1e11, 1.1e11),
    ],
)
def test_largest_value_of_a_field_is_accepted_and_a_larger_one_rejected(field: str, value: Any, more: Any) -> None:
    """MAX_SEEN: a machine may follow 30 others, and each of them is in its ticks."""
    base = plain(levels=[], pools=[], holders=[])

    found = decode_tick(json.dumps(base | {field: value}).encode())

    assert json.loads(msgspec.json.encode(found))[field] == value
    with pytest.raises(TickError, match="data that is not a tick"):
        decode_tick(json.dumps(base | {field: more}).encode())


@pytest.mark.parametrize(("count", "sent", "left_out"), [(15, 15, False), (16, 16, False), (17, 16, True)])
def test_tick_says_if_pools_are_left_out(count: int, sent: int, left_out: bool) -> None:
    snapshot = demo()
    (ram,) = snapshot.pools
    others = (replace(ram, id=f"pool{number}") for number in range(1, count))

    tick = build_tick(replace(snapshot, pools=(ram, *others)), "run1")

    assert (len(tick.pools), tick.left_out) == (sent, left_out)


class OldPool(Struct, frozen=True):
    """A pool as an early version reads it."""

    id: str
    label: str
    size: int
    used: int | None = None
    available: int | None = None
    level: str = "unknown"


class OldTick(Struct, frozen=True):
    """Part of a tick as an early version reads it."""

    schema: int
    host: str
    sentence: str
    pools: tuple[OldPool, ...]


LATER = ("kind", "headline", "worst"), ("kind", "gpu", "processes")


def test_versions_without_the_picture_of_a_machine_read_it_and_are_read() -> None:
    """An older reader skips the fields, an older sender has none. Both have the same figures."""

    new = encode_tick(build_tick(demo("h100x8-mig"), "run1"))
    fields = json.loads(new)
    older = {name: value for name, value in fields.items() if name not in LATER[0]}
    older["pools"] = [{name: one[name] for name in one if name not in LATER[1]} for one in fields["pools"]]

    read_by_old, read_from_old = msgspec.json.decode(new, type=OldTick), decode_tick(json.dumps(older).encode())

    assert len(new) <= MAX_RECEIVED_BYTES
    assert [(one.id, one.used) for one in read_by_old.pools] == [(one.id, one.used) for one in read_from_old.pools]
    assert (read_from_old.kind, read_from_old.headline, read_from_old.worst) == ("", "", "")
    assert {(one.kind, one.gpu, one.processes) for one in read_from_old.pools} == {("", None, None)}
    assert decode_tick(new).kind == "8 × H100"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("dgx-spark", "DGX Spark"), ("jetson-orin", "Jetson AGX Orin"), ("rtx4090", "RTX 4090"), ("gh200", "GH200")],
)
def test_tick_says_what_machine_it_is(name: str, kind: str) -> None:
    assert build_tick(demo(name), "run1").kind == kind


def test_machine_without_a_gpu_says_so() -> None:
    assert build_tick(replace(demo(), devices=(), shares=(), processes=()), "run1").kind == "no GPU"


def test_parts_of_system_ram_are_within_its_use() -> None:
    """CUDA Pool ⊂ System RAM: both parts are used memory, and the pool of a GPU has none."""
    ram, *others = build_tick(demo("rtx4090"), "run1").pools[::-1]
    spark = build_tick(demo(seconds=200), "run1").pools[0]

    assert spark.gpu
    assert spark.processes
    assert spark.used
    assert spark.gpu + spark.processes <= spark.used
    assert {one.kind: one.gpu for one in (ram, *others)}["vram"] is None


def test_headline_is_the_deadline_of_a_critical_pool() -> None:
    """The pool is named where several have a level. A limit counts for the pool that it is in."""
    snapshot = demo("h100x8-mig")
    place = next(one for one in snapshot.pressure if one.target == "gpu0")
    full = replace(place, level=Level.CRITICAL, base_level=Level.CRITICAL, seconds_to_full=25.0)
    slice_ = replace(full, target=next(one.id for one in snapshot.shares if one.within == "gpu7"))

    ticks = [build_tick(replace(snapshot, pressure=(one, *snapshot.pressure)), "run1") for one in (full, slice_)]
    alone = build_tick(replace(demo(), pressure=(replace(full, target="ram"),)), "run1")

    assert [one.worst for one in ticks] == ["gpu0", "gpu7"]
    assert ticks[0].headline == "VRAM 0 full in ~25 s"
    assert alone.headline == "Full in ~25 s"


def test_fields_of_a_later_version_of_the_schema_are_ignored() -> None:
    assert decode_tick(json.dumps(plain(temperature=70)).encode()).host == demo().host


def test_texts_that_do_not_print_are_escaped() -> None:
    hostile = plain(host="\x1b[2J", holders=[{"name": "a\nb\u202ec", "bytes": 1}], sees={"\x00": "up"})
    tick = decode_tick(json.dumps(hostile).encode())

    assert tick.host == "\\u001b[2J"
    assert tick.holders[0].name == "a\\u000ab\\u202ec"
    assert list(tick.sees) == ["\\u0000"]


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_arbitrary_data_is_rejected_cleanly(data: bytes) -> None:
    with pytest.raises(TickError):
        decode_tick(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(plain())), JSON)
def test_arbitrary_value_of_a_field_is_rejected_or_safe(field: str, value: Any) -> None:
    data = json.dumps(plain(**{field: value})).encode()
    try:
        tick = decode_tick(data)
    except TickError:
        return
    assert all(text.isprintable() for text in (tick.host, tick.sentence, tick.run, *tick.sees))
