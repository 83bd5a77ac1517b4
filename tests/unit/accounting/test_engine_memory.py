"""Parts of model servers within the memory of their processes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.engines import CONTRADICTION, MAPPED, relate_engine, relate_engines
from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent, Bytes, Process

GIB = 1 << 30


def process(pid: int, rss: int, **held: Bytes) -> Process:
    known = [figure for figure in held.values() if isinstance(figure, int)]
    footprint: Bytes = rss + sum(known) if len(known) == len(held) else Absent.NOT_AVAILABLE
    span = None if len(known) == len(held) else (rss + sum(known), Absent.NOT_AVAILABLE)
    return Process(pid, 1.0, "x", rss, footprint, "rss + device", device_bytes=held, footprint_range=span)


def engine(weights: Bytes = 16 * GIB, cache: Bytes = 60 * GIB, used: Bytes = Absent.NOT_AVAILABLE) -> Engine:
    return Engine(
        "vllm-8000",
        "vllm",
        "vLLM",
        "http://127.0.0.1:8000",
        1,
        (1, 2),
        "ana",
        weights_bytes=weights,
        kv_cache_bytes=cache,
        kv_cache_used_bytes=used,
    )


def test_remainder_is_what_parts_leave_of_device_memory() -> None:
    found = relate_engine(engine(), [process(1, 2 * GIB), process(2, 3 * GIB, cuda0=80 * GIB)])
    assert (found.footprint_bytes, found.remainder_bytes) == (85 * GIB, 4 * GIB)
    assert found.held_bytes == {"cuda0": 80 * GIB}


@pytest.mark.parametrize(
    ("draft", "remainder"),
    [(GIB, 3 * GIB), (Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE), (Absent.NOT_SUPPORTED, 4 * GIB)],
    ids=["known", "unknown", "none"],
)
def test_draft_model_is_no_part_of_the_remainder(draft: Bytes, remainder: Bytes) -> None:
    """Without its size the rest is not known: it would contain the draft model."""
    whole = replace(engine(), kind="llama.cpp", draft_weights_bytes=draft)
    found = relate_engine(whole, [process(1, 2 * GIB), process(2, 3 * GIB, cuda0=80 * GIB)])
    assert (found.draft_weights_bytes, found.remainder_bytes) == (draft, remainder)


def test_draft_model_that_contradicts_the_processes_is_inconsistent() -> None:
    whole = replace(engine(16 * GIB, 20 * GIB), draft_weights_bytes=40 * GIB)
    found = relate_engine(whole, [process(1, GIB, gpu0=40 * GIB)])
    assert set(found.parts.values()) == {Absent.INCONSISTENT}
    assert len(found.parts) == 3


def test_workers_on_several_gpus_are_summed() -> None:
    found = relate_engine(engine(), [process(1, GIB, gpu0=40 * GIB), process(2, GIB, gpu1=40 * GIB)])
    assert found.held_bytes == {"gpu0": 40 * GIB, "gpu1": 40 * GIB}
    assert found.remainder_bytes == 4 * GIB


def test_weights_in_system_ram_count_within_the_whole_process() -> None:
    found = relate_engine(engine(16 * GIB, 2 * GIB), [process(1, 14 * GIB, gpu0=6 * GIB)])
    assert found.remainder_bytes == 2 * GIB


def test_parts_larger_than_the_processes_are_inconsistent() -> None:
    found = relate_engine(engine(), [process(1, GIB, gpu0=40 * GIB)])
    assert {found.weights_bytes, found.kv_cache_bytes, found.remainder_bytes} == {Absent.INCONSISTENT}
    assert found.notes == (CONTRADICTION,)


def test_weights_that_are_mapped_from_a_file_may_be_larger_than_what_is_resident() -> None:
    """On a CPU, llama.cpp's weights are page cache, and the kernel drops what is not used."""
    found = relate_engine(replace(engine(16 * GIB, GIB), kind="llama.cpp"), [process(1, 9 * GIB)])
    assert (found.weights_bytes, found.kv_cache_bytes) == (Absent.NOT_AVAILABLE, GIB)
    assert found.notes == (MAPPED,)


def test_parts_that_round_up_leave_no_negative_remainder() -> None:
    found = relate_engine(engine(16 * GIB, 64 * GIB), [process(1, GIB, gpu0=79 * GIB)])
    assert (found.weights_bytes, found.remainder_bytes) == (16 * GIB, 0)


def test_engine_without_known_weights_has_no_remainder() -> None:
    found = relate_engine(engine(Absent.NOT_AVAILABLE), [process(1, GIB, gpu0=80 * GIB)])
    assert (found.footprint_bytes, found.remainder_bytes) == (81 * GIB, Absent.NOT_AVAILABLE)


def test_unknown_device_memory_contradicts_nothing() -> None:
    found = relate_engine(engine(), [process(1, GIB, gpu0=Absent.NOT_PERMITTED)])
    assert (found.weights_bytes, found.remainder_bytes) == (16 * GIB, Absent.NOT_PERMITTED)


def test_engine_whose_processes_are_not_listed_stays_as_it_is() -> None:
    (found,) = relate_engines((engine(),), (process(9, GIB),), frozenset())
    assert found == engine()


def test_stale_engine_keeps_its_identity_only() -> None:
    found = engine().as_stale()
    assert (found.id, found.user, found.weights_bytes, found.sleeping) == (
        "vllm-8000",
        "ana",
        Absent.STALE,
        Absent.STALE,
    )
    assert relate_engine(found, [process(1, GIB)]) is found


@pytest.mark.parametrize("name", ["weights_bytes", "kv_cache_used_bytes"])
def test_negative_size_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Engine("a", "vllm", "vLLM", "x", **{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("more", "is_known"), [(0, True), (-1, True), (1, False)])
def test_parts_may_exceed_the_processes_by_two_percent(more: int, is_known: bool) -> None:
    """Sizes of files and of blocks are not those of allocations."""
    found = relate_engine(engine(41 * GIB, 10 * GIB + more), [process(1, 10 * GIB, gpu0=40 * GIB)])

    assert isinstance(found.weights_bytes, int) is is_known
