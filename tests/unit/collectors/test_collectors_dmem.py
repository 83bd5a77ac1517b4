"""Limits of cgroups on GPU memory from the files of the dmem controller."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest

from memwatch.core.collectors.dmem import STEP_GROUPS, Collector
from memwatch.core.linux.dmem import DmemGroup, DmemReading, is_within, nearest, parse_regions, region_address
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.model import Absent
from support.calibration import HOT_SECONDS, seconds_of_work, slowness

VRAM, OTHER = "drm/0000:03:00.0/vram", "nvidia/0000:41:00.0/vidmem"
GIB = 1 << 30
MOUNT = "33 22 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


class Tree:
    """A machine with a cgroup tree and nothing else."""

    def __init__(self, folder: Path, own: str = "/") -> None:
        self.folder = folder / "sys/fs/cgroup"
        self.roots = Roots(folder / "proc", folder / "sys", folder)
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/mountinfo").write_text(MOUNT)
        (folder / "proc/self/cgroup").write_text(f"0::{own}\n")
        self.folder.mkdir(parents=True)
        self.write("", "dmem.capacity", {VRAM: 24 * GIB, OTHER: 48 * GIB})

    def write(self, group: str, file: str, figures: Mapping[str, object]) -> None:
        folder = self.folder / group
        folder.mkdir(parents=True, exist_ok=True)
        # In place: the collector keeps files open.
        with (folder / file).open("w") as written:
            written.write("".join(f"{region} {figure}\n" for region, figure in figures.items()))

    def group(self, path: str, used: int, limit: object = "max", **files: object) -> None:
        self.write(path, "dmem.current", {VRAM: used, OTHER: 0})
        self.write(path, "dmem.max", {VRAM: limit, OTHER: "max"})
        for name, figure in files.items():
            self.write(path, f"dmem.{name}", {VRAM: figure, OTHER: 0})


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def reading(collector: Collector) -> DmemReading:
    found = collector.collect().dmem
    assert found is not None
    return found


def by_path(found: DmemReading) -> Mapping[str, DmemGroup]:
    return {group.cgroup: group for group in found.groups}


def test_limited_groups_and_users_are_found_at_any_depth(tmp_path: Path) -> None:
    """A limit counts without use, and use without a limit; groups with neither are skipped."""
    tree = Tree(tmp_path, own="/system.slice/memwatchd.service")
    tree.group("a.slice", 5 * GIB)
    tree.group("a.slice/b.service", 5 * GIB, 8 * GIB, peak=6 * GIB, min=GIB, low=2 * GIB)
    tree.group("a.slice/idle.service", 0, 4 * GIB)
    tree.group("a.slice/none.service", 0)
    (tree.folder / "c.slice/d.service").mkdir(parents=True)

    collector = Collector(tree.roots)
    found = by_path(reading(collector))
    collector.close()

    assert set(found) == {"/a.slice", "/a.slice/b.service", "/a.slice/idle.service"}
    (limited,) = found["/a.slice/b.service"].regions
    assert (limited.region, limited.used_bytes, limited.limit_bytes) == (VRAM, 5 * GIB, 8 * GIB)
    assert (limited.peak_bytes, limited.protected_bytes) == (6 * GIB, 2 * GIB)
    assert found["/a.slice/idle.service"].regions[0].peak_bytes is Absent.NOT_SUPPORTED
    assert found["/a.slice"].regions[0].limit_bytes is None


def test_groups_below_one_without_the_controller_are_not_visited(tmp_path: Path) -> None:
    """The kernel enables a controller from the top: a group without its files has no child with them."""
    tree = Tree(tmp_path)
    tree.group("plain/inner", GIB, 2 * GIB)
    for name in ("dmem.current", "dmem.max"):
        (tree.folder / "plain" / name).unlink(missing_ok=True)

    collector = Collector(tree.roots)

    assert reading(collector).groups == ()
    collector.close()


def test_use_of_limited_groups_is_read_between_walks(tmp_path: Path) -> None:
    """New limits are found with the next walk; a removed group disappears then."""
    tree, clock = Tree(tmp_path), Clock()
    tree.group("a", GIB, 8 * GIB)
    collector = Collector(tree.roots, clock)
    reading(collector)

    tree.group("a", 3 * GIB, 8 * GIB)
    tree.group("b", GIB, 2 * GIB)
    clock.now += 1
    assert by_path(reading(collector))["/a"].regions[0].used_bytes == 3 * GIB
    assert set(by_path(reading(collector))) == {"/a"}
    shutil.rmtree(tree.folder / "a")
    clock.now += 10
    assert set(by_path(reading(collector))) == {"/b"}
    collector.close()


def test_limit_whose_use_cannot_be_read_is_still_a_limit(tmp_path: Path) -> None:
    """Its use is absent, and not 0."""
    tree = Tree(tmp_path)
    tree.group("a.slice", 3 * GIB, limit=4 * GIB)
    tree.write("a.slice", "dmem.current", {})
    collector = Collector(tree.roots)
    (unread,) = by_path(reading(collector))["/a.slice"].regions
    (again,) = by_path(reading(collector))["/a.slice"].regions
    collector.close()

    assert unread == again
    assert (unread.region, unread.limit_bytes, unread.used_bytes) == (VRAM, 4 * GIB, Absent.NOT_AVAILABLE)


def test_walk_after_the_first_is_done_in_steps(tmp_path: Path) -> None:
    """A thousand groups are spread over several runs, and the old result stays until the last."""
    tree, clock = Tree(tmp_path), Clock()
    tree.group("pods", 0)
    for number in range(3 * STEP_GROUPS):
        tree.group(f"pods/{number:04}", 0)
    collector = Collector(tree.roots, clock)
    reading(collector)
    tree.group("pods/0000", 0, 2 * GIB)

    clock.now += 10
    runs = 0
    while not reading(collector).groups:
        runs += 1
        clock.now += 1

    assert runs == 3
    collector.close()


def test_five_hundred_containers_cost_milliseconds(tmp_path: Path) -> None:
    """A run visits at most 128 groups: 1 ms here, with 5 ms allowed on a machine of this speed."""
    tree, clock = Tree(tmp_path), Clock()
    tree.group("pods", GIB)
    for number in range(500):
        tree.group(f"pods/{number:04}", 0)
    collector = Collector(tree.roots, clock)
    reading(collector)

    costs, works = [], []
    for _ in range(30):
        clock.now += 3
        works.append(seconds_of_work())
        started = time.thread_time()
        reading(collector)
        costs.append(time.thread_time() - started)

    assert sorted(costs)[-3] < 0.005 * slowness(median(works), HOT_SECONDS)
    collector.close()


def test_own_groups_are_kept_before_larger_ones(tmp_path: Path) -> None:
    """At most 64 limited groups are watched; the limit that memwatchd itself has is one of them."""
    tree = Tree(tmp_path, own="/mine/inner")
    tree.group("mine", GIB, 2 * GIB)
    for number in range(70):
        tree.group(f"other{number}", GIB, 4 * GIB)
    collector = Collector(tree.roots)

    found = reading(collector)

    assert found.groups[0].cgroup == "/mine"
    assert (len(found.groups), found.left_out) == (64, 7)
    collector.close()


def test_container_sees_its_own_limit_at_the_root_of_its_tree(tmp_path: Path) -> None:
    """There is no dmem.capacity in a cgroup namespace."""
    tree = Tree(tmp_path)
    (tree.folder / "dmem.capacity").unlink()
    tree.group("", 2 * GIB, 4 * GIB)
    collector = Collector(tree.roots)

    found = reading(collector)

    assert found.own == "/"
    assert by_path(found)["/"].regions[0].limit_bytes == 4 * GIB
    assert found.capacity_bytes == {}
    collector.close()


@pytest.mark.parametrize("empty", [True, False])
def test_kernel_without_regions_is_unavailable(tmp_path: Path, empty: bool) -> None:
    """The controller exists without a driver that uses it."""
    tree = Tree(tmp_path)
    (tree.folder / "dmem.capacity").unlink()
    if empty:
        (tree.folder / "dmem.capacity").touch()

    with pytest.raises(SourceUnavailable, match=r"Linux 6\.14"):
        Collector(tree.roots)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"drm/0000:03:00.0/vram 12\n", {VRAM: 12}),
        (b"drm/0000:03:00.0/vram max\nnvidia/0000:41:00.0/vidmem 7\n", {VRAM: None, OTHER: 7}),
        (b"drm/0000:03:00.0/vram 9223372036854771712\n", {VRAM: None}),
        (b"drm/0000:03:00.0/vram -1\nno figure\n\n", {}),
        (None, {}),
    ],
)
def test_lines_are_parsed(data: bytes | None, found: Mapping[str, int | None]) -> None:
    assert parse_regions(data) == found


@pytest.mark.parametrize(
    ("region", "address"),
    [
        (VRAM, "0000:03:00.0"),
        (OTHER, "0000:41:00.0"),
        ("drm/platform-gpu/vram", None),
        ("nvidia/GPU-5a3d/vidmem", None),
    ],
)
def test_regions_are_matched_by_pci_address(region: str, address: str | None) -> None:
    assert region_address(region) == address


def test_nearest_group_is_the_innermost_that_contains_it() -> None:
    """Names that only begin alike are no parents."""
    assert nearest("/a/b/c", ["/", "/a", "/a/b", "/a/b/c", "/a/b/cd"]) == "/a/b"
    assert nearest("/a", ["/ab", "/a"]) is None
    assert is_within("/a", "/")
