"""The processes page: owners, hidden processes, growth and unattributed memory."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Process, ShareKind, known_or, sum_figures
from memwatch.core.owners import Owner, sum_owners
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.core.snapshot import Snapshot
from memwatch.reporting.render import words as wording
from memwatch_web.pages.processes import By, ListView, sum_by_accelerator
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.template_environment import glue_units, hold_unit
from support.demo_frames import moments_of
from support.html_reader import Reader, read
from support.sample_parts import GIB, MIB, UNIX
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners


def test_owner_shows_cgroup_usage() -> None:
    """Footprint ranges, memory.current of the cgroup, and a note if that excludes GPU memory."""
    text = Reader(Pages().page("processes", many_owners(), view=ListView("container"))).text

    assert "Containers" in text
    assert "3.0 – 5.0 GiB" in text
    assert "9.0 GiB may not include all GPU memory" in text
    assert "— not permitted" in text
    assert "Kubernetes pods" not in text


def test_partial_process_list_is_marked_above_the_list() -> None:
    """The unattributed memory also names the hidden processes."""
    text = read(many_owners(), "processes").text

    assert text.index("Processes outside this container are not seen.") < text.index("llama-server")
    assert "Usually memory of processes that are not visible from here" in text
    assert "Processes outside this container are not seen." in read(many_owners()).text
    assert "not seen" not in read(critical_gb10(), "processes").text


def test_names_of_containers_and_owners_are_escaped() -> None:
    for view in (ListView(), ListView("container")):
        page = Pages().page("processes", many_owners(), view=view)

        assert b"<i>vllm" not in page
        assert b"<b>bold" not in page
        assert "</th><i>vllm" in Reader(page).text


def test_rest_of_some_bytes_is_no_unattributed_memory() -> None:
    """Below 56 GiB of HBM stood "unattributed 1 B: usually driver memory for each CUDA context"."""
    base = critical_gb10()
    pages = {
        rest: read(replace(base, pools=(replace(base.pools[0], unattributed_bytes=rest),)), "processes")
        for rest in (1, MIB)
    }

    assert {rest: "rest-ram" in page.values("id") for rest, page in pages.items()} == {1: False, MIB: True}
    assert "Fully attributed: System RAM" in pages[1].text


def test_column_of_gpu_memory_is_left_out_where_no_process_has_a_figure() -> None:
    """As on a Mac, where it was empty."""
    base = critical_gb10()
    without = replace(
        base,
        processes=tuple(replace(one, device_bytes={}) for one in base.processes),
        devices=tuple(replace(one, process_list=Absent.NOT_READ) for one in base.devices),
    )

    assert ["sort-process-gpu" in read(one, "processes").values("id") for one in (base, without)] == [True, False]
    assert ["of it GPU" in read(one).text for one in (base, without)] == [True, False]


def test_unattributed_part_of_a_share_is_listed() -> None:
    """The part of GTT without a process is listed like that of the pools, or it is named as fully attributed."""
    snapshot = many_owners()
    whole = read(snapshot, "processes")
    others = tuple(replace(one, device_bytes={}) for one in snapshot.processes)
    page = read(replace(snapshot, processes=others), "processes")

    assert "Fully attributed: GTT ⊂ System RAM" in whole.text
    assert "rest-gpu0.gtt" not in whole.values("id")
    assert "rest-gpu0.gtt" in page.values("id")


def grown(pid: int, size: int) -> Process:
    return Process(pid, UNIX - 1e6, f"p{pid}", size, size, "rss", user="ada", unit=None, container=None)


def test_growing_and_leaking_processes_are_listed() -> None:
    """The fastest first, with the growth in the other windows. A suspected leak has its evidence and a caveat."""
    growth, rules = GrowthTracker(), LeakRules(1200.0)
    for at in range(0, 1201, 10):
        growth.add(float(at), [grown(5, GIB + at * MIB), grown(6, GIB + at * 1024), grown(7, GIB)], rules)

    text = Reader(Pages(growth=growth).page("processes", calm_workstation())).text

    (suspect,) = growth.suspects()
    assert text.index("Suspected leaks") < text.index(f"p5 (PID 5, ada) {suspect.evidence}.")
    assert "A hint only" in text
    assert "+600.0 MiB 2.2 GiB +60.0 MiB +1.2 GiB*" in text
    assert text.index(" p5 5 +600.0 MiB") < text.index(" p6 6 +600.0 KiB")
    assert " p7 " not in text


def test_growth_since_a_process_was_first_seen_is_marked_on_every_page() -> None:
    """Ten minutes are not yet known of it: one rule for the overview, the list and its own page."""
    growth = GrowthTracker()
    for at in range(0, 301, 10):
        growth.add(float(at), [grown(5, GIB + at * MIB)], LeakRules())
    snapshot = replace(calm_workstation(), processes=(grown(5, GIB + 300 * MIB),))
    pages = Pages(growth=growth)
    view = pages.view_process(snapshot, 5, 0.0, Absent.NOT_AVAILABLE)
    assert view is not None

    own = Reader(pages.process(snapshot, view)).text
    assert "Grew +60.0 MiB in 1 min +300.0 MiB* in 10 min +300.0 MiB* in 1 h" in own
    for text in (own, *(Reader(pages.page(page, snapshot)).text for page in ("overview", "processes"))):
        assert "+300.0 MiB*" in text
        assert "* since first seen." in text


def test_members_of_an_owner_have_their_id_in_brackets() -> None:
    """ "systemd 1 15.6 MiB, llama-server 6110 62.0 GiB" had three figures in a row."""
    text = view_by(many_owners(), "user")

    assert re.search(r"\w \(PID \d+\) \d+\.\d [KMG]iB", text)
    assert "iB, " in text


def test_empty_list_of_owners_explains_no_footprint() -> None:
    assert "Footprint =" not in view_by(calm_workstation(), "pod")
    assert "Footprint =" in view_by(many_owners(), "user")


def test_bounds_stay_beside_their_unit() -> None:
    assert hold_unit(GIB, 2 * GIB) == "1.0 – 2.0\u00a0GiB"
    assert hold_unit(MIB, 2 * GIB) == "1.0\u00a0MiB – 2.0\u00a0GiB"
    assert glue_units("+150.1 MiB/s") == '+<span class="figure">150.1 MiB/s</span>'


def test_mark_is_explained_only_where_it_is_shown() -> None:
    for page in ("overview", "processes"):
        assert "since first seen" not in Reader(Pages().page(page, calm_workstation())).text


def test_process_without_gpu_memory_has_a_dash() -> None:
    """Beside others that have some: the cell was empty, and on the overview it was a dash."""
    row = re.search(r'<tr id="process-1-.*?</tr>', Pages().page("processes", critical_gb10()).decode(), re.DOTALL)

    assert row is not None
    assert Reader(row.group().encode()).text.rstrip().endswith("—")


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (GIB, 2 * GIB, "1.0 – 2.0 GiB"),
        (900 * MIB, 2 * GIB, "900.0 MiB – 2.0 GiB"),
        (GIB, GIB + 1, "1.0 GiB"),
        (GIB, Absent.NOT_PERMITTED, "≥ 1.0 GiB"),
        (0, 5, "0 – 5 B"),
    ],
)
def test_bounds_share_a_unit_if_equal(low: int, high: int | Absent, words: str) -> None:
    """Bounds that read the same are one value."""
    assert wording.between(low, high) == words


def test_change_has_a_sign() -> None:
    assert [wording.change(size) for size in (MIB, -MIB, 0, Absent.NOT_AVAILABLE)] == [
        "+1.0 MiB",
        "−1.0 MiB",
        "0 B",
        "— not available",
    ]


def view_by(snapshot: Snapshot, by: By) -> str:
    return Reader(Pages().page("processes", snapshot, view=ListView(by))).text


def test_owners_are_counted_by_their_kind_without_the_row_of_the_rest() -> None:
    owners = (Owner("user", "ada", 2, GIB), Owner("container", "vllm", 1, GIB), Owner("container", None, 1, MIB))
    snapshot = replace(calm_workstation(), owners=owners)

    assert "1 user " in view_by(snapshot, "user")
    assert "1 container " in view_by(snapshot, "container")
    assert "No process runs in a pod." in view_by(snapshot, "pod")


def test_owners_that_are_not_known_are_not_zero() -> None:
    """A recording has the largest processes only."""
    text = view_by(replace(calm_workstation(), owners=()), "user")

    assert "Totals need all processes of the machine. Only the largest are known here." in text
    assert "0 users" not in text


def test_memory_of_an_npu_is_not_called_that_of_a_gpu() -> None:
    """NPU buffers of flm stood as "of it GPU 512.0 MiB", and in the note of its footprint."""
    now = moments_of("strix-halo").fullest
    now = replace(now, owners=sum_owners(now.processes))
    views = (ListView(), ListView("unit"))
    texts = [read(now).text, *(Reader(Pages().page("processes", now, view=view)).text for view in views)]

    assert ["NPU 512.0 MiB" in text for text in texts] == [True] * 3
    assert "of it GPU/NPU" in texts[0]
    assert ["GPU/NPU memory" in text for text in texts[1:]] == [True] * 2
    assert [re.findall(r"GPU 512.0 MiB", text) for text in texts] == [[]] * 3
    assert "plus GPU/NPU memory as a range" in texts[1]

    on_gpus = replace(now, processes=tuple(one for one in now.processes if one.name != "flm"))
    shares = tuple(one for one in now.shares if one.kind is not ShareKind.NPU_BUFFERS)
    assert "NPU" not in read(replace(on_gpus, shares=shares), "processes").text


def test_total_below_the_sum_of_its_processes_says_why() -> None:
    """Users had "77.8 – 80.6 GiB" above processes that sum up to 78.1 – 80.9: buffers that they share."""
    now = moments_of("strix-halo").fullest
    now = replace(now, owners=sum_owners(now.processes))
    (gtt,) = (one for one in now.shares if one.kind is ShareKind.GTT)
    held = sum_figures([one.device_bytes.get(gtt.id, 0) for one in now.processes])
    used = replace(gtt, used_bytes=held)
    apart = replace(now, shares=tuple(used if one.id == gtt.id else one for one in now.shares))

    def says(snapshot: Snapshot, by: By) -> bool:
        return "Shared buffers count once" in Reader(Pages().page("processes", snapshot, view=ListView(by))).text

    assert known_or(held, 0) > known_or(gtt.used_bytes, 0)
    assert says(now, "user")
    assert not says(now, "process")
    assert not says(now, "unit"), "no unit has two of them"
    assert not says(apart, "user")


def test_memory_of_both_kinds_of_devices_is_two_figures() -> None:
    places = (("gpu0.gtt", 3 * GIB), ("npu0.buffers", MIB), ("gpu0.vram", GIB))

    assert sum_by_accelerator(places) == (("GPU", 4 * GIB), ("NPU", MIB))
    assert sum_by_accelerator((("gpu0.gtt", GIB), ("gpu0.vram", Absent.STALE))) == (("GPU", Absent.STALE),)
