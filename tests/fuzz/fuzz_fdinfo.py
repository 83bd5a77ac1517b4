"""fdinfo of graphics descriptors, and other files of drivers without a library: dmem, uevent, debugfs, pci.ids."""

from __future__ import annotations

from fuzz.oracle import are_in_input, are_valid
from memwatch.core.drivers.drm import cards
from memwatch.core.drivers.drm.clients import ClientDescriptor, merge_clients, parse_fdinfo
from memwatch.core.linux.pci import is_pci_address


def check(data: bytes) -> None:
    first, _, second = data.partition(b"---\n")
    infos = [info for info in (parse_fdinfo(first), parse_fdinfo(second)) if info is not None]
    for info in infos:
        sizes = (info.resident, info.shared, info.other)
        are_valid(sizes)
        are_in_input(sizes, data)
        are_in_input(info.client_id, data)
        assert info.pdev is None or is_pci_address(info.pdev)
        assert (info.basis is None) == (not info.resident)
        assert all(count > 0 for count in info.rejected.values())
    clients = merge_clients([ClientDescriptor(pid, "renderD128", info) for pid, info in enumerate(infos, 1)])
    assert len({(one.driver, one.pdev, one.client_id) for one in clients}) == len(clients)
    assert sum(len(one.pids) for one in clients) == len(infos)
    files(data)


def files(data: bytes) -> None:
    are_in_input(cards.parse_dmem(data), data)
    for region in (cards.parse_vram_mm("vram0", data), cards.parse_lmem(data)):
        if region is not None:
            are_valid(region)
            are_in_input((region.size_bytes, region.used_bytes), data)
            assert not isinstance(region.used_bytes, int) or region.used_bytes <= region.size_bytes
    cards.select_compatible(cards.parse_uevent(data))
    cards.parse_id(data)
    cards.find_model(data, "8086", "56a0")
