"""Machines that a user names, the largest models that fit them, and the estimated rate of decoding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, ShareKind, find_system_ram
from memwatch.core.snapshot import Snapshot
from memwatch.planning import model_table, read_table
from memwatch.planning.answer import (
    HIGHEST,
    LOWEST,
    answer_model,
    answer_request,
    answer_size,
    describe_rate,
    estimate_decode_rate,
)
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import Checkpoint
from memwatch.planning.fit import compute_fit
from memwatch.planning.huggingface import parse_config
from memwatch.planning.model_table import MAX_OF_FORMAT, list_models, list_runnable, list_shorter, read_models
from memwatch.planning.named_machines import (
    IDLE_BYTES,
    Product,
    find_bandwidth,
    more_gpus_of,
    read_machine,
    shorten_name,
    without_load,
)
from memwatch.planning.request import Use, write_request
from memwatch.reporting.render.fit_json import fit_json
from memwatch.reporting.render.json import snapshot_json
from memwatch_web.api.fit_query import parse_query
from memwatch_web.pages.fit_page import build_form, parse_config_fields
from scripts.product_sources import SOURCES
from scripts.published_models import COUNTED
from support import launch_lines
from support.paths import ROOT
from support.sample_snapshots import (
    calm_workstation,
    container_with_limit,
    critical_gb10,
    discrete_gpu,
    hugepages_host,
    many_owners,
    mig_server,
    partition,
    unknown_figures,
)

GIB = 1 << 30
MODELS = {one.name: one for one in list_models()}
PRODUCTS = read_table("products", Product)


def model(name: str) -> Checkpoint:
    return MODELS[name]


@pytest.mark.parametrize("word", PRODUCTS)
def test_each_product_is_a_machine(word: str) -> None:
    machine = read_machine(word)
    row = PRODUCTS[word]

    assert [one.name for one in machine.devices] == [row.names[0]]
    room = machine.devices[0].headroom_after_reclaim_bytes
    assert room == min(row.size_bytes - IDLE_BYTES * row.unified, row.limit_bytes or row.size_bytes)


@pytest.mark.parametrize(("text", "gpus"), [("Mac Studio", 1), ("2x Mac Studio", 2)])
def test_gpu_of_a_mac_takes_its_working_set(text: str, gpus: int) -> None:
    """Metal's recommendedMaxWorkingSetSize of an M3 Ultra with 512 GiB: 498216.21 MB in logs of llama.cpp."""
    machine = read_machine(text)
    verdicts = compute_fit(480 * GIB, machine).verdicts[:gpus]

    assert [one.limit_bytes for one in machine.shares] == [464 * GIB] * gpus
    assert all(one.spare_bytes == -16 * GIB for one in verdicts)


def test_products_have_names_of_one_row() -> None:
    """However they are written."""
    rows = PRODUCTS.items()
    names = [(shorten_name(name), key) for key, row in rows for name in (key, *row.names, *row.aliases)]

    assert len({name for name, _ in set(names)}) == len(set(names))
    assert list(PRODUCTS) == sorted(PRODUCTS)


@pytest.mark.parametrize(
    "text",
    [name for row in PRODUCTS.values() for name in row.aliases] + ["ryzen ai max+395", "dgx-spark", "2x 4090"],
)
def test_marketing_names_are_machines(text: str) -> None:
    """Also with the number of them before and behind, and case does not matter."""
    word = text.removeprefix("2x ")
    found = read_machine(text.upper())

    assert read_machine(f"2 x {word}").devices[0].name == found.devices[0].name
    assert len(read_machine(f"{word} x2").devices) == 2


def test_bandwidth_of_products_is_that_of_a_document() -> None:
    """A product without one has no rate."""
    assert sorted(SOURCES) == [name for name, row in PRODUCTS.items() if row.bandwidth is not None]
    assert find_bandwidth(PRODUCTS["gh200"].names[0]) is None


def test_sizes_are_those_of_committed_machines() -> None:
    """MemTotal of the GB10, Thor and others, as in their /proc/meminfo."""
    totals = {
        "gb10": "gb10", "thor": "thor", "agxorin": "jetson-agx-orin-jp6", "orinnano": "jetson-orin-nano",
        "strixhalo": "strix-halo",
    }  # fmt: skip
    for word, folder in totals.items():
        meminfo = (ROOT / "tests/machines" / folder / "proc/meminfo").read_text()
        found = re.search(r"MemTotal: +([0-9]+) kB", meminfo)
        assert found
        assert PRODUCTS[word].size_bytes == int(found[1]) * 1024


@pytest.mark.parametrize(
    ("text", "gpus"), [("rtx4090", 1), ("2x RTX 4090 + 64GiB", 2), ("8 x h100", 8), ("2x GB10", 2), ("rtx 5090", 1)]
)
def test_machine_has_as_many_gpus_as_its_name(text: str, gpus: int) -> None:
    assert len(read_machine(text).devices) == gpus


@pytest.mark.parametrize(
    ("text", "gpus", "ram"),
    [
        ("2X RTX4090", 2, 0),
        (" 2 x rtx 4090 ", 2, 0),
        ("RTX 4090 x2", 2, 0),
        ("rtx4090 X 2 + 64 gib", 2, 64),
        ("4×H100+1TiB", 4, 1024),
        ("NVIDIA GeForce RTX 4090", 1, 0),
        ("NVIDIA A100-SXM4-80GB x8", 8, 0),
        ("AMD Radeon RX 7900 XTX", 1, 0),
    ],
)
def test_case_spaces_and_order_of_a_machine_do_not_matter(text: str, gpus: int, ram: int) -> None:
    """Also the name that the driver reports."""
    found = read_machine(text)

    assert len(found.devices) == gpus
    assert found.pools[0].size_bytes == ram * GIB


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rtx409", "'rtx409' is not a machine that is known; perhaps rtx4090"),
        ("2x h100-90gb", "or h100;"),
        ("2x h100 x2", "perhaps h100"),
        ("rtx 7900 xtx", "perhaps rx7900xtx"),
    ],
)
def test_nearest_machines_are_named(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)) as caught:
        read_machine(text)
    assert len(str(caught.value)) < 160


def test_more_gpus_are_of_the_same_machine() -> None:
    assert more_gpus_of(" RTX 4090 x2 + 64GiB") == ["4x rtx4090 + 64gib", "8x rtx4090 + 64gib"]
    assert more_gpus_of("machine.json") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rtx9999", "is not a machine that is known; for example 2x rtx4090"),
        ("", "is not a machine that is known"),
        ("0x h100", "'0x h100' has 0 GPUs, and a machine has 1 to 1,024; for example 2x h100"),
        ("999999 x H100", "'999999 x H100' has 999,999 GPUs, and a machine has 1 to 1,024; for example 2x h100"),
        ("RTX 4090 x 1025", "has 1,025 GPUs, and a machine has 1 to 1,024; for example 2x rtx4090"),
        ("gb10 + 64GiB", "has one memory of 121 GiB"),
        ("h100 + 64 apples", "64 apples"),
        ("missing.json", "missing.json"),
    ],
)
def test_other_names_are_refused_with_what_would_do(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        read_machine(text)


def test_file_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text("{}")

    with pytest.raises(InvalidInputError, match="is not a saved /api/v1/snapshot"):
        read_machine(str(tmp_path / "machine.json"))


def test_two_machines_with_one_memory_split_a_model() -> None:
    """DeepSeek V4 Flash takes 152 GiB; one GB10 has 122."""
    one, two = (answer_model(model("DeepSeek V4 Flash"), Use(), read_machine(name)) for name in ("gb10", "2x gb10"))

    assert not one.fits
    assert two.fit.split
    assert two.fit.split.devices == ("gpu0", "gpu1")


def test_without_system_ram_nothing_is_moved_there() -> None:
    """Unknown, not a no: the machine may have any System RAM, and a run on the CPU takes it."""
    found = answer_model(model("Llama 3 70B"), Use(), read_machine("rtx4090"))
    moved = answer_model(model("Llama 3 8B"), Use(dtype="q8_0", offload_kv=True), read_machine("rtx4090"))

    assert not found.fits
    assert found.fit.unknown == "cpu: the size of System RAM is not known."
    assert found.change is None or "cpu" not in found.change.flags
    assert moved.fit.unknown.startswith("gpu0: System RAM: the size of System RAM is not known")


@pytest.mark.parametrize("machine", ["h100 + 64GiB", "gb10"])
def test_pool_of_size_0_has_an_unknown_size(machine: str) -> None:
    """System RAM of a machine with a GPU and without, in command, API and page; 0 is no figure of a memory."""
    named = read_machine(machine)
    pools = tuple(replace(one, size_bytes=0, used_bytes=0, available_bytes=0, free_bytes=0) for one in named.pools)
    for devices in (named.devices, ()):
        found = answer_size(1, "1B", replace(named, pools=pools, devices=devices))
        shown = fit_json(found)

        assert found.fit.verdicts[-1].reason == "the size of System RAM is not known"
        assert all(one["fits"] is None and one["absent"]["fits"] == "not_available" for one in shown["verdicts"])
        assert all(one["size_bytes"] is None for one in shown["verdicts"])
        assert "cpu: the size of System RAM is not known" in shown["unknown"]
        page = build_form({"bytes": "1MiB"}, replace(named, pools=pools, devices=devices))
        assert page.headline == "Not known if 1MiB fits"


@pytest.mark.parametrize(
    ("machine", "flags"), [("rtx4090 + 16GiB", None), ("rtx4090 + 40GiB", "--dtype int4 --cpu-layers 40")]
)
def test_change_moves_layers_to_the_system_ram_that_was_named(machine: str, flags: str | None) -> None:
    """Qwen2.5 72B in 4 bits takes 39 GiB: half on the GPU, half in System RAM, of which the system takes 4 GiB."""
    change = answer_model(model("Qwen2.5 72B"), Use(), read_machine(machine)).change

    assert (change.flags if change else None) == flags


@pytest.mark.parametrize("build", [critical_gb10, discrete_gpu])
def test_machine_without_load_has_at_least_as_much_room(build: Any) -> None:
    loaded: Snapshot = build()
    empty = without_load(loaded)

    assert empty.processes == ()
    for before, after in zip(loaded.devices, empty.devices, strict=True):
        room, more = before.headroom_after_reclaim_bytes, after.headroom_after_reclaim_bytes
        assert isinstance(room, Absent) or (isinstance(more, int) and more >= room)


EVERY = [
    calm_workstation, critical_gb10, container_with_limit, discrete_gpu, mig_server, partition, hugepages_host,
    unknown_figures, many_owners,
]  # fmt: skip


@pytest.mark.parametrize("build", EVERY)
@pytest.mark.parametrize("idle", [1 << 30, 200 << 30])
def test_empty_machine_has_all_that_is_left_now(build: Any, idle: int) -> None:
    """Also where less is in use than a desktop takes: for each device and for the CPU."""
    loaded: Snapshot = build()
    ram = find_system_ram(loaded.pools)
    if ram and isinstance(ram.used_bytes, int):  # a quiet machine
        used = min(idle, ram.used_bytes)
        changed = replace(ram, used_bytes=used, available_bytes=ram.size_bytes - used, free_bytes=0)
        loaded = replace(loaded, pools=tuple(changed if one is ram else one for one in loaded.pools))
    now, empty = (compute_fit(1, one).verdicts for one in (loaded, without_load(loaded)))

    for before, after in zip(now, empty, strict=True):
        room, more = before.headroom_after_reclaim_bytes, after.headroom_after_reclaim_bytes
        assert isinstance(room, Absent) or (isinstance(more, int) and more >= room), before.device


def test_limit_of_a_container_stays_on_an_empty_machine() -> None:
    loaded = container_with_limit()
    limit = next(one.limit_bytes for one in loaded.shares if one.kind is ShareKind.CGROUP)
    cpu = compute_fit(1, without_load(loaded)).verdicts[-1]

    assert cpu.headroom_after_reclaim_bytes == limit


def test_models_of_the_table_have_the_parameters_of_their_names() -> None:
    """In billions, where a name has them, which rounds."""
    # Names that leave embeddings out.
    others = {"Gemma 2B", "Gemma 7B", "Gemma 2 2B", "Granite 3.3 2B", "ERNIE 4.5 0.3B", "Llama 3.2 1B"}
    others |= {"Qwen2.5-VL 3B", "Qwen2.5-VL 7B", "Qwen2-VL 7B"}  # and the image encoder
    wrong = []
    for one in MODELS.values():
        match = re.search(r" (?:\d+x)?([0-9.]+)(B|M)(?:-A|$| )", one.name)
        if not match or "x" in one.name or one.name in others or one.transformer is None:
            continue
        wanted = float(match[1]) * (1e9 if match[2] == "B" else 1e6)
        if abs(one.transformer.parameters / wanted - 1) > 0.15:
            wrong.append((one.name, one.transformer.parameters))
    assert wrong == []
    assert len(MODELS) >= 100


def test_models_that_were_compared_with_their_files_are_marked() -> None:
    rows = read_models()

    assert {name for name, row in rows.items() if row.get("compared")} == set(COUNTED)


def test_models_of_the_table_are_wholly_known() -> None:
    rows = read_models()

    assert [name for name, row in rows.items() if parse_config(row, name).unknown] == []


def test_largest_models_fit_and_larger_ones_do_not() -> None:
    machine = read_machine("rtx4090")
    found = list_runnable(machine, Use())
    largest = {dtype: max(one.parameters for one in found if one.dtype == dtype) for dtype in ("", "q8_0", "q4_k")}

    assert largest[""] < largest["q8_0"] < largest["q4_k"]
    assert all(len([one for one in found if one.dtype == dtype]) == MAX_OF_FORMAT for dtype in largest)
    for one in found:
        assert answer_model(model(one.model), Use(dtype=one.dtype), machine).fits
    for larger in list_models():
        if larger.transformer and larger.transformer.parameters > largest["q4_k"] and larger.dtype_bytes >= 2:
            assert answer_model(larger, Use(dtype="q4_k"), machine).fit.best != "gpu0"


def test_models_with_a_shorter_context_are_left_out() -> None:
    """GPT-2 takes 1,024 tokens. Where the table has no maximum, the model stays and is marked."""
    long = Use(context=1 << 17)
    found, shorter = list_runnable(read_machine("8x h200"), long), list_shorter(long)

    assert shorter
    assert all(MODELS[name].context < long.context for name in shorter)
    assert not {one.model for one in found} & set(shorter)
    assert all(one.max_context in (0, MODELS[one.model].context) for one in found)
    assert all(one.is_sure_of(long.context) is (one.max_context >= long.context) for one in found)


def test_row_may_have_its_longest_context(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ("max_position_embeddings", "context")
    row = {name: one for name, one in read_models()["Llama 3 8B"].items() if name not in known}
    rows = {"short": {**row, "context": 4096}, "long": {**row, "context": 131072}, "without": row}
    monkeypatch.setattr(model_table, "read_models", lambda: rows)
    monkeypatch.setattr(model_table, "list_models", list_models.__wrapped__)
    found = {one.model: one for one in list_runnable(read_machine("8x h200"), Use(context=100_000))}

    assert list_shorter(Use(context=100_000)) == ("short",)
    assert {name: one.max_context for name, one in found.items() if name != "without"} == {"long": 131072}
    assert all(one.is_sure_of(100_000) is (name == "long") for name, one in found.items())
    assert [one.unknown for one in model_table.list_models()] == ["", "", ""]


def test_least_rate_leaves_slower_models_out() -> None:
    found = list_runnable(read_machine("gb10"), Use(), 10)

    assert found
    assert all(one.rate and one.rate.low >= 10 for one in found)


def test_rate_is_bandwidth_by_bytes_of_a_token() -> None:
    """Llama 3 8B in 16 bits: its weights without the table of embeddings, and a cache of 1 GiB at 8,192 tokens."""
    rate = estimate_decode_rate(model("Llama 3 8B"), Use(context=8192), "NVIDIA GeForce RTX 4090")
    read = 2 * (8_030_261_248 - 128_256 * 4096) + GIB

    assert rate
    assert rate.read_bytes == pytest.approx(read, rel=1e-6)
    assert (rate.low, rate.high) == pytest.approx((LOWEST * 1.008e12 / read, HIGHEST * 1.008e12 / read), rel=1e-6)
    assert rate.quality == "estimated"


@pytest.mark.parametrize("name", ["dgx-spark", "strix-halo", "rtx4090"])
def test_command_api_and_page_have_one_rate(name: str) -> None:
    """As a range, marked as estimated; none where nothing fits or no bandwidth is known."""
    snapshot, found = launch_lines.machine(name), launch_lines.model("Llama 3.2 1B")
    query = write_request(found, Use())
    here = answer_model(found, Use(), snapshot)
    sent = fit_json(answer_request(parse_query(query), snapshot))["decode_rate"]
    page = build_form(query, snapshot)

    assert here.decode_rate
    assert sent == fit_json(here)["decode_rate"]
    assert (sent["quality"], sent["low"] < sent["high"]) == ("estimated", True)
    assert page.rate == describe_rate(here.decode_rate)
    assert "tokens a second (estimated: " in page.rate


def test_no_yes_and_no_bandwidth_have_no_rate() -> None:
    found = launch_lines.model("Llama 3.2 1B")
    named = launch_lines.machine("dgx-spark")
    unnamed = replace(named, devices=tuple(replace(one, name="Unheard-of 9000") for one in named.devices))

    assert answer_model(found, Use(reserve_bytes=1 << 50), named).decode_rate is None
    assert answer_model(found, Use(), unnamed).decode_rate is None
    assert answer_size(GIB, "1GiB", named).decode_rate is None


def test_page_has_the_longest_context_of_a_pasted_config() -> None:
    config = json.dumps({**launch_lines.CONFIGS["Llama 3 8B"], "max_position_embeddings": 8192})
    fields = {**parse_config_fields(config), "context": "9000"}
    answer = build_form(fields, launch_lines.machine("dgx-spark")).answered

    assert answer
    assert answer.caution.startswith("Its own maximum is 8,192 tokens: engines refuse 9,000 ")
    assert answer.launches.lines == ()


FIRST = {"original_max_position_embeddings": 32768}


FIRST = {"original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, **FIRST}}, 131_072),
        ({"rope_parameters": {"type": "yarn", "factor": 4, **FIRST}}, 131_072),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0, **FIRST}}, 40_960),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, 40_960),
        ({"rope_scaling": {"type": "yarn", "factor": "4", **FIRST}}, 40_960),
        ({"rope_scaling": {"type": "yarn", "factor": -1e300, **FIRST}}, 40_960),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan"), **FIRST}}, 40_960),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1 << 2000}}, 40_960),
        ({"rope_scaling": ["yarn"]}, 40_960),
        ({}, 40_960),
    ],
)
def test_longest_context_includes_the_scaling_of_positions(scaling: dict[str, Any], context: int) -> None:
    config = {**launch_lines.CONFIGS["Llama 3 8B"], "max_position_embeddings": 40_960, **scaling}

    assert parse_config(config, "config.json").context == context


def test_experts_that_a_token_does_not_use_are_not_read() -> None:
    """gpt-oss-120b: 5.1 of 117 billion parameters are used, with experts in 4 bits."""
    rate = estimate_decode_rate(model("gpt-oss-120b"), Use(context=1), "NVIDIA GB10")

    assert rate
    assert 3e9 < rate.read_bytes < 6e9


@pytest.mark.parametrize(
    ("use", "device"),
    [
        (Use(), "NVIDIA Quadro of 2031"),
        (Use(offload_kv=True), "NVIDIA GB10"),
        (Use(cpu_layers=4), "NVIDIA GB10"),
        (Use(gpus=2), "NVIDIA GB10"),
    ],
)
def test_no_rate_where_it_is_not_known(use: Use, device: str) -> None:
    assert estimate_decode_rate(model("Llama 3 8B"), use, device) is None
    assert estimate_decode_rate(replace(model("Llama 3 8B"), transformer=None), Use(), "NVIDIA GB10") is None


def test_bandwidth_is_of_a_whole_name_only() -> None:
    """The laptop's GPU of that name is another one."""
    assert find_bandwidth("NVIDIA GeForce RTX 4090") == 1_008_000_000_000
    assert find_bandwidth("NVIDIA GeForce RTX 4090 Laptop GPU") is None


def test_saved_snapshot_is_a_machine(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(snapshot_json(discrete_gpu())))

    assert [one.name for one in read_machine(str(tmp_path / "m.json")).devices] == [
        one.name for one in discrete_gpu().devices
    ]
