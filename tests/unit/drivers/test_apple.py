"""Test that the output of macOS tools on Apple chips becomes one share of one memory. Captured text, no Mac."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.accounting.compose import Composer
from memwatch.core.collectors.apple import TOOLS, Collector
from memwatch.core.drivers.apple import (
    Accelerator,
    AppleReading,
    Metal,
    parse_ioreg,
    parse_metal,
    parse_pressure_level,
    parse_sysctl,
    parse_wired_limit,
)
from memwatch.core.findings import Findings
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.model import Absent, Architecture, Device, Share
from support.fakes import GIB, ram

MIB = 1 << 20
NO = Absent.NOT_SUPPORTED
# PerformanceStatistics of three Macs in their printed order; the wanted key comes last.
M1_PRO = {
    "In use system memory (driver)": 0,
    "Alloc system memory": 14511046656,
    "Tiler Utilization %": 34,
    "recoveryCount": 0,
    "Renderer Utilization %": 34,
    "Device Utilization %": 34,
    "In use system memory": 7688503296,
}
M4 = {
    "In use system memory (driver)": 0,
    "Alloc system memory": 7630618624,
    "Tiler Utilization %": 3,
    "recoveryCount": 21,
    "lastRecoveryTime": 32881655804519,
    "Renderer Utilization %": 3,
    "TiledSceneBytes": 950272,
    "Device Utilization %": 3,
    "SplitSceneCount": 0,
    "Allocated PB Size": 77201408,
    "In use system memory": 550649856,
}
M5_MAX = {
    "In use system memory (driver)": 0,
    "Renderer Utilization %": 8,
    "Device Utilization %": 87,
    "In use system memory": 54969483264,
}
SYSCTL = """\
hw.memsize: {memory}
hw.model: {model}
machdep.cpu.brand_string: {chip}
kern.memorystatus_vm_pressure_level: {level}
iogpu.wired_limit_mb: {limit}
"""


def plist(*accelerators: Mapping[str, int]) -> bytes:
    """Return the output of `ioreg -a`; its legend repeats the names of the statistics and must be skipped."""
    one = (
        "<dict><key>IOObjectClass</key><string>AGXAcceleratorG13X</string>"
        "<key>model</key><string>Apple M1 Pro</string>"
        "<key>IOReportLegend</key><array><dict><key>IOReportGroupName</key><string>In use system memory</string>"
        "</dict></array><key>PerformanceStatistics</key><dict>{statistics}</dict></dict>"
    )
    listed = "".join(one.format(statistics=entries(accelerator)) for accelerator in accelerators)
    head = '<?xml version="1.0" encoding="UTF-8"?><plist version="1.0"><array>'
    return f"{head}{listed}</array></plist>\n".encode()


def entries(statistics: Mapping[str, int]) -> str:
    return "".join(f"<key>{key}</key><integer>{value}</integer>" for key, value in statistics.items())


@pytest.mark.parametrize(
    ("statistics", "in_use", "allocated"),
    [
        (M1_PRO, 7688503296, 14511046656),
        (M4, 550649856, 7630618624),
        (M5_MAX, 54969483264, NO),
    ],
    ids=["M1 Pro", "M4", "M5 Max"],
)
def test_statistics_key_is_matched_exactly(
    statistics: Mapping[str, int], in_use: int, allocated: int | Absent
) -> None:
    """ "In use system memory (driver)" is 0 and comes first; "Alloc" may be missing, and is not use."""
    found = parse_ioreg(plist(statistics))

    assert found == (Accelerator("AGXAcceleratorG13X", "Apple M1 Pro", in_use, allocated),)


def test_no_accelerator_is_an_empty_list() -> None:
    """In a virtual machine without a GPU, ioreg prints nothing."""
    assert parse_ioreg(b"\n") == ()


@pytest.mark.parametrize("answer", [b"no such class", b"<plist><dict/></plist>", b"<plist><array>", b"\xff\0"])
def test_ioreg_output_without_a_list_is_rejected(answer: bytes) -> None:
    """The error names the tool and quotes its output."""
    with pytest.raises(ParseError, match="ioreg"):
        parse_ioreg(answer)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 40))
def test_damaged_lists_are_parsed_or_rejected(piece: bytes, at: int, length: int) -> None:
    """Damaged bytes yield accelerators without negative values, or an error."""
    whole = plist(M1_PRO, M4)
    try:
        found = parse_ioreg(whole[:at] + piece + whole[at + length :])
    except ParseError:
        return
    for one in found:
        assert isinstance(one.in_use_bytes, Absent) or 0 <= one.in_use_bytes <= 1 << 50


def test_impossible_use_is_inconsistent() -> None:
    """Negative, or more than any machine has."""
    found = parse_ioreg(plist({"In use system memory": -1}, {"In use system memory": 1 << 60}))

    assert [one.in_use_bytes for one in found] == [Absent.INCONSISTENT, Absent.INCONSISTENT]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_yield_valid_values(data: bytes) -> None:
    """Nothing raises, and no value is out of range."""
    settings = parse_sysctl(data)
    assert parse_pressure_level(settings) in (NO, Absent.INCONSISTENT, "normal", "warning", "critical")
    limit = parse_wired_limit(settings)
    assert isinstance(limit, Absent) or limit > 0


@pytest.mark.parametrize(
    ("level", "word"), [("1", "normal"), ("2", "warning"), ("4", "critical"), ("3", Absent.INCONSISTENT)]
)
def test_pressure_level_of_macos_is_parsed(level: str, word: str | Absent) -> None:
    """1, 2 and 4: bits of the notification, not the kernel's own 0 to 3."""
    text = SYSCTL.format(memory=1, model="x", chip="y", level=level, limit=0)

    assert parse_pressure_level(parse_sysctl(text.encode())) == word


def test_wired_limit_set_by_an_administrator_is_parsed() -> None:
    """In MiB; 0 selects the system's default, which only Metal reports."""
    assert parse_wired_limit({"iogpu.wired_limit_mb": "26000"}) == 26000 * MIB
    assert parse_wired_limit({"iogpu.wired_limit_mb": "0"}) is Absent.NOT_AVAILABLE


def reading(*accelerators: Accelerator, **fields: object) -> AppleReading:
    plain = {"chip": "Apple M1 Pro", "model": "MacBookPro18,3", "memory_bytes": 16 * GIB, "pressure": "normal"}
    rest = {"wired_limit_bytes": Absent.NOT_AVAILABLE, "metal": Absent.NOT_AVAILABLE}
    return AppleReading(accelerators=accelerators, **{**plain, **rest, **fields})  # type: ignore[arg-type]


def gpu(in_use: int) -> Accelerator:
    return Accelerator("AGXAcceleratorG13X", NO, in_use, 14511046656)


def accounted(found: AppleReading, stale: bool = False) -> tuple[Device, Share | None]:
    stale_names = frozenset({"apple"} if stale else ())
    whole = Composer().compose(
        [Findings(pools=(ram(9 * GIB, 16 * GIB),)), Findings(apple=found, stale=stale_names)]
    )
    assert [pool.id for pool in whole.pools] == ["ram"]
    (device,) = whole.devices
    return device, next(iter(whole.shares), None)


def test_metal_working_set_is_inside_system_ram() -> None:
    """11.84 of 16 GiB recommended, 7.16 in use: 4.68 can be allocated; "Alloc" is in no value."""
    limit = 12713115648
    device, share = accounted(reading(gpu(7688503296), metal=Metal(True, limit)))

    assert share is not None
    assert (share.id, share.label, share.within) == ("gpu0.metal", "Metal working set", "ram")
    assert (share.used_bytes, share.limit_bytes) == (7688503296, limit)
    assert (device.name, device.architecture) == ("Apple M1 Pro GPU", Architecture.UNIFIED)
    assert device.headroom_after_reclaim_bytes == limit - 7688503296
    assert device.evidence == ("Metal reports unified memory",)


def test_two_accelerators_share_one_working_set() -> None:
    """Both use the same memory."""
    _, share = accounted(reading(gpu(3 * GIB), gpu(GIB)))

    assert share is not None
    assert share.used_bytes == 4 * GIB


def test_working_set_limit_without_metal_is_the_administrators() -> None:
    """The system's default is not guessed; the administrator's setting is a limit."""
    device, share = accounted(reading(gpu(GIB)))
    _, limited = accounted(reading(gpu(GIB), wired_limit_bytes=26000 * MIB))

    assert share is not None
    assert limited is not None
    assert share.limit_bytes is NO
    assert device.headroom_after_reclaim_bytes == 7 * GIB
    assert any("Metal" in note for note in device.notes)
    assert limited.limit_bytes == 16 * GIB
    assert limited.note is not None
    assert "exceeds its parent" in limited.note


def test_headroom_is_zero_beyond_the_recommendation() -> None:
    """The recommendation may be exceeded; headroom is then 0, never negative."""
    device, _ = accounted(reading(gpu(7 * GIB), metal=Metal(True, 6 * GIB)))

    assert device.headroom_after_reclaim_bytes == 0


def test_gpu_of_an_intel_mac_is_unknown() -> None:
    """The memory of its GPU cannot be determined."""
    device, share = accounted(reading(gpu(GIB), chip="Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz"))

    assert (device.architecture, share) == (Architecture.UNKNOWN, None)
    assert device.headroom_after_reclaim_bytes is NO


def test_stale_collector_keeps_the_gpu_and_drops_values() -> None:
    """The GPU stays listed, and its values are not repeated."""
    device, share = accounted(reading(gpu(GIB)), stale=True)

    assert share is not None
    assert (device.state, share.used_bytes) == ("stalled", Absent.STALE)


def tools(folder: Path, ioreg: bytes, **settings: object) -> dict[str, str]:
    """Return the paths of two fake tools, each printing a given text; sysctl exits with 1, as it may."""
    words = {"memory": 17179869184, "model": "MacBookPro18,3", "chip": "Apple M1 Pro", "level": 1, "limit": 0}
    outputs = {"ioreg": ioreg, "sysctl": SYSCTL.format(**{**words, **settings}).encode()}
    for tool, text in outputs.items():
        (folder / f"{tool}.txt").write_bytes(text)
        program = folder / tool
        program.write_text(f"#!/bin/sh\n/bin/cat {folder}/{tool}.txt\nexit {int(tool == 'sysctl')}\n")
        program.chmod(0o755)
    return {tool: str(folder / tool) for tool in outputs}


def metal(text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text!r})"]


@pytest.mark.process
def test_collector_reads_the_tools(tmp_path: Path) -> None:
    """Real child processes, fake tools: every value arrives, and the machine is named after its chip."""
    path = tools(tmp_path, plist(M1_PRO, M4), level=4)
    collector = Collector(path, metal('{"has_unified_memory": true, "working_set_bytes": 12713115648}'))

    found = collector.collect()

    assert found.apple is not None
    assert [one.in_use_bytes for one in found.apple.accelerators] == [7688503296, 550649856]
    assert found.apple.pressure == "critical"
    assert found.apple.memory_bytes == 16 * GIB
    assert found.apple.metal == Metal(True, 12713115648)
    assert found.machine is not None
    assert found.machine.name == "Apple M1 Pro"
    assert found.machine.details == {"model": "MacBookPro18,3", "memory_pressure": "critical"}


@pytest.mark.process
def test_other_values_are_read_without_metal(tmp_path: Path) -> None:
    """Metal is not installed or has no device. In this test it is really missing."""
    collector = Collector(tools(tmp_path, plist(M5_MAX)))

    found = collector.collect().apple

    assert found is not None
    assert found.metal is Absent.NOT_AVAILABLE
    assert found.accelerators[0].in_use_bytes == 54969483264


def test_invalid_output_of_metal_is_not_available() -> None:
    """Only a complete answer counts."""
    assert parse_metal(b"dyld: Library not loaded\n") is Absent.NOT_AVAILABLE
    assert parse_metal(b'{"has_unified_memory": 1, "working_set_bytes": 5}\n') is Absent.NOT_AVAILABLE


@pytest.mark.process
def test_hanging_tool_is_killed(tmp_path: Path) -> None:
    """Within the deadline, and the error names it."""
    path = tools(tmp_path, plist(M1_PRO))
    (tmp_path / "ioreg").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    collector = Collector(path, deadline_seconds=0.3)

    with pytest.raises(ParseError, match=r"ioreg did not answer for 0.3 s and was killed"):
        collector.collect()


@pytest.mark.process
def test_invalid_output_of_ioreg_is_quoted(tmp_path: Path) -> None:
    """The collector fails with the text that it got; other collectors are unaffected."""
    collector = Collector(tools(tmp_path, b"kIOReturnNotPermitted\n"))

    with pytest.raises(ParseError, match="kIOReturnNotPermitted"):
        collector.collect()


def test_collector_is_unavailable_without_the_tools(tmp_path: Path) -> None:
    """Another operating system is not an error."""
    with pytest.raises(SourceUnavailable, match="ioreg and sysctl not found"):
        Collector({tool: str(tmp_path / tool) for tool in TOOLS})
