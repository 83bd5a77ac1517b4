"""Judgement of figures that a daemon shows beside those of the vendor's tool."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hardware.comparison import MIB, Held, Row, Sample, Verdict, compare, compare_whole
from hardware.figures import CERTAIN, HEADROOM, MEMORY, PROCESS, RAM, Figure, GpuPlace, find_device, find_place
from hardware.report import Report, Section, render

CARD = GpuPlace("gpu0", "discrete", ("gpu0",), "VRAM")
GB10 = GpuPlace("gpu0", "unified", ("cuda0",), "CUDA Pool ⊂ System RAM", has_pool=False)
HELD = Held().plus("device", 256 * MIB)


def figures(memory: Figure, process: Figure, headroom: Figure, ram: Figure) -> dict[str, Figure]:
    return {MEMORY: memory, PROCESS: process, HEADROOM: headroom, CERTAIN: headroom, RAM: ram}


ZERO = Sample(figures(0, 0, 0, 0), figures(0, 0, 0, 0))


def verdicts(place: GpuPlace, now: Sample, held: Held = HELD) -> dict[str, Verdict]:
    return {row.figure: row.verdict for row in compare("step", place, ZERO, now, held)}


def test_right_figures_of_a_card_are_ok() -> None:
    both = figures(256 * MIB, 256 * MIB, -256 * MIB, 0)

    assert set(verdicts(CARD, Sample(both, both)).values()) == {Verdict.OK}


@pytest.mark.parametrize(
    ("difference", "verdict"), [(3 * MIB, Verdict.OK), (4 * MIB, Verdict.WRONG), (-4 * MIB, Verdict.WRONG)]
)
def test_process_may_differ_by_a_granule_and_page_tables(difference: int, verdict: Verdict) -> None:
    """2 MiB for the allocation, and 1 MiB of page tables for 256 MiB."""
    both = figures(256 * MIB, 256 * MIB + difference, -256 * MIB, 0)

    assert verdicts(CARD, Sample(both, both))["process"] is verdict


def test_figure_that_a_lying_driver_gives_to_both_is_wrong() -> None:
    """The tool and the daemon agree; what was allocated does not."""
    both = figures(512 * MIB, 256 * MIB, -512 * MIB, 0)

    found = verdicts(CARD, Sample(both, both))

    assert found == {
        "VRAM": Verdict.WRONG,
        "process": Verdict.OK,
        "headroom": Verdict.WRONG,
        "headroom, certain": Verdict.WRONG,
        "System RAM": Verdict.OK,
    }


def test_system_ram_is_judged_by_the_kernel_alone() -> None:
    """A driver may serve an allocation from pages that it kept."""
    both = figures(256 * MIB, 256 * MIB, 0, 0)
    wrong = Sample(both, figures(256 * MIB, 256 * MIB, -256 * MIB, 256 * MIB))

    assert set(verdicts(GB10, Sample(both, both)).values()) == {Verdict.OK}
    assert verdicts(GB10, wrong)["headroom, certain"] is Verdict.WRONG
    assert verdicts(GB10, wrong)["System RAM"] is Verdict.WRONG


def test_pinned_memory_counts_for_neither_where_drivers_differ() -> None:
    held, nothing = Held().plus("pinned", 128 * MIB), figures("no figure", "no figure", -128 * MIB, 128 * MIB)

    found = verdicts(GB10, Sample(figures(128 * MIB, 0, -128 * MIB, 128 * MIB), nothing), held)

    assert (found["CUDA Pool ⊂ System RAM"], found["process"]) == (Verdict.UNJUDGED, Verdict.UNJUDGED)
    assert found["System RAM"] is Verdict.OK


@pytest.mark.parametrize(
    ("reason", "vendor", "verdict"),
    [
        ("not_permitted", "no figure", Verdict.UNJUDGED),
        ("process list: partial", 0, Verdict.UNJUDGED),
        ("not_available", "no figure", Verdict.UNJUDGED),
        ("not_permitted", 256 * MIB, Verdict.WRONG),
        ("stale", "no figure", Verdict.WRONG),
        ("inconsistent", "no figure", Verdict.WRONG),
    ],
)
def test_absent_figure_is_wrong_if_the_tool_has_one_or_it_should_exist(
    reason: str, vendor: Figure, verdict: Verdict
) -> None:
    shown, tool = figures(256 * MIB, reason, -256 * MIB, 0), figures(256 * MIB, vendor, -256 * MIB, 0)

    assert verdicts(CARD, Sample(shown, tool))["process"] is verdict


def test_carve_out_is_compared_with_the_tool_only() -> None:
    """N1X: the driver takes memory outside of its carve-out."""
    place = replace(CARD, architecture="carveout")
    both = figures(0, 0, "not_supported", 256 * MIB)

    found = verdicts(place, Sample(both, figures(0, 0, "no figure", 256 * MIB)))

    assert Verdict.WRONG not in found.values()
    assert found["headroom"] is Verdict.UNJUDGED


def test_apu_headroom_falls_by_the_sum_of_carve_out_and_gtt() -> None:
    place = GpuPlace("gpu0", "unified", ("gpu0", "gpu0.gtt"), "GPU carve-out + GTT ⊂ System RAM")
    vendor = figures(256 * MIB, "no figure", "no figure", 0)

    assert verdicts(place, Sample(figures(256 * MIB, 256 * MIB, 0, 0), vendor))["headroom"] is Verdict.WRONG
    assert verdicts(place, Sample(figures(256 * MIB, 256 * MIB, -256 * MIB, 0), vendor))["headroom"] is Verdict.OK


def test_report_without_a_judged_row_is_a_failure() -> None:
    unjudged = Row("step", "VRAM", "", "", "", None, Verdict.UNJUDGED, "no figure to compare with")
    judged = compare_whole("before", "size", 24 * MIB, 24 * MIB, 0)

    assert not Report({}, "", [Section("a", [unjudged])], {}).is_right
    assert Report({}, "", [Section("a", [unjudged, judged])], {}).is_right


def test_report_is_a_markdown_table_in_which_no_cell_breaks_it() -> None:
    row = Row("allocate 256 MiB", "VRAM", 256 * MIB, 255 * MIB, "no\nfigure", -MIB, Verdict.OK)

    text = render(Report({"GPU": "a | b"}, "✓ fine", [Section("Steps", [row])], {"CPU": "0.1 %"}))

    assert "| GPU | a / b |" in text
    assert "| allocate 256 MiB | VRAM | +256.0 MiB | +255.0 MiB | no figure | -1.0 MiB | ok |" in text
    assert text.endswith("**All figures are right: 1 ok.**\n")


def snapshot(*devices: dict[str, Any], **parts: Any) -> Any:
    return {"devices": list(devices), "pools": [], "shares": [], **parts}


def test_device_is_found_by_its_pci_address_in_any_spelling() -> None:
    second = {"id": "gpu1", "vendor": "NVIDIA", "pci": "00000000:41:00.0"}
    found = snapshot({"id": "gpu0", "vendor": "NVIDIA", "pci": "00000000:01:00.0"}, second)

    assert find_device(found, "0000:41:00.0", "NVIDIA") is second
    assert find_device(found, "0000:42:00.0", "NVIDIA") is None
    assert find_device(found, "0000:41:00.0", "AMD") is None


def test_tegra_gpu_without_an_address_is_found_by_its_vendor() -> None:
    own = {"id": "gpu0", "vendor": "NVIDIA", "pci": None}

    assert find_device(snapshot(own), "0000:00:00.0", "NVIDIA") is own


def test_headroom_of_mig_instances_is_not_compared() -> None:
    """The headroom is that of the emptiest instance, and a program allocates from one of them."""
    pools = [{"id": "ram", "label": "System RAM"}, {"id": "gpu0", "label": "VRAM"}]
    relation = {"kind": "mig_instance", "device": "gpu0", "within": "gpu0", "relation": "MIG instance 2 ⊂ VRAM"}
    device = {"id": "gpu0", "architecture": "discrete", "allocates_from": ["gpu0.mig2"]}
    both = figures(256 * MIB, 256 * MIB, 0, 0)

    place = find_place(snapshot(device, pools=pools, shares=[{"id": "gpu0.mig2", **relation}]), device)

    assert place == GpuPlace("gpu0", "discrete", ("gpu0.mig2",), "MIG instance 2 ⊂ VRAM", is_partitioned=True)
    assert verdicts(place, Sample(both, both)).keys() == {"MIG instance 2 ⊂ VRAM", "process", "System RAM"}


def test_place_of_an_apu_is_its_carve_out_and_its_share() -> None:
    pools = [{"id": "ram", "label": "System RAM"}, {"id": "gpu0", "label": "GPU carve-out"}]
    gtt = {"id": "gpu0.gtt", "kind": "gtt", "device": "gpu0", "within": "ram", "relation": "GTT ⊂ System RAM"}
    limit = {"id": "gpu0.limit", "kind": "gpu_limit", "device": "gpu0", "relation": "limit ⊂ GTT"}
    device = {"id": "gpu0", "architecture": "unified", "allocates_from": ["gpu0", "gpu0.gtt"]}

    found = find_place(snapshot(device, pools=pools, shares=[gtt, limit]), device)

    assert found == GpuPlace("gpu0", "unified", ("gpu0", "gpu0.gtt"), "GPU carve-out + GTT ⊂ System RAM")
