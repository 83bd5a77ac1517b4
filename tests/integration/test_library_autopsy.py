"""Autopsy of out-of-memory errors: what is logged, saved and sent, and `memwatch autopsy` on the saved snapshot."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import memwatch
from memwatch.core.model import Absent
from memwatch.library import frameworks
from memwatch.library.frameworks import TorchPool
from memwatch.training.oom_errors import find_wanted_bytes
from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from simulators.torch_stand_in import MIB, CountingTorch
from support.client_process import memwatch as run_memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.library_process import run_program
from support.torch_snapshot import sample_snapshot

GIB = 1 << 30
CUDA_ERROR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free."
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


class SnapshotTorch(CountingTorch):
    """Stand-in that also saves a snapshot, as PyTorch does."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = SimpleNamespace(_dump_snapshot=self.dump)

    def dump(self, filename: str) -> None:
        Path(filename).write_bytes(pickle.dumps(sample_snapshot()))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SnapshotTorch:
    stand_in = SnapshotTorch()
    monkeypatch.setitem(frameworks._torch_pools, "cuda", [TorchPool(stand_in, 0)])
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    stand_in.take(20 * GIB)
    stand_in.reserved += 3 * GIB
    return stand_in


@pytest.mark.usefixtures("torch")
def test_autopsy_of_a_gpu_has_the_allocator_and_what_would_have_fitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """24 GiB with 20 allocated and 3 reserved: 1 GiB is free, 4 would have fitted. Both files are saved."""
    folder = tmp_path / "new" / "autopsies"
    with caplog.at_level(logging.WARNING, "memwatch"):
        found = memwatch.autopsy(RuntimeError(CUDA_ERROR), folder)

    assert found is not None
    (pool,) = found.pools
    assert (found.device, found.wanted_bytes, found.would_fit_bytes) == ("cuda:0", 2 * GIB, 4 * GIB)
    assert (pool.allocated_bytes, pool.unused_bytes, pool.free_bytes) == (20 * GIB, 3 * GIB, 1 * GIB)
    assert str(found).startswith(
        "out of memory for 2.0 GiB on cuda:0; would have fitted: 4.0 GiB; PyTorch cuda:0: "
    )
    assert str(found) in caplog.messages
    assert found.file is not None
    assert found.snapshot_file is not None
    saved = json.loads(Path(found.file).read_text())
    assert (saved["schema"], saved["would_fit_bytes"], saved["pools"][0]["unused_bytes"]) == (1, 4 * GIB, 3 * GIB)

    shown = run_memwatch("autopsy", found.snapshot_file)
    as_json = json.loads(run_memwatch("autopsy", found.snapshot_file, "--limit", "1", "--json").stdout)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "GPU 0: 400.0 MiB allocated, 420.0 MiB reserved, 20.0 MiB of it unused" in shown.stdout
    assert "300.0 MiB  200.0 MiB       2  /home/user/train.py:40 forward" in shown.stdout
    assert [one["total_bytes"] for one in as_json["sites"]] == [300 * MIB]


def test_autopsy_of_system_ram_names_the_largest_processes() -> None:
    """Without a daemon they are read from /proc; this test is among them, the program itself is not."""
    done = run_program(
        "import json, os, memwatch\n"
        "found = memwatch.autopsy(MemoryError('Unable to allocate 8.00 TiB for an array'))\n"
        "print(json.dumps([found.wanted_bytes, found.device, found.would_fit_bytes, found.pid,\n"
        "  [one.pid for one in found.holders], [one.held_bytes for one in found.holders]]))",
    )

    wanted, device, fitting, pid, pids, held = json.loads(done.stdout)
    assert done.stderr.startswith("out of memory for 8,192 GiB on System RAM; would have fitted: ")
    assert done.stderr.count("\n") == 1
    assert (wanted, device) == (8 << 40, None)
    assert 0 < fitting < 1 << 44
    assert pids
    assert pid not in pids
    assert held == sorted(held, reverse=True)


@pytest.mark.usefixtures("torch")
def test_error_of_a_block_is_examined_and_raised(tmp_path: Path) -> None:
    """Also as a decorator. Other errors are left alone."""

    @memwatch.autopsy_on_oom(tmp_path)
    def step(error: Exception) -> None:
        raise error

    with pytest.raises(RuntimeError, match="out of memory"):
        step(RuntimeError(CUDA_ERROR))
    with pytest.raises(ValueError, match="other"):
        step(ValueError("other"))

    assert len(list(tmp_path.glob("autopsy-*.json"))) == len(list(tmp_path.glob("autopsy-*.pickle"))) == 1


def test_autopsy_becomes_an_event_with_the_holders_from_the_daemon(daemon: RunningDaemon) -> None:
    """Sent as a mark of this process. A retry sends it once, before its own marks."""
    code = (
        "import json, os, memwatch\n"
        "@memwatch.retry_on_oom(batch_size=4)\n"
        "def step(batch_size):\n"
        "    if batch_size > 1: raise MemoryError('Unable to allocate 1.00 TiB')\n"
        "step()\n"
        "print(os.getpid())"
    )
    pid = int(run_program(code, daemon.url).stdout)
    texts = [one["text"] for one in daemon.get("/api/v1/events").json if one["kind"] == "mark"]

    own = [text for text in texts if text.endswith(f"(process {pid})")][::-1]
    assert len(own) == 3
    assert own[0].startswith("out of memory for 1,024 GiB on System RAM; would have fitted: ")
    assert "; others: " in own[0]
    assert own[1].startswith("out of memory with batch size 4: retrying with 2")


def test_holders_of_a_gpu_come_from_the_daemon(tmp_path: Path) -> None:
    """A GB10 with an inference server: its device memory, not its resident set. An unknown GPU has no answer."""
    code = (
        "import json\n"
        "from memwatch.training.oom_autopsy import find_holders\n"
        "gpu, ram, other = (find_holders(one) for one in ('cuda:0', None, 'cuda:7'))\n"
        "print(json.dumps([[(one.name, one.held_bytes) for one in gpu], ram[0].held_bytes, str(other)]))"
    )
    simulator = Simulator.of(tmp_path, sample_nvml.READY["gb10"])
    with running_daemon(tmp_path, *simulator.roots, environ=simulator.environ) as running:
        running.wait_for("/api/v1/processes", lambda found: any(one["device_bytes"] for one in found))
        processes = running.snapshot()["processes"]
        found, ram, other = json.loads(run_program(code, running.url).stdout)

    held = {one["name"]: one["device_bytes"].get("cuda0", 0) for one in processes}
    assert found
    assert all(held[name] == size for name, size in found)
    assert ram == max(one["rss_bytes"] for one in processes)
    assert other == "Absent.NOT_AVAILABLE"


def test_autopsy_never_raises(torch: SnapshotTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that cannot be made, an allocator that fails: the rest is still told."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(torch, "mem_get_info", None)
    found = memwatch.autopsy(CUDA_ERROR, tmp_path / "file")

    assert found is not None
    assert found.pools[0].free_bytes is Absent.NOT_SUPPORTED
    assert found.snapshot_file is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (CUDA_ERROR, 2 * GIB),
        ("HIP out of memory. Tried to allocate 512.00 MiB", 512 * MIB),
        ("Out of memory allocating 1,073,741,824 bytes (allocated so far: 0 bytes).", GIB),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.", 4 * GIB),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes.", 1024),
        ("Unable to allocate 8.00 TiB for an array", 8 << 40),
        ("CUDA error: out of memory", None),
        ("allocate 5 potatoes", None),
    ],
)
def test_wanted_size_is_read_from_messages(text: str, size: int | None) -> None:
    assert find_wanted_bytes(text) == (Absent.NOT_AVAILABLE if size is None else size)


def test_hostile_snapshot_is_refused_by_the_command(tmp_path: Path) -> None:
    """Exit code 1, one line with the file and the reason. No code of the file runs."""
    target = tmp_path / "ran"
    file = tmp_path / "evil.pickle"
    file.write_bytes(f"cposix\nsystem\n(S'touch {target}'\ntR.".encode())
    missing = run_memwatch("autopsy", str(tmp_path / "missing"))
    done = run_memwatch("autopsy", str(file))

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert (
        "evil.pickle cannot be read as a snapshot of PyTorch: it has the operation GLOBAL at byte 0" in done.stderr
    )
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert missing.stderr.endswith("missing cannot be read (no such file or directory); check the name\n")
    assert not target.exists()
