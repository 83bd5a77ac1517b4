"""Plans as moves between pools: offloading, the CPU, several GPUs, and the greatest that fits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent
from memwatch.core.snapshot import Snapshot
from memwatch.planning.answer import FitAnswer, answer_model, answer_request, answer_size
from memwatch.planning.arguments import InvalidInputError
from memwatch.planning.checkpoint import add_weights, build_gguf, describe_config
from memwatch.planning.fit import Demand, compute_fit
from memwatch.planning.huggingface import parse_config
from memwatch.planning.named_machines import read_machine
from memwatch.planning.need import compute_checkpoint_need, list_reductions
from memwatch.planning.number_formats import FILE_BITS, OTHER_FILE
from memwatch.planning.request import Use, write_request
from memwatch.planning.training import TrainingPlan
from memwatch_web.api.fit_query import parse_query
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from scripts.published_models import MODELS
from support.gpu_cards import cards

GIB = 1 << 30
CONFIGS = {model.name: model.config for model in MODELS}
GAINED = "stay in the same memory, so nothing is gained"


def machine(name: str) -> Snapshot:
    """Return the first tick of a recorded machine."""
    return next(read_frames(path_of(name)))


def model(name: str, **config: Any) -> Any:
    return describe_config(parse_config({**CONFIGS[name], **config}, name))


def plan(snapshot: Snapshot, name: str, **use: Any) -> FitAnswer:
    return answer_model(model(name), Use(**use), snapshot)


def test_offload_on_unified_memory_gains_nothing() -> None:
    """On a DGX Spark the optimizer states stay in the same pool, and the verdict counts them."""
    spark = machine("dgx-spark")
    plain = plan(spark, "Llama 3 8B", context=2048, training=TrainingPlan())
    away = plan(spark, "Llama 3 8B", context=2048, training=TrainingPlan(offload_optimizer=True))
    before, after = plain.fit.verdicts[0], away.fit.verdicts[0]

    assert (before.fits, after.fits) == (False, False)
    assert after.spare_bytes == before.spare_bytes
    assert after.need_bytes == before.need_bytes == plain.need.bytes
    assert away.need.bytes == plain.need.bytes - away.need.moves["optimizer"]
    assert after.reason.endswith(GAINED)


def test_offload_to_system_ram_that_is_too_small_does_not_fit() -> None:
    """The optimizer states leave the card, but System RAM has no room for them."""
    training = TrainingPlan(offload_optimizer=True, checkpointing=True)
    small, large = (
        plan(cards(1, ram_bytes=room), "Llama 3.2 1B", training=training, context=2048)
        for room in (4 * GIB, 20 * GIB)
    )

    assert small.fit.verdicts[0].fits is False
    assert small.fit.verdicts[0].reason.startswith("System RAM: short by ")
    assert large.fit.verdicts[0].fits is True
    assert GAINED not in large.fit.verdicts[0].reason
    assert large.fit.verdicts[0].ram_need_bytes == large.need.moves["optimizer"]


@pytest.mark.parametrize(
    ("use", "moved"),
    [
        ({"offload_kv": True}, {"kv_cache"}),
        ({"cpu_layers": 16}, {"kv_cache", "weights"}),
        ({"training": TrainingPlan(offload_parameters=True)}, {"weights"}),
        ({"training": TrainingPlan(offload_parameters=True, offload_optimizer=True)}, {"weights", "optimizer"}),
        ({"training": TrainingPlan(swapped_blocks=8)}, {"weights"}),
    ],
)
def test_every_move_takes_from_one_pool_what_the_other_gets(use: dict[str, Any], moved: set[str]) -> None:
    whole = {name: value for name, value in use.items() if name == "training"} and {"training": TrainingPlan()}
    plain = compute_checkpoint_need(model("Llama 3 8B"), Use(**whole))
    found = compute_checkpoint_need(model("Llama 3 8B"), Use(**use))

    assert {part for part, size in found.moves.items() if size} == moved
    assert found.bytes + sum(found.moves.values()) == plain.bytes
    assert found.demand.cpu_bytes == plain.demand.cpu_bytes


def test_half_of_the_layers_on_the_cpu_take_half_of_cache_and_matrices() -> None:
    need = compute_checkpoint_need(model("Llama 3 8B"), Use(cpu_layers=16))

    assert need.moves["kv_cache"] * 2 == need.parts["kv_cache"]
    assert need.moves["weights"] == model("Llama 3 8B").transformer.matrix_parameters
    with pytest.raises(InvalidInputError, match="cpu_layers is 33, but the model has 32 layers"):
        compute_checkpoint_need(model("Llama 3 8B"), Use(cpu_layers=33))


def test_cpu_holds_everything_without_a_context() -> None:
    """Neither a move nor a GPU's context changes what a run on the CPU holds."""
    found = plan(cards(1, size=GIB), "Llama 3.2 1B", cpu_layers=8)
    cpu = found.fit.verdicts[-1]

    assert cpu.device == "cpu"
    assert cpu.need_bytes == sum(found.need.parts[part] for part in ("weights", "kv_cache", "activations"))


@pytest.mark.parametrize(("name", "has_context"), [("macbook", False), ("strix-halo", True), ("rtx4090", True)])
def test_context_is_counted_only_where_there_is_one(name: str, has_context: bool) -> None:
    """CUDA on NVIDIA and HIP on AMD. Metal and a CPU have none."""
    found = plan(machine(name), "Llama 3.2 1B")

    assert ("runtime" in found.need.parts) is has_context
    assert found.fit.verdicts[0].need_bytes == found.need.bytes


@pytest.mark.parametrize(
    ("name", "fits"), [("macbook", True), ("strix-halo", True), ("dgx-spark", True), ("rtx4090", True)]
)
def test_gpt_oss_20b_fits_on_machines_of_24_gib_and_more(name: str, fits: bool) -> None:
    """Ignoring its quantization_config, it would need 39 GiB."""
    assert (plan(machine(name), "gpt-oss-20b").fit.best == "gpu0") is fits


def test_smallest_number_of_gpus_is_found() -> None:
    """Llama 3 70B, 131 GiB of weights, needs two H100; what is left on the fullest is named."""
    found = plan(cards(8), "Llama 3 70B")
    split = found.fit.split

    assert found.fits
    assert (found.fit.best, found.change) == (None, None)
    assert split is not None
    assert len(split.devices) == 2
    assert split.bytes == pytest.approx(67.9 * GIB, rel=0.01)
    assert split.spare_bytes == 80 * GIB - split.bytes
    assert split.reason.startswith("tensor parallel on 2 GPUs, 67.9 GiB on each; leaves 12.1 GiB on the fullest")


def test_number_of_gpus_can_be_asked_for() -> None:
    four, nine = (plan(cards(8), "Llama 3 70B", gpus=count) for count in (4, 9))

    assert four.fit.split is not None
    assert len(four.fit.split.devices) == 4
    assert (nine.fit.split, nine.fit.best) == (None, None)


def test_busy_gpu_is_not_chosen() -> None:
    """The GPUs with the most headroom are taken, and the fullest of them decides."""
    idle = cards(3)
    busy = replace(idle.devices[0], headroom_after_reclaim_bytes=10 * GIB)
    found = plan(replace(idle, devices=(busy, *idle.devices[1:])), "Llama 3 70B")

    assert found.fit.split is not None
    assert found.fit.split.devices == ("gpu1", "gpu2")


def test_gpus_of_one_pool_are_not_added_up() -> None:
    """Two GPUs that allocate from System RAM have no more memory than one."""
    spark = machine("dgx-spark")
    twin = replace(spark.devices[0], id="gpu1")
    found = compute_fit(
        Demand(100 * GIB),
        replace(spark, devices=(*spark.devices, twin)),
        20 * GIB,
        [(2, "tensor", Demand(50 * GIB))],
    )

    assert (found.best, found.split) == (None, None)


def test_unknown_headroom_is_not_used_in_a_split() -> None:
    base = cards(2)
    unknown = replace(base.devices[0], headroom_after_reclaim_bytes=Absent.NOT_PERMITTED)

    assert plan(replace(base, devices=(unknown, base.devices[1])), "Llama 3 70B").fit.split is None


def per_gpu(name: str, gpus: int, **use: Any) -> Any:
    return compute_checkpoint_need(model(name), Use(**use), gpus).parts


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    """8 KV heads on 16 GPUs: each has one. MLA's latent vector is whole on each."""
    one = per_gpu("Llama 3 70B", 1)["kv_cache"]

    assert per_gpu("Llama 3 70B", 8)["kv_cache"] == per_gpu("Llama 3 70B", 16)["kv_cache"] == one // 8
    assert per_gpu("DeepSeek V3", 8)["kv_cache"] == per_gpu("DeepSeek V3", 1)["kv_cache"]


def test_pipeline_divides_layers_and_keeps_a_table_on_the_fullest() -> None:
    """80 layers on 3 GPUs: 27 on the fullest."""
    one, three = (per_gpu("Llama 3 70B", count, parallel="pipeline") for count in (1, 3))
    table = 128256 * 8192 * 2

    assert three["kv_cache"] * 80 == one["kv_cache"] * 27
    assert three["weights"] == pytest.approx((one["weights"] - 2 * table) * 27 / 80 + table, rel=0.001)


@pytest.mark.parametrize(
    ("stage", "divided"),
    [(0, set()), (1, {"optimizer"}), (2, {"optimizer", "gradients"}), (3, {"optimizer", "gradients", "weights"})],
)
def test_zero_divides_by_stage(stage: int, divided: set[str]) -> None:
    """arXiv 1910.02054, figure 1. Activations are those of a GPU's own batch."""
    plan = TrainingPlan(accumulate=True)  # eight GPUs keep gradients beside activations in any case
    one, eight = (per_gpu("Llama 3 8B", count, training=plan, zero=stage) for count in (1, 8))

    assert {part for part in one if eight[part] < one[part]} == divided
    assert {part for part in one if eight[part] * 8 == one[part]} == divided - {"weights"}


def test_training_is_split_with_fsdp() -> None:
    found = plan(cards(8), "Llama 3 8B", training=TrainingPlan(checkpointing=True), context=2048)

    assert found.fit.split is not None
    assert found.fit.split.reason.startswith("data parallel, ZeRO 3 (FSDP) on 2 GPUs")


def test_greatest_context_and_batch_fit_and_one_more_does_not() -> None:
    """It would go on to 131,072 tokens."""
    card = cards(1, size=24 * GIB, ram_bytes=GIB)
    greatest = plan(card, "Granite 3.3 8B").greatest

    assert greatest is not None
    for name, most in (("context", greatest.context), ("batch_size", greatest.batch)):
        assert most is not None
        assert plan(card, "Granite 3.3 8B", **{name: most}).fit.best == "gpu0"
        assert plan(card, "Granite 3.3 8B", **{name: most + 1}).fit.best is None


def test_widest_format_that_fits_is_found() -> None:
    """8 billion parameters on a card of 12 GiB: 8-bit. One of 6 GiB: 4-bit."""
    formats = [plan(cards(1, size * GIB, GIB), "Llama 3 8B").greatest for size in (12, 7, 24)]

    assert [one and one.dtype for one in formats] == ["q8_0", "q4_k", None]


def test_greatest_context_ends_at_the_models_own() -> None:
    found = plan(cards(1), "gpt-oss-20b").greatest

    assert found is not None
    assert found.context == 131_072


def test_reserve_stays_free() -> None:
    """In each pool that the plan touches."""
    card = cards(1, size=24 * GIB)
    without, with_reserve = (plan(card, "Llama 3 8B", reserve_bytes=size * GIB) for size in (0, 6))

    assert without.fit.best == "gpu0"
    assert with_reserve.fit.verdicts[0].fits is True
    spare = [found.fit.verdicts[0].spare_bytes for found in (without, with_reserve)]
    assert spare == [24 * GIB - without.need.bytes, 18 * GIB - without.need.bytes]
    assert "beside the reserve of 6.0 GiB" in with_reserve.fit.verdicts[0].reason
    assert answer_size(20 * GIB, "20GiB", card, 6 * GIB).fit.verdicts[0].fits is False


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ({"zero": 4}, "zero is 4"),
        ({"gpus": -1}, "gpus is -1"),
        ({"parallel": "magic"}, 'parallel is "magic", which is not one of tensor, pipeline'),
        ({"offload_kv": True, "training": TrainingPlan()}, "for inference"),
    ],
)
def test_impossible_options_are_rejected(use: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        Use(**use)


REQUESTS = (
    Use(context=8192, batch_size=8),
    Use(context=2048, batch_size=4, training=TrainingPlan()),
    Use(context=2048, batch_size=4, training=TrainingPlan(lora_rank=8)),
    Use(context=2048, training=TrainingPlan(optimizer="lion")),
)


@pytest.mark.parametrize("use", REQUESTS)
def test_options_of_a_reduction_give_its_need(use: Use) -> None:
    """Each change builds on the cheaper ones, so its options and its words have theirs as well."""
    checkpoint = model("Llama 3 8B")

    for change in list_reductions(checkpoint, use):
        assert compute_checkpoint_need(checkpoint, with_options(use, change.flags)) == change.need, change.words
        assert change.use.batch_size == use.batch_size or "batch" in change.words


@pytest.mark.parametrize(
    ("file_format", "offered"),
    [
        ("float16", ["q8_0", "q6_k", "q5_k", "q4_k"]),
        ("q8_0", ["q6_k", "q5_k", "q4_k"]),
        ("q4_k", []),
        ("other", []),
        ("", ["int8", "int4"]),
    ],
)
def test_narrower_weights_of_a_gguf_file_are_other_files(file_format: str, offered: list[str]) -> None:
    """llama.cpp and Ollama convert no weights at load."""
    found = replace(model("Llama 3 8B"), file_format=file_format)
    changes = [one for one in list_reductions(found, Use()) if one.use.dtype]

    assert list(dict.fromkeys(one.use.dtype for one in changes)) == offered
    assert all(("estimated" in one.words) is bool(file_format) for one in changes)


@pytest.mark.parametrize(
    ("dtype_bytes", "offered"),
    [(2.0, ["int8", "int4"]), (1.0, ["int4"]), (0.52, ["int4"]), (4.15625 / 8, []), (0.5, [])],
)
def test_weights_are_offered_in_formats_that_take_less(dtype_bytes: float, offered: list[str]) -> None:
    """Of weights that an engine converts at load. Those in 8 bits already gain nothing by 8 bits."""
    found = replace(model("Llama 3 8B"), dtype_bytes=dtype_bytes)
    changes = [one for one in list_reductions(found, Use()) if one.use.dtype]

    assert list(dict.fromkeys(one.use.dtype for one in changes)) == offered


# Names of llama.h (`enum llama_ftype`, LLAMA_FTYPE_MOSTLY_…) at b10700. 4 to 6 and 33 to 35 were removed.
LLAMA_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
    39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@pytest.mark.parametrize(("code", "name"), LLAMA_FILE_TYPES.items())
def test_file_types_are_those_of_llama_cpp(code: int, name: str) -> None:
    """The mixes S, M and L of a format count as one. Formats whose average size is not known are other ones."""
    word = FLOATS.get(name, re.sub(r"(?<=_K)_[SML]$", "", name).lower())
    expected = word if word in FILE_BITS or name in FLOATS else OTHER_FILE

    assert build_gguf("model.gguf", {"general.file_type": code}, 1 << 30, 0).file_format == expected


@pytest.mark.parametrize(("file_type", "file_format"), [(7, "q8_0"), (15, "q4_k"), (38, "other"), ("7", "other")])
def test_file_type_of_a_gguf_file_is_its_format(file_type: int | str, file_format: str) -> None:
    """A vision tower or an adapter beside it would not be in the estimate of another file."""
    found = build_gguf("model.gguf", {"general.file_type": file_type}, 1 << 30, 0)

    assert found.file_format == file_format
    assert add_weights(found, 0).file_format == file_format
    assert add_weights(found, 1 << 20).file_format == "other"


def test_answer_of_the_daemon_offers_the_same_files() -> None:
    """By the query that the command sends."""
    file = replace(model("Llama 3 8B"), weights_bytes=8_540_000_000, dtype_bytes=1.0625, file_format="q8_0")
    snapshot = read_machine("rtx4060")
    here = answer_model(file, Use(), snapshot).change
    sent = answer_request(parse_query(write_request(file, Use())), snapshot).change

    assert here is not None
    assert sent is not None
    assert here.words == sent.words == "a Q6_K file, whose size is estimated"
    assert here.need.parts == sent.need.parts


def with_options(use: Use, flags: str) -> Use:
    """Return a request with options of the command."""
    given = dict(re.findall(r"--([\w-]+)(?: (\w+))?", flags))
    training = use.training
    if training is not None:
        training = replace(
            training,
            checkpointing=training.checkpointing or "checkpointing" in given,
            lora_rank=int(given.get("lora", training.lora_rank)),
            optimizer=given.get("optimizer", training.optimizer),
        )
    return replace(
        use,
        batch_size=int(given.get("batch", use.batch_size)),
        context=int(given.get("context", use.context)),
        dtype=given.get("dtype", use.dtype),
        offload_kv=use.offload_kv or "offload-kv" in given,
        cpu_layers=int(given.get("cpu-layers", use.cpu_layers)),
        training=training,
    )


@pytest.mark.parametrize(
    ("dtype", "launch", "is_sent"),
    [("", "", True), ("int4", "", False), ("int4", "vllm", True), ("", "vllm", True)],
)
def test_bits_of_the_files_are_sent_unless_other_weights_are_asked_for(
    dtype: str, launch: str, is_sent: bool
) -> None:
    """A launch line needs both: what is loaded, and what it becomes."""
    sent = write_request(model("Llama 3 8B"), Use(dtype=dtype), launch)

    assert ("weight_bits" in sent) is is_sent
