"""Test the explanations of unattributed memory, which depend on the machine and on its permissions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.core.accounting.unattributed import (
    HELD_BY_PROCESSES,
    describe_causes,
    hides_processes,
    unattributed_bytes,
)
from memwatch.core.model import Absent, Bytes, Device, Process, ProcessList, ShareKind
from memwatch.core.snapshot import ProcessScan, Snapshot
from support.sample_snapshots import SAMPLES, calm_workstation, critical_gb10, discrete_gpu


@pytest.mark.parametrize("name", SAMPLES)
def test_every_known_remainder_has_an_explanation(name: str) -> None:
    """A pool has an explanation exactly if its unattributed memory is known."""
    snapshot = SAMPLES[name]()

    for pool in snapshot.pools:
        sentence = describe_causes(pool, snapshot)
        assert (sentence == "") == isinstance(pool.unattributed_bytes, Absent)
        assert sentence == "" or sentence.endswith(".")


def test_causes_depend_on_the_machine() -> None:
    """Managed memory on a unified machine, contexts on a card, and no GPU on a machine without one."""
    unified, plain = critical_gb10(), calm_workstation()

    assert "cudaMallocManaged" in describe_causes(unified.pools[0], unified)
    assert "GPU" not in describe_causes(plain.pools[0], plain)
    discrete = discrete_gpu()
    vram = next(pool for pool in discrete.pools if pool.kind.value == "vram")
    assert "CUDA context" in describe_causes(vram, discrete)


def test_more_than_a_driver_takes_is_that_of_a_process_that_is_not_listed() -> None:
    """12.8 GiB of an H100 were "driver memory for each CUDA context, GPU page tables, displays"."""
    discrete = discrete_gpu()
    vram = next(pool for pool in discrete.pools if pool.kind.value == "vram")
    holders = sum(vram.id in one.device_bytes for one in discrete.processes)

    small, large = (
        describe_causes(replace(vram, unattributed_bytes=(1 + holders) * (1 << 30) + more), discrete)
        for more in (0, 1)
    )

    assert "does not list" not in small
    assert small.endswith("a display, if one is attached.")
    assert large.startswith("Usually memory of a process that the driver does not list, such as one in another")
    assert "display" not in large


def test_hidden_processes_are_named_first() -> None:
    """If processes are hidden, their memory is the likeliest part of the remainder."""
    snapshot = replace(critical_gb10(), process_scan=ProcessScan(3, 0, "partial", "why"))

    assert describe_causes(snapshot.pools[0], snapshot).startswith(
        "Usually memory of processes that are not visible"
    )


def with_share(used: Bytes, held: Bytes | None, process_list: str) -> Snapshot:
    """Return a GB10 snapshot with a CUDA Pool of this use, of which one process holds `held`."""
    snapshot = critical_gb10()
    shares = tuple(replace(share, used_bytes=used, device="gpu0") for share in snapshot.shares)
    device = replace(snapshot.devices[0], id="gpu0", process_list=process_list)
    holds = {} if held is None else {shares[0].id: held}
    process = Process(1, 0.0, "x", 1, 1, "rss", unit=None, container=None, device_bytes=holds)
    return replace(snapshot, shares=shares[:1], devices=(device,), processes=(process,))


@pytest.mark.parametrize(
    ("used", "held", "process_list", "rest"),
    [
        (10, 7, "complete", 3),
        (10, 12, "complete", 0),
        (10, None, "complete", 10),
        (10, None, "partial", Absent.NOT_AVAILABLE),
        (10, Absent.STALE, "complete", Absent.STALE),
        (Absent.NOT_PERMITTED, 7, "complete", Absent.NOT_PERMITTED),
    ],
)
def test_rest_of_a_share_is_unknown_where_holders_are_hidden(
    used: Bytes, held: Bytes | None, process_list: str, rest: Bytes
) -> None:
    """The part that no process holds; where processes are hidden, it is unknown without a holder."""
    snapshot = with_share(used, held, process_list)

    assert unattributed_bytes(snapshot.shares[0], snapshot) == rest


def test_cgroup_limits_are_not_held_by_processes() -> None:
    """A cgroup's limit is not a share that a process holds."""
    assert ShareKind.CGROUP not in HELD_BY_PROCESSES


def test_processes_are_hidden_where_a_list_is_partial_without_a_known_holder() -> None:
    """A process that only the driver lists makes its device's list partial, and is known all the same."""
    here = replace(discrete_gpu(), process_scan=ProcessScan(3, 0, "complete", ""), processes=())
    first, other = here.devices
    ghost = Process(7, 1.0, "x", 0, 0, "x", visible=False, device_bytes={first.id: 1 << 30})

    def with_list(device: Device, state: ProcessList) -> Snapshot:
        return replace(here, devices=(replace(device, process_list=state), replace(other, process_list="complete")))

    assert not hides_processes(with_list(first, "complete"))
    assert hides_processes(with_list(first, "partial"))
    assert not hides_processes(replace(with_list(first, "partial"), processes=(ghost,)))
