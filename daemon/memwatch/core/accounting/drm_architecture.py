"""Architecture of DRM devices: relation of their memory to System RAM for Intel GPUs and systems on a chip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from memwatch.core.accounting.device_memory import ClientPart, ClientTotals, sum_parts
from memwatch.core.drivers.drm.cards import can_render
from memwatch.core.drivers.drm.records import DrmCard, DrmClient, DrmReading
from memwatch.core.model import Absent, Architecture, Bytes, sum_figures

# Drivers with their own accounting module (amdgpu, nvidia), and displays without a GPU.
OTHERS = frozenset({"amdgpu", "nvidia", "nvidia-drm", "radeon"})
INTEL = frozenset({"i915", "xe"})
# Platform drivers whose buffers are pages of System RAM, by their name in fdinfo.
ON_A_CHIP = frozenset({"asahi", "etnaviv", "lima", "msm", "panfrost", "panthor", "powervr", "v3d"})
# Neural processing units without dedicated memory, by the bound driver.
NPUS = frozenset({"intel_vpu", "amdxdna", "rocket"})
# Where display and GPU are one kernel device, the display's driver is bound.
WORDS = {"msm_dpu": "msm", "msm_mdp": "msm", "msm-mdss": "msm", "adreno": "msm", "vc4-drm": "v3d"}
# Regions in the card's own memory (xe: vram0; i915: local0 and the part that firmware keeps).
OWN = ("vram", "local", "stolen-local")
# Regions in System RAM. The kernel's fdinfo rules reserve "memory" for it; firmware's "stolen" memory is outside.
IN_RAM = ("system", "gtt", "memory", "cpu")
UNKNOWN = Absent.NOT_SUPPORTED


class Gpu(Struct, frozen=True):
    """A card with its clients, its architecture, and the observations that decided it.

    `uncounted_pids`: processes that use it, but whose memory its driver does not report.
    """

    card: DrmCard
    driver: str
    clients: tuple[DrmClient, ...]
    architecture: Architecture
    evidence: tuple[str, ...]
    in_ram: ClientTotals
    own: ClientTotals
    uncounted_pids: frozenset[int] = frozenset()

    @property
    def is_silent(self) -> bool:
        """True if its driver has clients but does not report them or their memory."""
        return self.driver == "nouveau" or bool(self.uncounted_pids)


def is_own(region: str) -> bool:
    return region.startswith(OWN)


def is_in_ram(region: str) -> bool:
    return region.startswith(IN_RAM)


# A reading is valid for 5 s and used on every tick; 60 clients take 0.3 ms.
@lru_cache(maxsize=1)
def select_gpus(reading: DrmReading) -> tuple[Gpu, ...]:
    """Return the GPUs that this module accounts for, in the order of the reading's cards."""
    found = [_build_gpu(card, reading) for card in reading.cards]
    return tuple(gpu for gpu in found if gpu is not None)


@lru_cache(maxsize=1)
def select_npus(reading: DrmReading) -> tuple[Gpu, ...]:
    """Return the neural processing units that use System RAM, in the order of the reading."""
    found = [_build_npu(card, reading) for card in reading.npus]
    return tuple(npu for npu in found if npu is not None)


def sum_by_pid(clients: Sequence[DrmClient], counts: Callable[[str], bool], used: Bytes = UNKNOWN) -> ClientTotals:
    """Sum the clients in the regions that count, in which `used` bytes are in use."""
    unread = {pid for client in clients if any(map(counts, client.unread)) for pid in client.pids}
    return replace(
        sum_parts((_part_of(client, counts) for client in clients), used), unread_pids=tuple(sorted(unread))
    )


def _part_of(client: DrmClient, counts: Callable[[str], bool]) -> ClientPart:
    sizes = {region: size for region, size in client.resident.items() if counts(region)}
    shared = sum(min(size, client.shared.get(region, 0)) for region, size in sizes.items())
    # panthor reports its internal memory for a client separately.
    internal = client.other.get("panthor-resident-memory", 0) if counts("memory") else 0
    return ClientPart(client.pids, sum(sizes.values()) + internal, shared)


def own_used(card: DrmCard) -> Bytes:
    """Return the use of the card's own memory by a counter of the whole device."""
    regions = [region.used_bytes for region in card.regions if is_own(region.name)]
    return sum_figures(regions) if regions else UNKNOWN


def clients_on(card: DrmCard, clients: Iterable[DrmClient]) -> tuple[DrmClient, ...]:
    """Return the clients of a card, matched by PCI address, otherwise by the opened device file."""
    return tuple(
        client
        for client in clients
        if (client.pdev == card.pdev if client.pdev else client.node in card.nodes) and client.driver not in OTHERS
    )


def _build_npu(card: DrmCard, reading: DrmReading) -> Gpu | None:
    """None for an accelerator that is not known to use System RAM, such as one on a card."""
    clients = clients_on(card, reading.clients)
    regions = {region for client in clients for region in client.resident}
    if card.driver not in NPUS and not (regions and all(map(is_in_ram, regions))):
        return None
    driver = "" if isinstance(card.driver, Absent) else card.driver
    return Gpu(
        card=card,
        driver=driver,
        clients=clients,
        architecture=Architecture.UNIFIED,
        evidence=(),
        in_ram=sum_by_pid(clients, is_in_ram),
        own=ClientTotals(0, {}),
        uncounted_pids=uncounted_pids(card, clients, reading),
    )


def uncounted_pids(card: DrmCard, clients: Iterable[DrmClient], reading: DrmReading) -> frozenset[int]:
    """Return the processes that have the card open while its driver does not report their memory."""
    mute = [reading.mute.get(node, ()) for node in card.nodes]
    silent = [client.pids for client in clients if client.basis is None]
    return frozenset(chain(*mute, *silent))


def _build_gpu(card: DrmCard, reading: DrmReading) -> Gpu | None:
    clients = clients_on(card, reading.clients)
    bound = "" if isinstance(card.driver, Absent) else card.driver
    driver = next((client.driver for client in clients), WORDS.get(bound, bound))
    reporting = [client for client in clients if client.basis is not None]
    if bound in OTHERS or card.place.startswith("amdgpu_xcp") or not can_render(card.nodes):
        return None
    if driver not in INTEL | ON_A_CHIP | {"nouveau"} and not reporting:
        return None
    architecture, evidence = _decide_architecture(card, driver, reporting)
    return Gpu(
        card=card,
        driver=driver,
        clients=clients,
        architecture=architecture,
        evidence=(f"the driver is {driver}", *evidence),
        in_ram=sum_by_pid(clients, is_in_ram),
        own=sum_by_pid(clients, is_own, own_used(card)),
        uncounted_pids=uncounted_pids(card, clients, reading),
    )


def _decide_architecture(
    card: DrmCard, driver: str, reporting: Sequence[DrmClient]
) -> tuple[Architecture, tuple[str, ...]]:
    regions = sorted({region for client in reporting for region in client.resident})
    own = [region for region in regions if is_own(region)] + [one.name for one in card.regions if is_own(one.name)]
    if own:
        return Architecture.DISCRETE, (f"it has dedicated memory: {', '.join(dict.fromkeys(own))}",)
    if driver in INTEL and card.pdev is not None and card.pdev.endswith(":00:02.0"):
        seen = (f"clients hold {', '.join(regions)} and no dedicated memory",) if regions else ()
        return Architecture.UNIFIED, ("it is part of the processor (PCI device 00:02.0)", *seen)
    if regions and all(is_in_ram(region) or region.startswith("stolen") for region in regions):
        return Architecture.UNIFIED, (f"clients hold {', '.join(regions)} and no dedicated memory",)
    if card.pdev is None and driver in ON_A_CHIP:
        return Architecture.UNIFIED, ("it is a platform device: part of a system on a chip",)
    if driver in INTEL:
        return Architecture.UNKNOWN, ("no client reports the location of its buffers",)
    return Architecture.UNKNOWN, (f"{driver} does not report the memory of its clients",)
