"""Whether it fits: a verdict per device with its reason, from a daemon, over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from memwatch.model import Absent, Architecture, Device, Process
from memwatch.planning.fit import fit_of
from memwatch.snapshot import Snapshot
from memwatch_web.api.schema_inquiries import Fit
from scripts.published_models import MODELS
from support import sample_nvml
from support.checkpoint_files import safetensors
from support.client_process import memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.nvml_machine import Simulator
from support.sample_parts import UNIX, system_ram
from support.sample_snapshots import critical_gb10, discrete_gpu, many_owners

GIB = 1 << 30
SHAPE = "hidden_size=4096&intermediate_size=14336&n_layers=32&vocab_size=32000&n_heads=32&n_kv_heads=8"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A GB10 that a simulated driver shows."""
    folder = tmp_path_factory.mktemp("daemon")
    simulator = Simulator.of(folder, sample_nvml.READY["gb10"])
    with running_daemon(folder, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield running


def test_over_http_each_device_has_a_verdict(daemon: RunningDaemon) -> None:
    """As the contract says; the GPU of a unified machine can have what System RAM can."""
    answer = daemon.get("/api/v1/fit?bytes=40GiB")
    found = Fit.model_validate(answer.json)

    assert answer.status == 200
    assert found.best == "gpu0"
    assert [(one.device, one.fits) for one in found.verdicts] == [("gpu0", True), ("cpu", True)]


def test_what_is_held_by_others_is_named(daemon: RunningDaemon) -> None:
    """It would fit if they let go; what is larger than the device never would."""
    daemon.wait_for("/api/v1/processes", lambda processes: any(one["device_bytes"] for one in processes))
    held = daemon.get("/api/v1/fit?bytes=60GiB").json["verdicts"][0]
    never = daemon.get("/api/v1/fit?bytes=600GiB").json

    assert held["fits"] is False
    assert held["spare_bytes"] < 0
    assert "it fits if these free memory: VLLM::EngineCor" in held["reason"]
    assert (never["best"], never["verdicts"][0]["fits"]) == (None, False)
    assert "its total is 121.7 GiB" in never["verdicts"][0]["reason"]


def test_a_shape_can_be_asked_for(daemon: RunningDaemon) -> None:
    """The same numbers as the library's estimate."""
    found = daemon.get(f"/api/v1/fit?{SHAPE}&context=8192").json

    assert found["bytes"] > 14_483_464_192 + GIB
    assert found["best"] == "gpu0"


@pytest.mark.parametrize("url", ["--url", "MEMWATCH_URL"])
def test_a_size_with_an_address_is_still_a_size(daemon: RunningDaemon, url: str) -> None:
    """Whom to ask and how to print says nothing of a model."""
    given = ["--url", daemon.url] if url == "--url" else []
    done = memwatch("fit", "1GiB", "--json", *given, MEMWATCH_URL=daemon.url)

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
        ("bytes=900GiB&lora=8&context=5", "bytes is a size, which context, lora cannot change; leave that out, or"),
        ("bytes=1GiB&context=8192", "bytes is a size, which context cannot change"),
        (f"{SHAPE}&lora=8&optimizer=lion", "optimizer, lora: that says how a model is trained; add train=true"),
    ],
)
def test_bad_questions_are_422_with_a_sentence(query: str, words: str, daemon: RunningDaemon) -> None:
    """Never 500."""
    answer = daemon.get(f"/api/v1/fit?{query}")

    assert answer.status == 422
    assert words in answer.json["detail"]


FREEING = "it fits if these free memory: "
LEAK, SERVER = "leak (79) 9.0 GiB", "llama-server (77) 3.0 GiB"


def test_one_pool_has_the_same_holders_for_all_who_draw_from_it() -> None:
    """On a GB10 what CUDA took and what programs took is missing from the same memory, for the GPU and the CPU."""
    gpu, cpu = (one.reason for one in fit_of(60 * GIB, critical_gb10()).verdicts)

    assert gpu == cpu
    assert gpu.startswith("short by ")
    assert gpu.endswith(f" now; {FREEING}vllm (20311) 93.5 GiB, python3 (20877) 11.8 GiB")


def apu(limit: int | Absent = Absent.NOT_SUPPORTED) -> Snapshot:
    """A program of 3 GiB on an APU's GPU, of which 2 may be in its resident set, and one of 9 GiB beside it."""
    base = many_owners()
    share = replace(base.shares[0], device="gpu0", limit_bytes=limit)
    places = ("gpu0.gtt",)
    device = Device("gpu0", "AMD", "Radeon", Architecture.UNIFIED, allocates_from=places, headroom_bytes=GIB)
    leak = Process(79, UNIX, "leak", 9 * GIB, 9 * GIB, "rss")
    ram = system_ram(16 * GIB, GIB, 10 * GIB, 0, 0, 4 * GIB)
    return replace(base, pools=(ram,), shares=(share,), devices=(device,), processes=(base.processes[0], leak))


@pytest.mark.parametrize(("limit", "holders"), [(Absent.NOT_SUPPORTED, f"{LEAK}, {SERVER}"), (4 * GIB, SERVER)])
def test_only_what_is_missing_there_is_counted_and_once(limit: int | Absent, holders: str) -> None:
    """Where the GPU's own share is at its limit, nobody helps it who is not in it."""
    assert fit_of(2 * GIB, apu(limit)).verdicts[0].reason == f"short by 1.0 GiB now; {FREEING}{holders}"


def test_nobody_is_promised_what_would_not_be_enough() -> None:
    """14 GiB are missing, and 12 are known to be held."""
    enough, too_little = (fit_of(need * GIB, apu()).verdicts[0].reason for need in (11, 15))

    assert enough == f"short by 10.0 GiB now; {FREEING}{LEAK}, {SERVER}"
    assert too_little == (
        "short by 14.0 GiB now; the memory that processes are known to hold is not enough; "
        f"the largest: {LEAK}, {SERVER}"
    )


def test_unknown_headroom_is_no_yes_and_no_no() -> None:
    """A device whose headroom is not known: the verdict is absent with the reason."""
    snapshot = discrete_gpu()
    device = replace(snapshot.devices[0], headroom_bytes=Absent.NOT_PERMITTED)

    found = fit_of(GIB, replace(snapshot, devices=(device,))).verdicts[0]

    assert found.fits is Absent.NOT_PERMITTED
    assert found.reason == "its headroom is not known (not permitted)"


def test_a_lost_device_fits_nothing() -> None:
    """Whatever its last figures were."""
    snapshot = critical_gb10()
    lost = replace(snapshot.devices[0], state="lost")

    found = fit_of(1, replace(snapshot, devices=(lost,))).verdicts[0]

    assert (found.fits, found.reason) == (False, f"{lost.id} is lost")


def test_the_command_says_what_would_make_it_fit(daemon: RunningDaemon, tmp_path: Path) -> None:
    """70 billion parameters on a GB10 with 44 GiB left: the first change that helps, with its flag; exit code 1."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS[3].config))

    done = memwatch("--url", daemon.url, "fit", str(tmp_path))
    as_json = memwatch("--url", daemon.url, "fit", str(tmp_path), "--json")

    assert (done.returncode, done.stderr) == (1, "")
    assert "It fits nowhere now. It would with 4-bit weights (--dtype int4): " in done.stdout
    found = json.loads(as_json.stdout)
    assert found["best"] is None
    assert found["change"]["bytes"] < 44.3 * GIB < found["bytes"] == sum(found["parts"].values())
    assert memwatch("--url", daemon.url, "fit", str(tmp_path), "--dtype", "int4").returncode == 0


def test_what_is_not_counted_is_said(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Tensors without a config: their bytes, and that there is more."""
    path = safetensors(tmp_path / "model.safetensors", {"a": ("F32", [1000])})

    done = memwatch("--url", daemon.url, "fit", str(path))

    assert done.returncode == 0
    assert "The model's shape is not known: its KV cache and activations are not counted." in done.stdout


def test_the_command_takes_a_size_and_training(daemon: RunningDaemon, tmp_path: Path) -> None:
    """20GiB fits; training 7 billion parameters whole does not, with adapters it does."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS[0].config))

    plain = memwatch("--url", daemon.url, "fit", "20GiB")
    whole = memwatch("--url", daemon.url, "fit", str(tmp_path), "--train")
    lora = memwatch("--url", daemon.url, "fit", str(tmp_path), "--train", "--lora", "16", "--context", "2048")

    assert (plain.returncode, plain.stdout.splitlines()[-1]) == (0, "It fits: use gpu0.")
    assert whole.returncode == 1
    assert "LoRA (--lora 16" in whole.stdout
    assert lora.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["20 potatoes"], 'size is "20 potatoes", which is not a size above zero; for example "20GiB"'),
        ([""], 'size is ""'),
        (["/nonexistent"], "is neither a size nor a file"),
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
            "--lora, --checkpointing: that says how a model is trained; add",
        ),
        ([], "MODEL_OR_BYTES"),
    ],
)
def test_bad_command_lines_are_one_sentence(arguments: list[str], words: str) -> None:
    """Exit code 2, before anybody is asked."""
    done = memwatch("fit", *arguments)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
