"""Evidence about backends from files of other software: installed drivers, and libraries, which are not loaded.

Device files are never opened: opening one wakes a suspended GPU.
"""

from __future__ import annotations

import grp
import os
import platform as python_platform
import pwd
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from memwatch.core.backends.model import OpenclResult
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import AMD, pci_vendors
from memwatch.core.printable import printable
from memwatch.core.runtime.regular_file import read_regular

OPENCL_FOLDER = "etc/OpenCL/vendors"
# The Vulkan loader's search path on Linux, and Homebrew's for MoltenVK on macOS.
VULKAN_FOLDERS = (
    "etc/vulkan/icd.d",
    "usr/share/vulkan/icd.d",
    "usr/local/etc/vulkan/icd.d",
    "usr/local/share/vulkan/icd.d",
    "opt/homebrew/share/vulkan/icd.d",
    "run/opengl-driver/share/vulkan/icd.d",
)
TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
# Library folders of distributions, WSL, Jetson Linux, CUDA's compatibility package and NixOS, which the linker's
# cache may not list.
FOLDERS = (
    *(f"usr/lib/{triplet}{within}" for triplet in TRIPLETS for within in ("", "/nvidia", "/tegra")),
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/cuda/compat",
    "usr/local/lib",
    "run/opengl-driver/lib",
)
MAX_CACHE_BYTES = 8 << 20
MAX_PATH_LENGTH = 4096
MAX_NAMES = 50
ROCM_VERSION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6}){1,3}")


class Rocm(Struct, frozen=True):
    """An installed ROCm: its path and version. The version is None if only the runtime library was found."""

    path: str
    version: str | None


class ProbeResults(Struct, frozen=True):
    """All evidence. `opencl` is None if OpenCL was not queried.

    `kfd`: /dev/kfd exists. `kfd_permitted`: `user` may open it. `kfd_group`: the group that may open it.
    `for_others`: the question is what programs of other users can use, so the permissions of `user` are not
    decisive. `closed`: a GPU's device file that `user` may not open, if there is one.
    """

    platform: str
    user: str
    cpu: str
    libcuda: str | None = None
    amd_on_pci: bool = False
    amdgpu_loaded: bool = False
    kfd: bool = False
    kfd_permitted: bool = False
    kfd_group: str | None = None
    for_others: bool = False
    closed: str | None = None
    rocm: Rocm | None = None
    opencl_drivers: tuple[str, ...] = ()
    vulkan_drivers: tuple[str, ...] = ()
    opencl: OpenclResult | None = None


def gather(
    roots: Roots,
    ask_opencl: Callable[[], OpenclResult] | None,
    platform: str = sys.platform,
    for_others: bool = False,
) -> ProbeResults:
    """Collect all evidence. `ask_opencl` is None if `roots` belong to another machine than this process's."""
    root = roots.rootfs
    kfd = root / "dev/kfd"
    return ProbeResults(
        platform=platform,
        user=user_name(),
        cpu=printable(parse_cpu_name(read_head(roots.procfs / "cpuinfo", 16 << 10).decode("utf-8", "replace"))),
        libcuda=find_library("libcuda.so.1", root),
        amd_on_pci=AMD in pci_vendors(roots),
        amdgpu_loaded=os.path.isdir(roots.sysfs / "module/amdgpu"),
        kfd=os.path.lexists(kfd),
        kfd_permitted=os.access(kfd, os.R_OK | os.W_OK),
        kfd_group=read_group(kfd),
        for_others=for_others,
        closed=find_closed_device(root),
        rocm=find_rocm(root),
        opencl_drivers=tuple(map(printable, list_names(root / OPENCL_FOLDER, ".icd"))),
        vulkan_drivers=list_vulkan_drivers(root),
        opencl=ask_opencl() if ask_opencl else None,
    )


def read_head(path: Path, max_bytes: int) -> bytes:
    """Return the first `max_bytes` of a file. Empty if it does not exist or cannot be read."""
    try:
        return read_regular(path, max_bytes)
    except OSError:
        return b""


def list_names(folder: Path, ending: str) -> list[str]:
    """Return the sorted names in a folder that end with `ending`. Empty if the folder does not exist."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(ending))[:MAX_NAMES]


def parse_linker_cache(cache: bytes) -> Iterator[str]:
    """Return the paths in /etc/ld.so.cache. Both of its formats end each path with a NUL."""
    for part in cache.split(b"\0"):
        if part.startswith(b"/") and len(part) <= MAX_PATH_LENGTH:
            yield os.fsdecode(part)


def find_library(name: str, rootfs: Path, folders: Sequence[str] = ()) -> str | None:
    """Return the path, on the machine under `rootfs`, of a library `name` or, with a version, `name.6.2`.

    The target of a link is not checked: an absolute link cannot be followed from outside.
    """
    wanted = re.compile(re.escape(name) + r"(?:\.[0-9]{1,9}){0,4}")
    for path in parse_linker_cache(read_head(rootfs / "etc/ld.so.cache", MAX_CACHE_BYTES)):
        if wanted.fullmatch(os.path.basename(path)) and os.path.lexists(rootfs / path.lstrip("/")):
            return path
    for folder in (*folders, *FOLDERS):
        if os.path.lexists(rootfs / folder / name):
            return f"/{folder}/{name}"
    return None


def list_vulkan_drivers(root: Path) -> tuple[str, ...]:
    """Return the drivers that a Vulkan loader finds, each once."""
    names = (name for folder in VULKAN_FOLDERS for name in list_names(root / folder, ".json"))
    return tuple(dict.fromkeys(map(printable, names)))


def find_rocm(root: Path) -> Rocm | None:
    """Return the newest ROCm under /opt, or a distribution's package. None without a HIP runtime."""
    found = [
        Rocm(f"/opt/{name}", find_version(root / "opt" / name))
        for name in list_names(root / "opt", "")
        if name.startswith("rocm")
    ]
    known = [one for one in found if one.version is not None]
    if known:
        return max(known, key=lambda one: [int(part) for part in (one.version or "0").split(".")])
    library = find_library("libamdhip64.so", root, folders=("opt/rocm/lib",))
    return Rocm(library, None) if library else None


def find_version(folder: Path) -> str | None:
    """Return the version at the start of `.info/version`: 6.2.0 for "6.2.0-66"."""
    match = ROCM_VERSION.match(read_head(folder / ".info/version", 64).decode("ascii", "replace").strip())
    return match[0] if match else None


def parse_cpu_name(cpuinfo: str) -> str:
    """Return the CPU's name. On Arm /proc/cpuinfo has no model name, so it is the architecture."""
    match = re.search(r"^model name\s*:\s*(\S.{0,100}?)\s*$", cpuinfo, re.MULTILINE)
    return " ".join(match[1].split()) if match else f"{python_platform.machine()} processor"


def find_closed_device(root: Path) -> str | None:
    nodes = (name for name in list_names(root / "dev/dri", "") if name.startswith("renderD"))
    return next(
        (f"/dev/dri/{name}" for name in nodes if not os.access(root / "dev/dri" / name, os.R_OK | os.W_OK)), None
    )


def read_group(device: Path) -> str | None:
    """Return the group that may read and write a file. None if the file does not exist or its group may not."""
    try:
        status = device.stat()
    except OSError:
        return None
    if status.st_mode & 0o060 != 0o060:
        return None
    try:
        return grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return str(status.st_gid)


def user_name() -> str:
    """Return the name of the user of this process."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"with id {number}"
