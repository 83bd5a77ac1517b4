"""Test the output of rocm-smi and amd-smi in every observed form: values, reasons or an error message."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.collectors.amd_cli import (
    NoOutputError,
    amd_smi_addresses,
    amd_smi_memory,
    amd_smi_processes,
    parse_document,
    rocm_smi_memory,
)
from memwatch.core.drivers.amd.records import Region
from memwatch.core.drivers.amd.smi import (
    SmiProcess,
    parse_bad_pages,
    parse_count,
    parse_errors,
    parse_pci,
    parse_process,
    parse_processes,
    parse_vram_type,
    repair_size,
)
from memwatch.core.model import Absent
from simulators.amd_smi_samples import AMD_SMI, PROCESS, ROCM_SMI, USAGE, WARNING

MIB = 1 << 20


def printed(document: Any, before: str = "") -> Any:
    return parse_document((before + json.dumps(document, indent=4)).encode(), "rocm-smi")


@pytest.mark.parametrize("before", ["", WARNING, "\n\n", "======= ROCm =======\n"])
def test_rocm_smi_memory_is_parsed(before: str) -> None:
    """Numbers are strings, text may precede the JSON, and the driver's version is not a card."""
    (memory,) = rocm_smi_memory(printed(ROCM_SMI, before))

    assert (memory.index, memory.pci) == (0, "0000:04:00.0")
    assert memory.vram == Region(17163091968, 17776640)
    assert memory.visible_vram == Region(268435456, 13557760)
    assert memory.gtt == Region(17163091968, 25608192)


def test_lower_case_keys_of_old_releases_are_parsed() -> None:
    """Keys are matched without regard to case."""
    small = {"card1": {key.lower(): value for key, value in ROCM_SMI["card0"].items()}}

    (memory,) = rocm_smi_memory(printed(small))

    assert memory.index == 1
    assert memory.vram == Region(17163091968, 17776640)


@pytest.mark.parametrize(
    ("key", "name"),
    [("Card series", "Radeon"), ("Card Series", "Radeon"), ("Card model", "Radeon"), ("x", None)],
)
def test_name_is_found_under_each_known_key(key: str, name: str | None) -> None:
    """The label of the product changed from release to release."""
    (memory,) = rocm_smi_memory({"card0": {key: "Radeon"}})

    assert memory.name == (Absent.NOT_AVAILABLE if name is None else name)


@pytest.mark.parametrize(
    ("figure", "used"),
    [
        ("N/A", Absent.NOT_SUPPORTED),
        (None, Absent.NOT_SUPPORTED),
        ("12 MB", Absent.INCONSISTENT),
        ("-3", Absent.INCONSISTENT),
        ("99999999999999999", Absent.INCONSISTENT),
        (17776640, 17776640),
    ],
)
def test_invalid_use_is_absent_with_a_reason(figure: Any, used: Any) -> None:
    """ "N/A" is not supported, and other text is inconsistent."""
    card = {**ROCM_SMI["card0"], "VRAM Total Used Memory (B)": figure}

    (memory,) = rocm_smi_memory({"card0": card})

    assert memory.vram == Region(17163091968, used)


@pytest.mark.parametrize("document", [AMD_SMI, {"gpu_data": AMD_SMI}])
def test_amd_smi_memory_is_parsed(document: Any) -> None:
    """A list, or a list under gpu_data; its MB is a MiB."""
    (memory,) = amd_smi_memory(printed(document), {0: "0000:03:00.0"})

    assert memory.pci == "0000:03:00.0"
    assert memory.vram == Region(8176 * MIB, 202 * MIB)
    assert memory.gtt == Region(64357 * MIB, 65 * MIB)


def test_unreadable_amd_smi_fields_are_absent() -> None:
    """The text "N/A" replaces an object."""
    usage = {**USAGE, "used_vram": "N/A", "total_gtt": "N/A", "used_gtt": {"value": "N/A", "unit": "MB"}}

    (memory,) = amd_smi_memory([{"gpu": 0, "mem_usage": usage}], {})

    assert memory.vram == Region(8176 * MIB, Absent.NOT_SUPPORTED)
    assert memory.gtt.total_bytes is Absent.NOT_SUPPORTED
    assert memory.gtt.used_bytes is Absent.INCONSISTENT
    assert memory.pci is None


def test_amd_smi_without_gpus_is_empty() -> None:
    """An empty list under gpu_data is no GPU and no error."""
    assert amd_smi_memory(printed({"gpu_data": []}), {}) == []


def test_amd_smi_gpus_are_matched_by_address() -> None:
    """The tool's numbering differs from that of /sys/class/drm."""
    document = [{"gpu": 0, "bdf": "0000:C5:00.0"}, {"gpu": 1, "bdf": "N/A"}, "rubbish"]

    assert amd_smi_addresses(printed(document)) == {0: "0000:c5:00.0"}


def test_processes_are_parsed_by_gpu() -> None:
    """A sentence in place of a process is skipped, and sizes that took KiB for 1000 bytes are corrected."""
    document = [
        {"gpu": 0, "process_list": [{"process_info": PROCESS}]},
        {"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]},
        {"gpu": 2, "process_list": [{"process_info": {"pid": 7, "name": "x"}}, 5]},
    ]

    assert amd_smi_processes(printed(document)) == {
        0: (SmiProcess(213534, 56 * 1024, 6180 * 1024),),
        1: (),
        2: (),
    }


@pytest.mark.parametrize(
    ("printed_bytes", "actual_bytes"),
    [(6180000, 6180 << 10), (6328320, 6328320), (0, 0), (4096000, 4096000), (5000, 5000)],
)
def test_sizes_in_thousands_are_corrected_to_kib(printed_bytes: int, actual_bytes: int) -> None:
    """Memory comes in pages: a multiple of 1000 that is no number of pages was printed from KiB."""
    assert repair_size(printed_bytes) == actual_bytes


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (b"", "printed nothing, as it does without a driver, or without a right to use the GPU"),
        (b"\n  \n", "printed nothing, as it does without a driver, or without a right to use the GPU"),
        (b"ERROR: No AMD GPU\n", "no valid JSON: ERROR: No AMD GPU$"),
        (
            b"RuntimeError: WARNING: User is missing the following required groups: render, video.\nMore",
            "video\\.$",
        ),
        (b"\x1b[31m" + b"x" * 1000, r"no valid JSON: \\u001b\[31mx{155}$"),
        (b'{"card0": ', "no valid JSON"),
        (b"[" * 100_000, "no valid JSON"),
        (b"\xff\xfe", "no valid JSON"),
    ],
)
def test_missing_output_is_an_error(output: bytes, sentence: str) -> None:
    """Empty output with exit code 0 means that there is no driver; any other invalid output is an error too."""
    with pytest.raises(NoOutputError, match=sentence):
        parse_document(output, "rocm-smi")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["N/A", "MB", "12"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpu", "gpu_data", "mem_usage", "total_vram", "value", "unit", "card0", "pid", "bdf"])
            | st.sampled_from(["process_list", "process_info", "memory_usage", "vram_mem", "gtt_mem", "PCI Bus"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(JSON)
def test_arbitrary_json_yields_valid_values(document: Any) -> None:
    """Arbitrary JSON yields nothing, or plausible values."""
    rocm_smi_memory(document)
    for memory in amd_smi_memory(document, amd_smi_addresses(document)):
        assert memory.vram.total_bytes == 0 or memory.vram.total_bytes
    for processes in amd_smi_processes(document).values():
        assert all(process.pid > 0 for process in processes)
    assert all(count >= 0 for count in {**parse_errors(document), **parse_bad_pages(document)}.values())
    parse_processes(document)
    parse_process(document)
    parse_vram_type(document)
    parse_pci(document)
    parse_count(document)


@given(st.binary(max_size=300))
def test_arbitrary_output_is_parsed_or_rejected(output: bytes) -> None:
    """Any bytes are a document or raise NoOutputError."""
    with suppress(NoOutputError):
        rocm_smi_memory(parse_document(output, "x"))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"vram_type": 4}, "HBM3"),
        ({"vram_type": 31}, "LPDDR5"),
        ({"vram_type": "GDDR6"}, "GDDR6"),
        ({"vram_type": "N/A"}, Absent.NOT_SUPPORTED),
        ({"vram_type": 999}, Absent.NOT_SUPPORTED),
        ({"vram_type": 0}, Absent.NOT_SUPPORTED),
        ({}, Absent.NOT_SUPPORTED),
        (None, Absent.NOT_SUPPORTED),
    ],
)
def test_vram_type_is_parsed(answer: Any, kind: str | Absent) -> None:
    """A number of the library's enumeration becomes its name; an unknown number is not supported."""
    assert parse_vram_type(answer) == kind


def test_answers_of_the_library_are_counted() -> None:
    """Errors by kind, pages by number, and a sentence in place of an empty list."""
    assert parse_errors({"correctable_count": 3, "uncorrectable_count": "N/A"}) == {"ecc_corrected": 3}
    assert parse_bad_pages([{"value": 0}, {"value": 1}]) == {"pages_retired": 2}
    assert parse_bad_pages("No bad pages found.") == {"pages_retired": 0}
    listed = [{"pid": 5, "mem": 0, "memory_usage": {"vram_mem": 8192, "gtt_mem": 4096, "cpu_mem": 0}}, "x", {}]
    assert parse_processes(listed) == (SmiProcess(5, 8192, 4096),)
