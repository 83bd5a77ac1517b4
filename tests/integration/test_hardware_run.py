"""The comparison with real hardware, on simulated GPUs that programs can allocate from."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from msgspec.structs import replace

import hardware.__main__
from simulators import nvml_parts, sample_nvml, sample_nvml_integrated
from simulators.driver_sim import CONTEXT_BYTES
from simulators.gpu_programs import simulated_cuda, simulated_hip
from simulators.nvml_state import Machine
from support.daemon_process import clean_environment
from support.machine_folders import machine_folder
from support.paths import ROOT, TESTS
from support.waiting import MAX_WAIT_SECONDS

MIB = 1 << 20
RTX, GB10 = sample_nvml.RTX_4090, sample_nvml_integrated.GB10


def compare(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the comparison in this process. Its daemon, holder and tools get this environment."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        for name in os.environ.keys() - clean_environment().keys():
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        code = hardware.__main__.main(arguments)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def start_compare(environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the comparison as `make test-hardware` does."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "hardware"],
        capture_output=True,
        text=True,
        timeout=2 * MAX_WAIT_SECONDS,
        env={**clean_environment(PYTHONPATH=path), **environ},
        cwd=ROOT,
        check=False,
    )


def rows(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], list[str]]:
    """Return asked, shown, vendor, difference and verdict by step and figure."""
    cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    return {(row[0], row[1]): row[2:] for row in cells if len(row) == 7}


def test_comparison_needs_nothing_but_the_product_and_psutil() -> None:
    """`make test-hardware` runs where neither pytest nor the other tools of the tests are installed."""
    code = "import sys, hardware.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(PYTHONPATH=str(TESTS)),
    )

    assert "psutil" in done.stdout.split()
    assert {"pytest", "_pytest", "xdist", "hypothesis", "playwright"}.isdisjoint(done.stdout.split())


@pytest.fixture(scope="module")
def compared_card(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    with simulated_cuda(tmp_path_factory.mktemp("card"), RTX) as environ:
        return compare(environ, "--check", "whole", "--check", "steps", "--sizes", "256")


def test_allocations_on_a_card_are_shown_exactly(compared_card: subprocess.CompletedProcess[str]) -> None:
    done, found = compared_card, rows(compared_card)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All figures are right" in done.stdout
    assert found["before", "size"][1:3] == ["24,564.0 MiB"] * 2
    assert found["allocate 256 MiB", "VRAM"] == ["+256.0 MiB"] * 3 + ["+0.0 MiB", "ok"]
    assert found["allocate 256 MiB", "process"][:3] == ["+256.0 MiB"] * 3
    assert found["allocate 256 MiB", "headroom, certain"][:3] == ["-256.0 MiB"] * 3
    assert found["free all", "VRAM"][:3] == ["+0.0 MiB"] * 3
    assert found["process ended", "process, bytes"][-1] == "ok"
    assert "| architecture | discrete: NVML memory info works" in done.stdout
    assert "✓ gpu0, NVIDIA GeForce RTX 4090: discrete" in done.stdout
    assert "| CPU, daemon and helpers | " in done.stdout


def test_allocations_on_gb10_are_shown_inside_system_ram(tmp_path: Path) -> None:
    """They are in the CUDA Pool and in System RAM, and reduce both ends of the headroom."""
    with simulated_cuda(tmp_path, GB10) as environ:
        done = compare(environ, "--check", "steps", "--sizes", "512")

    found = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["allocate 512 MiB", "CUDA Pool ⊂ System RAM"][:3] == ["+512.0 MiB"] * 3
    assert found["allocate 512 MiB", "System RAM"][1:3] == ["+512.0 MiB"] * 2
    assert found["allocate 512 MiB", "headroom"][1:3] == ["-512.0 MiB"] * 2
    assert found["allocate 512 MiB", "headroom, certain"][1:3] == ["-512.0 MiB"] * 2


@pytest.mark.long
def test_allocations_on_a_jetson_are_compared_with_nvmap(tmp_path: Path) -> None:
    """Its NVML lists no process, and NvMap's list needs root: that figure is not judged."""
    with simulated_cuda(tmp_path, sample_nvml.READY["jetson-orin-nano"]) as environ:
        shutil.rmtree(tmp_path / "host/sys/kernel/debug")
        done = compare(environ, "--check", "steps", "--sizes", "48")

    found = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["allocate 48 MiB", "CUDA Pool ⊂ System RAM"][:3] == ["+48.0 MiB"] * 3
    assert found["allocate 48 MiB", "headroom, certain"][1:3] == ["-48.0 MiB"] * 2
    assert found["allocate 48 MiB", "process"][-1].startswith("not judged")


@pytest.mark.long
def test_managed_and_pinned_memory_of_gb10_are_compared_with_the_tool(tmp_path: Path) -> None:
    """Managed memory is in no process; pinned memory is in the process that allocated it."""
    with simulated_cuda(tmp_path, GB10) as environ:
        done = compare(environ, "--check", "kinds")

    found = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["managed 128 MiB", "CUDA Pool ⊂ System RAM"][:2] == ["+0.0 MiB"] * 2
    assert found["managed 128 MiB", "System RAM"][1] == "+128.0 MiB"
    assert found["pinned 128 MiB", "process"][:3] == ["–", "+128.0 MiB", "+128.0 MiB"]


@pytest.mark.long
def test_memory_of_a_killed_process_vanishes(tmp_path: Path) -> None:
    with simulated_cuda(tmp_path, RTX) as environ:
        done = compare(environ, "--check", "kill")

    found = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["before the kill", "process"][1] == "+256.0 MiB"
    assert found["killed", "VRAM"][1] == "+0.0 MiB"
    assert found["killed", "process, bytes"][-1] == "ok"


@pytest.mark.long
def test_released_driver_is_closed_and_taken_up_again(tmp_path: Path) -> None:
    with simulated_cuda(tmp_path, RTX) as environ:
        done = compare(environ, "--check", "sensors", "--check", "release")

    found = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["now", "temperature"][1:3] == ["61 °C"] * 2
    assert found["now", "power"][1:3] == ["287 W"] * 2
    for event in ("collector has stopped", "no driver file is open", "figures are back"):
        assert found["release", event][-1] == "ok"


LIMIT_BYTES = CONTEXT_BYTES + 128 * MIB


def processes_up_to_a_limit(machine: Machine) -> Machine:
    """Return what a driver reports that counts a context and 128 MiB at most."""
    compute = machine.gpus[0].compute or ()
    own = tuple(replace(one, used=min(one.used or 0, LIMIT_BYTES)) for one in compute if one.pid != 3921)
    return machine.with_gpu(0, compute=own)


def card_up_to_a_limit(machine: Machine) -> Machine:
    before, memory = RTX.gpus[0].memory, machine.gpus[0].memory
    assert before is not None
    assert memory is not None
    return machine.with_gpu(0, memory=replace(memory, used=min(memory.used, before.used + LIMIT_BYTES)))


@pytest.mark.parametrize(
    ("machine", "lie", "wrong"),
    [
        (RTX, card_up_to_a_limit, ("VRAM", "headroom")),
        pytest.param(GB10, processes_up_to_a_limit, ("CUDA Pool ⊂ System RAM", "process"), marks=pytest.mark.long),
    ],
    ids=["card", "gb10"],
)
def test_wrong_figure_is_found(
    machine: Machine, lie: Callable[[Machine], Machine], wrong: tuple[str, str], tmp_path: Path
) -> None:
    """NVML reports half of the step to the daemon, and all of it to nvidia-smi."""
    with simulated_cuda(tmp_path, machine, lie) as environ:
        done = compare(environ, "--check", "steps", "--sizes", "256")

    found = rows(done)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
    assert found["allocate 256 MiB", wrong[0]] == [
        "+256.0 MiB",
        "+128.0 MiB",
        "+256.0 MiB",
        "-128.0 MiB",
        "WRONG: differs from asked",
    ]
    assert {figure for (_, figure), row in found.items() if row[-1].startswith("WRONG")} >= set(wrong)
    assert found["free all", wrong[0]][-1] == "ok"


def test_gpu_that_the_daemon_does_not_show_fails(tmp_path: Path) -> None:
    with simulated_cuda(tmp_path, RTX, lambda machine: replace(machine, visible=())) as environ:
        done = compare(environ, "--wait", "1")

    assert done.returncode == 1
    assert "memwatchd shows no NVIDIA GPU at 0000:01:00.0, which the driver's API has" in done.stderr


def test_full_gpu_is_not_tested(tmp_path: Path) -> None:
    """100 MiB are free beside the context, and a quarter of that is no test."""
    memory = nvml_parts.mib(24564, used=24564 - 424 - 412, reserved=424)
    with simulated_cuda(tmp_path, RTX.with_gpu(0, memory=memory)) as environ:
        done = compare(environ, "--check", "steps")

    assert done.returncode == 2
    assert "the GPU cannot be tested: 100 MiB can be allocated and 100 MiB are free" in done.stderr


def test_gpu_without_memory_for_a_context_exits_with_2(tmp_path: Path) -> None:
    memory = nvml_parts.mib(24564, used=24100, reserved=424)
    with simulated_cuda(tmp_path, RTX.with_gpu(0, memory=memory)) as environ:
        done = compare(environ)

    assert done.returncode == 2
    assert "NVIDIA 10de:2684: cuda: cuDevicePrimaryCtxRetain failed: out of memory (2)" in done.stderr


def test_machine_without_gpu_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)

    done = start_compare({"MEMWATCHD_SYSFS": str(tmp_path)})

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("no GPU was found: cuda: libcuda.so.1: cannot open shared object file")
    assert "hip: libamdhip64.so" in done.stderr
    assert "level-zero: libze_loader.so.1" in done.stderr
    assert done.stderr.endswith("; run this on a machine with a GPU, its driver and its compute library\n")


def test_gpu_without_its_library_exits_with_2() -> None:
    done = compare({"MEMWATCHD_SYSFS": str(machine_folder("rx-7900-xtx").roots.sysfs)})

    assert done.returncode == 2
    assert done.stderr.startswith("no driver API works for AMD 1002:")
    assert "; install its compute library (libcuda1, libamdhip64 or libze1)" in done.stderr


def test_driver_without_a_device_exits_with_2(tmp_path: Path) -> None:
    """libcuda.so.1 is installed, and no kernel driver answers."""
    with simulated_cuda(tmp_path, RTX) as environ:
        done = compare({**environ, "GPU_SIM_SOCKET": str(tmp_path / "none")})

    assert done.returncode == 2
    assert "cuda: cuInit failed: no CUDA-capable device is detected (100)" in done.stderr


@pytest.mark.long
def test_allocations_on_an_amd_card_are_shown_exactly(tmp_path: Path) -> None:
    """The daemon reads processes of this card every 5 s."""
    with simulated_hip(tmp_path) as environ:
        done = compare(environ, "--check", "steps", "--check", "kinds", "--sizes", "256")

    found = rows(done)
    title = "VRAM + GTT ⊂ System RAM"
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["allocate 256 MiB", title][:3] == ["+256.0 MiB"] * 3
    assert found["allocate 256 MiB", "process"][:2] == ["+256.0 MiB"] * 2
    assert found["allocate 256 MiB", "headroom"][:3] == ["-256.0 MiB"] * 3
    assert found["pinned 128 MiB", title][1:3] == ["+128.0 MiB"] * 2
    assert found["pinned 128 MiB", "headroom"][:3] == ["+0.0 MiB"] * 3


@pytest.mark.long
def test_allocations_on_an_apu_are_shown_in_its_gtt(tmp_path: Path) -> None:
    """They reduce the headroom once, although they are in the GTT and in System RAM."""
    with simulated_hip(tmp_path, is_apu=True) as environ:
        done = compare(environ, "--check", "steps", "--sizes", "256")

    found = rows(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["allocate 256 MiB", "GPU carve-out + GTT ⊂ System RAM"][:3] == ["+256.0 MiB"] * 3
    assert found["allocate 256 MiB", "headroom"][1] == "-256.0 MiB"
    assert found["allocate 256 MiB", "System RAM"][1:3] == ["+256.0 MiB"] * 2


def add_result(report: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run what `make hardware-result` runs, with another folder and page."""
    places = ("--results", str(folder / "results"), "--page", str(folder / "page.md"))
    return subprocess.run(
        [sys.executable, "-m", "scripts.hardware_results", str(report), "--name", "rtx-4090-1", *places, *options],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=str(TESTS)),
        cwd=ROOT,
        check=False,
    )


def test_output_becomes_a_row_of_the_table_by_one_command(
    compared_card: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """A simulated machine is refused unless a test asks for it, and the page marks it."""
    report = tmp_path / "report.md"
    report.write_text(f"make: a line of make\n{compared_card.stdout}")

    refused = add_result(report, tmp_path)
    added = add_result(report, tmp_path, "--allow-simulated")

    assert (refused.returncode, added.returncode) == (2, 0), added.stderr
    assert "is of a simulated machine (files of MEMWATCHD_PROCFS=" in refused.stderr
    page = (tmp_path / "page.md").read_text()
    assert "| [rtx-4090-1](../../tests/hardware/results/rtx-4090-1.md) (simulated) | 20" in page
    assert "NVIDIA GeForce RTX 4090 (gpu0 of 1)" in page
    assert (tmp_path / "results/rtx-4090-1.md").read_text() == compared_card.stdout.rstrip() + "\n"
