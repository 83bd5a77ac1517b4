"""Pages say exactly what the snapshot says, to everybody, from nowhere else, whatever a process calls itself."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.model import Absent, Pool, PoolKind, Quality
from memwatch.pressure.rules import PressureRules, Thresholds
from memwatch.render.summary import room_of
from memwatch.snapshot import Snapshot, Swap
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader, read
from support.paths import STATIC
from support.sample_parts import UNIX
from support.sample_snapshots import (
    SAMPLES,
    calm_workstation,
    container_with_limit,
    critical_gb10,
    discrete_gpu,
    failing_collector,
    hostile_names,
    hugepages_host,
    mig_server,
    no_psi,
    simulated,
    stale_collector,
    unknown_figures,
)

ALL = list(product(SAMPLES, Pages.names))


def latest(fragment: bytes) -> Any:
    found = re.search(rb'<script type="application/json" id="latest">(.*?)</script>', fragment, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize(("sample", "name"), ALL)
def test_every_page_is_sound(sample: str, name: str) -> None:
    """Every tag closes, no id is there twice, and the one heading names what it is about."""
    page = read(SAMPLES[sample](), name)

    ids = page.values("id")

    assert page.open == []
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in page.tags].count("h1") == 1


@pytest.mark.parametrize(("sample", "name"), ALL)
def test_a_fragment_is_the_part_of_the_page(sample: str, name: str) -> None:
    """What the stream sends is byte for byte what a reload would show."""
    pages, snapshot = Pages(), SAMPLES[sample]()

    page, fragment = pages.page(name, snapshot), pages.fragment(name, snapshot)

    assert fragment in page
    assert len(fragment) > 500
    assert latest(fragment)["seq"] == snapshot.seq


@pytest.mark.parametrize(("sample", "name"), ALL)
def test_nothing_is_inline_and_nothing_is_foreign(sample: str, name: str) -> None:
    """The strict policy holds because the page does not need a looser one."""
    page = read(SAMPLES[sample](), name)

    handlers = [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]

    assert handlers == page.values("style") == [tag for tag, _ in page.tags if tag == "style"] == []
    assert all(attrs.get("src") or attrs.get("type") == "application/json" for attrs in scripts)
    assert not [link for link in page.values("src") + page.values("href") if re.match(r"\w+:|//", link)]


@pytest.mark.parametrize("name", [*Pages.names, "docs"])
def test_every_file_a_page_names_is_there(name: str) -> None:
    """A page never asks for a style, a script or an icon that is not shipped."""
    pages = Pages()
    page = Reader(pages.docs() if name == "docs" else pages.page(name, calm_workstation()))

    files = [link for link in page.values("src") + page.values("href") if link.startswith("static/")]

    assert len(files) >= 4
    assert [link for link in files if not (STATIC / link.removeprefix("static/")).is_file()] == []


@pytest.mark.parametrize("level", ["low", "medium", "high", "critical", "unknown", "stale"])
def test_every_level_has_an_icon(level: str) -> None:
    """The tab shows the level by shape as well as by colour."""
    assert (STATIC / f"icon-{level}.svg").read_text().startswith("<svg")


def test_our_styles_and_scripts_ask_nobody_else() -> None:
    """No import, no address and no eval in what we wrote ourselves."""
    ours = [path for path in STATIC.iterdir() if path.suffix in {".css", ".js"}]

    found = [
        path.name for path in ours if re.search(r"https?:|@import|url\(|\beval\(|new Function", path.read_text())
    ]

    assert len(ours) >= 4
    assert found == []


def test_vendored_files_are_the_published_ones() -> None:
    """Each file under vendor stands in the table with its sum, and the other way round."""
    table = (STATIC / "vendor" / "README.md").read_text()

    listed = {
        cells[1].strip(): cells[6].strip() for line in table.splitlines() if len(cells := line.split("|")) == 8
    }
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").iterdir()
        if path.name != "README.md"
    }

    assert {name: digest for name, digest in listed.items() if len(digest) == 64} == found


@pytest.mark.parametrize(
    ("snapshot", "sentence"),
    [
        (critical_gb10(), "CUDA Pool ⊂ System RAM 96.4 GiB · 80.5 % of System RAM"),
        (
            critical_gb10(),
            "System RAM is critical: 96.4 % used; full in 40 s at the current rate; some",
        ),
        (critical_gb10(), "It is MemFree, 2.0 GiB: page cache reads as used to CUDA."),
        (critical_gb10(), "GPU memory is part of System RAM: what CUDA allocates"),
        (critical_gb10(), "NVIDIA GB10 4.3 GiB can be allocated now from System RAM"),
        (critical_gb10(), "Tasks waited for memory 12.1 % of the last 10 s."),
        (critical_gb10(), "1 process killed for want of memory since boot"),
        (critical_gb10(), "zram keeps 6.4 GiB of pages compressed in 2.1 GiB of System RAM."),
        (critical_gb10(), "Swap is never counted as capacity."),
        (critical_gb10(), "held by devices 96.4 GiB"),
        (calm_workstation(), "System RAM is calm: 39.6 % used"),
        (calm_workstation(), "used 24.8 GiB of 62.6 GiB"),
        (calm_workstation(), "Little free memory is normal."),
        (calm_workstation(), "No GPU was found. 37.8 GiB can be had in System RAM"),
        (calm_workstation(), "312 processes seen."),
        (calm_workstation(), "Footprint: rss (resident set size: a page that several processes share"),
        (
            container_with_limit(),
            "This container ⊂ System RAM 3.4 GiB · 5.4 % of System RAM · limit 4.0 GiB, 85.0",
        ),
        (container_with_limit(), "GPU memory on unified machines is not charged to this limit."),
        (container_with_limit(), "No GPU was found. 614.4 MiB can be had in This container ⊂ System RAM"),
        (discrete_gpu(), "GPU 0 VRAM is high: 82.5 % used"),
        (discrete_gpu(), "reserved 512.0 MiB"),
        (mig_server(), "trainer.service ⊂ ml.slice 9.0 GiB"),
        (
            mig_server(),
            "MIG 2g.20gb ⊂ GPU 0 VRAM 19.0 GiB · 23.9 % of GPU 0 VRAM · limit 19.6 GiB, 96.8 %",
        ),
        (hugepages_host(), "48.0 GiB are set aside for huge pages (12.0 GiB of them promised to nobody yet)."),
        (hugepages_host(), "of what is not set aside"),
        (stale_collector(), "used — stale of 62.6 GiB"),
        (stale_collector(), "— stale The collector stopped answering, and its last figure is too old to repeat."),
        (stale_collector(), "No pool has a figure to judge"),
        (stale_collector(), "meminfo stalled 12 s ago"),
        (failing_collector(), "buddyinfo failing 5 min 40 s ago"),
        (failing_collector(), "/proc/buddyinfo line 2: found 'Node 0, zone', expected a zone name and numbers"),
        (unknown_figures(), "Nothing is known of GPU 0 VRAM"),
        (unknown_figures(), "GTT ⊂ System RAM — not permitted"),
        (unknown_figures(), "free — not available"),
        (unknown_figures(), "How many processes there are: — not available."),
        (no_psi(), "This kernel does not report pressure stall information (PSI)."),
        (simulated(), "SIMULATED: these figures are replayed and are not this machine’s."),
        (replace(calm_workstation(), swap=Swap(0, 0)), "There is nowhere to move pages to when memory runs out."),
        (replace(calm_workstation(), pools=(), pressure=()), "No pool of memory is known yet."),
        (replace(calm_workstation(), processes=()), "No process list yet."),
    ],
)
def test_the_overview_says(snapshot: Snapshot, sentence: str) -> None:
    """The sentence stands on the page word for word."""
    assert sentence in read(snapshot).text


def test_a_carve_out_that_is_not_judged_is_not_called_unknown() -> None:
    """455 of 512 MiB beside System RAM that the GPU can have: the figures stand there, and no level."""
    carve_out = Pool(
        "gpu0", PoolKind.CARVEOUT, "GPU carve-out", 512 << 20, 455 << 20, 57 << 20, "sysfs", Quality.MEASURED
    )
    calm = calm_workstation()

    text = read(replace(calm, pools=(*calm.pools, carve_out))).text

    assert "GPU carve-out not judged by itself: its GPU has more memory elsewhere" in text
    assert "Nothing is known of" not in text


def test_collectors_with_nothing_to_read_are_on_the_about_page_only() -> None:
    """The overview says how many there are; what each lacks stands beside its name."""
    overview, about = read(calm_workstation()).text, read(calm_workstation(), "about").text

    assert "1 more collector has nothing to read on this machine." in overview
    assert "this kernel has no ZFS" not in overview
    assert "zfs unavailable — — no /proc/spl/kstat/zfs/arcstats: this kernel has no ZFS" in about


def test_exact_bytes_are_one_hover_away() -> None:
    """Behind 24.8 GiB stands every byte, for people and for programs."""
    page = read(calm_workstation())
    used = calm_workstation().pools[0].used_bytes

    assert f"{used:,} bytes" in page.values("title")
    assert str(used) in page.values("value")


def test_inner_bars_are_widths_not_styles() -> None:
    """The inner bar of the CUDA Pool is 80.5 % of the bar around it, without a script."""
    page = read(critical_gb10())

    (inner,) = (attrs for tag, attrs in page.tags if "inner-cuda_pool" in (attrs.get("class") or ""))

    assert inner["width"] == f"{103_465_716_122 / 128_492_535_808 * 100:.3f}%"


def test_the_overview_lists_the_ten_largest_and_the_other_page_all() -> None:
    """Top holders first; what has no figure stands last."""
    base = calm_workstation()
    many = tuple(
        replace(base.processes[0], pid=pid, name=f"p{pid}", footprint_bytes=pid * 1000) for pid in range(1, 31)
    )
    unknown = replace(many[0], pid=99, name="unknown", footprint_bytes=Absent.NOT_PERMITTED)
    snapshot = replace(base, processes=(unknown, *many))

    overview, everything = read(snapshot).text, read(snapshot, "processes").text

    assert "p21" in overview
    assert "p20" not in overview
    assert overview.index("p30") < overview.index("p29")
    assert everything.index("p1 ") < everything.index("unknown")


@pytest.mark.parametrize("name", Pages.names)
def test_names_chosen_by_others_stay_text(name: str) -> None:
    """No name of a process, a user or a host becomes markup, script or a change of direction."""
    page = Pages().page(name, hostile_names())

    assert b"<script>alert" not in page
    assert b"<i>root" not in page
    assert b"onmouseover='x'" not in page
    assert "\u202e".encode() not in page
    assert b"\x1b" not in page
    assert latest(page)["title"].endswith("</script><script>alert(2)</script>")


def test_hostile_names_are_readable() -> None:
    """Escaped is not deleted: the name is shown as it is."""
    text = read(hostile_names()).text

    assert "<script>alert(1)</script>" in text
    assert "{{ 7*7 }}" in text
    assert "\\u202e" in text


def test_what_the_script_is_given_is_what_the_page_says() -> None:
    """Title, level and ratios come from the server; the browser works none of them out."""
    snapshot = critical_gb10()

    tick = latest(Pages().fragment("overview", snapshot))

    assert (tick["unix"], tick["interval_seconds"], tick["level"]) == (UNIX, 1.0, "critical")
    assert tick["title"] == "critical 96.4 % · spark-1"
    assert tick["targets"] == [
        {"id": "ram", "label": "System RAM", "level": "critical", "ratio": snapshot.pressure[0].ratio}
    ]
    assert tick["thresholds"] == {"medium": 0.6, "high": 0.8, "critical": 0.95}


def test_settings_that_were_read_again_reach_the_marks() -> None:
    """The next rendering uses the thresholds of now."""
    rules = [PressureRules()]
    pages = Pages(lambda: rules[0])
    before = Reader(pages.page("overview", calm_workstation())).text

    rules[0] = PressureRules(thresholds=Thresholds(0.4, 0.7, 0.9))
    after = Reader(pages.page("overview", calm_workstation())).text

    assert "95 %" in before
    assert "70 %" in after
    assert "95 %" not in after


def test_a_page_of_a_loop_that_stands_still_looks_stale_without_a_script() -> None:
    """The server knows that its figures are old, so the page says it before any script could."""
    page = Pages().page("overview", calm_workstation(), stalled_seconds=12.0)

    assert b'<body class="stale" data-stalled-seconds="12.0">' in page
    assert "no answer for 12 s — figures are from 10:22:33 UTC" in Reader(page).text


def test_own_processor_time_is_a_rate_over_the_last_minute() -> None:
    """0.12 s in 60 s is 0.2 % of a core; of one reading, or of two within 10 s, nothing can be said."""
    pages = Pages()
    first = calm_workstation()
    soon = replace(first, monotonic=first.monotonic + 2, self_usage=replace(first.self_usage, cpu_seconds=18.46))
    later = replace(first, monotonic=first.monotonic + 60, self_usage=replace(first.self_usage, cpu_seconds=18.52))

    one, two, three = (Reader(pages.page("about", snapshot)).text for snapshot in (first, soon, later))

    assert "Processor — not available" in one
    assert "Processor — not available" in two
    assert "Processor 0.2 % of a core" in three


def test_a_clock_that_starts_anew_gives_no_rate() -> None:
    """Readings of another run are forgotten, not subtracted."""
    pages = Pages()
    first = calm_workstation()
    pages.page("about", first)

    restarted = replace(first, monotonic=1.0, self_usage=replace(first.self_usage, cpu_seconds=0.1))
    again = Reader(pages.page("about", restarted)).text

    assert "Processor — not available" in again


def test_a_container_never_promises_more_than_its_limit_leaves() -> None:
    """What ends first is named; without System RAM nothing is promised."""
    inside = container_with_limit()
    outside = replace(inside, machine=replace(inside.machine, in_container=False))

    room, host = room_of(inside), room_of(outside)

    assert room is not None
    assert host is not None
    assert (room.label, room.size_bytes) == ("This container ⊂ System RAM", (4 << 30) - 3_650_722_201)
    assert host.size_bytes == inside.pools[0].available_bytes
    assert room_of(replace(inside, pools=(), shares=())) is None


def test_the_description_of_the_api_needs_nobody_else() -> None:
    """The page of the API loads its program from here and sends nothing to a validator."""
    page = Reader(Pages().docs())

    scripts = [attrs["src"] for tag, attrs in page.tags if tag == "script"]

    assert page.open == []
    assert scripts == ["static/vendor/swagger-ui-bundle-5.35.0.js", "static/docs.js"]
    assert "validatorUrl: null" in (STATIC / "docs.js").read_text()


@pytest.mark.alone
def test_a_fragment_is_cheap() -> None:
    """One rendering serves every reader of a tick, and stays small enough to send each second."""
    assert len(Pages().fragment("overview", critical_gb10())) < 32_000
