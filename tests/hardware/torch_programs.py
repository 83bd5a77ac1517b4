"""Separate programs: other allocators, visible devices, other frameworks and trainers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import torch

from hardware.comparison import Row, Verdict
from hardware.torch_rows import Rows, settle, yes

OTHER_PROGRAMS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "cudaMallocAsync": (
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        """
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
del kept
torch.cuda.synchronize()
with memwatch.track("a") as stats:
    torch.empty(1 << 29, dtype=torch.uint8, device="cuda:0")
print(stats, memwatch.pools()[0].stats())
before = torch.cuda.mem_get_info(0)[0]
found = memwatch.clear()
print(found, torch.cuda.mem_get_info(0)[0] - before)
assert stats.exact and 1 << 29 <= stats.peak_bytes < (1 << 29) + (4 << 20), stats
""",
    ),
    "hidden GPU": (
        {"CUDA_VISIBLE_DEVICES": ""},
        """
try:
    memwatch.get_device_memory_bytes(0)
    raise SystemExit("a hidden GPU has a size")
except memwatch.DeviceError as error:
    print(error)
assert memwatch.best_available_backend() == "cpu"
""",
    ),
    "GPU by UUID": (
        {"CUDA_VISIBLE_DEVICES": "UUID"},
        """
assert str(torch.cuda.get_device_properties(0).uuid) in memwatch.machine().find("cuda:0").device.uuid
assert memwatch.get_device_memory_bytes("cuda:0") > 1 << 30
""",
    ),
    "CuPy": (
        {},
        """
import cupy
with memwatch.track("a") as stats:
    cupy.zeros(1 << 28, dtype=cupy.uint8)
    cupy.zeros(1 << 20, dtype=cupy.uint8)
print(stats, [(pool.backend_name, pool.stats()) for pool in memwatch.pools()])
assert stats.exact, stats
assert 1 << 28 <= stats.peak_bytes < (1 << 28) + (4 << 20), stats
print(memwatch.clear())
assert cupy.get_default_memory_pool().total_bytes() == 0
""",
    ),
    "JAX": (
        {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"},
        """
import jax, jax.numpy
x = jax.numpy.zeros(1 << 26, dtype=jax.numpy.float32).block_until_ready()
with memwatch.track("a") as stats:
    (x + 1).block_until_ready()
theirs = jax.devices()[0].memory_stats()
print(stats, [(pool.backend_name, pool.device, pool.stats()) for pool in memwatch.pools()], theirs)
pool, = memwatch.pools()
assert pool.stats().allocated_bytes == theirs["bytes_in_use"], (pool.stats(), theirs)
assert pool.stats().peak_bytes == theirs["peak_bytes_in_use"]
""",
    ),
    "transformers": (
        {"HF_HUB_OFFLINE": "1"},
        """
import transformers, tempfile
config = transformers.LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=8, num_key_value_heads=2)
model = transformers.LlamaForCausalLM(config)
data = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(32)]
callback = memwatch.transformers_callback()
arguments = transformers.TrainingArguments(output_dir=tempfile.mkdtemp(), num_train_epochs=2, report_to=[],
    save_strategy="no", per_device_train_batch_size=8, eval_strategy="epoch")
transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()
peaks = {peak.stage: peak for peak in callback.profiler.report().peaks}
print(peaks)
assert {"epoch 1", "epoch 2", "evaluate"} <= set(peaks), peaks
assert peaks["epoch 1"].allocated_bytes > 1 << 20
""",
    ),
    "lightning": (
        {},
        """
import lightning, warnings
warnings.filterwarnings("ignore")
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(1024, 1024)
    def training_step(self, batch, number):
        return self.one(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 1024)), batch_size=16)
callback = memwatch.lightning_callback()
lightning.Trainer(max_epochs=2, accelerator="gpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, callbacks=[callback]).fit(Net(), data)
peaks = {peak.stage: peak for peak in callback.profiler.report().peaks}
print(peaks)
assert {"epoch 1", "epoch 2"} <= set(peaks), peaks
assert peaks["epoch 1"].allocated_bytes > 1 << 20
""",
    ),
}


def check_programs() -> Rows:
    """Programs of their own: other allocators, visible devices, other frameworks and trainers."""
    settle()
    for name, (environ, code) in OTHER_PROGRAMS.items():
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        added = {key: uuid if value == "UUID" else value for key, value in environ.items()}
        ran = subprocess.run(
            [sys.executable, "-c", f"import torch, memwatch\n{code}"],
            env={**os.environ, **added},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        print(f"--- {name}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}", file=sys.stderr)
        why = ran.stderr.strip().rpartition("\n")[2][:200]
        if "ModuleNotFoundError" in why:
            yield Row("program", name, "", "", "", None, Verdict.UNJUDGED, why)
        else:
            yield yes("program", name, ran.returncode == 0, why if ran.returncode else "")
