"""Name of this machine, its GPUs on the PCI bus, and if it is a container or WSL2."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from msgspec.structs import replace

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.findings import Findings
from memwatch.core.linux.cgroup_mounts import charges_gpu, find_unified_tree
from memwatch.core.linux.cgroups import describe_container, in_container, sees_all_processes
from memwatch.core.linux.files import Roots, SourceUnavailable, names_in, read_once
from memwatch.core.linux.gpu_presence import device_tree, find_sign
from memwatch.core.linux.pci import PciGpu, is_card, is_unread, read_gpu
from memwatch.core.model import Absent, Words
from memwatch.core.printable import decode, printable
from memwatch.core.snapshot import CHARGED, GPU_CHARGING, Machine

# Placeholders that board vendors leave in the firmware.
_FILLERS = frozenset(
    {
        "",
        "all series",
        "default string",
        "invalid",
        "n/a",
        "none",
        "not applicable",
        "not specified",
        "o.e.m.",
        "oem",
        "product name",
        "system manufacturer",
        "system product name",
        "system version",
        "to be filled by o.e.m.",
        "type1productconfigid",
        "undefined",
        "unknown",
        "x.x",
        "0123456789",
    }
)


def choose_name(dmi: dict[str, str]) -> Words:
    """Choose a name from DMI: vendor and product, or those of the board if these are placeholders."""
    # Lenovo puts a type number into product_name and the model name into product_version.
    product_keys = ["product_name", "board_name"]
    if dmi.get("sys_vendor", "").upper() == "LENOVO":
        product_keys.insert(0, "product_version")
    for key in product_keys:
        product = _meaningful_text(dmi.get(key, ""))
        if product:
            vendor = _meaningful_text(dmi.get("board_vendor" if key == "board_name" else "sys_vendor", ""))
            return _join(vendor, product)
    return Absent.NOT_AVAILABLE


def _meaningful_text(text: str) -> str:
    text = " ".join(text.replace("_", " ").split())
    return "" if text.lower() in _FILLERS else text


def _join(vendor: str, product: str) -> str:
    if not vendor or product.lower().startswith(vendor.lower().split()[0]):
        return product
    return f"{vendor} {product}"


def decode_text(data: bytes | None) -> str:
    """Decode a file of one line; texts in the device tree end with a NUL."""
    return printable((data or b"").split(b"\0")[0].decode("utf-8", "replace").strip())


def build_machine(name: Words, gpus: list[str] | None, contained: bool, unread: int = 0) -> Machine:
    """`gpus`: descriptions; None if no bus is visible or readable. Their memory is not read here.

    `unread` counts PCI functions whose class or vendor cannot be read: each of them may be a GPU.
    """
    if gpus is None:
        return Machine(name, "unknown", "It is unknown if there is a GPU: no bus is visible.", contained)
    if not gpus and unread:
        text = f"It is unknown if there is a GPU: class or vendor of {unread} PCI functions cannot be read."
        return Machine(name, "unknown", text, contained)
    if not gpus:
        return Machine(name, "cpu_only", "No GPU found: all memory is System RAM.", contained)
    listed = ", ".join(dict.fromkeys(gpus))
    text = f"A GPU is present ({listed}), but its memory is not read here: only System RAM is shown."
    return Machine(name, "unknown", text, contained)


def is_wsl2(kernel_release: bytes | None) -> bool:
    """Check for Microsoft's kernel for the Windows Subsystem for Linux."""
    return b"microsoft" in (kernel_release or b"").lower()


class Collector(BaseCollector):
    name = "machine"
    period_seconds: float = 60.0

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._pci_names: list[str] = []
        self._pci_gpus: list[PciGpu] = []
        self._unread = 0
        # Read once: it is a property of the kernel, and reading it sums over all CPUs.
        self._charging = {GPU_CHARGING: CHARGED} if charges_gpu(_read_own_stat(roots)) else {}

    def collect(self) -> Findings:
        contained, procfs = in_container(self._roots), self._roots.procfs
        wsl2 = is_wsl2(read_once(procfs / "sys/kernel/osrelease"))
        kind = describe_container(self._roots) if contained else None
        details = ({"virtualization": "WSL2"} if wsl2 else {}) | ({"container": kind} if kind else {})
        machine = replace(
            build_machine(self._name(), self._gpus(), contained, self._unread),
            sees_all_processes=sees_all_processes(read_once(procfs / "2/stat"), contained),
            details=details | self._charging,
        )
        return Findings(machine=machine, pci_gpus=Counter(gpu.vendor for gpu in self._pci_gpus))

    def _name(self) -> Words:
        folder = self._roots.sysfs / "class/dmi/id"
        keys = ("sys_vendor", "product_name", "product_version", "board_vendor", "board_name")
        name = choose_name({key: decode_text(read_once(folder / key)) for key in keys})
        return decode_text(device_tree(self._roots, "model")) or name

    def _gpus(self) -> list[str] | None:
        compatible = device_tree(self._roots, "compatible")
        tegra = [decode(token) for token in compatible.split(b"\0") if b",tegra" in token]
        if not tegra and find_sign(self._roots):
            tegra = ["NVIDIA Tegra"]
        bus = self._roots.sysfs / "bus"
        if not tegra and not os.path.isdir(bus):
            return None
        # The last token is the chip, those before it are the board.
        found = self._list_gpus(bus / "pci/devices")
        if found is None and not tegra:
            return None
        return tegra[-1:] + ([str(gpu) for gpu in found or ()] or (self._without_bus() if not tegra else []))

    def _without_bus(self) -> list[str]:
        """Return GPUs that are no PCI functions: those of chips, by driver, and Windows' GPU in WSL2."""
        drm = self._roots.sysfs / "class/drm"
        devices = [drm / name / "device" for name in names_in(drm) if is_card(name)]
        devices = [one for one in devices if any(name.startswith("renderD") for name in names_in(one / "drm"))]
        # Software such as vgem has a render node as well, and no driver.
        chips = [one / "driver" for one in devices if not _is_on_pci(one) and os.path.lexists(one / "driver")]
        drivers = [os.path.basename(os.path.realpath(driver)) for driver in chips]
        return [
            *(f"driver {name}" for name in drivers),
            *(["of Windows"] if os.path.exists(self._roots.rootfs / "dev/dxg") else []),
        ]

    def _list_gpus(self, pci: Path) -> list[PciGpu] | None:
        """List the GPUs, None if the bus cannot be read.

        Large servers have hundreds of PCI functions: they are read only if the list changed.
        """
        try:
            names = sorted(os.listdir(pci))
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError:
            return None
        if names != self._pci_names:
            self._pci_gpus = [gpu for name in names if (gpu := read_gpu(pci / name))]
            self._unread = sum(is_unread(pci / name) for name in names)
            # Functions that cannot be read are tried again.
            self._pci_names = [] if self._unread else names
        return self._pci_gpus


def _is_on_pci(device: Path) -> bool:
    return "/pci" in os.path.realpath(device)


def _read_own_stat(roots: Roots) -> bytes | None:
    try:
        tree = find_unified_tree(roots)
    except SourceUnavailable:
        return None
    own = tree.own_path(read_once(roots.procfs / "self/cgroup") or b"")
    return read_once(tree.folder / own.strip("/") / "memory.stat")
