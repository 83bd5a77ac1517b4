"""What rocm-smi and amd-smi print as JSON, in all the shapes of their releases."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fuzz.oracle import are_figures
from memwatch.drivers.amd import smi, smi_json
from memwatch.model import Absent

MOST_BYTES = 1 << 60
MOST_GIB = MOST_BYTES << 30


def check(data: bytes) -> None:
    with suppress(smi_json.NoAnswer):
        tools(smi_json.document_of(data, "amd-smi"))


def tools(document: Any) -> None:
    addresses = smi_json.amd_smi_addresses(document)
    are_figures(list(addresses))
    for one in (*smi_json.rocm_smi_memory(document), *smi_json.amd_smi_memory(document, addresses)):
        are_figures(one)
        for region in (one.vram, one.visible_vram, one.gtt):
            total, used = region.total_bytes, region.used_bytes
            assert isinstance(total, Absent) or total <= MOST_GIB
            assert not isinstance(used, int) or isinstance(total, Absent) or used <= total
    are_figures(smi_json.amd_smi_processes(document))
    library(document)


def library(answer: Any) -> None:
    """The same shapes come from the library, as objects."""
    are_figures((smi.errors_of(answer), smi.bad_pages_of(answer), smi.processes_of(answer)))
    assert isinstance(smi.vram_type_of(answer), (str, Absent))
    smi.pci_of(answer)
