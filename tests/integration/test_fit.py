"""Fit: verdicts per device, over HTTP and on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Architecture, Device, Process
from memwatch.core.snapshot import Snapshot
from memwatch.planning.fit import compute_fit
from memwatch_web.pages.fit_page import parse_config_fields
from scripts.published_models import MODELS
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from support.api_schema import check_answer
from support.checkpoint_files import safetensors
from support.client_process import call_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.sample_parts import UNIX, system_ram
from support.sample_snapshots import critical_gb10, discrete_gpu, many_owners

GIB = 1 << 30
SHAPE = "hidden_size=4096&intermediate_size=14336&n_layers=32&vocab_size=32000&n_heads=32&n_kv_heads=8"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with a simulated GB10."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running


def test_api_has_a_verdict_for_each_device(daemon: RunningDaemon) -> None:
    """On a unified machine GPU and CPU have the same memory available."""
    answer = daemon.get("/api/v1/fit?bytes=40GiB")
    found = answer.json

    assert answer.status == 200
    check_answer(found, "Fit")
    assert found["best"] == "gpu0"
    assert [(one["device"], one["fits"]) for one in found["verdicts"]] == [("gpu0", True), ("cpu", True)]


def test_model_with_an_unknown_cache_is_neither_a_yes_nor_a_no(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The command, the API and the page name the key, and the command exits with 3."""
    model = next(one.config for one in MODELS if one.name == "Llama 3.2 1B")
    text = json.dumps({**model, "index_topk": 2048})
    (tmp_path / "config.json").write_text(text)
    done = call_memwatch("--url", daemon.url, "fit", str(tmp_path), "--json")
    printed = call_memwatch("--url", daemon.url, "fit", str(tmp_path))
    page = daemon.get(f"/fit?{urlencode(parse_config_fields(text))}").text
    found = json.loads(done.stdout)
    sentence = "This plan does not know index_topk of the config.json: its cache may be larger."

    assert (done.returncode, printed.returncode) == (3, 3)
    assert (found["best"], found["split"]) == (None, None)
    assert [one["fits"] for one in found["verdicts"]] == [None, None]
    assert found["unknown"].startswith("There is room for ")
    assert found["unknown"].endswith(f" on gpu0. {sentence}")
    assert printed.stdout.splitlines()[-1] == f"Not known if it fits: t{found['unknown'][1:]}"
    assert re.search(r">Not known if .+ fits</h2>", page)
    assert sentence in page


def test_verdict_says_if_page_cache_has_to_be_reclaimed(daemon: RunningDaemon) -> None:
    """13.4 GiB are free, 44.3 GiB available. The verdict itself stays that of the upper bound."""
    at_once, later, never = (daemon.get(f"/api/v1/fit?bytes={size}GiB").json for size in (10, 40, 60))
    printed = call_memwatch("--url", daemon.url, "fit", "10GiB").stdout
    page = daemon.get("/fit?bytes=40GiB").text

    for found, needs, fits in ((at_once, False, True), (later, True, True), (never, False, False)):
        assert [(one["needs_reclaim"], one["fits"]) for one in found["verdicts"]] == [(needs, fits)] * 2
    assert [one["headroom_bytes"] >> 30 for one in later["verdicts"]] == [13, 13]
    assert later["verdicts"][0]["reason"].endswith("; only 13.4 GiB is free before reclaim")
    assert "(13.4 – 44.3 GiB available)" in printed
    assert printed.endswith("Fits: use gpu0.\n")
    assert "fits after reclaim" in page
    assert " fits on gpu0, after reclaim of page cache</h2>" in page


def test_reason_names_the_processes_that_hold_the_memory(daemon: RunningDaemon) -> None:
    """Only if freeing their memory would help. A size above the capacity never fits."""
    daemon.wait_for("/api/v1/processes", lambda processes: any(one["device_bytes"] for one in processes))
    held = daemon.get("/api/v1/fit?bytes=60GiB").json["verdicts"][0]
    never = daemon.get("/api/v1/fit?bytes=600GiB").json

    assert held["fits"] is False
    assert held["spare_bytes"] < 0
    assert "it fits if this one frees memory: VLLM::EngineCor" in held["reason"]
    assert (never["best"], never["verdicts"][0]["fits"]) == (None, False)
    assert "its total is 121.7 GiB" in never["verdicts"][0]["reason"]


def test_shape_query_matches_the_estimate(daemon: RunningDaemon) -> None:
    found = daemon.get(f"/api/v1/fit?{SHAPE}&context=8192").json

    assert found["bytes"] > 14_483_464_192 + GIB
    assert found["best"] == "gpu0"


@pytest.mark.parametrize("url", ["--url", "MEMWATCH_URL"])
def test_connection_options_do_not_make_a_size_a_model(daemon: RunningDaemon, url: str) -> None:
    options = ["--url", daemon.url] if url == "--url" else []
    done = call_memwatch("fit", "1GiB", "--json", *options, MEMWATCH_URL=daemon.url)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "give either bytes"),
        ("bytes=20+potatoes", 'bytes is "20 potatoes", which is not a size above zero'),
        ("bytes=-1", "for example"),
        ("bytes=" + "9" * 39, "which is not a size"),
        ("bytes=" + "9" * 5000, "bytes"),
        ("hidden_size=4096", "are missing"),
        ("bytes=1GiB&hidden_size=4096", "give either bytes"),
        ("bytes=1GiB&nonsense=1", "nonsense"),
        ("hidden_size=0&intermediate_size=1&n_layers=1&vocab_size=1&n_heads=1&n_kv_heads=1", "hidden_size is 0"),
        ("hidden_size=64&intermediate_size=1&n_layers=1&vocab_size=1&n_heads=4&n_kv_heads=3", "n_kv_heads is 3"),
        ("hidden_size=x&intermediate_size=1&n_layers=1&vocab_size=1&n_heads=4&n_kv_heads=3", "hidden_size is 'x'"),
        ("bytes=1GiB&context=" + "9" * 6000, "context"),
        (
            "bytes=900GiB&lora=8&context=5",
            "bytes is a size, which context, lora cannot change; leave that out, or",
        ),
        ("bytes=1GiB&context=8192", "bytes is a size, which context cannot change"),
        (f"{SHAPE}&lora=8&optimizer=lion", "optimizer, lora: for training only; add train=true"),
    ],
)
def test_invalid_query_is_422_with_a_reason(query: str, words: str, daemon: RunningDaemon) -> None:
    answer = daemon.get(f"/api/v1/fit?{query}")

    assert answer.status == 422
    assert words in answer.json["detail"]


ONE, ONE_OF, ALL = (
    f"it fits if {which} memory: " for which in ("this one frees", "one of these frees", "these free")
)
LEAK, SERVER = "leak (79) 9.0 GiB", "llama-server (77) 3.0 GiB"


def test_gpu_and_cpu_of_one_pool_have_the_same_reason() -> None:
    """On a GB10, CUDA and CPU allocations reduce the same memory."""
    gpu, cpu = (one.reason for one in compute_fit(60 * GIB, critical_gb10()).verdicts)

    assert gpu == cpu
    assert gpu.startswith("short by ")
    assert gpu.endswith(f" now; {ONE}vllm (20311) 93.5 GiB")


def apu(limit: int | Absent = Absent.NOT_SUPPORTED) -> Snapshot:
    """An APU with a process of 3 GiB GPU memory, 2 GiB of it possibly in RSS, and one of 9 GiB."""
    base = many_owners()
    share = replace(base.shares[0], device="gpu0", limit_bytes=limit)
    places = ("gpu0.gtt",)
    device = Device(
        "gpu0", "AMD", "Radeon", Architecture.UNIFIED, allocates_from=places, headroom_after_reclaim_bytes=GIB
    )
    leak = Process(79, UNIX, "leak", 9 * GIB, 9 * GIB, "rss")
    ram = system_ram(16 * GIB, GIB, 10 * GIB, 0, 0, 4 * GIB)
    return replace(base, pools=(ram,), shares=(share,), devices=(device,), processes=(base.processes[0], leak))


@pytest.mark.parametrize(
    ("limit", "advice"), [(Absent.NOT_SUPPORTED, f"{ONE_OF}{LEAK}, {SERVER}"), (4 * GIB, f"{ONE}{SERVER}")]
)
def test_holders_are_those_of_the_bounding_pool_or_share(limit: int | Absent, advice: str) -> None:
    """If the share of the GPU is at its limit, only its holders can free memory. Each one alone has enough."""
    assert compute_fit(2 * GIB, apu(limit)).verdicts[0].reason == f"short by 1.0 GiB now; {advice}"


def test_freeing_memory_is_suggested_only_if_it_is_enough() -> None:
    """14 GiB are missing, processes hold 12 GiB."""
    enough, too_little = (compute_fit(need * GIB, apu()).verdicts[0].reason for need in (11, 15))

    assert enough == f"short by 10.0 GiB now; {ALL}{LEAK}, {SERVER}"
    assert too_little == (
        "short by 14.0 GiB now; the memory that processes are known to hold is not enough; "
        f"the largest: {LEAK}, {SERVER}"
    )


def test_fit_is_unknown_when_headroom_is_unknown() -> None:
    """The verdict is absent with the same reason."""
    snapshot = discrete_gpu()
    device = replace(snapshot.devices[0], headroom_after_reclaim_bytes=Absent.NOT_PERMITTED)

    found = compute_fit(GIB, replace(snapshot, devices=(device,))).verdicts[0]

    assert found.fits is Absent.NOT_PERMITTED
    assert found.reason == "its headroom is not known (not permitted)"


def test_need_of_reclaim_is_unknown_when_free_memory_is_unknown() -> None:
    """The upper bound decides, and the reason of MemFree is given."""
    snapshot = critical_gb10()
    device = replace(snapshot.devices[0], headroom_bytes=Absent.NOT_AVAILABLE)

    found = compute_fit(GIB, replace(snapshot, devices=(device,))).verdicts[0]

    assert (found.fits, found.needs_reclaim) == (True, Absent.NOT_AVAILABLE)
    assert "reclaim" not in found.reason


def test_lost_device_never_fits() -> None:
    snapshot = critical_gb10()
    lost = replace(snapshot.devices[0], state="lost")

    found = compute_fit(1, replace(snapshot, devices=(lost,))).verdicts[0]

    assert (found.fits, found.reason) == (False, f"{lost.id} is lost")


def test_command_shows_the_change_that_makes_it_fit(daemon: RunningDaemon, tmp_path: Path) -> None:
    """32 billion parameters with 44 GiB available: the first fitting change with its option, exit code 1."""
    config = next(one.config for one in MODELS if one.name == "Qwen2.5 32B")
    (tmp_path / "config.json").write_text(json.dumps(config))

    done = call_memwatch("--url", daemon.url, "fit", str(tmp_path))
    as_json = call_memwatch("--url", daemon.url, "fit", str(tmp_path), "--json")

    assert (done.returncode, done.stderr) == (1, "")
    assert "Does not fit right now. It would fit with 8-bit weights (--dtype int8): " in done.stdout
    found = json.loads(as_json.stdout)
    assert found["best"] is None
    assert found["change"]["bytes"] < 44.3 * GIB < found["bytes"] == sum(found["parts"].values())
    assert call_memwatch("--url", daemon.url, "fit", str(tmp_path), "--dtype", "int8").returncode == 0


def test_unknown_shape_is_mentioned(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A checkpoint without config.json: weights only, with a note, and no yes."""
    path = safetensors(tmp_path / "model.safetensors", {"a": ("F32", [1000])})

    done = call_memwatch("--url", daemon.url, "fit", str(path))

    assert done.returncode == 3
    assert "The model's shape is not known: its KV cache and activations are not counted." in done.stdout


def test_missing_model_or_machine_is_neither_a_yes_nor_a_no(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Exit code 3 with the reason: a missing file, one that is damaged, and a daemon that does not answer."""
    (tmp_path / "config.json").write_text("{")
    missing = call_memwatch("--url", daemon.url, "fit", "/nonexistent")
    damaged = call_memwatch("--url", daemon.url, "fit", str(tmp_path))
    silent = call_memwatch("--url", "http://127.0.0.1:1", "fit", "1GiB")

    for done, words in ((missing, "/nonexistent"), (damaged, "is not readable JSON"), (silent, "cannot reach")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert words in done.stderr


def test_command_accepts_sizes_and_training(daemon: RunningDaemon, tmp_path: Path) -> None:
    """20GiB fits. Full training of 7 billion parameters does not, LoRA does."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS[0].config))

    plain = call_memwatch("--url", daemon.url, "fit", "20GiB")
    whole = call_memwatch("--url", daemon.url, "fit", str(tmp_path), "--train")
    lora = call_memwatch("--url", daemon.url, "fit", str(tmp_path), "--train", "--lora", "16", "--context", "2048")

    assert (plain.returncode, plain.stdout.splitlines()[-1]) == (0, "Fits after reclaim of page cache: use gpu0.")
    assert whole.returncode == 1
    assert "LoRA (--checkpointing --lora 16" in whole.stdout
    assert lora.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["20 potatoes"], 'size is "20 potatoes", which is not a size above zero; for example "20GiB"'),
        ([""], 'size is ""'),
        (["1GiB", "--dtype", "int3"], 'dtype is "int3"'),
        (["1GiB", "--train", "--optimizer", "magic"], 'optimizer is "magic"'),
        (["1GiB", "--context", "0"], "--context"),
        (
            ["1GiB", "--context", "5"],
            "1GiB is a size, which --context cannot change; use memwatch fit 1GiB, or name",
        ),
        (["1GiB", "--batch", "1"], "which --batch cannot change"),
        (["--lora", "8", "1GiB", "--train"], "which --train, --lora cannot change"),
        (
            ["./model", "--lora", "8", "--checkpointing"],
            "--lora, --checkpointing: for training only; add --train, or leave it out",
        ),
        ([], "takes a model, a size or --what; for example memwatch fit 20GiB"),
    ],
)
def test_invalid_command_line_is_one_line(arguments: list[str], words: str) -> None:
    """Exit code 2, before any request."""
    done = call_memwatch("fit", *arguments)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
