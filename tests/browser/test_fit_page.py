"""/fit: the form, its answer to scale, and what it says to nonsense; over HTTP from a daemon, and in a browser."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from memwatch.planning.fit import Fit, Verdict
from memwatch.planning.huggingface import config_of
from memwatch_web.api.fit_request import fields_of
from memwatch_web.pages.fit_page import EXAMPLES, places_of
from scripts.published_models import MODELS, Published
from scripts.screenshots import chromium
from support import sample_nvml
from support.daemon_process import RunningDaemon, running_daemon
from support.nvml_machine import Simulator
from support.waiting import MAX_WAIT_SECONDS

GIB = 1 << 30
LLAMA_70B = urlencode(fields_of(dict(EXAMPLES)["Llama 3 70B"]))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A GB10 that a simulated driver shows."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running


def sent(daemon: RunningDaemon, body: bytes) -> tuple[int, str, str]:
    """What the form with a config answers: status, where it leads, what it says."""
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


def test_a_size_gets_a_verdict_for_each_device(daemon: RunningDaemon) -> None:
    """What the API says, in words."""
    said = text_of(daemon, "/fit?bytes=20GiB")
    verdicts = daemon.get("/api/v1/fit?bytes=20GiB").json["verdicts"]

    assert "It fits: use gpu0" in said
    assert [one["fits"] for one in verdicts] == [True, True]
    assert said.count("leaves ") >= 2


def test_the_cheapest_change_is_a_link_that_helps(daemon: RunningDaemon) -> None:
    """70 billion parameters do not fit; the link leads to a question whose answer is yes."""
    page = daemon.get(f"/fit?{LLAMA_70B}").body.decode()
    found = re.search(r'It would with <a href="(fit\?[^"]+)">4-bit weights</a>', page)

    assert found
    assert "It fits: use gpu0" in text_of(daemon, "/" + found[1].replace("&amp;", "&"))


def test_the_api_names_parts_and_change(daemon: RunningDaemon) -> None:
    """The parts add up to the bytes; a size has none."""
    found = daemon.get(f"/api/v1/fit?{LLAMA_70B}").json
    plain = daemon.get("/api/v1/fit?bytes=600GiB").json

    assert sum(found["parts"].values()) == found["bytes"]
    assert found["change"]["words"] == "4-bit weights"
    assert found["change"]["bytes"] < found["verdicts"][0]["headroom_bytes"]
    assert (plain["parts"], plain["change"]) == ({}, None)


def test_training_is_reckoned(daemon: RunningDaemon) -> None:
    """Whole, 8 billion parameters do not fit; the change that helps is said."""
    shape = urlencode(fields_of(dict(EXAMPLES)["Llama 3 8B"]) | {"train": "true", "context": "2048"})

    said = text_of(daemon, f"/fit?{shape}")

    assert "optimizer states" in said
    assert "It would with checkpointing and LoRA" in said


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_config_becomes_an_address(daemon: RunningDaemon, model: Published) -> None:
    """The shape of every published checkpoint survives the way through the address."""
    status, location, _ = sent(daemon, urlencode({"config": json.dumps(model.config)}).encode())

    shape = config_of(model.config, model.name).transformer
    found = daemon.get("/api/v1/" + location).json

    assert status == 303
    assert found["parts"]["weights"] == 2 * shape.parameters


def test_the_examples_are_the_published_shapes() -> None:
    """So that their verdicts are those of the real files."""
    published = {model.name: config_of(model.config, model.name).transformer for model in MODELS}

    for name, shape in EXAMPLES:
        assert shape in (published.get(name), published.get(f"{name} v0.1"))


def test_fields_left_empty_are_no_part_of_the_address(daemon: RunningDaemon) -> None:
    """A form sends them all; who gets the address sees what was asked."""
    answer = daemon.get("/fit?bytes=&hidden_size=4096&n_layers=")

    assert (answer.status, answer.headers["location"]) == (303, "fit?hidden_size=4096")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("bytes=20+potatoes", "which is no size above zero; for example"),
        ("hidden_size=4096", "are missing"),
        ("hidden_size=x", "hidden_size is"),
        ("bytes=1GiB&nonsense=1", "nonsense"),
        ("bytes=" + "9" * 4000, "bytes is"),
        (f"{LLAMA_70B}&dtype=int3", "dtype is"),
        (f"{LLAMA_70B}&train=true&optimizer=magic", "optimizer is"),
        ("bytes=" + quote("<script>alert(1)</script>"), "which is no size"),
    ],
)
def test_nonsense_gets_a_sentence_on_the_page(daemon: RunningDaemon, query: str, words: str) -> None:
    """The form is there to try again."""
    said = text_of(daemon, f"/fit?{query}", 422)

    assert words in said
    assert "So many bytes" in said
    assert b"<script>alert" not in daemon.get(f"/fit?{query}").body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "paste the text"),
        ("config=", "paste the text"),
        ("config={", "is not readable JSON"),
        ("config=[]", "is JSON, and no object"),
        ("config={}", "has no readable hidden_size"),
        ("config=" + "[" * 30_000, "is not readable JSON"),
        ("config=%7B%22a%22:" + "9" * 5000 + "%7D", "config.json"),
        ("config={%22kv_lora_rank%22: 512}", "no plain attention"),
        ("config=%ff%fe", "is not readable JSON"),
        ("&".join(f"a{i}=1" for i in range(50)), "more than 40 fields"),
    ],
)
def test_a_config_that_is_none_gets_a_sentence(daemon: RunningDaemon, body: str, words: str) -> None:
    """Whatever is pasted."""
    status, _, said = sent(daemon, body.encode())

    assert status == 422
    assert words in said


def test_bars_are_to_scale() -> None:
    """What is held, then what is needed; where that is too much, the scale is wider than the device."""
    fits = Verdict("gpu0", "GPU", True, 100 * GIB, 60 * GIB, 20 * GIB, "")
    over = Verdict("gpu1", "GPU", False, 40 * GIB, 10 * GIB, -30 * GIB, "")

    wide, narrow = places_of(Fit(40 * GIB, "gpu0", (fits, over)))

    assert (wide.whole, wide.taken, wide.need) == (1.0, 0.4, 0.4)
    assert (narrow.whole, narrow.taken, narrow.need) == (40 / 70, 30 / 70, 40 / 70)


def test_in_a_browser_a_file_is_opened_and_asked_about(daemon: RunningDaemon, tmp_path: Path) -> None:
    """No complaint on the console, no request to elsewhere, and nothing wider than a phone."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS[0].config))
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 360, "height": 800})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda one: None if one.url.startswith(daemon.url) else complaints.append(one.url))
        page.goto(daemon.url + "/fit")
        page.set_input_files("#config-file", file)
        page.wait_for_function("document.getElementById('config').value.includes('mistral')")
        page.click("text=Read its shape")
        page.wait_for_selector("#answer")
        answered = page.inner_text("#answer-label")
        wide = page.evaluate("document.documentElement.scrollWidth")
        page.fill("input[name=bytes]", "600GiB")
        page.press("input[name=bytes]", "Enter")
        page.wait_for_selector("#answer-label:text('It fits nowhere now')")
        address = page.url

    assert answered == "It fits: use gpu0"
    assert wide == 360
    assert address.endswith("/fit?bytes=600GiB")
    assert complaints == []
