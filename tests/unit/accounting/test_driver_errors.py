"""Test that an error in the kernel log is counted once, on the GPU it concerns, and its words by NVIDIA's XIDs."""

from __future__ import annotations

import re

import pytest

from memwatch.core.accounting.driver_errors import XIDS, describe_kind, same_slot, unassigned_errors, with_logged
from memwatch.core.kernel_log import DriverError, KernelLog
from memwatch.core.model import Architecture, Device


def gpu(name: str, vendor: str, pci: str, errors: dict[str, int] | None = None) -> Device:
    return Device(name, vendor, name, Architecture.DISCRETE, pci=pci, errors=errors or {})


def error(driver: str, pci: str, kind: str, count: int = 1) -> DriverError:
    return DriverError(driver, pci, kind, count, 1_800_000_000.0, "a line")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("00000000:65:00.0", "0000:65:00", True),
        ("0000:03:00.0", "0000:03:00.0", True),
        ("0000000F:01:00.0", "000f:01:00", True),
        ("00000000:65:00.0", "0000:66:00", False),
        ("00000001:65:00.0", "0000:65:00", False),
    ],
)
def test_addresses_are_compared_as_addresses(one: str, other: str, same: bool) -> None:
    """NVML pads the domain to eight digits, the log to four; XIDs name no function."""
    assert same_slot(one, other) is same


def test_error_is_counted_on_the_gpu_with_its_address() -> None:
    """An error already counted by NVML is not counted again."""
    devices = (gpu("gpu0", "NVIDIA", "00000000:65:00.0", {"xid_79": 3}), gpu("gpu1", "NVIDIA", "00000000:66:00.0"))
    log = KernelLog(
        driver_errors=(error("nvidia", "0000:65:00", "xid_79", 2), error("nvidia", "0000:66:00", "xid_48"))
    )

    first, second = with_logged(devices, log)

    assert dict(first.errors) == {"xid_79": 3}
    assert dict(second.errors) == {"xid_48": 1}
    assert second.errors_seen_unix["xid_48"] == 1_800_000_000.0
    assert unassigned_errors(devices, log) == ()


def test_error_without_an_address_is_counted_on_the_only_gpu_of_its_driver() -> None:
    """With two such GPUs it belongs to neither and is listed under the driver's name."""
    line = KernelLog(driver_errors=(error("nvidia", "", "nv_err_no_memory"),))
    one = (gpu("gpu0", "NVIDIA", "00000000:65:00.0"), gpu("gpu1", "AMD", "0000:03:00.0"))
    two = (*one, gpu("gpu2", "NVIDIA", "00000000:66:00.0"))

    assert dict(with_logged(one, line)[0].errors) == {"nv_err_no_memory": 1}
    assert with_logged(two, line) == two
    assert [found.place for found in unassigned_errors(two, line)] == ["nvidia"]


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD", "Intel"])
def test_error_of_wsl_is_counted_on_the_only_gpu_of_any_maker(vendor: str) -> None:
    """microsoft/WSL#41176: one driver for all, whose lines name no GPU."""
    line = KernelLog(driver_errors=(error("dxgkrnl", "", "no_memory"),))
    one = (gpu("gpu0", vendor, "00000000:65:00.0"),)
    two = (*one, gpu("gpu1", "NVIDIA", "00000000:66:00.0"))

    assert dict(with_logged(one, line)[0].errors) == {"no_memory": 1}
    assert [found.place for found in unassigned_errors(two, line)] == ["dxgkrnl"]


# Codes by NVIDIA's names for them, of its catalog (docs.nvidia.com/deploy/xid-errors) and of nverror.h of its open
# kernel modules, and words that ours have to contain.
ENGINES = {
    "CE": ("copy engine", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    "NVENC": ("video encoder", (47, 65, 73, 142)),
    "NVDEC": ("video decoder", (68, 83, 84, 88, 89, 96, 97, 98)),
    "NVJPG": ("JPEG engine", (82, 99, 100, 101, 102, 103, 104, 105)),
    "OFA": ("optical flow engine", (86, 139)),
}
NAMED = {
    "GPU stopped processing (until 2013)": (8, "stopped processing"),
    "Invalid or corrupted push buffer stream": (11, "invalid commands"),
    "GR_EXCEPTION": (13, "exception in a program's GPU code"),
    "GR_ILLEGAL_NOTIFY": (25, "invalid commands"),
    "FIFO_ERROR_MMU_ERR_FLT": (31, "page fault"),
    "PBDMA_ERROR": (32, "DMA controller"),
    "FECS_ERR_UNIMP_FIRMWARE_METHOD": (37, "firmware error"),
    "FECS_ERR_WATCHDOG_TIMEOUT": (38, "firmware error"),
    "RESETCHANNEL_VERIF_ERROR": (43, "the GPU is healthy"),
    "GR_FAULT_DURING_CTXSW": (44, "switching between programs"),
    "PREEMPTIVE_REMOVAL": (45, "removed"),
    "GPU_TIMEOUT_ERROR": (46, "stopped processing"),
    "GPU_ECC_DBE": (48, "double bit"),
    "SILENT_RUNNING_PWR_REDUCED_CLOCKING": (54, "auxiliary power"),
    "DISPLAY_CHANNEL_EXCEPTION": (56, "display"),
    "FB_LINK_TRAINING_FAILURE_ERROR": (57, "training of the link to the video memory"),
    "FB_MEMORY_ERROR": (58, "video memory error"),
    "PMU_ERROR": (59, "power management unit"),
    "SEC2_ERROR": (60, "security processor"),
    "PMU_BREAKPOINT": (61, "breakpoint"),
    "PMU_HALT_ERROR": (62, "power management unit halted"),
    "INFOROM_DRAM_RETIREMENT_EVENT": (63, "retired or row remapped"),
    "INFOROM_DRAM_RETIREMENT_FAILURE": (64, "failed"),
    "FECS_ERR_REG_ACCESS_VIOLATION": (66, "invalid access by the driver"),
    "FECS_ERR_VERIF_VIOLATION": (67, "invalid access by the driver"),
    "GR_CLASS_ERROR": (69, "refused a command"),
    "NVLINK_ERROR": (74, "NVLink error"),
    "VGPU_START_ERROR": (78, "vGPU"),
    "GPU_HAS_FALLEN_OFF_THE_BUS": (79, "fallen off the bus"),
    "PBDMA_PUSHBUFFER_CRC_MISMATCH": (80, "corrupted data sent"),
    "VGA_SUBSYSTEM_ERROR": (81, "VGA"),
    "EXCESSIVE_SBE_INTERRUPTS": (92, "high rate of corrected ECC errors"),
    "INFOROM_ERASE_LIMIT_EXCEEDED": (93, "wear limit"),
    "CONTAINED_ERROR": (94, "one program"),
    "UNCONTAINED_ERROR": (95, "several programs"),
    "SMBPBI_TEST_MESSAGE": (106, "test message"),
    "SMBPBI_TEST_MESSAGE_SILENT": (107, "test message"),
    "CTXSW_TIMEOUT_ERROR": (109, "timeout while switching between programs"),
    "SEC_FAULT_ERROR": (110, "security fault"),
    "GSP_RPC_TIMEOUT": (119, "(GSP) did not respond"),
    "GSP_ERROR": (120, "(GSP) error"),
    "C2C_ERROR": (121, "(C2C)"),
    "SPI_PMU_RPC_READ_FAIL": (122, "could not be read"),
    "SPI_PMU_RPC_WRITE_FAIL": (123, "could not be written"),
    "SPI_PMU_RPC_ERASE_FAIL": (124, "could not be erased"),
    "INFOROM_FS_ERROR": (125, "InfoROM error"),
    "ALI_TRAINING_FAIL": (136, "NVLink training"),
    "NVLINK_PRIV_ERR": (137, "through NVLink"),
    "UNRECOVERABLE_ECC_ERROR_ESCAPE": (140, "prevented page retirement"),
    "FAST_PATH_ERROR": (141, "CUDA fast path"),
    "GPU_INIT_ERROR": (143, "initialized"),
    "NVLINK_SAW_ERROR": (144, "(SAW)"),
    "NVLINK_RLW_ERROR": (145, "(RLW)"),
    "NVLINK_TLW_ERROR": (146, "(TLW)"),
    "NVLINK_TREX_ERROR": (147, "(TREX)"),
    "NVLINK_NVLPW_CTRL_ERROR": (148, "(NVLPW_CTRL)"),
    "NVLINK_NETIR_ERROR": (149, "(NETIR)"),
    "NVLINK_MSE_ERROR": (150, "(MSE)"),
    "KEY_ROTATION_ERROR": (151, "key rotation"),
    "DLA_SMMU_ERROR": (152, "deep learning accelerator error"),
    "DLA_TIMEOUT": (153, "deep learning accelerator timeout"),
    "GPU_RECOVERY_ACTION_CHANGED": (154, "recovery action"),
    "NVLINK_SW_DEFINED_ERROR": (155, "NVLink went down"),
    "RESOURCE_RETIREMENT_EVENT": (156, "part of the GPU retired"),
    "RESOURCE_RETIREMENT_FAILURE": (157, "retiring a part of the GPU failed"),
    "GPU_FATAL_TIMEOUT": (158, "fatal timeout"),
    "CHI_NON_DATA_ERROR": (159, "(C2C)"),
    "CHANNEL_RETIREMENT_EVENT": (160, "channel retired"),
    "CHANNEL_RETIREMENT_FAILURE": (161, "retiring a memory channel failed"),
    "PSHC_REENGAGED": (162, "power smoothing is on"),
    "PSHC_DISENGAGED": (163, "power smoothing is off"),
    "PSHC_LOW_LIFETIME": (164, "nearly worn out"),
    "PSHC_ZERO_LIFETIME": (165, "hardware is worn out"),
    "NVLINK_SECURE_CRYPTO_ERR": (166, "unencrypted NVLink traffic"),
    "PCIE_FATAL_TIMEOUT": (167, "PCIe timeout"),
    "REDUCED_GPU_MEMORY_CAPACITY": (168, "less GPU memory"),
    "SEC2_HALT_ERROR": (169, "security processor halted"),
    "NVLINK_SECURE_OTHER": (170, "confidential computing"),
    "UNCORRECTABLE_DRAM_ERROR": (171, "(DRAM)"),
    "UNCORRECTABLE_SRAM_ERROR": (172, "SRAM"),
    "C2C_FATAL_LINK_FAILURE": (173, "(C2C)"),
    "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT": (174, "killed"),
    "MEMORY_SUBSYSTEM_ERROR": (175, "memory subsystem"),
    "PCIE_CORRECTABLE_ERROR_FAULT": (176, "PCIe"),
}
CATALOG = {code: words for words, codes in ENGINES.values() for code in codes} | dict(NAMED.values())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("xid_79", "XID 79: GPU has fallen off the bus"),
        ("xid_48", "XID 48: uncorrectable ECC error (double bit)"),
        ("xid_185", "unknown XID 185"),
        ("xid_999", "unknown XID 999"),
        ("xid_", "XID "),
        ("page_fault", "a page fault of a GPU program"),
        ("no_memory", "not enough memory for a command or a buffer"),
    ],
)
def test_kind_is_described(kind: str, words: str) -> None:
    assert describe_kind(kind) == words


def test_xids_have_the_meaning_of_the_catalog() -> None:
    """Each code that it names and calls used, and no other one."""
    assert len(CATALOG) == len(NAMED) + sum(len(codes) for _, codes in ENGINES.values())
    assert sorted(XIDS) == sorted(CATALOG)
    assert {code: text for code, text in XIDS.items() if CATALOG[code] not in text} == {}


def test_meanings_are_short_and_fit_into_a_sentence() -> None:
    """They follow "XID 79: ", in events, on pages and in alerts."""
    assert all(len(words) <= 75 and not re.search(r"[.;:]$", words) for words in XIDS.values())
