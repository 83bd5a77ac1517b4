"""Files of the compute driver and of amdgpu: topology, memory banks, values of sysfs, errors, names."""

from __future__ import annotations

from fuzz.oracle import are_in_input, are_valid
from memwatch.core.drivers.amd import amdgpu_cards, sysfs
from memwatch.core.model import Absent

KNOWN = frozenset({"0000:03:00.0", "0000:0b:00.0", "0001:03:00.0"})


def check(data: bytes) -> None:
    """Check a node's properties, and after each `---` those of one of its banks."""
    lazy_app, *banks = data.split(b"---\n")[:20]
    properties, of_banks = sysfs.parse_properties(lazy_app), [sysfs.parse_properties(bank) for bank in banks]
    are_in_input([properties, of_banks], data)
    node = sysfs.parse_node(1, 7, properties, of_banks, KNOWN)
    if node is not None:
        assert node.pci in KNOWN
        are_valid(node)
        assert not isinstance(node.bank_bytes, int) or node.bank_bytes <= sum(
            bank.get("size_in_bytes", 0) for bank in of_banks
        )
        held, _ = sysfs.held_by_gpu([(9, 7, sysfs.parse_figure(lazy_app)), (9, 7, 5)], [node])
        are_valid(held)
    files(lazy_app)


def files(data: bytes) -> None:
    figure = sysfs.parse_figure(data)
    are_in_input(figure, data)
    region = sysfs.build_region(figure, sysfs.parse_figure(data[::-1]))
    assert not isinstance(region.used_bytes, int) or not isinstance(figure, int) or region.used_bytes <= figure
    ratio = sysfs.parse_ratio(data)
    assert isinstance(ratio, Absent) or 0 <= ratio <= 1
    text = sysfs.parse_text(data)
    assert isinstance(text, Absent) or ("\n" not in text and text)
    are_in_input(sysfs.parse_errors(data), data)
    are_valid((sysfs.parse_bad_pages(data), sysfs.parse_release(data)))
    sysfs.parse_id(data)
    sysfs.parse_metrics_format(data)
    amdgpu_cards.parse_device(data)
    amdgpu_cards.parse_ids(data)
    sysfs.parse_gpu_id(data.decode("latin-1"))
