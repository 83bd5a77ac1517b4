"""Combinations that are known to be bad, each with where that is known from."""

from __future__ import annotations

from collections.abc import Iterator

from memwatch.doctor.model import Check, Verdict
from memwatch.doctor.versions import Installed, numbers_of

# The interface of libamd_smi that a package amdsmi of some version was made for. Tried: 7.0.2 on so.27 fails with
# "undefined symbol: amdsmi_set_gpu_clk_range".
_NEW_INTERFACE = 27
_LAST_OLD_PACKAGE = (7, 0, 2)
# Changelogs of ROCm: until 6.4.2 amd-smi took a KiB of a process for 1000 bytes; until 7.12 it opened /dev/kfd on
# an MI300A, which registered the asker as a process of the GPU and kept the driver from being reloaded.
_RIGHT_KIB, _LEAVES_KFD_ALONE = (6, 4, 2), (7, 12)
# The last release of the distribution pynvml that brought a module of its own under the name that nvidia-ml-py has.
_PYNVML_IS_A_SHELL = (12,)


def known_bad(installed: Installed) -> Iterator[Check]:
    """What of the installed versions is known not to work together."""
    yield from _nvidia_versions(installed)
    yield from _pynvml(installed)
    yield from _amdsmi(installed)
    yield from _rocm(installed)
    yield from _stalls(installed)


def _nvidia_versions(installed: Installed) -> Iterator[Check]:
    module, library = installed.nvidia_module, installed.nvidia_library
    if module and library and numbers_of(module) != numbers_of(library):
        yield Check(
            "nvidia.versions",
            Verdict.PROBLEM,
            f"NVIDIA's kernel driver is {module}, its library {library}: NVML refuses every call (error 18)",
            "restart the machine, or unload and load the nvidia modules",
        )


def _pynvml(installed: Installed) -> Iterator[Check]:
    old = installed.packages.get("pynvml")
    if old and numbers_of(old) < _PYNVML_IS_A_SHELL:
        yield Check(
            "packages.pynvml",
            Verdict.PROBLEM,
            f"the package pynvml {old} is given up, and has overwritten files of nvidia-ml-py or will",
            "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
        )


def _amdsmi(installed: Installed) -> Iterator[Check]:
    package, library = installed.packages.get("amdsmi"), installed.amd_smi_library
    if not package:
        return
    if library is None:
        yield Check(
            "amdsmi.library",
            Verdict.HINT,
            f"the package amdsmi {package} brings no libamd_smi.so, and none is installed: importing it fails",
            "install ROCm's amd-smi-lib of the same release, or pip uninstall amdsmi; memwatch does without it",
        )
    elif numbers_of(package) <= _LAST_OLD_PACKAGE and _interface_of(library) >= _NEW_INTERFACE:
        yield Check(
            "amdsmi.versions",
            Verdict.HINT,
            f"the package amdsmi {package} is older than the library {library}, and cannot be imported with it",
            "install the package that the library's release brings, under /opt/rocm/share/amd_smi",
        )


def _interface_of(library: str) -> int:
    """ "libamd_smi.so.27.1" is 27; 0 where the name does not tell."""
    number = library.partition(".so.")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _rocm(installed: Installed) -> Iterator[Check]:
    if not installed.rocm:
        return
    version = numbers_of(installed.rocm)
    if version < _RIGHT_KIB:
        yield Check(
            "rocm.processes",
            Verdict.HINT,
            f"amd-smi of ROCm {installed.rocm} shows too little held by processes (KiB taken for 1000 bytes)",
            "use ROCm 6.4.2 or newer; memwatch reads the driver's own figures and is not affected",
        )
    if version < _LEAVES_KFD_ALONE:
        yield Check(
            "rocm.kfd",
            Verdict.HINT,
            f"amd-smi of ROCm {installed.rocm} opens /dev/kfd on an MI300A, and the driver cannot be reloaded then",
            "use ROCm 7.12 or newer",
        )


def _stalls(installed: Installed) -> Iterator[Check]:
    if installed.has_psi:
        return
    if "psi=0" in installed.boot_options:
        yield Check(
            "psi",
            Verdict.HINT,
            "the kernel was started with psi=0, so nobody can tell how long tasks wait for memory",
            "remove psi=0 from the kernel's command line",
        )
    else:
        yield Check(
            "psi",
            Verdict.HINT,
            "the kernel has no pressure stall information, so nobody can tell how long tasks wait for memory",
            "add psi=1 to the kernel's command line; a kernel without CONFIG_PSI cannot tell",
        )
