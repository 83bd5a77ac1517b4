"""Run every call of the library in a training run of PyTorch on the CPU: `make test-torch`.

JAX and CuPy are imported as well. It is not part of the tests: PyTorch is 200 MB. It needs no GPU and two minutes;
hardware/torch_checks.py is for one.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import memwatch
from hardware.torch_llama import Layer, saved_bytes
from memwatch.core.model import Absent
from memwatch.library.cupy_peaks import CupyPeaks, build_hook
from memwatch.library.host import SLACK_BYTES
from memwatch.planning.training import layer_bytes

HIDDEN, WIDE, LAYERS, TOKENS = 512, 1792, 3, 256


def check_activations() -> None:
    """Compare the estimate with PyTorch itself, within 1 %."""
    model = torch.nn.Sequential(*[Layer(HIDDEN, WIDE, 8, 2) for _ in range(LAYERS)]).bfloat16()
    given = torch.randn(2, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    measured = saved_bytes(model, given) / (2 * TOKENS * LAYERS)
    estimated = layer_bytes(memwatch.Transformer(HIDDEN, WIDE, LAYERS, 1, 8, 2), 2)
    print(f"saved per token and layer: {measured:,.0f} bytes; estimated: {estimated:,.0f}")
    assert abs(estimated / measured - 1) < 0.01


def check_training(folder: Path) -> None:
    """Check stages, tracking, the ledger, the guard and the profiler around real steps."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
    optimizer = torch.optim.AdamW(model.parameters())
    ledger = memwatch.AllocationTracker()
    for parameter in model.parameters():
        ledger.add("weights", parameter.numel() * 4, "cpu")

    @memwatch.track("step")
    def step(batch_size: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(batch_size, 1024)).square().mean().backward()
        optimizer.step()

    with memwatch.guard("1TiB") as guard, memwatch.MemoryProfiler(0.05) as profiler:
        for number in range(3):
            profiler.stage(f"step {number}")
            step(256)
            assert memwatch.log_memory_usage(f"step {number}").startswith(f"[step {number}] Free: ")
    usage = guard.check()
    assert usage is not None
    assert 0 < usage.ratio < 1
    assert ledger.holdings("cpu").current_bytes == 4 * sum(one.numel() for one in model.parameters())
    assert isinstance(step.stats.process.peak_bytes, int)  # type: ignore[attr-defined]
    assert {peak.stage for peak in profiler.report().peaks} == {"start", "step 0", "step 1", "step 2"}
    for end in ("html", "json", "csv"):
        assert profiler.save(folder / f"memory.{end}").stat().st_size


def check_peaks() -> None:
    """Check that a tensor that lives for less than a sampling interval is in the peak, which is exact."""
    with memwatch.track("spike") as stats:
        torch.ones(200 << 18).sum()
    before, peak = stats.process.before_bytes, stats.process.peak_bytes
    assert isinstance(before, int)
    assert isinstance(peak, int)
    print(f"a tensor of 200 MiB for a moment: peak {(peak - before) / (1 << 20):.0f} MiB above the start")
    assert stats.process.exact
    assert peak - before >= (200 << 20) - SLACK_BYTES  # the kernel counts the two with a delay


def check_out_of_memory() -> None:
    """Check that PyTorch's error on the CPU is recognized, and the batch halved."""

    @memwatch.retry_on_oom(batch_size=1 << 36, attempts=40)
    def allocate(batch_size: int) -> int:
        return int(torch.empty(batch_size, 1024).shape[0])

    found = allocate()
    print(f"out of memory until a batch of {found:,}")
    assert 1 <= found < 1 << 36


def check_the_rest() -> None:
    """Check memory info, pools, pressure, waiting, advice and backends."""
    assert memwatch.pools() == []  # no GPU is in use
    assert not memwatch.is_unified_memory_gpu(0)
    assert memwatch.get_device_memory_bytes(0, default=7) == 7
    info = memwatch.memory_info()
    assert info is not None
    assert not isinstance(info.available_bytes, Absent)
    memwatch.on_pressure(print).stop()
    assert memwatch.wait_for("1MiB", timeout=5)
    assert memwatch.advise()
    assert isinstance(memwatch.recommended_env(), dict)
    assert memwatch.select_backend_for("1MiB").name


def check_neighbours() -> None:
    """Check JAX with running clients and CuPy without a driver: neither is a pool, and the log line is useful."""
    import cupy
    import jax

    assert float(jax.numpy.ones(10).sum()) == 10
    print(f"JAX {jax.__version__} on {jax.default_backend()}, CuPy {cupy.__version__}")
    assert memwatch.pools() == []
    check_hook(cupy)
    line = memwatch.log_memory_usage("neighbours")
    assert "not available" not in line
    assert "Resident: " in line


def check_hook(cupy: Any) -> None:
    """Check that CuPy takes the hook and removes it. Its pool calls it only with a GPU, by the names given here."""
    registered = cupy.cuda.memory_hook.get_memory_hooks
    with memwatch.track("without a GPU"):
        assert not registered()
    with build_hook(cupy, CupyPeaks()) as hook:
        assert list(registered()) == ["memwatch"]
        hook.malloc_preprocess(device_id=0, size=1, mem_size=512)
        hook.malloc_postprocess(device_id=0, size=1, mem_size=512, mem_ptr=1, pmem_id=1)
        hook.free_postprocess(device_id=0, mem_size=512, mem_ptr=1, pmem_id=1)
        hook.alloc_postprocess(device_id=0, mem_size=512, mem_ptr=1)
    assert not registered()


def check_mlx() -> None:
    """Check that MLX's counter is used, reset and restored in what `pools` reports."""
    import mlx.core as mlx

    mlx.eval(mlx.ones(200 << 18))
    with memwatch.track("mlx") as stats:
        mlx.eval(mlx.ones(64 << 18))
    (pool,) = memwatch.pools()
    peak, lifetime = stats.allocator.peak_bytes, pool.stats().peak_bytes
    assert isinstance(peak, int)
    assert isinstance(lifetime, int)
    print(
        f"MLX: 64 MiB for a moment: peak {peak / (1 << 20):.0f} MiB, of the process {lifetime / (1 << 20):.0f} MiB"
    )
    assert stats.allocator.exact
    assert 64 << 20 <= peak < 72 << 20
    assert lifetime >= 200 << 20


def check_cost() -> None:
    """Check that a log line costs the same with PyTorch imported."""
    best = min(_cost() for _ in range(20))
    print(f"log_memory_usage takes {best * 1e6:.0f} µs")
    assert best < 50e-6


def _cost() -> float:
    began = time.thread_time()
    for _ in range(50):
        memwatch.log_memory_usage("cost")
    return (time.thread_time() - began) / 50


def main() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, filename="/dev/null")
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    print(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    check_activations()
    with tempfile.TemporaryDirectory() as folder:
        check_training(Path(folder))
    check_peaks()
    check_out_of_memory()
    check_the_rest()
    check_neighbours()
    check_cost()
    check_mlx()
    print("every call of the library works in a training run")


if __name__ == "__main__":
    main()
