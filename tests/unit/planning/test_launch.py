"""Launch lines: with their options, each engine's own arithmetic gives the plan on this machine."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.planning.answer import NOT_KNOWN, answer_request
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.device_totals import reported_total
from memwatch.planning.engines import ENGINES, select_engines
from memwatch.planning.named_machines import read_machine
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use, write_request
from memwatch.planning.training import TrainingPlan
from memwatch_web.api.fit_query import parse_query
from support.launch_lines import FOLDER, ask, line, machine, model, option, total_of

GIB = 1 << 30
DEMOS = ("dgx-spark", "gh200", "h100x8-mig", "jetson-orin", "macbook", "rtx4090", "strix-halo")
GGUF, SAFETENSORS = {"llama.cpp", "ollama"}, {"vllm", "sglang", "tensorrt-llm", "transformers"}


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("dgx-spark", 130_663_165_952),  # MemTotal
        ("jetson-orin", 65_892_753_408),
        ("h100x8-mig", 85_520_809_984 - 502_267_904),  # 79.18 GiB, as vLLM reports it on an H100
        ("gh200", 102_005_473_280),
    ],
)
def test_fraction_is_of_the_total_that_cuda_reports(name: str, total: int) -> None:
    assert total_of(machine(name)) == total


def test_total_of_an_apu_is_not_known() -> None:
    """HIP reports the carve-out, half of System RAM or all of it."""
    snapshot = machine("strix-halo")

    assert not isinstance(reported_total(snapshot.devices[0], snapshot), int)


def test_total_of_mig_is_that_of_its_largest_instance() -> None:
    snapshot = machine("h100x8-mig")

    assert reported_total(snapshot.devices[7], snapshot) == 42_412_802_048


VLLM_CASES = [
    ("dgx-spark", "gpt-oss-20b", {"context": 131_072}),
    ("dgx-spark", "Llama 3 8B", {"batch_size": 16}),
    ("rtx4090", "Llama 3 8B", {}),
    ("h100x8-mig", "Llama 3 70B", {}),
    ("h100x8-mig", "Gemma 3 27B", {"context": 65_536}),
    ("h100x8-mig", "DeepSeek V2 Lite", {"context": 32_768, "batch_size": 4}),
]


@pytest.mark.parametrize(("name", "what", "use"), VLLM_CASES)
def test_vllm_starts_and_has_the_cache_of_the_plan(name: str, what: str, use: dict[str, Any]) -> None:
    """Its start check wants the fraction of the total to be free. The cache is at least that of the plan."""
    snapshot, checkpoint = machine(name), model(what)
    launch = line(snapshot, checkpoint, "vllm", **use)
    gpus = int(option(launch, "-parallel-size")) if "-parallel-size" in launch.command else 1
    parts = compute_checkpoint_need(checkpoint, Use(**use), gpus).parts
    cache, need = option(launch, "--kv-cache-memory-bytes"), sum(parts.values())
    requested = option(launch, "--gpu-memory-utilization") * total_of(snapshot)
    room = snapshot.devices[0].headroom_after_reclaim_bytes

    assert isinstance(room, int)
    assert parts["kv_cache"] <= cache <= room - need + parts["kv_cache"]
    assert requested <= room
    assert requested >= need - 0.001 * total_of(snapshot)
    assert option(launch, "--max-model-len") == use.get("context", 8192)
    assert option(launch, "--max-num-seqs") == use.get("batch_size", 1)


@pytest.mark.parametrize(
    ("what", "page", "layers", "blocks"),
    [
        # 12 full layers and 12 of 128 tokens: one group each.
        ("gpt-oss-20b", 16 * 2 * 8 * 64 * 2, 12, 8192 + (136 + 1)),
        # 10 full layers and 52 of 1,024 tokens: one group, and six of 10 layers, the last with 8 that are unused.
        ("Gemma 3 27B", 16 * 2 * 16 * 128 * 2, 10, 8192 + 6 * (192 + 1)),
    ],
)
def test_vllm_has_the_blocks_of_its_groups_of_layers(what: str, page: int, layers: int, blocks: int) -> None:
    """Of 16 tokens for 131,072, and for the window and the 2,048 tokens of a step."""
    launch = line(machine("h100x8-mig"), model(what), "vllm", context=131_072)
    whole = (blocks + 1) * layers * page

    assert whole <= option(launch, "--kv-cache-memory-bytes") <= 1.005 * whole


def test_cache_that_vllm_rounds_beyond_the_room_is_refused() -> None:
    """Windows of a step more than the plan's, for a batch that just fits."""
    snapshot, checkpoint = machine("rtx4090"), model("gpt-oss-20b")
    most = ask(snapshot, checkpoint, "", context=4096).greatest
    assert most is not None
    answer = ask(snapshot, checkpoint, "vllm", context=4096, batch_size=most.batch)

    assert answer.fits
    assert "which is" in answer.launches.refused["vllm"]
    assert "too much; ask for a smaller context" in answer.launches.refused["vllm"]


@pytest.mark.parametrize("what", ["Llama 3 8B", "gpt-oss-20b"])
@pytest.mark.parametrize("name", ["dgx-spark", "rtx4090", "jetson-orin"])
def test_sglang_has_the_cache_of_the_plan_and_room_for_activations(name: str, what: str) -> None:
    """Its cache is what is free after the weights, less the part of the start's free memory that is not static."""
    snapshot, checkpoint = machine(name), model(what)
    launch, parts = line(snapshot, checkpoint, "sglang"), compute_checkpoint_need(checkpoint, Use()).parts
    fraction, room = option(launch, "--mem-fraction-static"), snapshot.devices[0].headroom_after_reclaim_bytes
    assert isinstance(room, int)
    before = room - parts["runtime"]
    cache = (before - parts["weights"]) - before * (1 - fraction)

    assert cache >= parts["kv_cache"]
    assert before * (1 - fraction) >= parts["activations"]
    assert option(launch, "--max-total-tokens") >= 8192


def test_tensorrt_llm_has_the_cache_of_the_plan() -> None:
    """On a discrete GPU a fraction of what is free after weights and activations, and a number of tokens."""
    snapshot, checkpoint = machine("rtx4090"), model("Llama 3 8B")
    launch, parts = line(snapshot, checkpoint, "tensorrt-llm"), compute_checkpoint_need(checkpoint, Use()).parts
    room = snapshot.devices[0].headroom_after_reclaim_bytes
    assert isinstance(room, int)
    left = room - parts["weights"] - parts["activations"] - parts["runtime"]

    assert option(launch, "free_gpu_memory_fraction") * left >= parts["kv_cache"]
    assert option(launch, "max_tokens") >= 8192


def test_tensorrt_llm_has_no_fraction_on_unified_memory() -> None:
    """There it counts page cache as used."""
    spark = machine("dgx-spark")
    refused = ask(spark, model("gpt-oss-20b"), "tensorrt-llm").launches.refused

    assert "fraction" not in line(spark, model("Llama 3 8B"), "tensorrt-llm").command
    assert "counts page cache as used" in refused["tensorrt-llm"]


@pytest.mark.parametrize(("gguf", "engines"), [(True, GGUF), (False, SAFETENSORS)])
def test_only_engines_that_load_the_files_have_a_line(gguf: bool, engines: set[str]) -> None:
    found = ask(machine("rtx4090"), model("Llama 3 8B", gguf)).launches

    assert {one.engine for one in found.lines} == engines
    assert set(found.refused) == set(ENGINES) - engines
    assert all("loads" in why for why in found.refused.values())


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ({"context": 1 << 24}, "the plan does not fit"),
        ({"training": TrainingPlan(lora_rank=8)}, "training has no launch line"),
        ({"cpu_layers": 4}, "vLLM has no option that moves layers"),
        ({"offload_kv": True}, "vLLM has no option that moves the KV cache"),
        ({"kv_dtype": "q8_0"}, "vLLM has no q8_0 cache; use fp8"),
        ({"dtype": "int4"}, "vLLM does not convert weights to int4 at load"),
    ],
)
def test_plan_that_an_engine_cannot_run_has_a_reason(use: dict[str, Any], words: str) -> None:
    found = ask(machine("dgx-spark"), model("Llama 3 8B"), "vllm", **use).launches

    assert found.lines == ()
    assert words in found.refused["vllm"]


def test_encoder_and_weights_alone_have_no_line() -> None:
    unknown = replace(model("Llama 3 8B"), transformer=None, weights_bytes=GIB, source="safetensors")

    assert ask(machine("rtx4090"), unknown, "vllm").launches.refused == {"vllm": NOT_KNOWN}
    plain = model("Llama 3.2 1B")
    assert plain.transformer is not None
    encoder = replace(plain, transformer=replace(plain.transformer, shared_kv_layers=16))
    assert "encoder" in ask(machine("rtx4090"), encoder, "vllm").launches.refused["vllm"]


def test_llama_cpp_gets_the_context_of_all_slots() -> None:
    launch = line(
        machine("strix-halo"), model("Llama 3 8B", True), "llama.cpp", context=4096, batch_size=3, kv_dtype="q8_0"
    )

    assert option(launch, "-c") == 3 * 4096
    assert option(launch, "-np") == 3
    assert option(launch, "-ngl") == 33
    for flag in ("-ctk q8_0 -ctv q8_0", "-fa on", "-fit off"):
        assert flag in launch.command


@pytest.mark.parametrize("off", [False, True])
def test_llama_cpp_gets_the_vision_tower(off: bool) -> None:
    """Also through the daemon. A plan for the CPU keeps the tower off the GPU, other engines have no option."""
    snapshot = machine("rtx4090")
    if off:
        snapshot = replace(snapshot, devices=())
    seeing = replace(model("Llama 3 8B", True), projector="/models/a b/mmproj-F16.gguf")
    fields = write_request(seeing, Use(), "llama.cpp")
    asked = answer_request(parse_query(fields), snapshot)
    lines = [line(snapshot, seeing, "llama.cpp"), asked.launches.lines[0]]

    for one in lines:
        assert "--mmproj '/models/a b/mmproj-F16.gguf' " in one.command
        assert ("--no-mmproj-offload" in one.command) == off
    assert "mmproj" not in line(snapshot, model("Llama 3 8B", True), "llama.cpp").command


def test_llama_cpp_divides_by_layers_over_as_many_gpus_as_that_needs() -> None:
    """The plan is tensor parallel. llama.cpp divides the layers."""
    answer = ask(machine("h100x8-mig"), model("Llama 3 70B", True), "llama.cpp")
    launch = answer.launches.lines[0]

    assert answer.fit.split is not None
    assert answer.fit.split.reason.startswith("tensor parallel")
    assert "--split-mode layer" in launch.command
    assert launch.command.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1 llama-server")


def test_plan_for_all_gpus_of_a_machine_names_them() -> None:
    """Two H100 of two: CUDA's own order is by speed, and a further GPU may be added."""
    here = machine("h100x8-mig")
    cards = [one for one in here.devices if not one.details.get("mig")][:2]
    ids = {one.id for one in cards}
    two = replace(
        here, devices=tuple(cards), pools=tuple(one for one in here.pools if one.id in {*ids, "ram"}), shares=()
    )
    launch = ask(two, model("Llama 3 70B", True), "llama.cpp").launches.lines[0]

    assert launch.command.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1 llama-server")
    assert "--rpc" not in launch.command


@pytest.mark.parametrize(
    ("use", "flags"),
    [
        ({"cpu_layers": 8}, ("-ngl 25",)),
        ({"offload_kv": True}, ("-ngl 33", "-nkvo")),
    ],
)
def test_moves_are_options_of_llama_cpp(use: dict[str, Any], flags: tuple[str, ...]) -> None:
    launch = line(machine("rtx4090"), model("Llama 3 8B", True), "llama.cpp", **use)

    assert all(flag in launch.command for flag in flags)


def test_plan_for_the_cpu_opens_no_gpu() -> None:
    """Llama 3 70B in 4 bits does not fit on a card of 24 GiB."""
    snapshot = machine("rtx4090")
    found = replace(model("Llama 3 70B", True), weights_bytes=40 * GIB)
    answer = ask(snapshot, found)

    assert answer.fit.best == "cpu"
    assert {one.engine for one in answer.launches.lines} == GGUF
    assert "--device none" in answer.launches.lines[0].command
    assert "num_gpu 0" in answer.launches.lines[1].command


@pytest.mark.parametrize("gguf", [True, False])
@pytest.mark.parametrize("name", ["strix-halo", "macbook"])
def test_nothing_is_called_cuda_on_other_gpus(name: str, gguf: bool) -> None:
    lines = ask(machine(name), model("Llama 3 8B", gguf)).launches.lines
    text = " ".join(
        [one.command + " ".join([*one.notes, *(flag.flag + flag.reason for flag in one.flags)]) for one in lines]
    )

    assert lines
    assert "cuda" not in text.lower()


@pytest.mark.parametrize("gguf", [True, False])
@pytest.mark.parametrize("name", DEMOS)
def test_lines_run_in_a_shell_with_the_path_as_one_word(name: str, gguf: bool) -> None:
    found = ask(machine(name), model("Llama 3 8B", gguf), kv_dtype="")
    path = FOLDER + ".gguf" * gguf

    for launch in found.launches.lines:
        assert all(one.reason and not one.reason.endswith(".") for one in launch.flags)
        if launch.language == "python":
            compile(launch.command, "launch", "exec")
            assert repr(path) in launch.command
        else:
            assert path in shlex.split(launch.command.replace("\\\n", " "))
            assert all(one.flag.split()[0].rstrip(":") in launch.command for one in launch.flags)


@pytest.mark.process
@pytest.mark.parametrize(
    ("gguf", "engine", "file", "text"),
    [
        (True, "ollama", "Modelfile", f"FROM {FOLDER}.gguf\nPARAMETER num_ctx 8192\nPARAMETER num_gpu 33\n"),
        (False, "tensorrt-llm", "trtllm.yaml", "kv_cache_config:\n  max_tokens: 8224\n"),
    ],
)
def test_files_that_lines_write_are_complete(gguf: bool, engine: str, file: str, text: str, tmp_path: Path) -> None:
    """Run the printf of a line."""
    command = line(machine("dgx-spark"), model("Llama 3 8B", gguf), engine).command
    (written,) = [one for one in command.splitlines() if one.startswith("printf")]
    subprocess.run(["sh", "-c", written], cwd=tmp_path, check=True)

    assert (tmp_path / file).read_text() == text


def test_converted_weights_have_an_option() -> None:
    """nf4 weights are converted at load by vLLM and Transformers, fp8 by vLLM and SGLang."""
    found = {one.engine: one for one in ask(machine("rtx4090"), model("Llama 3 8B"), dtype="nf4").launches.lines}
    fp8 = {one.engine: one for one in ask(machine("rtx4090"), model("Llama 3 8B"), dtype="fp8").launches.lines}

    assert set(found) == {"vllm", "transformers"}
    assert "--quantization bitsandbytes" in found["vllm"].command
    assert "load_in_4bit=True" in found["transformers"].command
    assert set(fp8) == {"vllm", "sglang"}


def test_format_of_the_file_itself_is_no_option() -> None:
    launch = line(machine("rtx4090"), model("Llama 3 8B"), "vllm", dtype="bfloat16")

    assert "dtype" not in launch.command
    assert "quantization" not in launch.command


@pytest.mark.parametrize(
    ("engine", "gguf", "kv_dtype", "flag"),
    [
        ("vllm", False, "BF16", ""),
        ("vllm", False, "float8_e4m3fn", "--kv-cache-dtype fp8"),
        ("sglang", False, "fp8", "--kv-cache-dtype fp8_e4m3"),
        ("tensorrt-llm", False, "fp8", "dtype: fp8"),
        ("llama.cpp", True, "fp16", ""),
        ("llama.cpp", True, "bf16", "-ctk bf16 -ctv bf16"),
        ("ollama", True, "q8_0", "OLLAMA_KV_CACHE_TYPE=q8_0"),
        ("transformers", False, "half", ""),
    ],
)
def test_format_of_the_cache_has_the_name_of_the_engine(engine: str, gguf: bool, kv_dtype: str, flag: str) -> None:
    command = line(machine("rtx4090"), model("Llama 3 8B", gguf), engine, kv_dtype=kv_dtype).command

    assert flag in command
    assert bool(flag) is any(word in command for word in ("cache-dtype", "dtype: ", "-ctk", "KV_CACHE_TYPE"))


def test_sglang_has_memory_for_all_tokens_of_windowed_layers_if_it_fits() -> None:
    """It knows the windows of some families only. A note says so if there is no room."""
    small = line(machine("rtx4090"), model("gpt-oss-20b"), "sglang")
    large = line(machine("dgx-spark"), model("Gemma 3 27B"), "sglang", context=131_072)

    assert small.notes == ()
    assert option(small, "--mem-fraction-static") * 24 * GIB > 13_761_264_768 + 2 * 8 * 64 * 2 * 24 * 8192
    assert "for other families this memory holds fewer tokens" in large.notes[0]


def test_files_beside_a_config_are_its_folder() -> None:
    beside = replace(model("Llama 3 8B"), name="/models/llama/config.json")
    part = replace(model("Llama 3 8B"), name="/models/llama/model.safetensors", source="safetensors")

    for checkpoint in (beside, part):
        assert line(machine("rtx4090"), checkpoint, "vllm").command.startswith("vllm serve /models/llama ")


def test_model_without_files_has_a_placeholder() -> None:
    """A format of llama.cpp is only in GGUF files."""
    shape = replace(model("Llama 3 8B"), source="shape")
    found = ask(machine("rtx4090"), replace(shape, scope="file"), dtype="q4_k").launches

    assert line(machine("rtx4090"), shape, "vllm").command.startswith("vllm serve MODEL ")
    assert {one.engine for one in found.lines} == GGUF
    assert "-m MODEL.gguf" in found.lines[0].command


@pytest.mark.parametrize(
    ("engine", "gguf", "words"),
    [
        ("vllm", False, ("--tensor-parallel-size 2", "--nnodes 2 --node-rank 0 --master-addr HEAD_ADDRESS")),
        ("sglang", False, ("--tp-size 2", "--nnodes 2 --node-rank 0 --dist-init-addr HEAD_ADDRESS:20000")),
        ("llama.cpp", True, ("--split-mode layer", "--rpc MACHINE_2:50052", "-fit off")),
    ],
)
def test_two_machines_have_the_options_of_several_nodes(engine: str, gguf: bool, words: tuple[str, ...]) -> None:
    """Llama 3 70B takes 135 GiB; each GB10 has 122."""
    found = line(read_machine("2x GB10"), model("Llama 3 70B", gguf), engine)

    assert all(word in found.command for word in words)
    assert "variable of the GPU's API" not in " ".join(found.notes)
    assert gguf or "--node-rank 1" in found.notes[0]


def test_engines_of_one_machine_refuse_two() -> None:
    refused = ask(read_machine("2x gb10"), model("Llama 3 70B")).launches.refused

    assert {refused[name] for name in ("tensorrt-llm", "transformers")} == {
        "the plan is for 2 machines, and its line is for one"
    }


@pytest.mark.parametrize("name", ["gb10", "2x gb10", "2x h100", "4x rtx4090"])
def test_plan_for_one_machine_has_no_nodes(name: str) -> None:
    for launch in ask(read_machine(name), model("Llama 3 8B")).launches.lines:
        assert "node" not in launch.command
        assert "HEAD" not in launch.command


def test_model_of_ollamas_store_is_run_by_its_name() -> None:
    """A model made from its blob would have no template and no vision tower."""
    blob = f"/store/blobs/sha256-{'a' * 64}"
    checkpoint = replace(model("Llama 3 8B", gguf=True), name=blob, alias="qwen3:0.6b")
    found = {name: line(machine("dgx-spark"), checkpoint, name).command for name in ("ollama", "llama.cpp")}

    assert "' qwen3:0.6b > Modelfile" in found["ollama"]
    assert "ollama create qwen3-0.6b -f Modelfile && ollama run qwen3-0.6b" in found["ollama"]
    assert blob not in found["ollama"]
    assert f"llama-server -m {blob}" in found["llama.cpp"]


def test_name_of_ollamas_store_reaches_the_daemon() -> None:
    checkpoint = replace(model("Llama 3 8B", gguf=True), name="/blob", alias="org/qwen3:8b")
    request = parse_query(write_request(checkpoint, Use(), "ollama"))
    found = answer_request(request, machine("dgx-spark"))

    assert "FROM %s" in found.launches.lines[0].command
    assert "' org/qwen3:8b > Modelfile" in found.launches.lines[0].command
    assert "ollama create qwen3-8b" in found.launches.lines[0].command


def test_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r'launch is "tgi", which is not one of all, vllm, .*ollama'):
        select_engines("tgi")
