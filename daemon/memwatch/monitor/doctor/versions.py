"""Installed versions of drivers, libraries and packages, read from files without loading any of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct, field

from memwatch.core.backends.probes import find_library, read_head
from memwatch.core.linux.files import Roots

PACKAGES = ("amdsmi", "nvidia-ml-py", "pynvml")
ROCM = "opt/rocm"
MAX_BYTES = 4096
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){1,3}")


class InstalledVersions(Struct, frozen=True):
    """Versions as written in their files; None if not installed or not given.

    `packages`: those of the Python that memwatch runs in. `boot_options`: the kernel command line.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    rocm: str | None = None
    amd_smi_library: str | None = None
    nvidia_module: str | None = None
    nvidia_library: str | None = None
    boot_options: tuple[str, ...] = ()
    has_psi: bool = True


def read_versions(roots: Roots, version_of: Callable[[str], str | None] | None = None) -> InstalledVersions:
    """Read the versions from a host's files. Packages are those of this Python; none are read for another root."""
    read_version = version_of or (package_version if roots.rootfs == Path("/") else lambda _name: None)
    found = {name: read_version(name) for name in PACKAGES}
    return InstalledVersions(
        packages={name: text for name, text in found.items() if text},
        rocm=find_version(read_head(roots.rootfs / ROCM / ".info/version", MAX_BYTES)),
        amd_smi_library=_named(find_library("libamd_smi.so", roots.rootfs, (f"{ROCM}/lib",)), roots.rootfs),
        nvidia_module=find_version(read_head(roots.sysfs / "module/nvidia/version", MAX_BYTES)),
        nvidia_library=_nvidia_library(roots.rootfs),
        boot_options=tuple(read_head(roots.procfs / "cmdline", MAX_BYTES).decode("utf-8", "replace").split()),
        has_psi=os.path.exists(roots.procfs / "pressure/memory"),
    )


def package_version(name: str) -> str | None:
    """Return the version of an installed package from its metadata, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def find_version(text: bytes) -> str | None:
    """Return the first version in a text: 6.4.1 for "6.4.1-83"."""
    found = _VERSION.search(text.decode("utf-8", "replace"))
    return found[0] if found else None


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the first version in a text as numbers to compare: "6.10" is newer than "6.4"."""
    found = _VERSION.search(text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _named(path: str | None, rootfs: Path) -> str | None:
    """Return the name of the file that a library's link points to; it ends with the library's version."""
    if path is None:
        return None
    try:
        return os.path.basename(os.readlink(rootfs / path.lstrip("/")))
    except OSError:
        return os.path.basename(path)


def _nvidia_library(rootfs: Path) -> str | None:
    # The file names of NVIDIA's libraries end with the driver's version.
    name = _named(find_library("libnvidia-ml.so.1", rootfs), rootfs)
    return find_version(name.partition(".so.")[2].encode()) if name else None
