"""Model servers for display: one line, and their parts inside a memory map."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent
from memwatch.reporting.render.engine_view import (
    Drawn,
    describe_engine,
    draw_parts,
    engine_of,
    engines_in,
    list_parts,
)

GIB = 1 << 30
ENGINE = Engine(
    "vllm-8000",
    "vllm",
    "vLLM",
    "http://127.0.0.1:8000",
    500,
    (500, 510),
    model="Qwen/Qwen3-32B",
    weights_bytes=60 * GIB,
    kv_cache_bytes=30 * GIB,
    kv_cache_used_bytes=3 * GIB,
    kv_cache_ratio=0.1,
    tokens_per_second=41.4,
    remainder_bytes=10 * GIB,
    held_bytes={"cuda0": 100 * GIB},
)


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        (ENGINE, "vLLM Qwen3-32B · 41 tokens/s · KV 10%"),
        (replace(ENGINE, sleeping=True), "vLLM Qwen3-32B · asleep"),
        (replace(ENGINE, requests_waiting=4), "vLLM Qwen3-32B · 41 tokens/s · KV 10% · 4 waiting"),
        (Engine("a", "ollama", "Ollama", Absent.NOT_AVAILABLE), "Ollama"),
    ],
)
def test_line_has_what_is_known(engine: Engine, line: str) -> None:
    assert describe_engine(engine) == line


def test_parts_add_up_to_the_memory_of_the_engine() -> None:
    sizes = {part.kind: part.size_bytes // GIB for part in list_parts(ENGINE)}
    assert sizes == {"weights": 60, "kv_used": 3, "kv_reserved": 27, "remainder": 10}


def test_draft_model_is_a_part_after_the_weights() -> None:
    parts = list_parts(replace(ENGINE, draft_weights_bytes=2 * GIB))
    assert [(part.kind, part.label) for part in parts][:2] == [("weights", "weights"), ("draft", "draft model")]
    assert parts[1].size_bytes == 2 * GIB


def test_cache_whose_use_is_unknown_is_one_part() -> None:
    parts = list_parts(replace(ENGINE, kv_cache_used_bytes=Absent.NOT_SUPPORTED))
    assert [part.kind for part in parts] == ["weights", "kv_cache", "remainder"]


def test_parts_lie_inside_the_segment_of_their_process() -> None:
    drawn = draw_parts([Drawn(510, 100 * GIB, 0.2, 0.5)], [ENGINE])
    assert [(one.part.kind, round(one.start, 3), round(one.width, 3)) for one in drawn] == [
        ("weights", 0.2, 0.3),
        ("kv_used", 0.5, 0.015),
        ("kv_reserved", 0.515, 0.135),
    ]


@pytest.mark.parametrize(
    "engine",
    [
        replace(ENGINE, held_bytes={"gpu0": 100 * GIB, "gpu1": 100 * GIB}),
        replace(ENGINE, weights_bytes=90 * GIB),
        replace(ENGINE, weights_bytes=Absent.INCONSISTENT, kv_cache_bytes=Absent.INCONSISTENT),
        replace(ENGINE, held_bytes={"cuda0": Absent.STALE}),
        replace(ENGINE, pids=(7,)),
    ],
    ids=("several GPUs", "larger than the segment", "inconsistent", "unknown", "another process"),
)
def test_parts_that_do_not_fit_are_not_drawn(engine: Engine) -> None:
    assert draw_parts([Drawn(510, 100 * GIB, 0.2, 0.5)], [engine]) == ()


def test_engines_are_found_by_place_and_by_process() -> None:
    assert engines_in([ENGINE], {"cuda0"}) == (ENGINE,)
    assert engines_in([ENGINE], {"gpu1"}) == ()
    assert (engine_of([ENGINE], 510), engine_of([ENGINE], 9)) == (ENGINE, None)
