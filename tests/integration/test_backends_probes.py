"""Backend probes that read files, on folders that look like machines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.backends.model import OpenclResult
from memwatch.core.backends.probes import (
    ProbeResults,
    Rocm,
    find_library,
    find_rocm,
    gather,
    parse_cpu_name,
    parse_linker_cache,
    read_group,
)
from memwatch.core.linux.files import Roots
from support.daemon_process import POWERLESS
from support.waiting import MAX_WAIT_SECONDS


def write(path: Path, content: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def roots(folder: Path) -> Roots:
    for name in ("proc", "sys", "root"):
        (folder / name).mkdir(exist_ok=True)
    return Roots(folder / "proc", folder / "sys", folder / "root")


def probe(folder: Path) -> ProbeResults:
    return gather(roots(folder), None, "linux")


def test_empty_machine_has_no_backends(tmp_path: Path) -> None:
    """No file exists: nothing is found and nothing fails."""
    found = probe(tmp_path)

    assert found == ProbeResults("linux", found.user, found.cpu)
    assert found.cpu.endswith(" processor")


def test_library_in_the_linker_cache_is_found(tmp_path: Path) -> None:
    """A cached path counts only if the file exists."""
    cache = (
        b"glibc-ld.so.cache1.1\0\0\x01\x00libcuda.so.1\0/opt/odd/lib/libcuda.so.1\0/opt/odd/lib/libcudart.so.12\0"
    )
    write(tmp_path / "etc/ld.so.cache", cache)

    before = find_library("libcuda.so.1", tmp_path)
    write(tmp_path / "opt/odd/lib/libcuda.so.1")
    after = find_library("libcuda.so.1", tmp_path)

    assert (before, after) == (None, "/opt/odd/lib/libcuda.so.1")


@pytest.mark.parametrize(
    "folder",
    ["usr/lib/wsl/lib", "usr/lib/aarch64-linux-gnu/tegra", "usr/lib64", "run/opengl-driver/lib"],
    ids=["wsl2", "jetson", "fedora", "nixos"],
)
def test_library_is_found_in_the_usual_folders_without_a_cache(folder: str, tmp_path: Path) -> None:
    """Also as a link that leads outside the root folder."""
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "libcuda.so.1").symlink_to("/nonexistent/libcuda.so.580.95.05")

    assert find_library("libcuda.so.1", tmp_path) == f"/{folder}/libcuda.so.1"


def test_packaged_rocm_has_no_version(tmp_path: Path) -> None:
    """Debian's libamdhip64.so.5 is ROCm, but no file states its version."""
    path = "usr/lib/x86_64-linux-gnu/libamdhip64.so.5"
    write(tmp_path / "etc/ld.so.cache", b"\0/" + path.encode() + b"\0/usr/lib/libamdhip64.so.backup\0")
    write(tmp_path / path)

    assert find_rocm(tmp_path) == Rocm(f"/{path}", None)


def test_newest_rocm_is_selected(tmp_path: Path) -> None:
    """6.10 is newer than 6.2. A folder without a valid version is ignored."""
    write(tmp_path / "opt/rocm-6.2.0/.info/version", b"6.2.0-66\n")
    write(tmp_path / "opt/rocm-6.10.1/.info/version", b"6.10.1\n")
    write(tmp_path / "opt/rocm-extras/.info/version", b"\xff\xfe soon\n")

    assert find_rocm(tmp_path) == Rocm("/opt/rocm-6.10.1", "6.10.1")


def test_invalid_rocm_versions_are_ignored(tmp_path: Path) -> None:
    """5000 digits, invalid UTF-8, and a folder in place of the file."""
    write(tmp_path / "opt/rocm-1/.info/version", b"9" * 5000)
    write(tmp_path / "opt/rocm-2/.info/version", b"\xff\xfe")
    (tmp_path / "opt/rocm-3/.info/version").mkdir(parents=True)

    assert find_rocm(tmp_path) is None


def test_kfd_is_checked_without_being_opened(tmp_path: Path) -> None:
    """/dev/kfd is a FIFO here, and opening it would block. Opening the real one wakes the GPU."""
    device = roots(tmp_path).rootfs / "dev/kfd"
    device.parent.mkdir()
    os.mkfifo(device)
    found: list[ProbeResults] = []
    thread = threading.Thread(target=lambda: found.append(probe(tmp_path)), daemon=True)

    thread.start()
    thread.join(MAX_WAIT_SECONDS)

    assert [(one.kfd, one.kfd_permitted) for one in found] == [(True, True)]


@pytest.mark.parametrize(("mode", "group"), [(0o660, "root"), (0o666, "root"), (0o600, None), (0o640, None)])
def test_kfd_group_needs_read_and_write_access(mode: int, group: str | None, tmp_path: Path) -> None:
    """Read access is not enough. A missing file has no group."""
    device = tmp_path / "kfd"
    assert read_group(device) is None
    device.touch()
    os.chown(device, -1, 0)
    device.chmod(mode)

    assert read_group(device) == group


PROBE = """
import pathlib, sys
from memwatch.core.backends.probes import gather
from memwatch.core.linux.files import Roots
folder = pathlib.Path(sys.argv[1])
print(gather(Roots(folder / "proc", folder / "sys", folder / "root"), None, "linux").closed)
"""


def test_inaccessible_render_node_is_named(tmp_path: Path) -> None:
    """Card nodes are for display servers. Root may open everything, so the child drops its capabilities."""
    devices = [tmp_path / "root/dev/dri" / name for name in ("card0", "renderD128", "renderD129")]
    for device in devices:
        write(device)
    roots(tmp_path)
    found = []

    for closed in (devices[0], devices[2]):
        closed.chmod(0)
        command = [*POWERLESS, sys.executable, "-c", PROBE, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())

    assert found == ["None", "/dev/dri/renderD129"]


def test_amd_gpu_and_its_driver_are_found(tmp_path: Path) -> None:
    """Both come from sysfs: the PCI bus and the list of modules."""
    write(tmp_path / "sys/bus/pci/devices/0000:c4:00.0/class", b"0x038000\n")
    write(tmp_path / "sys/bus/pci/devices/0000:c4:00.0/vendor", b"0x1002\n")

    before = probe(tmp_path)
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)

    assert (before.amd_on_pci, before.amdgpu_loaded) == (True, False)
    assert probe(tmp_path) == replace(before, amdgpu_loaded=True)


def test_opencl_and_vulkan_drivers_are_listed_once(tmp_path: Path) -> None:
    """Sorted by name. Other files in these folders are ignored."""
    write(tmp_path / "root/etc/OpenCL/vendors/pocl.icd", b"libpocl.so\n")
    write(tmp_path / "root/etc/OpenCL/vendors/README", b"")
    write(tmp_path / "root/usr/share/vulkan/icd.d/radeon_icd.x86_64.json", b"{}")
    write(tmp_path / "root/etc/vulkan/icd.d/radeon_icd.x86_64.json", b"{}")
    write(tmp_path / "root/etc/vulkan/icd.d/nvidia_icd.json", b"{}")

    found = probe(tmp_path)

    assert found.opencl_drivers == ("pocl.icd",)
    assert found.vulkan_drivers == ("nvidia_icd.json", "radeon_icd.x86_64.json")


def test_opencl_is_probed_only_on_request(tmp_path: Path) -> None:
    result = OpenclResult(failure="no_platform")

    assert gather(roots(tmp_path), lambda: result).opencl is result
    assert probe(tmp_path).opencl is None


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC  7763\nflags\t: x\n", "AMD EPYC 7763"),
        ("processor\t: 0\nmodel name\t: " + "x" * 5000 + "\n", None),
        ("CPU implementer\t: 0x41\n", None),
        ("", None),
    ],
)
def test_cpu_name_is_read_from_cpuinfo(cpuinfo: str, name: str | None) -> None:
    """Arm kernels print no name, and an endless name is ignored."""
    assert parse_cpu_name(cpuinfo) == name if name else parse_cpu_name(cpuinfo).endswith(" processor")


@given(st.binary(max_size=300))
def test_arbitrary_linker_cache_yields_only_absolute_paths(cache: bytes) -> None:
    assert all(path.startswith("/") and "\0" not in path for path in parse_linker_cache(cache))
