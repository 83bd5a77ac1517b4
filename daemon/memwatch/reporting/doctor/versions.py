"""Installed versions of drivers, libraries and packages, read from files, and known incompatible ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from memwatch.core.backends.probes import find_library, read_head
from memwatch.core.linux.files import Roots
from memwatch.reporting.answers import Check, Verdict

# Remedy for a kernel driver of another version than its library.
RELOAD_NVIDIA = "restart the machine, or reload the nvidia modules"
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
    from importlib.metadata import PackageNotFoundError, version  # 0.8 MiB, which pages do without

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


# ABI version of libamd_smi that old amdsmi packages cannot load. Tested: 7.0.2 with so.27 fails with "undefined
# symbol: amdsmi_set_gpu_clk_range".
_NEW_INTERFACE = 27
_LAST_OLD_PACKAGE = (7, 0, 2)
# ROCm changelogs: before 6.4.2, amd-smi counted a KiB of process memory as 1000 bytes. Before 7.12, it opened
# /dev/kfd on an MI300A, which registered the caller as a GPU process and prevented reloading the driver.
_RIGHT_KIB, _LEAVES_KFD_ALONE = (6, 4, 2), (7, 12)
# First release of the pynvml package without its own pynvml module. Older ones overwrite that of nvidia-ml-py.
_PYNVML_IS_A_SHELL = (12,)


def find_known_issues(installed: InstalledVersions) -> Iterator[Check]:
    """Yield a check for each known incompatibility among the installed versions."""
    yield from _nvidia_versions(installed)
    yield from _pynvml(installed)
    yield from _amdsmi(installed)
    yield from _rocm(installed)
    yield from _stalls(installed)


def _nvidia_versions(installed: InstalledVersions) -> Iterator[Check]:
    module, library = installed.nvidia_module, installed.nvidia_library
    if module and library and parse_numbers(module) != parse_numbers(library):
        yield Check(
            "nvidia.versions",
            Verdict.PROBLEM,
            f"NVIDIA's kernel driver is {module}, its library {library}: every NVML call fails (error 18)",
            RELOAD_NVIDIA,
        )


def _pynvml(installed: InstalledVersions) -> Iterator[Check]:
    old = installed.packages.get("pynvml")
    if old and parse_numbers(old) < _PYNVML_IS_A_SHELL:
        yield Check(
            "packages.pynvml",
            Verdict.PROBLEM,
            f"the package pynvml {old} is deprecated and overwrites files of nvidia-ml-py",
            "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
        )


def _amdsmi(installed: InstalledVersions) -> Iterator[Check]:
    package, library = installed.packages.get("amdsmi"), installed.amd_smi_library
    if not package:
        return
    if library is None:
        yield Check(
            "amdsmi.library",
            Verdict.HINT,
            f"the package amdsmi {package} cannot be imported: no libamd_smi.so is installed",
            "install ROCm's amd-smi-lib of the same release, or pip uninstall amdsmi (memwatch does not need it)",
        )
    elif parse_numbers(package) <= _LAST_OLD_PACKAGE and _parse_interface(library) >= _NEW_INTERFACE:
        yield Check(
            "amdsmi.versions",
            Verdict.HINT,
            f"the package amdsmi {package} is older than the library {library} and cannot be imported with it",
            "install the package of the library's release, from /opt/rocm/share/amd_smi",
        )


def _parse_interface(library: str) -> int:
    """Return 27 for "libamd_smi.so.27.1", 0 if the name has no version."""
    number = library.partition(".so.")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _rocm(installed: InstalledVersions) -> Iterator[Check]:
    if not installed.rocm:
        return
    version = parse_numbers(installed.rocm)
    if version < _RIGHT_KIB:
        yield Check(
            "rocm.processes",
            Verdict.HINT,
            f"amd-smi of ROCm {installed.rocm} reports too little memory of processes (1 KiB counts as 1000 bytes)",
            "use ROCm 6.4.2 or newer; memwatch reads the driver's files and is not affected",
        )
    if version < _LEAVES_KFD_ALONE:
        yield Check(
            "rocm.kfd",
            Verdict.HINT,
            f"amd-smi of ROCm {installed.rocm} opens /dev/kfd on an MI300A; then the driver cannot be reloaded",
            "use ROCm 7.12 or newer",
        )


def _stalls(installed: InstalledVersions) -> Iterator[Check]:
    if installed.has_psi:
        return
    if "psi=0" in installed.boot_options:
        yield Check(
            "psi",
            Verdict.HINT,
            "PSI is disabled (psi=0 on the kernel command line), so memory stall times are not known",
            "remove psi=0 from the kernel command line",
        )
    else:
        yield Check(
            "psi",
            Verdict.HINT,
            "the kernel has no pressure stall information (PSI), so memory stall times are not known",
            "add psi=1 to the kernel command line; the kernel needs CONFIG_PSI",
        )
