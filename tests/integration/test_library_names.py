"""Each name of the library's first page, by a call and its answer, on a Strix Halo without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import wrong_arguments
from support.library_process import roots_environment, run_program

GIB = 1 << 30
SHAPE = "hidden_size=64, intermediate_size=128, n_layers=2, vocab_size=1000, n_heads=4, n_kv_heads=4"
# Of this shape: 128,000 in embeddings and output, 41,088 in each of two layers, 64 in the last norm.
PARAMETERS = 210_240
# Name, a call of it, and the answer. `model` is a folder.
TABLE: dict[str, tuple[str, object]] = {
    "AllocationTracker": ("memwatch.AllocationTracker().add('weights', 4096)", 1),
    "MemoryProfiler": ("profile()", ["load", "start"]),
    "TrainingPlan": ("memwatch.TrainingPlan(batch_size=8).batch_size", 8),
    "Transformer": (f"memwatch.Transformer({SHAPE}).parameters", PARAMETERS),
    "advise": ("memwatch.advise()[0].name", "pin_memory"),
    "best_available_backend": ("memwatch.best_available_backend(prefer='rocm')", "cpu"),
    "discover_backends": (
        "[one.name for one in memwatch.discover_backends().backends]",
        ["cpu", "cuda", "rocm", "metal", "opencl", "vulkan"],
    ),
    "estimate_inference_memory": (
        f"memwatch.estimate_inference_memory({SHAPE}, max_seq_len=64).weights_bytes",
        2 * PARAMETERS,
    ),
    # Keys and values of 2 layers, 4 heads of 16, 64 tokens, 2 bytes each.
    "estimate_kv_cache": ("memwatch.estimate_kv_cache(2, 4, 16, 64)", 2 * 2 * 4 * 16 * 64 * 2),
    # AdamW: two states and a master copy, of 4 bytes each.
    "estimate_training_memory": (
        f"memwatch.estimate_training_memory(memwatch.Transformer({SHAPE})).optimizer_bytes",
        12 * PARAMETERS,
    ),
    "fit": (
        "[memwatch.fit('20GiB').fit.best, memwatch.fit('900GiB').fits, memwatch.fit(model).fits]",
        ["gpu0", False, True],
    ),
    # The limit of GTT and the carve-out: 124 and 0.5 GiB.
    "get_device_memory_bytes": ("memwatch.get_device_memory_bytes(0)", 124 * GIB + (GIB >> 1)),
    "guard": ("within_guard()", 1 << 40),
    "is_unified_memory_gpu": ("memwatch.is_unified_memory_gpu(0)", True),
    "log_memory_usage": ("memwatch.log_memory_usage('load').partition(' |')[0]", "[load] Free: 49.5 GiB"),
    "log_start": (
        "memwatch.log_start('train.py').splitlines()[0]",
        "[start] train.py on evo-x2 (Framework Desktop (AMD Ryzen AI Max 300 Series)), read directly",
    ),
    "machine": (
        "[memwatch.machine().architecture, memwatch.machine().pools[0].size_bytes]",
        ["unified", 125 * GIB],
    ),
    # Both ends, of System RAM and what is left of the carve-out.
    "memory_info": (
        "[memwatch.memory_info(0).headroom_bytes, memwatch.memory_info(0).headroom_after_reclaim_bytes]",
        [31_978_512_384, 53_165_408_256],
    ),
    "memory_tree": ("memwatch.memory_tree()['pools'][0]['id']", "ram"),
    "on_pressure": ("watch()", "PressureWatch"),
    "read_checkpoint": ("memwatch.read_checkpoint(model).transformer.parameters", PARAMETERS),
    "recommended_env": ("memwatch.recommended_env()['MIOPEN_FIND_MODE']", "FAST"),
    "retry_on_oom": ("memwatch.retry_on_oom(8)(lambda batch_size: batch_size)()", 8),
    "select_backend_for": ("memwatch.select_backend_for('1GiB').name", "cpu"),
    "track": ("tracked()", ["load", True]),
    "wait_for": (
        "[memwatch.wait_for('20GiB', device=0), memwatch.wait_for('45GiB', device=0, timeout=0.1, certain=True)]",
        [True, False],
    ),
}
PROGRAM = """
import json, memwatch
model = {model!r}
def profile():
    with memwatch.MemoryProfiler() as profiler:
        profiler.stage("load")
    return sorted(one.stage for one in profiler.report().peaks)
def within_guard():
    with memwatch.guard("1TiB") as guard:
        return guard.check().limit_bytes
def watch():
    watching = memwatch.on_pressure(print)
    watching.stop()
    return type(watching).__name__
def tracked():
    with memwatch.track("load") as stats:
        pass
    return [stats.name, stats.exact]
print(json.dumps({{name: eval(call) for name, call in {calls!r}.items()}}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    model = tmp_path_factory.mktemp("model")
    (Path(model) / "config.json").write_text(json.dumps(wrong_arguments.MODEL))
    calls = {name: call for name, (call, _) in TABLE.items()}
    program = PROGRAM.format(model=str(model), calls=calls)
    done = run_program(program, **roots_environment("strix-halo"))
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", TABLE)
def test_name_answers(name: str, answers: dict[str, object]) -> None:
    assert answers[name] == TABLE[name][1]


def test_every_function_has_a_row() -> None:
    """Those with and without arguments, and the two tools for training of the first list."""
    one = wrong_arguments
    assert TABLE.keys() == {*one.CALLS, *one.WITHOUT_ARGUMENTS, *one.OF_TRAINING} - {"training"}
