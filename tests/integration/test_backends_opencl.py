"""OpenCL as installed here (Debian's PoCL, pyopencl from PyPI), and child processes that misbehave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from memwatch.core.backends.finder import CHILD, ask_opencl
from memwatch.core.backends.model import OpenclResult
from memwatch.core.backends.opencl_child import kind_of
from memwatch.core.helper.codec import from_line
from memwatch.core.helper.process import import_path, python_child
from memwatch.core.model import Absent
from simulators import opencl_binding
from simulators.opencl_binding import binding
from support.waiting import MAX_WAIT_SECONDS

NEEDED_PROGRAMS = ("pocl",)

POCL = "Portable Computing Language"


def run_child(environ: Mapping[str, str]) -> OpenclResult:
    done = subprocess.run(
        python_child(CHILD),
        env={**os.environ, **environ},
        capture_output=True,
        timeout=MAX_WAIT_SECONDS,
        check=True,
    )
    assert done.stderr == b""
    return from_line(OpenclResult, done.stdout)


def child_with(folder: Path, source: str) -> list[str]:
    """Return the command of a child that imports this pyopencl."""
    first = binding(folder, source)["PYTHONPATH"].partition(os.pathsep)[0]
    return python_child(CHILD, [first, *import_path()])


def test_pocl_is_listed_as_a_cpu_without_a_capacity() -> None:
    """Debian's pocl-opencl-icd answers through pyopencl. Its only device is a CPU, whose memory is not queried."""
    answer = run_child({})

    platforms = [platform for platform in answer.platforms if platform.name == POCL]
    assert answer.failure is None
    assert len(platforms) == 1, "pocl-opencl-icd is not installed: make tools"
    assert "PoCL" in platforms[0].version
    (device,) = platforms[0].devices
    assert (device.kind, device.unified) == ("cpu", True)
    assert device.global_memory_bytes is Absent.NOT_SUPPORTED
    assert device.name


def test_opencl_without_a_driver_reports_a_reason(tmp_path: Path) -> None:
    """OCL_ICD_VENDORS names an empty folder: the result has a reason, not an empty list."""
    answer = run_child({"OCL_ICD_VENDORS": f"{tmp_path}/"})

    assert answer.platforms == ()
    assert answer.failure == "no_platform"
    assert answer.text == "LogicError: clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR"


def test_unloadable_drivers_are_reported_as_no_platform(tmp_path: Path) -> None:
    """One .icd names a missing library, the other is not text."""
    (tmp_path / "gone.icd").write_text("/nonexistent/libgone.so\n")
    (tmp_path / "garbled.icd").write_bytes(b"\xff\xfe\0\x01" * 50)

    answer = run_child({"OCL_ICD_VENDORS": f"{tmp_path}/"})

    assert answer.failure == "no_platform"


@pytest.mark.parametrize(
    ("source", "failure", "words"),
    [
        (opencl_binding.MISSING, "no_binding", "ModuleNotFoundError: No module named 'pyopencl'"),
        (opencl_binding.CHATTERS_AND_FAILS, "failed", "KeyError: 'libamd.so'"),
        ("import no_such_module", "failed", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def get_platforms():\n    return None", "failed", "TypeError: "),
        (opencl_binding.CRASHES, "failed", "the helper process was killed by signal 11"),
        ("import os; os._exit(3)", "failed", "the helper process exited with code 3"),
    ],
    ids=["missing", "chatter", "half-installed", "nonsense", "segfault", "exit"],
)
def test_failing_binding_is_reported_with_a_reason(source: str, failure: str, words: str, tmp_path: Path) -> None:
    """Exceptions, crashes and exits of the child become a reason."""
    answer = ask_opencl(argv=child_with(tmp_path, source))

    assert answer.failure == failure
    assert answer.text.startswith(words)


def test_hanging_driver_is_killed_at_the_deadline(tmp_path: Path) -> None:
    """The driver would hang for ten minutes."""
    answer = ask_opencl(argv=child_with(tmp_path, opencl_binding.HANGS), deadline_seconds=1.0)

    assert answer.failure == "failed"
    assert "1 s" in answer.text
    assert answer.text == "the helper process did not answer for 1 s and was killed"


def test_invalid_child_output_is_reported_with_a_reason() -> None:
    answer = ask_opencl(argv=[sys.executable, "-c", "print('{\"platforms\": 7}')"])

    assert answer.failure == "failed"
    assert "not a OpenclResult" in answer.text


def test_gpu_is_listed_with_its_pci_address(tmp_path: Path) -> None:
    """NVIDIA's bus and slot form the address. Names lose blanks and NULs. An empty platform has a reason."""
    answer = ask_opencl(child_with(tmp_path, opencl_binding.LISTS_A_GPU))

    nvidia, clover = answer.platforms
    (gpu,) = nvidia.devices
    assert (nvidia.name, nvidia.failure) == ("NVIDIA CUDA", None)
    assert (gpu.name, gpu.kind, gpu.unified) == ("NVIDIA GeForce RTX 4090", "gpu", False)
    assert (gpu.global_memory_bytes, gpu.pci) == (25_000_000_000, "0000:01:00.0")
    assert (clover.devices, clover.failure) == ((), "clGetDeviceIDs failed: DEVICE_NOT_FOUND")


@pytest.mark.parametrize(
    ("bits", "kind"),
    [(2, "cpu"), (4, "gpu"), (8, "accelerator"), (16, "other"), (2 | 4 | 8, "cpu"), (0, "other")],
)
def test_device_with_the_cpu_bit_is_a_cpu(bits: int, kind: str) -> None:
    """Oclgrind claims CPU, GPU and accelerator at once. A device that computes on the CPU is never a GPU."""
    assert kind_of(bits) == kind
    assert kind_of(Absent.NOT_SUPPORTED) == "other"
