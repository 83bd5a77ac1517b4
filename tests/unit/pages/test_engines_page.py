"""Model servers on the pages: the parts inside the map, and a line on the pages of devices and processes."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

import pytest
from msgspec.structs import replace

from memwatch.core.engines.records import Engine
from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.core.wire import to_bytes
from memwatch.reporting.render.json import engines_json, snapshot_json
from memwatch_web.pages.renderer import Pages
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.api_schema import check_answer
from support.html_reader import Reader
from support.sample_parts import GIB

LINE = 'vLLM Qwen3-32B-FP8 · 41 tokens/s · KV <span class="figure">13%</span>'


@cache
def frame(demo: str = "dgx-spark", second: int = 120) -> Snapshot:
    return next(islice(read_frames(path_of(demo)), second, None))


def parts_of(page: bytes) -> dict[str, float]:
    """Return the GiB of the parts that are drawn, by kind."""
    return {
        str(attrs["class"]).removeprefix("b-engine-"): float(str(attrs["data-gib"]))
        for _, attrs in Reader(page).tags
        if str(attrs.get("class")).startswith("b-engine-")
    }


def test_segment_of_a_server_opens_into_its_parts() -> None:
    snapshot = frame()
    (engine,) = snapshot.engines
    cache, used = engine.kv_cache_bytes, engine.kv_cache_used_bytes
    assert isinstance(cache, int)
    assert isinstance(used, int)
    drawn = parts_of(Pages().page("overview", snapshot))
    assert isinstance(engine.weights_bytes, int)
    assert drawn == {
        "weights": pytest.approx(engine.weights_bytes / GIB, abs=0.001),
        "kv_used": pytest.approx(used / GIB, abs=0.001),
        "kv_reserved": pytest.approx((cache - used) / GIB, abs=0.001),
    }


@pytest.mark.parametrize("second", [20, 120])
def test_pages_with_a_server_are_closed_html(second: int) -> None:
    for name in ("overview", "devices"):
        assert Reader(Pages().page(name, frame(second=second))).open == []


def test_load_is_beside_the_picture_and_in_the_line_of_the_device() -> None:
    assert "41 tokens/s" in Pages().page("overview", frame()).decode()
    assert LINE in Pages().page("devices", frame()).decode()


def test_load_is_below_a_narrow_picture_too() -> None:
    """A server that reports no load has no line there: its name alone says nothing."""
    page = Pages().page("overview", frame()).decode()
    assert re.search(
        r'class="note engine-load">vLLM 0\.11\.0 · \d+ running, \d+ waiting · 41 tokens/s · KV: ', page
    )
    assert "engine-load" not in Pages().page("overview", frame(second=20)).decode()


def test_page_of_a_server_that_reports_nothing_has_the_reason_without_empty_rows() -> None:
    pages, snapshot = Pages(), frame(second=20)
    view = pages.view_process(snapshot, 3921, 0.0, Absent.NOT_AVAILABLE)
    assert view is not None
    page = pages.process(snapshot, view).decode()
    assert "It does not listen on a TCP port yet." in page
    assert "Requests running" not in page


def test_page_of_the_process_has_the_figures_of_its_server() -> None:
    pages, snapshot = Pages(), frame()
    view = pages.view_process(snapshot, 3921, 0.0, Absent.NOT_AVAILABLE)
    assert view is not None
    page = pages.process(snapshot, view).decode()
    assert [f'id="{part}"' in page for part in ("weights", "kv", "kv-reserved", "other")] == [True] * 4
    assert LINE in page
    assert "40,960 tokens" in page


def test_loading_server_has_its_reason_and_no_parts() -> None:
    page = Pages().page("overview", frame(second=20))
    assert "It does not listen on a TCP port yet." in page.decode()
    assert parts_of(page) == {}


def test_inconsistent_server_is_not_drawn() -> None:
    snapshot = frame()
    broken = replace(snapshot.engines[0], weights_bytes=Absent.INCONSISTENT, kv_cache_bytes=Absent.INCONSISTENT)
    assert parts_of(Pages().page("overview", replace(snapshot, engines=(broken,)))) == {}


def test_machine_without_a_server_has_no_card() -> None:
    assert 'id="engines"' not in Pages().page("overview", frame("gh200")).decode()


def test_name_of_a_model_is_escaped() -> None:
    hostile = Engine(
        "vllm-1", "vllm", "vLLM", "http://127.0.0.1:1", 3921, (3921,), model="<script>alert(1)</script>"
    )
    page = Pages().page("overview", replace(frame(), engines=(hostile,))).decode()
    assert "<script>alert(1)" not in page


@pytest.mark.parametrize("demo", ["dgx-spark", "rtx4090", "gh200"])
def test_answers_match_the_schema(demo: str) -> None:
    snapshot = frame(demo)
    check_answer(to_bytes(snapshot_json(snapshot)), "Snapshot")
    check_answer(to_bytes(engines_json(snapshot)), "Engine[]")


@pytest.mark.parametrize(("count", "is_shown"), [(0, False), (4, True)])
def test_servers_beyond_the_limit_are_counted_below_the_list(count: int, is_shown: bool) -> None:
    page = Pages().page("overview", replace(frame(), engines_not_followed=count)).decode()
    assert ("4 more model servers are not followed" in page) is is_shown
