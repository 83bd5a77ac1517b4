"""Rendered pages: content, markup, escaping and assets."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.build_info import __version__
from memwatch.core.model import Absent, Pool, PoolKind, Quality, Thresholds
from memwatch.core.pressure.rules import PressureRules
from memwatch.core.snapshot import Snapshot, Swap
from memwatch.reporting.render.summary import compute_headroom
from memwatch_web.pages.landscape_page import TOWER
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.template_environment import shared_environment
from support.html_reader import Reader, read
from support.paths import STATIC
from support.sample_parts import GIB, UNIX
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

MAX_JAVASCRIPT_BYTES = 45_000


def latest(fragment: bytes) -> Any:
    found = re.search(rb'<script type="application/json" id="latest">(.*?)</script>', fragment, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize(("sample", "name"), list(product(SAMPLES, Pages.names)))
def test_every_page_has_valid_markup_its_fragment_and_no_inline_code(sample: str, name: str) -> None:
    """The stream sends byte for byte what a reload would show."""
    pages, snapshot = Pages(), SAMPLES[sample]()

    page, fragment = pages.page(name, snapshot), pages.fragment(name, snapshot)

    assert fragment in page
    assert len(fragment) > 400
    assert latest(fragment)["seq"] == snapshot.seq
    parsed = Reader(page)
    check_markup(parsed)
    check_content_policy(parsed)


def check_markup(page: Reader) -> None:
    """Check that tags are balanced, ids are unique, and there is one h1."""
    ids = page.values("id")

    assert page.open == []
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in page.tags].count("h1") == 1


def check_content_policy(page: Reader) -> None:
    """Check for inline code and external links: the strict content security policy needs no exception."""
    handlers = [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]

    assert handlers == page.values("style") == [tag for tag, _ in page.tags if tag == "style"] == []
    assert all(attrs.get("src") or attrs.get("type") == "application/json" for attrs in scripts)
    assert not [link for link in page.values("src") + page.values("href") if re.match(r"\w+:|//", link)]


def test_renderers_share_templates_and_keep_their_own_navigation() -> None:
    """Compiling them takes 0.7 s, in every process that cannot write compiled templates."""
    first, second = Pages(firing=lambda: 3), Pages(has_neighbours=lambda: True)
    before = shared_environment()

    pages = [one.page("overview", calm_workstation()).decode() for one in (first, second, first)]

    assert shared_environment() is before
    assert ["Alerts, 3 firing" in page for page in pages] == [True, False, True]
    assert ['href="machines"' in page for page in pages] == [False, True, False]


@pytest.mark.parametrize("name", [*Pages.names, "docs"])
def test_every_asset_of_a_page_exists(name: str) -> None:
    pages = Pages()
    page = Reader(pages.docs() if name == "docs" else pages.page(name, calm_workstation()))

    files = [link for link in page.values("src") + page.values("href") if link.startswith("static/")]

    assert len(files) >= 4
    assert [link for link in files if not (STATIC / link.removeprefix("static/")).is_file()] == []


@pytest.mark.parametrize("level", ["low", "medium", "high", "critical", "unknown", "stale"])
def test_every_level_has_an_icon(level: str) -> None:
    """The tab icon shows the level by shape and colour."""
    assert (STATIC / f"icon-{level}.svg").read_text().startswith("<svg")


def test_own_assets_have_no_external_reference() -> None:
    """No URL, @import or eval in styles and scripts outside vendor/."""
    ours = [path for path in STATIC.iterdir() if path.suffix in {".css", ".js"}]

    found = [
        path.name for path in ours if re.search(r"https?:|@import|url\(|\beval\(|new Function", path.read_text())
    ]

    assert len(ours) >= 4
    assert found == []


def test_own_javascript_is_small() -> None:
    """Unpacked, as a browser reads it. The libraries are in a folder of their own."""
    sizes = {one.name: one.stat().st_size for one in STATIC.glob("*.js")}

    assert len(sizes) >= 5
    assert sum(sizes.values()) <= MAX_JAVASCRIPT_BYTES


def test_vendored_files_match_their_checksums() -> None:
    """Each file in vendor/ is listed in its README with its SHA-256, and vice versa."""
    table = (STATIC / "vendor" / "README.md").read_text()

    listed = {
        aggregates[1].strip(): aggregates[6].strip()
        for line in table.splitlines()
        if len(aggregates := line.split("|")) == 8
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
        (critical_gb10(), "vllm 87.0 GiB PID 20311"),
        (critical_gb10(), "CUDA Pool 96.4 GiB ⊂ System RAM"),
        (critical_gb10(), "critical System RAM Full in ~40 s used of System RAM 115.4 GiB of 119.7 GiB · 96.4%"),
        (critical_gb10(), "can be allocated on NVIDIA GB10 4.3 GiB CUDA says 2.0 GiB"),
        (critical_gb10(), "some tasks stalled on memory for 12% of the last 10 s"),
        (critical_gb10(), "CUDA reports only MemFree as free: 2.0 GiB. Page cache can be reclaimed, so"),
        (critical_gb10(), "OOM kills 1 since boot"),
        (critical_gb10(), "93.5 GiB 87.0 GiB"),
        (calm_workstation(), "System RAM OK used of System RAM 24.8 GiB of 62.6 GiB · 39.6%"),
        (calm_workstation(), "can be allocated in System RAM 37.8 GiB 3.1 GiB at once"),
        (calm_workstation(), "Low “free” is normal."),
        (calm_workstation(), "312 processes"),
        (
            container_with_limit(),
            "This container ⊂ System RAM 3.4 GiB · 5.4% of System RAM · limit 4.0 GiB, 85.0",
        ),
        (container_with_limit(), "GPU memory on unified machines is not charged to this limit."),
        (container_with_limit(), "can be allocated in This container ⊂ System RAM 614.4 MiB"),
        (discrete_gpu(), "used 24.8 GiB · 39.6%"),
        (discrete_gpu(), "high GPU 0 VRAM"),
        (discrete_gpu(), "reserved 512.0 MiB"),
        (mig_server(), "trainer.service ⊂ ml.slice 9.0 GiB"),
        (mig_server(), "2g.20gb 19.6 GiB"),
        (hugepages_host(), "Reserved for huge pages: 48.0 GiB (12.0 GiB unused)."),
        (hugepages_host(), "The level is judged excluding reserved huge pages."),
        (stale_collector(), "— stale The collector stopped responding, and its last value is too old to show."),
        (stale_collector(), "No memory data"),
        (stale_collector(), "meminfo stalled 12 s ago"),
        (failing_collector(), "buddyinfo failing 5 min 40 s ago"),
        (failing_collector(), "/proc/buddyinfo line 2: found 'Node 0, zone', expected a zone name and numbers"),
        (unknown_figures(), "No data for GPU 0 VRAM"),
        (unknown_figures(), "GTT ⊂ System RAM — not permitted"),
        (unknown_figures(), "Number of processes: — not available"),
        (simulated(), "Simulated data: replayed from a recording, not measured on this machine."),
        (replace(calm_workstation(), swap=Swap(0, 0)), "Swap none"),
        (replace(calm_workstation(), pools=(), pressure=()), "No memory pools detected yet."),
        (replace(calm_workstation(), processes=()), "No process data yet."),
    ],
)
def test_overview_contains_sentence(snapshot: Snapshot, sentence: str) -> None:
    assert sentence in read(snapshot).text


@pytest.mark.parametrize(
    ("snapshot", "sentence"),
    [
        (critical_gb10(), "GPU memory is part of System RAM: CPU and GPU share this memory."),
        (critical_gb10(), "Memory pressure (PSI): tasks stalled on memory for 12.1% of the time (avg10)."),
        (critical_gb10(), "zram: 6.4 GiB compressed to 2.1 GiB of system RAM."),
        (critical_gb10(), "Not counted as memory."),
        (calm_workstation(), "Footprint = RSS (shared pages count in each process)"),
        (no_psi(), "This kernel does not provide pressure stall information (PSI)."),
    ],
)
def test_small_figure_explains_itself_in_its_title(snapshot: Snapshot, sentence: str) -> None:
    titles = [title for _, attributes in read(snapshot).tags if (title := attributes.get("title"))]

    assert [title for title in titles if sentence in title]


def test_carve_out_without_a_level_is_not_shown_as_unknown() -> None:
    """455 of 512 MiB are used, but the GPU also uses system RAM: sizes are shown, a level is not."""
    carve_out = Pool(
        "gpu0", PoolKind.CARVEOUT, "GPU carve-out", 512 << 20, 455 << 20, 57 << 20, "sysfs", Quality.MEASURED
    )
    calm = calm_workstation()

    text = read(replace(calm, pools=(*calm.pools, carve_out))).text

    assert "GPU carve-out no pressure level (the GPU also uses System RAM)" in text
    assert "No data for" not in text


def test_collectors_are_listed_on_the_about_page() -> None:
    """The overview counts them and names only those that fail."""
    overview, about = read(calm_workstation()).text, read(calm_workstation(), "about").text

    assert "Collectors 5 ok" in overview
    assert "this kernel has no ZFS" not in overview
    assert "zfs no /proc/spl/kstat/zfs/arcstats: this kernel has no ZFS" in about
    assert "1 not on this machine" in about


def test_a_recording_has_no_durations_of_collectors() -> None:
    """The column had a dash in each row."""
    assert "Last update Duration" in read(calm_workstation(), "about").text
    assert "Duration" not in read(replace(calm_workstation(), simulated=True), "about").text


def test_exact_bytes_are_in_the_title() -> None:
    page = read(calm_workstation())
    used = calm_workstation().pools[0].used_bytes

    assert f"{used:,} bytes" in page.values("title")
    assert str(used) in page.values("value")


def test_segment_of_a_share_leads_to_devices_and_states_its_size() -> None:
    """The CUDA Pool is 80.5% of its pool and as high."""
    page = read(critical_gb10())
    share = next(attrs for _, attrs in page.tags if attrs.get("class") == "b-devices-family")

    assert float(str(share["data-gib"])) == pytest.approx(103_465_716_122 / GIB, abs=0.001)
    assert float(str(share["height"])) == pytest.approx(TOWER * 103_465_716_122 / 128_492_535_808, abs=0.2)
    assert any(tag == "a" and attrs.get("href") == "devices" for tag, attrs in page.tags)


def test_overview_lists_the_largest_processes_and_the_process_page_all() -> None:
    """Largest first, unknown footprints last."""
    base = calm_workstation()
    many = tuple(
        replace(base.processes[0], pid=pid, name=f"p{pid}", footprint_bytes=pid * 1000) for pid in range(1, 31)
    )
    unknown = replace(many[0], pid=99, name="unknown", footprint_bytes=Absent.NOT_PERMITTED)
    snapshot = replace(base, processes=(unknown, *many))

    overview = read(snapshot).text.partition("Who holds it")[2]
    everything = read(snapshot, "processes").text

    assert "p26" in overview
    assert "p25" not in overview
    assert overview.index("p30") < overview.index("p29")
    assert everything.index("p1 ") < everything.index("unknown")


@pytest.mark.parametrize("name", Pages.names)
def test_foreign_names_are_escaped(name: str) -> None:
    """Names of processes, users and hosts inject no markup, script or bidirectional control."""
    page = Pages().page(name, hostile_names())

    assert b"<script>alert" not in page
    assert b"<i>root" not in page
    assert b"onmouseover='x'" not in page
    assert "\u202e".encode() not in page
    assert b"\x1b" not in page
    assert latest(page)["title"].endswith("</script><script>alert(2)</script>")


def test_escaped_names_stay_readable() -> None:
    text = read(hostile_names()).text

    assert "<script>alert(1)</script>" in text
    assert "{{ 7*7 }}" in text
    assert "\\u202e" in text


def test_script_data_matches_the_page() -> None:
    """Title and level are computed by the server only."""
    snapshot = critical_gb10()

    tick = latest(Pages().fragment("overview", snapshot))

    assert (tick["unix"], tick["interval_seconds"], tick["level"]) == (UNIX, 1.0, "critical")
    assert tick["title"] == "critical, full in ~40 s · spark-1"


def test_reloaded_thresholds_move_the_marks() -> None:
    rules = [PressureRules()]
    pages = Pages(lambda: rules[0])
    before = Reader(pages.page("overview", calm_workstation())).text

    rules[0] = PressureRules(thresholds=Thresholds(0.4, 0.7, 0.9))
    after = Reader(pages.page("overview", calm_workstation())).text

    assert "95%" in before
    assert "70%" in after
    assert "95%" not in after


def test_page_of_a_stalled_loop_is_stale_without_a_script() -> None:
    page = Pages().page("overview", calm_workstation(), stalled_seconds=12.0)

    assert b'<body class="stale" data-stalled-seconds="12.0">' in page
    assert "No new data for 12 s. Showing data from 10:22:33 UTC." in Reader(page).text


def test_own_cpu_use_is_averaged_over_the_last_minute() -> None:
    """0.12 s in 60 s is 0.2% of a core. One sample, or two within 10 s, give no value."""
    pages = Pages()
    first = calm_workstation()
    soon = replace(first, monotonic=first.monotonic + 2, self_usage=replace(first.self_usage, cpu_seconds=18.46))
    later = replace(first, monotonic=first.monotonic + 60, self_usage=replace(first.self_usage, cpu_seconds=18.52))

    one, two, three = (Reader(pages.page("about", snapshot)).text for snapshot in (first, soon, later))

    assert "CPU — not available" in one
    assert "CPU — not available" in two
    assert "CPU 0.2% of a core" in three


def test_cost_of_the_daemon_has_one_base_on_all_pages() -> None:
    """The overview had "1.6% CPU" and the page about it "0.3% of a core"."""
    pages = Pages()
    first = calm_workstation()
    later = replace(first, monotonic=first.monotonic + 60, self_usage=replace(first.self_usage, cpu_seconds=18.52))
    pages.page("overview", first)

    assert "memwatchd 0.2% of a core" in Reader(pages.page("overview", later)).text


def test_page_about_the_daemon_has_its_version_in_a_row_and_no_card_of_one_sentence() -> None:
    page = Reader(Pages().page("about", calm_workstation()))

    assert f"Version {__version__}" in page.text
    assert "History is not stored" in page.text
    assert page.values("class").count("card") == 3, "the program, its cost, its collectors"


def test_restarted_clock_gives_no_cpu_use() -> None:
    """Values of another run are dropped, not subtracted."""
    pages = Pages()
    first = calm_workstation()
    pages.page("about", first)

    restarted = replace(first, monotonic=1.0, self_usage=replace(first.self_usage, cpu_seconds=0.1))
    again = Reader(pages.page("about", restarted)).text

    assert "CPU — not available" in again


def test_available_memory_in_a_container_is_bounded_by_its_limit() -> None:
    """The tighter bound is named. Without system RAM there is no value."""
    inside = container_with_limit()
    outside = replace(inside, machine=replace(inside.machine, in_container=False))

    room, host = compute_headroom(inside), compute_headroom(outside)

    assert room is not None
    assert host is not None
    assert (room.label, room.headroom_after_reclaim_bytes) == (
        "This container ⊂ System RAM",
        (4 << 30) - 3_650_722_201,
    )
    assert host.headroom_after_reclaim_bytes == inside.pools[0].available_bytes
    assert compute_headroom(replace(inside, pools=(), shares=())) is None


def test_api_reference_loads_nothing_external() -> None:
    """Swagger UI is bundled, and its external validator is disabled."""
    page = Reader(Pages().docs())

    scripts = [attrs["src"] for tag, attrs in page.tags if tag == "script"]

    assert page.open == []
    assert scripts == [
        "static/theme.js",
        "static/page.js",
        "static/vendor/swagger-ui-bundle-5.35.0.js",
        "static/docs.js",
    ]
    assert "validatorUrl: null" in (STATIC / "docs.js").read_text()


def test_fragment_is_small() -> None:
    """It is sent to every client each second."""
    assert len(Pages().fragment("overview", critical_gb10())) < 32_000
