"""Test that the fdinfo of a graphics driver becomes bytes by region, and that invalid lines are counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.drivers.drm.clients import ClientDescriptor, Fdinfo, merge_clients, parse_fdinfo
from simulators.drm_machine import fdinfo

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

PANTHOR = """\
pos:	0
flags:	02400002
mnt_id:	29
ino:	491
drm-driver:	panthor
drm-client-id:	10
drm-engine-panthor:	111110952750 ns
drm-cycles-panthor:	94439687187
drm-maxfreq-panthor:	1000000000 Hz
drm-curfreq-panthor:	1000000000 Hz
panthor-resident-memory:	10396 KiB
panthor-active-memory:	10396 KiB
drm-total-memory:	16480 KiB
drm-shared-memory:	0
drm-active-memory:	16200 KiB
drm-resident-memory:	16480 KiB
drm-purgeable-memory:	0
"""
BEFORE_5_19 = """\
pos:	0
flags:	02100002
mnt_id:	24
pdev:	0000:0A:00.0
pasid:	32771
vram mem:	262144 kB
gtt mem:	8192 kB
cpu mem:	0 kB
gfx0:	1.04%
"""
NOUVEAU = "pos:\t0\ndrm-driver:\tnouveau\ndrm-client-id:\t4\ndrm-pdev:\t0000:01:00.0\n"


def parsed(text: str) -> Fdinfo:
    found = parse_fdinfo(text.encode())
    assert found is not None
    return found


def test_units_may_differ_between_lines() -> None:
    """The kernel scales only sizes that divide evenly, so bytes, KiB and MiB occur side by side."""
    text = fdinfo("xe", 3, "0000:03:00.0", system="0", gtt="12345", stolen="51200 KiB", vram0="8 MiB")

    assert parsed(text).resident == {"system": 0, "gtt": 12345, "stolen": 52428800, "vram0": 8388608}


@pytest.mark.parametrize("value", ["8 GiB", "-1", "N/A", "", "1e9", "12 MB", "9" * 21, "18446744073709551615 MiB"])
def test_invalid_size_is_left_out_and_counted(value: str) -> None:
    """The key is ignored and the others stay: an unreadable size is never 0."""
    found = parsed(fdinfo("xe", 3, "0000:03:00.0", f"drm-resident-vram0:\t{value}", gtt="4 MiB"))

    assert found.resident == {"gtt": 4 * MIB}
    assert found.rejected == {"drm-resident-vram0": 1}


def test_resident_and_its_older_name_count_once() -> None:
    """drm-memory-vram repeats drm-resident-vram: 256 MiB once."""
    aliases = ("drm-memory-vram:\t262144 KiB", "drm-memory-gtt:\t1024 KiB")
    found = parsed(fdinfo("amdgpu", 7, "0000:c1:00.0", *aliases, vram="256 MiB"))

    assert found.resident == {"vram": 256 * MIB, "gtt": MIB}
    assert found.basis == "resident"


def test_older_key_alone_is_read() -> None:
    """A Radeon 890M with a model of 24 GB: the memory is in GTT, and 5 MiB in VRAM."""
    lines = ("drm-memory-gtt:\t25258000 KiB", "drm-memory-vram:\t5348 KiB", "amd-evicted-vram:\t64 KiB")
    found = parsed(fdinfo("amdgpu", 7, "0000:c1:00.0", *lines))

    assert found.resident == {"gtt": 25_864_192_000, "vram": 5348 * KIB}
    assert found.basis == "memory"
    assert found.other == {"amd-evicted-vram": 64 * KIB}


def test_amdgpu_fdinfo_before_linux_5_19_is_read() -> None:
    """amdgpu used its own keys, kB for KiB, and the PASID in place of a client id."""
    found = parsed(BEFORE_5_19)

    assert (found.driver, found.pdev, found.client_id) == ("amdgpu", "0000:0a:00.0", 32771)
    assert found.resident == {"vram": 256 * MIB, "gtt": 8 * MIB, "cpu": 0}


def test_total_size_is_marked_as_its_basis() -> None:
    """drm-total-* counts buffers without memory behind them, so the reading names its basis."""
    found = parsed("drm-driver:\tlima\ndrm-client-id:\t1\ndrm-total-memory:\t12 MiB\n")

    assert (found.basis, found.resident) == ("total", {"memory": 12 * MIB})


def test_driver_without_memory_keys_has_no_basis() -> None:
    """nouveau has no memory keys, which is not 0 bytes."""
    found = parsed(NOUVEAU)

    assert (found.basis, found.resident) == (None, {})


@pytest.mark.parametrize("prefix", ["amdxdna_accel_driver", "amdxdna"])
def test_keys_of_amdxdna_count_each_buffer_once(prefix: str) -> None:
    """Its drm-total-memory counts heap buffers twice; its own two keys together count everything once."""
    keys = {"heap": "8 MiB", "internal": "65540 KiB", "external": "2048 MiB"}
    text = fdinfo(
        "amdxdna_accel_driver",
        5,
        "0000:c6:00.1",
        *(f"{prefix}-{key}-alloc:\t{size}" for key, size in keys.items()),
        "drm-total-memory:\t2122 MiB",
        "drm-shared-memory:\t0",
    )

    found = parsed(text)

    assert (found.basis, found.resident) == ("alloc", {"memory": 2 * GIB + 65540 * KIB})
    assert not found.rejected


@pytest.mark.parametrize(
    ("text", "basis", "resident"),
    [
        pytest.param(
            "drm-driver:\tv3d\ndrm-client-id:\t7\ndrm-total-memory:\t3772 KiB\ndrm-resident-memory:\t3520 KiB\n",
            "resident",
            {"memory": 3520 << 10},
            id="nicolargo/glances#3611",
        ),
        pytest.param(
            "drm-driver:\tv3d\ndrm-client-id:\t8\ndrm-total-memory:\t0\ndrm-shared-memory:\t0\n",
            "resident",
            {"memory": 0},
            id="the same, of a client without buffers",
        ),
        pytest.param(
            "drm-driver:\tetnaviv\ndrm-client-id:\t40\ndrm-engine-GPU:\t0 ns\n", None, {}, id="nokyan/resources#278"
        ),
        pytest.param(
            "drm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t12\ndrm-memory-vram:\t96180 KiB\n"
            "drm-memory-gtt: \t4096 KiB\ndrm-memory-cpu: \t0 KiB\n",
            "memory",
            {"vram": 96_180 << 10, "gtt": 4 << 20, "cpu": 0},
            id="Syllo/nvtop#158",
        ),
        pytest.param(
            "pdev:\t0000:03:00.0\npasid:\t32770\nvram mem:\t96180 kB\ngtt mem:\t4096 kB\ncpu mem:\t0 kB\n",
            "memory",
            {"vram": 96_180 << 10, "gtt": 4 << 20, "cpu": 0},
            id="Umio-Yasuno/amdgpu_top#132",
        ),
    ],
)
def test_reported_descriptor_gives_its_memory(text: str, basis: str | None, resident: dict[str, int]) -> None:
    info = parse_fdinfo(text.encode())

    assert info is not None
    assert (info.basis, dict(info.resident)) == (basis, resident)


def test_descriptor_without_statistics_is_no_client() -> None:
    """An NPU of which the kernel prints the usual four lines: not 0 bytes (Umio-Yasuno/amdgpu_top#120)."""
    assert parse_fdinfo(b"pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t894\n") is None


def test_amdxdna_that_counts_no_memory_has_no_basis() -> None:
    """Its first versions print 0 for each client: amd/xdna-driver#324."""
    found = parsed(
        "drm-driver:\tamdxdna_accel_driver\ndrm-client-id:\t76\ndrm-pdev:\t0000:c5:00.1\n"
        "drm-engine-npu-amdxdna:\t0 ns\ndrm-total-memory:\t0\ndrm-shared-memory:\t0\ndrm-active-memory:\t0\n"
    )
    assert (found.basis, found.resident) == (None, {})


def test_buffers_of_the_driver_are_separate() -> None:
    """panthor prints its internal memory for a client beside the client's own buffers."""
    found = parsed(PANTHOR)

    assert (found.pdev, found.resident) == (None, {"memory": 16480 * KIB})
    assert found.other == {"panthor-resident-memory": 10396 * KIB, "panthor-active-memory": 10396 * KIB}


def test_cycles_are_not_memory() -> None:
    """drm-total-cycles-rcs is a time stamp of xe that looks like a region."""
    found = parsed(fdinfo("xe", 3, None, "drm-total-cycles-rcs:\t7655183225", system="4 KiB"))

    assert found.resident == {"system": 4096}
    assert found.rejected == {}


def test_truncated_last_line_is_rejected() -> None:
    """ "512" of "51200 KiB" would be a wrong value."""
    whole = fdinfo("xe", 3, None, system="4 KiB") + "drm-resident-gtt:\t51200 KiB\n"

    found = parsed(whole[: whole.index("00 KiB")])

    assert found.resident == {"system": 4096}
    assert found.rejected == {"drm-resident-gtt": 1}


@pytest.mark.parametrize(
    "text",
    ["", "pos:\t0\nflags:\t02\nmnt_id:\t15\n", "drm-driver:\txe\n", "drm-driver:\txe\ndrm-client-id:\tmany\n"],
)
def test_fdinfo_without_a_client_is_none(text: str) -> None:
    """A socket, a regular file, or a driver without client ids."""
    assert parse_fdinfo(text.encode()) is None


def held(pid: int, client: int, pdev: str | None, size: str, node: str = "renderD128") -> ClientDescriptor:
    return ClientDescriptor(pid, node, parsed(fdinfo("xe", client, pdev, gtt=size)))


def test_client_on_two_descriptors_counts_once() -> None:
    """dup() creates a second descriptor of the same client: 1 GiB, not 2."""
    twice = [held(5, 12, "0000:00:02.0", "1024 MiB"), held(5, 12, "0000:00:02.0", "1024 MiB")]

    (client,) = merge_clients(twice)

    assert (client.pids, client.resident) == ((5,), {"gtt": GIB})


def test_same_id_on_two_cards_counts_twice() -> None:
    """Client ids are unique within one driver instance, not across cards."""
    found = merge_clients([held(5, 12, "0000:00:02.0", "1024 MiB"), held(5, 12, "0000:03:00.0", "1024 MiB")])

    assert sum(client.resident["gtt"] for client in found) == 2 * GIB


def test_clients_without_a_pci_address_differ_by_device_file() -> None:
    """The GPU and the neural engine of a system on a chip both have a client 1."""
    found = merge_clients([held(5, 1, None, "1 MiB"), held(6, 1, None, "2 MiB", "accel0")])

    assert {client.node: client.resident["gtt"] for client in found} == {"renderD128": MIB, "accel0": 2 * MIB}


def test_inherited_descriptor_has_two_owners() -> None:
    """fork() and SCM_RIGHTS: counted once, and both processes are listed."""
    (client,) = merge_clients([held(9, 12, "0000:00:02.0", "1024 MiB"), held(5, 12, "0000:00:02.0", "1024 MiB")])

    assert (client.pids, client.resident) == ((5, 9), {"gtt": GIB})


KEYS = st.sampled_from(["drm-resident-", "drm-memory-", "drm-total-", "drm-shared-", "amd-evicted-", "drm-"])
VALUES = st.one_of(st.binary(max_size=30), st.sampled_from([b"0", b"12345", b"8 MiB", b"51200 KiB", b"8 GiB"]))


@given(st.lists(st.tuples(KEYS, st.binary(max_size=50), VALUES), max_size=20), st.binary(max_size=30))
def test_arbitrary_lines_yield_valid_sizes(lines: list[tuple[str, bytes, bytes]], tail: bytes) -> None:
    """Sizes are integers from 0 to below 8 EiB, and region names are short and ASCII."""
    head = b"drm-driver:\txe\ndrm-client-id:\t12\n"
    body = b"".join(key.encode() + region + b":\t" + value + b"\n" for key, region, value in lines)

    found = parse_fdinfo(head + body + tail)

    if found is not None:
        sizes = [*found.resident.values(), *found.shared.values(), *found.other.values()]
        assert all(type(size) is int and 0 <= size < 1 << 63 for size in sizes)
        assert all(len(region) <= 256 and region.isascii() for region in found.resident)
        assert (found.basis is None) == (found.resident == {})


@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_nothing(data: bytes) -> None:
    found = parse_fdinfo(data)

    assert found is None or found.client_id >= 0


def test_size_that_cannot_be_read_is_not_zero() -> None:
    """Its region is named, unless an older key stands in for it, or another descriptor of the client is sound."""
    text = fdinfo("xe", 3, "0000:03:00.0", system="none", vram0="8 MiB")
    odd, sound = parsed(text), parsed(text.replace("none", "4 MiB"))
    merged = merge_clients([ClientDescriptor(7, "renderD128", one) for one in (odd, sound)])

    assert (odd.resident, odd.unread) == ({"vram0": 8 * MIB}, ("system",))
    assert [(one.resident, one.unread) for one in merged] == [(sound.resident, ())]
    assert parsed(text + "drm-memory-system: 4 MiB\n").unread == ()
    assert parsed(PANTHOR.replace("panthor-resident-memory:\t10396", "panthor-resident-memory:\t-5")).unread == (
        "memory",
    )
