"""Fit of models: command, API and page give the same answer, on machines of five kinds."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import pytest
from msgspec.structs import replace

from memwatch.planning.checkpoint import describe_config, read_checkpoint
from memwatch.planning.diffusion import ImageUse
from memwatch.planning.engines import ENGINES
from memwatch.planning.huggingface import parse_config
from memwatch.planning.request import Use, write_request
from memwatch.planning.training import TrainingPlan
from memwatch_web.pages.fit_page import EXAMPLE_QUERIES
from scripts.golden import roots_arguments
from scripts.published_models import MODELS
from simulators import nvml_parts, sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Machine
from support import diffusers_folders
from support.api_schema import check_answer
from support.checkpoint_files import LLAMA_KEYS, gguf
from support.client_process import call_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.library_process import run_json

CONFIGS = {model.name: model.config for model in MODELS}
LLAMA_8B_CONFIG = parse_config(CONFIGS["Llama 3 8B"], "Llama 3 8B")
Daemons = dict[str, RunningDaemon]
GIB = 1 << 30


def idle(machine: Machine, size_mib: int) -> Machine:
    """Return a machine whose GPUs hold only what the driver reserves."""
    memory = nvml_parts.mib(size_mib, used=485, reserved=479)
    return replace(machine, gpus=tuple(replace(gpu, memory=memory, compute=()) for gpu in machine.gpus))


NVIDIA = {
    "gb10": sample_nvml.READY["gb10"],
    "rtx-4090": idle(sample_nvml.READY["rtx-4090"], 24564),
    "8x-h100": idle(sample_nvml.EIGHT_H100, 81559),
}


class Case(NamedTuple):
    """One plan on one machine. `need_bytes`: from the device, by hand, without activations and runtime, which are
    2 % and 1 GiB at most. `fits`: devices that hold it, alone or together."""

    machine: str
    model: str
    options: str
    use: Use
    need_bytes: float
    fits: tuple[str, ...]
    words: str = ""


LLAMA_8B, LLAMA_70B = 2 * 8_030_261_248, 2 * 70_553_706_496
# One layer of 2,048 tokens beside all gradients. The loss before them, 3.4 GiB, is less than the gradients.
LAYER = 2048 * 200_704
TRAINING = TrainingPlan(offload_optimizer=True, checkpointing=True)
# Experts at 4.25 bits, everything else at 16. The cache at 131,072 tokens: 3.0 and 4.5 GiB.
OSS_20B, OSS_120B = 13.76e9, 65.25e9
# Q4_K_M: 4.8944 bits in the file. int4: 4.15625 bits, and 16 for embeddings and the output matrix.
Q4_70B, INT4_70B = LLAMA_70B * 4.8944 / 16, 68.45e9 * 4.15625 / 8 + 4.2e9
CASES = (
    # Weights, gradients, and 12 bytes of states that stay in the same memory: 16 bytes a parameter.
    Case("gb10", "Llama 3 8B", "--train --offload-optimizer --checkpointing --context 2048",
         Use(context=2048, training=TRAINING), 8 * LLAMA_8B + LAYER, (), "so nothing is gained"),
    Case("gb10", "gpt-oss-20b", "--context 131072", Use(context=131_072), OSS_20B + 3.05 * GIB, ("gpu0",)),
    Case("rtx-4090", "Llama 3 8B", "", Use(), LLAMA_8B + GIB, ("gpu0",)),
    Case("rtx-4090", "Llama 3 70B", "--dtype q4_k", Use(dtype="q4_k"), Q4_70B + 2.5 * GIB, ("cpu",),
         "its total is 24.0 GiB"),
    Case("rtx-4090", "Llama 3 8B", "--train --offload-optimizer --checkpointing --context 2048",
         Use(context=2048, training=TRAINING), 2 * LLAMA_8B + LAYER, ()),
    Case("8x-h100", "Llama 3 70B", "", Use(), LLAMA_70B + 2.5 * GIB, ("gpu0", "gpu1")),
    Case("8x-h100", "Llama 3 8B", "--context 131072", Use(context=131_072), LLAMA_8B + 16 * GIB, ("gpu0",)),
    Case("strix-halo", "gpt-oss-20b", "--context 131072", Use(context=131_072), OSS_20B + 3.05 * GIB, ("gpu0",)),
    Case("strix-halo", "gpt-oss-120b", "--context 131072", Use(context=131_072), OSS_120B + 4.5 * GIB, ()),
    Case("strix-halo", "Llama 3 70B", "--offload-kv", Use(offload_kv=True), LLAMA_70B + 2.5 * GIB, (),
         "so nothing is gained"),
    Case("mac", "Llama 3 8B", "", Use(), LLAMA_8B + GIB, ("gpu0",)),
    Case("mac", "Llama 3 70B", "--dtype int4", Use(dtype="int4"), INT4_70B + 2.5 * GIB, ()),
)  # fmt: skip
SAME = ("device", "fits", "need_bytes", "ram_need_bytes")


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """Daemons with a GB10, an RTX 4090, eight idle H100, a Strix Halo and a Mac."""
    with ExitStack() as stack:
        found = {}
        for name, machine in NVIDIA.items():
            folder = tmp_path_factory.mktemp(name)
            simulator = Simulator.of(folder, machine)
            found[name] = stack.enter_context(running_daemon(folder, *simulator.roots, environ=simulator.environ))
        for name, arguments in (
            ("strix-halo", roots_arguments("strix-halo")),
            ("mac", ("--demo", "macbook", "--at", "0s")),
        ):
            found[name] = stack.enter_context(running_daemon(tmp_path_factory.mktemp(name), *arguments))
        for running in found.values():
            running.wait_for(
                "/api/v1/devices", lambda devices: devices and {one["state"] for one in devices} == {"ok"}
            )
        yield found


def folder_of(tmp_path: Path, name: str) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    return tmp_path


def ask(daemon: RunningDaemon, path: Path, *options: str) -> dict[str, Any]:
    done = call_memwatch("--url", daemon.url, "fit", str(path), "--json", *options)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.machine}, {case.model} {case.options}".strip())
def test_command_and_api_agree_on_every_machine(case: Case, daemons: Daemons, tmp_path: Path) -> None:
    """The verdict, its bytes and its reason, for plans whose need is known."""
    daemon, path = daemons[case.machine], folder_of(tmp_path, case.model)
    asked = daemon.get(f"/api/v1/fit?{urlencode(write_request(read_checkpoint(path), case.use))}").json
    found = ask(daemon, path, *case.options.split())
    first = asked["verdicts"][0]

    for name in ("bytes", "parts", "moves", "best"):
        assert found[name] == asked[name]
    assert [[one[word] for word in SAME] for one in found["verdicts"]] == [
        [one[word] for word in SAME] for one in asked["verdicts"]
    ]
    assert holders(found) == holders(asked) == case.fits
    assert first["host_bytes"] == (asked["processes_bytes"] or 0)
    assert case.need_bytes < first["need_bytes"] - first["host_bytes"] < case.need_bytes * 1.02 + GIB
    assert case.words in first["reason"]


def holders(answer: dict[str, Any]) -> tuple[str, ...]:
    alone = (answer["best"],) if answer["best"] else ()
    return tuple(answer["split"]["devices"]) if answer["split"] else alone


@pytest.mark.parametrize(
    ("options", "use", "fits"),
    [
        ("", Use(), ("cpu",)),
        (
            "--offload model --width 512 --height 512",
            Use(images=ImageUse(512, 512, offload="model")),
            ("gpu0",),
        ),
        ("--dtype fp8 --width 512", Use(dtype="fp8", images=ImageUse(width=512)), ("gpu0",)),
        (
            "--train --lora 16 --checkpointing --offload model --dtype nf4",
            Use(
                dtype="nf4",
                images=ImageUse(offload="model"),
                training=TrainingPlan(lora_rank=16, checkpointing=True),
            ),
            ("gpu0",),
        ),
    ],
)
def test_flux_gets_the_same_answer_everywhere(
    options: str, use: Use, fits: tuple[str, ...], daemons: Daemons, tmp_path: Path
) -> None:
    """In bfloat16 it does not fit on 24 GiB. The page has the options that were asked for."""
    daemon, path = daemons["rtx-4090"], diffusers_folders.flux(tmp_path / "flux")
    query = urlencode(write_request(read_checkpoint(path), use))
    asked, found = daemon.get(f"/api/v1/fit?{query}").json, ask(daemon, path, *options.split())
    page = daemon.get(f"/fit?{query}").text

    for name in ("bytes", "parts", "moves", "best"):
        assert found[name] == asked[name]
    assert holders(found) == holders(asked) == fits
    assert "text encoders" in page
    assert ('<option value="model" selected>' in page) is ("model" in options)


def test_example_pipelines_of_the_page_are_those_of_the_files(tmp_path: Path) -> None:
    """Except the largest tensor and the adapters, which the sample files do not have."""
    for name, query in EXAMPLE_QUERIES:
        if name not in ("SDXL", "Flux.1-dev"):
            continue
        folder = getattr(diffusers_folders, name.split(".")[0].lower())(tmp_path / name)
        own = {key: value for key, value in parse_qsl(query) if key != "model"}
        written = write_request(read_checkpoint(folder), Use())
        differing = {key for key in own | written if own.get(key) != written.get(key)}

        assert differing == {"largest_tensor_bytes", "lora_per_rank"}


def test_options_for_images_need_a_diffusion_model(daemons: Daemons, tmp_path: Path) -> None:
    daemon, path = daemons["rtx-4090"], folder_of(tmp_path, "Llama 3 8B")
    done = call_memwatch("--url", daemon.url, "fit", str(path), "--width", "512")
    answer = daemon.get("/api/v1/fit?bytes=1GiB&width=512")
    alone = daemon.get("/api/v1/fit?width=512")
    partly = daemon.get("/api/v1/fit?denoiser=unet")

    assert done.returncode == 2
    assert "is not a diffusion model, for which --width" in done.stderr
    assert (answer.status, alone.status, partly.status) == (422, 422, 422)
    assert "bytes is a size, which width cannot change" in answer.json["detail"]
    assert "width: for diffusion models only" in alone.json["detail"]
    assert "a diffusion model also needs denoiser_parameters" in partly.json["detail"]


def test_eight_idle_h100_hold_llama_3_70b(daemons: Daemons, tmp_path: Path) -> None:
    """The smallest number of GPUs, and what is left on the fullest, in all three places."""
    daemon, path = daemons["8x-h100"], folder_of(tmp_path, "Llama 3 70B")
    query = urlencode(write_request(read_checkpoint(path), Use()))

    printed = call_memwatch("--url", daemon.url, "fit", str(path))
    answer = daemon.get(f"/api/v1/fit?{query}").json
    page = daemon.get(f"/fit?{query}").text
    split = answer["split"]
    gpus = ", ".join(split["devices"])

    check_answer(answer, "Fit")
    assert (printed.returncode, len(split["devices"])) == (0, 2)
    assert f"Fits on 2 GPUs, {gpus}: {split['reason']}." in printed.stdout
    assert f"{split['reason'][1:]}.</p>" in page
    assert f"fits on 2 GPUs: {gpus}</h2>" in page


def test_command_and_api_give_the_same_answer(daemons: Daemons, tmp_path: Path) -> None:
    """For training with an offloaded optimizer, and for inference with a reserve."""
    path = folder_of(tmp_path, "gpt-oss-20b")
    plan = TrainingPlan(lora_rank=16, offload_optimizer=True)
    for daemon in daemons.values():
        for use, options in (
            (
                Use(training=plan, context=2048),
                ["--train", "--lora", "16", "--offload-optimizer", "--context", "2048"],
            ),
            (Use(reserve_bytes=4 << 30, cpu_layers=4), ["--reserve", "4GiB", "--cpu-layers", "4"]),
        ):
            query = urlencode(write_request(read_checkpoint(path), use))
            asked, found = daemon.get(f"/api/v1/fit?{query}").json, ask(daemon, path, *options)

            assert {name: found[name] for name in ("bytes", "parts", "moves", "split", "best")} == {
                name: asked[name] for name in ("bytes", "parts", "moves", "split", "best")
            }


def test_offloaded_optimizer_frees_nothing_on_a_gb10(daemons: Daemons, tmp_path: Path) -> None:
    """`--offload-optimizer` promised 89.7 GiB that the machine does not have."""
    path = folder_of(tmp_path, "Llama 3 8B")
    done = call_memwatch("--url", daemons["gb10"].url, "fit", str(path), "--train", "--offload-optimizer")

    assert done.returncode == 1
    assert "in System RAM\n" in done.stdout.splitlines(keepends=True)[0]
    assert "stay in the same memory, so nothing is gained" in done.stdout


def test_weights_of_a_file_are_counted_by_the_daemon_too(daemons: Daemons, tmp_path: Path) -> None:
    """The daemon does not read the file: the command sends its figures."""
    path = gguf(tmp_path / "model.gguf", LLAMA_KEYS, {"t": (12, [256, 291], 0)}, 291 * 144)

    found = ask(daemons["gb10"], path)

    assert found["parts"]["weights"] == 291 * 144
    assert found["greatest"]["context"] == 4096


def test_answer_shows_the_greatest_that_fits(daemons: Daemons, tmp_path: Path) -> None:
    path = folder_of(tmp_path, "gpt-oss-20b")
    done = call_memwatch("--url", daemons["gb10"].url, "fit", str(path))

    assert done.returncode == 0
    assert "Greatest that fits, other options as asked: a context of 131,072 tokens, or a batch of " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["./model", "--zero", "2"], "--zero: for training only; add --train"),
        (["1GiB", "--gpus", "2"], "which --gpus cannot change"),
        (["1GiB", "--reserve", "much"], 'reserve is "much", which is not a size'),
        (["./model", "--parallel", "magic"], "'magic' is not one of"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], words: str) -> None:
    done = call_memwatch("fit", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_command_api_and_page_have_the_same_launch_lines(daemons: Daemons, tmp_path: Path) -> None:
    """The path of the model reaches the daemon, which gives the lines ready to copy."""
    daemon, path = daemons["8x-h100"], folder_of(tmp_path, "Llama 3 70B")
    query = write_request(read_checkpoint(path), Use(), "all")
    answer, page = daemon.get(f"/api/v1/fit?{urlencode(query)}").json, daemon.get(f"/fit?{urlencode(query)}").text
    found, printed = (
        ask(daemon, path, "--launch"),
        call_memwatch("--url", daemon.url, "fit", str(path), "--launch").stdout,
    )
    lines = answer["launch"]

    check_answer(answer, "Fit")
    assert [line["engine"] for line in lines] == ["vllm", "sglang", "tensorrt-llm", "transformers"]
    assert set(answer["launch_refused"]) == {"llama.cpp", "ollama"}
    assert found["launch"] == answer["launch"]
    assert f"serve {tmp_path} \\\n  --max-model-len 8192" in lines[0]["command"]
    for line in lines:
        assert line["command"] in printed
        assert html.escape(line["command"]) in page.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")


def test_engine_that_cannot_run_the_plan_is_an_answer(daemons: Daemons, tmp_path: Path) -> None:
    path = folder_of(tmp_path, "Llama 3 70B")
    gguf_only, too_large, unknown = (
        call_memwatch("--url", daemons[name].url, "fit", str(path), "--launch", engine)
        for name, engine in (("8x-h100", "ollama"), ("gb10", "vllm"), ("gb10", "tgi"))
    )

    assert "No launch line for Ollama: Ollama loads a GGUF file" in gguf_only.stdout
    assert "No launch line for vLLM: the plan does not fit." in too_large.stdout
    assert (gguf_only.returncode, too_large.returncode, unknown.returncode) == (0, 1, 2)
    assert 'launch is "tgi", which is not one of all, vllm' in unknown.stderr


def test_api_refuses_an_unknown_engine(daemons: Daemons) -> None:
    answer = daemons["gb10"].get("/api/v1/fit?weights_bytes=1000&launch=tgi")

    assert answer.status == 422
    assert "not one of all" in answer.json["detail"]


def test_page_without_a_model_has_placeholders(daemons: Daemons) -> None:
    page = daemons["gb10"].get("/fit?" + urlencode(write_request(describe_config(LLAMA_8B_CONFIG), Use()))).text
    size = daemons["gb10"].get("/fit?bytes=1GiB").text

    assert "vllm serve MODEL " in page
    assert 'id="launch"' not in size
    assert all(f"<summary>{ENGINES[name].title}</summary>" in page for name in ("vllm", "sglang", "transformers"))


LIBRARY = """
import json, memwatch
from memwatch.reporting.render.fit_json import fit_json
answer = memwatch.fit({path!r}, launch="all", context=4096)
print(json.dumps([fit_json(answer), answer.fits]))
"""


@pytest.mark.parametrize("name", ["gb10", "8x-h100"])
def test_library_gives_the_answer_of_the_api(name: str, daemons: Daemons, tmp_path: Path) -> None:
    """Also of several GPUs, and with launch lines."""
    daemon, path = daemons[name], folder_of(tmp_path, "Llama 3 70B")
    query = write_request(read_checkpoint(path), Use(context=4096), "all")
    asked = daemon.get(f"/api/v1/fit?{urlencode(query)}").json
    found, fits = run_json(LIBRARY.format(path=str(path)), daemon.url)

    same = ("bytes", "parts", "best", "split", "change", "greatest", "launch", "launch_refused")
    assert fits is (name == "8x-h100")
    if name == "8x-h100":  # a GB10's System RAM is that of the host at this moment
        assert {one: found[one] for one in same} == {one: asked[one] for one in same}
    assert found["parts"] == asked["parts"]


def test_library_reads_the_machine_without_a_daemon() -> None:
    code = "import json, memwatch; print(json.dumps([memwatch.fit('1MiB').fits, memwatch.fit('900TB').fits]))"

    assert run_json(code) == [True, False]
