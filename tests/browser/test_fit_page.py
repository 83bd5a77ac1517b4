"""The fit page: form, verdicts and errors, over HTTP and in a browser."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from msgspec.structs import replace
from playwright.sync_api import ViewportSize, expect

from memwatch.planning.huggingface import parse_config
from memwatch.planning.inference import compute_weights
from memwatch.planning.number_formats import parse_format
from memwatch.planning.request import write_shape
from memwatch_web.pages.fit_page import EXAMPLES, Verdicts
from scripts.published_models import MODELS, Published
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from support.browsing import SharedBrowser, opened
from support.daemon_process import RunningDaemon, running_daemon
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS

LLAMA_70B = urlencode(write_shape(dict(EXAMPLES)["Llama 3 70B"]))
# 57 GiB of weights, of which the machine has room for 8 bits.
QWEN3_30B = urlencode(write_shape(dict(EXAMPLES)["Qwen3 30B-A3B"]))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a simulated GB10."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running


def sent(daemon: RunningDaemon, body: bytes) -> tuple[int, str, str]:
    """Post the config form; return status, Location and body."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=MAX_WAIT_SECONDS)
    try:
        connection.request("POST", "/fit", body, {"Content-Type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        return answer.status, answer.getheader("location", ""), answer.read().decode()
    finally:
        connection.close()


def text_of(daemon: RunningDaemon, path: str, status: int = 200) -> str:
    answer = daemon.get(path)
    assert answer.status == status, answer.body[:500]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.body.decode()))


def test_empty_form_says_what_fits(daemon: RunningDaemon) -> None:
    """The overview leads here with "52.0 GiB more fit". The page only drew the memory."""
    (device,) = daemon.get("/api/v1/devices").json
    text = text_of(daemon, "/fit")

    assert f"{device['headroom_after_reclaim_bytes'] / 2**30:.1f} GiB more fit on NVIDIA GB10 Such as " in text
    assert "more fit" not in text_of(daemon, "/fit?bytes=20+GiB")


def test_size_has_a_verdict_for_each_device(daemon: RunningDaemon) -> None:
    text = text_of(daemon, "/fit?bytes=20GiB")
    verdicts = daemon.get("/api/v1/fit?bytes=20GiB").json["verdicts"]

    assert "20GiB fits on gpu0, after reclaim of page cache" in text
    assert [one["fits"] for one in verdicts] == [True, True]
    assert text.count("leaves ") >= 2


def test_cheapest_change_links_to_a_fitting_query(daemon: RunningDaemon) -> None:
    """30 billion parameters do not fit. The linked query does."""
    page = daemon.get(f"/fit?{QWEN3_30B}").body.decode()
    found = re.search(r'It would fit with <a href="(fit\?[^"]+)">8-bit weights</a>', page)

    assert found
    assert "fits on gpu0, after reclaim of page cache" in text_of(daemon, "/" + found[1].replace("&amp;", "&"))


def test_api_returns_parts_and_change(daemon: RunningDaemon) -> None:
    """The parts add up to the bytes. A plain size has no parts."""
    found = daemon.get(f"/api/v1/fit?{QWEN3_30B}").json
    plain = daemon.get("/api/v1/fit?bytes=600GiB").json

    assert sum(found["parts"].values()) == found["bytes"]
    assert found["change"]["words"] == "8-bit weights"
    assert found["change"]["bytes"] < found["verdicts"][0]["headroom_after_reclaim_bytes"]
    assert (plain["parts"], plain["change"]) == ({}, None)


def test_training_includes_optimizer_states(daemon: RunningDaemon) -> None:
    """Full training of 8 billion parameters does not fit. A fitting change is shown."""
    shape = urlencode(write_shape(dict(EXAMPLES)["Llama 3 8B"]) | {"train": "true", "context": "2048"})

    text = text_of(daemon, f"/fit?{shape}")

    assert "optimizer states" in text
    assert "It would fit with checkpointing and LoRA" in text


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_config_json_redirects_to_a_query(daemon: RunningDaemon, model: Published) -> None:
    """The query has the exact shape of every published checkpoint."""
    status, location, _ = sent(daemon, urlencode({"config": json.dumps(model.config)}).encode())

    config = parse_config(model.config, model.name)
    shape, form = config.transformer, parse_format(config.dtype)
    found = daemon.get("/api/v1/" + location).json

    assert status == 303
    assert found["parts"]["weights"] == compute_weights(shape, form.bytes, form.scope)


def test_examples_have_the_published_shapes() -> None:
    published = {model.name: parse_config(model.config, model.name).transformer for model in MODELS}

    for name, shape in EXAMPLES:
        assert shape == published[name]


def test_empty_fields_are_removed_from_the_url(daemon: RunningDaemon) -> None:
    answer = daemon.get("/fit?bytes=&hidden_size=4096&n_layers=")

    assert (answer.status, answer.headers["location"]) == (303, "fit?hidden_size=4096")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("bytes=20+potatoes", "which is not a size above zero; for example"),
        ("hidden_size=4096", "The shape lacks: intermediate size, layers, heads, KV heads, vocabulary size."),
        ("model=Qwen/Qwen3-8B", "The name Qwen/Qwen3-8B does not give the size of a model"),
        ("context=8192", "This does not give the size of a model: load its config.json"),
        ("hidden_size=x", "hidden_size is"),
        ("bytes=1GiB&nonsense=1", "nonsense"),
        ("bytes=" + "9" * 4000, "bytes is"),
        (f"{LLAMA_70B}&dtype=int3", "dtype is"),
        (f"{LLAMA_70B}&train=true&optimizer=magic", "optimizer is"),
        ("bytes=" + quote("<script>alert(1)</script>"), "which is not a size"),
    ],
)
def test_invalid_query_shows_an_error_and_the_form(daemon: RunningDaemon, query: str, words: str) -> None:
    text = text_of(daemon, f"/fit?{query}", 422)

    assert words in text
    assert "Will it fit?" in text
    assert "Memory as it is now" in daemon.get(f"/fit?{query}").body.decode()
    assert b"<script>alert" not in daemon.get(f"/fit?{query}").body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "paste the text"),
        ("config=", "paste the text"),
        ("config={", "is not readable JSON"),
        ("config=[]", "is JSON, but not an object"),
        ("config={}", "no readable hidden_size"),
        ("config=" + "[" * 30_000, "is not readable JSON"),
        ("config=%7B%22a%22:" + "9" * 5000 + "%7D", "config.json"),
        ("config={%22model_type%22: %22novel%22}", "the model_type &#39;novel&#39; is not known"),
        ("config=%ff%fe", "is not readable JSON"),
        ("&".join(f"a{i}=1" for i in range(50)), "more than 40 fields"),
    ],
)
def test_invalid_config_json_shows_an_error(daemon: RunningDaemon, body: str, words: str) -> None:
    status, _, body_text = sent(daemon, body.encode())

    assert status == 422
    assert words in body_text


def test_answer_names_the_model_and_what_was_planned(daemon: RunningDaemon) -> None:
    """Of a path its last part. Numbers have separators."""
    text = text_of(daemon, f"/fit?model=/models/My-Llama&context=16384&{QWEN3_30B}&dtype=q4_k")

    assert "My-Llama fits on gpu0" in text
    for words in ("30,532,122,624 parameters", "context 16,384 tokens", "batch 1", "q4_k"):
        assert words in text


@pytest.mark.parametrize("query", ["", "bytes=600GiB", LLAMA_70B, f"model=Qwen3&{QWEN3_30B}&dtype=q4_k"])
def test_answer_form_and_map_are_on_one_screen(browser: SharedBrowser, daemon: RunningDaemon, query: str) -> None:
    """At 1440 by 900 without scrolling, at 320 without scrolling sideways. The narrow tower is another drawing."""
    with opened(browser, f"{daemon.url}/fit?{query}", viewport={"width": 1440, "height": 900}) as page:
        high = page.evaluate("document.documentElement.scrollHeight")
        boxes = page.locator(".now-wide rect[data-gib]")
        drawn = boxes.evaluate_all("all => all.map(b => [+b.dataset.gib, b.getBoundingClientRect().height])")
        page.set_viewport_size({"width": 320, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth")
        shown = page.locator("svg.now-wide, svg.now-narrow").evaluate_all(
            "all => all.map(map => map.getBoundingClientRect().width > 0)"
        )

    largest, highest = max(drawn)
    scale = highest / largest
    assert high <= 900
    assert wide == 320
    assert shown == [False, True]
    assert drawn
    assert [one for one in drawn if abs(one[1] - one[0] * scale) > 1.5] == []


@pytest.mark.parametrize("demo", ["h100x8-mig", "gh200"])
def test_form_is_not_much_longer_than_the_map(
    browser: SharedBrowser, shared_daemons: SharedDaemons, demo: str
) -> None:
    """At 1440 pixels it was up to 112 longer."""
    with opened(browser, f"{shared_daemons.demo(demo).url}/fit", viewport={"width": 1440, "height": 900}) as page:
        bottoms = page.locator(".fit-columns > .card").evaluate_all(
            "all => all.map(card => card.getBoundingClientRect().bottom)"
        )

    assert bottoms[1] - bottoms[0] <= 60


def test_answer_for_eight_gpus_is_first_and_short_on_a_phone(
    browser: SharedBrowser, shared_daemons: SharedDaemons
) -> None:
    """The map is on the first screen with four GPUs in a row, and the form is folded. The wide page has it open."""
    address, phone = shared_daemons.demo("h100x8-mig").url, ViewportSize(width=390, height=844)
    with opened(browser, f"{address}/fit?{LLAMA_70B}", viewport=phone) as page:
        high = page.evaluate("document.documentElement.scrollHeight")
        places = page.locator(".gpu-cell").evaluate_all("all => all.map(a => a.getBoundingClientRect().bottom)")
        context = page.get_by_label("context (tokens)")
        expect(context).to_be_hidden()
        page.get_by_text("Describe a model").click()
        expect(context).to_be_visible()
        scales = page.locator("svg.now-narrow rect[data-gib]").evaluate_all(
            "all => all.map(a => [+a.dataset.gib, a.getBoundingClientRect().height])"
        )
        page.set_viewport_size({"width": 320, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.get_by_text("Describe a model").click()
        page.set_viewport_size({"width": 1440, "height": 900})
        expect(context).to_be_visible()
        expect(page.get_by_text("Describe a model")).to_be_hidden()

    assert high <= 1450
    assert max(places) <= 844
    assert len(set(places)) == 2
    assert wide == 320
    largest, highest = max(scales)
    assert [one for one in scales if abs(one[1] - one[0] * highest / largest) > 1.5] == []


def test_devices_of_one_answer_are_a_range() -> None:
    verdicts = Verdicts(tuple(f"gpu{one}" for one in range(8)), "NVIDIA H100", "no", "does not fit", "")

    assert (verdicts.title, verdicts.ids) == ("8 × NVIDIA H100", "gpu0 to gpu7")
    assert replace(verdicts, devices=("gpu0", "gpu1", "gpu7")).ids == "gpu0, gpu1, gpu7"
    assert replace(verdicts, devices=("cpu",)).title == "NVIDIA H100"
    assert replace(verdicts, devices=("cpu", "x", "y")).ids == "cpu, x, y"


def test_tower_of_one_pool_is_in_the_middle_of_its_card(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    with opened(browser, f"{daemon.url}/fit", viewport={"width": 1440, "height": 900}) as page:
        left, right = page.evaluate(
            """(() => {
              const place = document.querySelector(".fit-landscape").getBoundingClientRect();
              const tower = document.querySelector(".fit-landscape .tower").getBoundingClientRect();
              return [tower.left - place.left, place.right - tower.right];
            })()"""
        )

    assert left == pytest.approx(right, abs=2)


def test_config_file_is_opened_and_answered_in_a_browser(
    browser: SharedBrowser, daemon: RunningDaemon, tmp_path: Path
) -> None:
    """No console error, no external request, no horizontal scrolling on a phone."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS[0].config))
    with opened(browser, f"{daemon.url}/fit", viewport={"width": 360, "height": 800}) as page:
        page.click("text=Describe a model")
        page.click("text=Load a config.json")
        page.set_input_files("#config-file", file)
        page.wait_for_function("document.getElementById('config').value.includes('mistral')")
        page.click("text=Load config")
        page.wait_for_selector("#answer .verdicts")
        answered = page.inner_text("#answer-label")
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.fill("input[name=bytes]", "600GiB")
        page.press("input[name=bytes]", "Enter")
        page.wait_for_selector("#answer-label:text-is('600GiB does not fit')")
        address = page.url

    assert answered == "This model fits on gpu0, after reclaim of page cache"
    assert wide == 360
    assert address.endswith("/fit?bytes=600GiB")


def test_launch_line_is_copied_as_it_is_shown(browser: SharedBrowser, daemon: RunningDaemon) -> None:
    """The button is there only with JavaScript. A long line scrolls inside its box."""
    shape = urlencode(write_shape(dict(EXAMPLES)["Llama 3 8B"]))
    clipboard = ["clipboard-read", "clipboard-write"]
    phone = ViewportSize(width=360, height=800)
    with opened(browser, f"{daemon.url}/fit?{shape}", viewport=phone, permissions=clipboard) as page:
        page.click("#launch > summary")
        shown = page.inner_text(".launch pre >> nth=0")
        page.click(".copy >> nth=0")
        page.wait_for_selector(".copy:text('Copied')")
        copied = page.evaluate("navigator.clipboard.readText()")
        wide = page.evaluate("document.documentElement.scrollWidth")

    assert copied.startswith("vllm serve MODEL \\\n  --max-model-len 8192 \\\n")
    assert copied.strip() == shown.strip()
    assert wide == 360
    assert re.search(r'class="copy" data-copy="', daemon.get(f"/fit?{shape}").text)
