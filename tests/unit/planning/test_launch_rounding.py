"""Launch lines at the limits where an engine rounds: whole blocks, a fraction with three digits, the last byte."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.planning.engines import sglang, vllm
from memwatch.planning.engines.placement import place
from memwatch.planning.need import compute_checkpoint_need
from memwatch.planning.request import Use
from support.launch_lines import ask, line, machine, model, option, total_of


def test_vllm_takes_a_fraction_for_what_it_rounds_beyond_the_plan() -> None:
    """gpt-oss-20b for 64 short sequences: whole blocks and windows of a step are 3.7 % of this GPU."""
    snapshot, use = machine("h100x8-mig"), Use(context=2048, batch_size=64)
    launch = line(snapshot, model("gpt-oss-20b"), "vllm", context=use.context, batch_size=use.batch_size)
    parts = compute_checkpoint_need(model("gpt-oss-20b"), use).parts
    beyond = option(launch, "--kv-cache-memory-bytes") - parts["kv_cache"]
    total = total_of(snapshot)

    assert beyond > 0.03 * total
    assert option(launch, "--gpu-memory-utilization") == pytest.approx(
        (sum(parts.values()) + beyond) / total, abs=0.001
    )


@pytest.mark.parametrize(("missing", "fraction"), [(-1, 0.5), (0, 0.5), (1, 0.499)])
def test_vllm_rounds_its_fraction_down_only_beyond_the_room(missing: int, fraction: float) -> None:
    """At its start that fraction of the total must be free."""
    snapshot, checkpoint, use = machine("h100x8-mig"), model("Llama 3 8B"), Use()
    plan = place("model", checkpoint, use, snapshot, ask(snapshot, checkpoint, "").fit)
    half, cache = total_of(snapshot) // 2, vllm.count_cache(plan)
    assert cache is not None
    others = half - cache - plan.part("weights") - 1000
    parts = {"weights": plan.part("weights"), "kv_cache": plan.part("kv_cache"), "activations": others}

    launch = vllm.build(replace(plan, parts=parts, room=half - missing), "")

    assert option(launch, "--gpu-memory-utilization") == fraction


def test_vllm_sizes_the_cache_of_a_hybrid_model_by_its_fraction() -> None:
    """State-space layers have pages of their own size, so that the bytes of the cache are not known."""
    snapshot, checkpoint = machine("h100x8-mig"), model("Jamba v0.1")
    launch = line(snapshot, checkpoint, "vllm")
    gpus = int(option(launch, "-parallel-size"))
    need = sum(compute_checkpoint_need(checkpoint, Use(), gpus).parts.values())
    reasons = {one.flag.split()[0]: one.reason for one in launch.flags}

    assert "--kv-cache-memory-bytes" not in reasons
    assert "for weights, activations and cache" in reasons["--gpu-memory-utilization"]
    assert option(launch, "--gpu-memory-utilization") == pytest.approx(need / total_of(snapshot), abs=0.001)


@pytest.mark.parametrize(("missing", "is_whole"), [(-1, True), (0, True), (1, False)])
def test_sglang_keeps_all_tokens_while_they_just_fit(missing: int, is_whole: bool) -> None:
    """Room for a cache in which windowed layers keep all tokens, and a byte more or less."""
    snapshot, checkpoint, use = machine("rtx4090"), model("gpt-oss-20b"), Use()
    plan = place("model", checkpoint, use, snapshot, ask(snapshot, checkpoint, "").fit)
    tokens = 8192 + 64  # whole pages and one more
    whole = plan.cache_of(replace(plan.shape, sliding_window=0), tokens)
    room = plan.need - plan.part("kv_cache") + whole - missing

    launch = sglang.build(replace(plan, room=room), "")

    assert (launch.notes == ()) is is_whole
    free = room - plan.part("runtime")
    cache = option(launch, "--mem-fraction-static") * free - plan.part("weights")
    assert (cache > whole - 0.001 * free) is is_whole
