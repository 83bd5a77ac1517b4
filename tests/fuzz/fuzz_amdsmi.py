"""JSON output of rocm-smi and amd-smi, in the forms of all releases."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fuzz.oracle import are_valid
from memwatch.core.collectors import amd_cli
from memwatch.core.drivers.amd import smi
from memwatch.core.model import Absent

MAX_BYTES = 1 << 60
MAX_GIB_AS_BYTES = MAX_BYTES << 30


def check(data: bytes) -> None:
    with suppress(amd_cli.NoOutputError):
        tools(amd_cli.parse_document(data, "amd-smi"))


def tools(document: Any) -> None:
    addresses = amd_cli.amd_smi_addresses(document)
    are_valid(list(addresses))
    for one in (*amd_cli.rocm_smi_memory(document), *amd_cli.amd_smi_memory(document, addresses)):
        are_valid(one)
        for region in (one.vram, one.visible_vram, one.gtt):
            total, used = region.total_bytes, region.used_bytes
            assert isinstance(total, Absent) or total <= MAX_GIB_AS_BYTES
            assert not isinstance(used, int) or isinstance(total, Absent) or used <= total
    are_valid(amd_cli.amd_smi_processes(document))
    library(document)


def library(answer: Any) -> None:
    """Check the same forms as objects of the library."""
    are_valid((smi.parse_errors(answer), smi.parse_bad_pages(answer), smi.parse_processes(answer)))
    assert isinstance(smi.parse_vram_type(answer), (str, Absent))
    smi.parse_pci(answer)
