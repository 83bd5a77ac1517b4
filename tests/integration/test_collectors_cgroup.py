"""Memory limits of containers and units: the limiting cgroup, its use, and when it is shown."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from memwatch.core.collectors.cgroup import (
    RESCAN_SECONDS,
    CgroupLimit,
    Collector,
    GroupFiles,
    compute_period,
    compute_used,
    limiting_cgroup,
    parse_size,
)
from memwatch.core.linux.cgroup_mounts import V1, V2, CgroupVersion, find_own_cgroup, parse_limit
from memwatch.core.linux.cgroups import OwnerNames, parse_cgroup, parse_mountinfo, parse_owners
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.model import CGROUP_NOTE, Absent
from simulators.amd_readings import ManualClock
from support.fd_limit import descriptors, few_descriptors
from support.machine_folders import machine_folder, plain

ID = "3fa9c1d07be24586" * 4
GIB = 1 << 30


def parse_names(line: str) -> OwnerNames:
    return parse_owners(parse_cgroup(line.encode() + b"\n"))


@pytest.mark.parametrize(
    ("line", "unit", "container"),
    [
        ("0::/init.scope", "init.scope", None),
        ("0::/", None, None),
        ("0::/system.slice/ssh.service", "ssh.service", None),
        ("0::/system.slice/containerd.service/sub/sub", "containerd.service", None),
        ("0::/user.slice", "user.slice", None),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope",
            "app-x.scope in user/1000",
            None,
        ),
        (f"0::/system.slice/docker-{ID}.scope", f"docker-{ID}.scope", ID[:12]),
        (f"0::/../../system.slice/docker-{ID}.scope", f"docker-{ID}.scope", ID[:12]),
        (f"0::/user.slice/libpod-{ID}.scope/container", f"libpod-{ID}.scope", ID[:12]),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", f"libpod-conmon-{ID}.scope", None),
        (f"0::/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope", f"crio-{ID}.scope", ID[:12]),
        (f"0::/kubepods.slice/kubepods-pod1.slice/crio-conmon-{ID}.scope", f"crio-conmon-{ID}.scope", None),
        (
            f"0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}",
            "containerd.service",
            ID[:12],
        ),
        (f"4:memory:/docker/{ID}", None, ID[:12]),
        (f"4:memory:/kubepods/burstable/pod8a1f/{ID}", None, ID[:12]),
        (f"4:memory:/docker/{ID}/docker/{ID[::-1]}", None, ID[::-1][:12]),
        ("1:name=systemd:/system.slice/mariadb.service", "mariadb.service", None),
        ("0::/system.slice/" + "f" * 63 + ".scope", "f" * 63 + ".scope", None),
    ],
)
def test_unit_and_container_are_parsed_from_cgroup_paths(
    line: str, unit: str | None, container: str | None
) -> None:
    """The paths of every common runtime, for cgroup v1 and v2."""
    assert parse_names(line) == OwnerNames(unit, container)


def test_truncated_cgroup_file_drops_the_last_line() -> None:
    """Malformed lines are ignored."""
    assert parse_cgroup(b"rubbish\n1:cpu,memory:/a:b\n0::/system.slice/ssh.serv") == {
        "cpu": "/a:b",
        "memory": "/a:b",
    }


def test_octal_escapes_in_mountinfo_are_decoded() -> None:
    (mount,) = parse_mountinfo(rb"31 1 0:29 /a\040b /c\134d rw shared:1 master:2 - cgroup2 none rw" + b"\n")

    assert (mount.root, mount.point, mount.kind) == ("/a b", "/c\\d", "cgroup2")


def test_own_unit_limit_is_hidden_on_a_host() -> None:
    """The daemon's own MemoryMax is not the host's RAM. It is shown only on request."""
    roots = machine_folder("workstation").roots

    with pytest.raises(SourceUnavailable, match="host scope"):
        Collector(roots)
    (share,) = plain(Collector(roots, "cgroup").collect())["shares"]

    assert share["label"] == "Unit limit"
    assert (share["used_bytes"], share["limit_bytes"]) == (
        61_000_000 - 9_000_000 - 7_000_000 - 1_000_000,
        256 << 20,
    )


def test_host_scope_in_a_container_shows_no_limit() -> None:
    with pytest.raises(SourceUnavailable, match="this is a container"):
        Collector(machine_folder("container-v2").roots, "host")


def test_cgroup_limit_excludes_gpu_memory() -> None:
    """A container uses 0.4 of 12 GiB while 33 GB of the machine are unattributed: both are shown."""
    expected = machine_folder("container-v2").expected
    (share,), (pool,) = expected["cgroup"]["shares"], expected["meminfo"]["pools"]

    assert share["used_bytes"] < 0.04 * share["limit_bytes"]
    assert pool["unattributed_bytes"] > 27_000_000_000
    assert share["note"] == CGROUP_NOTE


def test_lower_throttle_limit_is_the_limit(tmp_path: Path) -> None:
    """A container at memory.high stalls and is never killed, below memory.max."""
    roots = copied(tmp_path, "container-v2")
    (roots.sysfs / "fs/cgroup/memory.high").write_text("2147483648\n")

    (share,) = Collector(roots).collect().shares

    assert (share.label, share.limit_bytes, share.limit_throttles) == ("Container throttle limit", 2 * GIB, True)
    assert share.note == (
        "memory.high: above it the kernel slows the processes down, and kills only at memory.max, 12.0 GiB; "
        + CGROUP_NOTE
    )


def test_throttle_limit_is_the_only_limit(tmp_path: Path) -> None:
    """systemd's MemoryHigh= without MemoryMax=: the note says that no process is killed."""
    roots = copied(tmp_path, "container-v2")
    (roots.sysfs / "fs/cgroup/memory.high").write_text("2147483648\n")
    (roots.sysfs / "fs/cgroup/memory.max").write_text("max\n")

    (share,) = Collector(roots).collect().shares

    assert (share.limit_bytes, share.limit_throttles) == (2 * GIB, True)
    assert (share.note or "").startswith(
        "memory.high: above it the kernel slows the processes down, and kills none;"
    )


@pytest.mark.parametrize("high", ["max", "12884901888", "13958643712"])
def test_throttle_limit_that_is_not_lower_changes_nothing(high: str, tmp_path: Path) -> None:
    """The kernel kills at memory.max first, which is the limit then."""
    roots = copied(tmp_path, "container-v2")
    (roots.sysfs / "fs/cgroup/memory.high").write_text(f"{high}\n")

    assert (
        plain(Collector(roots).collect())["shares"] == machine_folder("container-v2").expected["cgroup"]["shares"]
    )


def test_kernel_without_throttle_limits_has_the_other_limit(tmp_path: Path) -> None:
    roots = copied(tmp_path, "container-v2")
    (roots.sysfs / "fs/cgroup/memory.high").unlink()

    assert (
        plain(Collector(roots).collect())["shares"] == machine_folder("container-v2").expected["cgroup"]["shares"]
    )


def test_throttle_limit_of_an_ancestor_is_used(tmp_path: Path) -> None:
    """The tightest limit on the way up counts, whichever of the two it is, with the use that counts against it."""
    roots = copied(tmp_path, "container-nested")
    (roots.sysfs / "fs/cgroup/kubepods.slice/kubepods-burstable.slice/memory.high").write_text("4294967296\n")

    (share,) = Collector(roots).collect().shares

    assert (share.limit_bytes, share.limit_throttles) == (4 * GIB, True)
    assert share.used_bytes == 16_106_127_360 - 3_000_000_000 - 2_000_000_000 - 300_000_000


def test_odd_throttle_limit_leaves_the_other_limit(tmp_path: Path) -> None:
    roots = copied(tmp_path, "container-v2")
    (roots.sysfs / "fs/cgroup/memory.high").write_text("none\n")

    (share,) = Collector(roots).collect().shares

    assert (share.label, share.limit_bytes, share.limit_throttles) == ("Container limit", 12 * GIB, False)
    assert "a limit cannot be read" in (share.note or "")


def test_kills_are_counted_at_the_limit_that_kills(tmp_path: Path) -> None:
    """The pod has a throttle limit, the container is killed at its own limit: the kill is counted."""
    roots = copied(tmp_path, "container-nested")
    leaf = next((roots.sysfs / "fs/cgroup").rglob("cri-containerd-*"))
    (leaf / "memory.max").write_text("5368709120\n")
    (roots.sysfs / "fs/cgroup/kubepods.slice/memory.high").write_text("4294967296\n")
    (leaf / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
    collector = Collector(roots)
    before = collector.collect().cgroup_oom_kills_total
    (leaf / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")

    after = collector.collect()

    assert after.shares[0].limit_throttles
    assert (before, after.cgroup_oom_kills_total) == (0, 1)


def test_limit_above_memtotal_is_ignored(tmp_path: Path) -> None:
    """A limit that is not below MemTotal has no effect. The container's use is still shown."""
    roots = copied(tmp_path, "container-v2")
    (roots.sysfs / "fs/cgroup/memory.max").write_text(f"{1 << 40}\n")

    (share,) = plain(Collector(roots).collect())["shares"]

    assert share["limit_bytes"] == "not_supported"
    assert share["label"] == "Container"
    assert share["used_bytes"] == machine_folder("container-v2").expected["cgroup"]["shares"][0]["used_bytes"]


def make_unreadable(file: Path) -> None:
    """Put a folder in the file's place: also root cannot read it."""
    file.unlink()
    file.mkdir()


def test_unreadable_limit_is_not_no_limit(tmp_path: Path) -> None:
    """The container's only limit cannot be read: its share says so, with neither a limit nor a use."""
    roots = copied(tmp_path, "container-v2")
    make_unreadable(roots.sysfs / "fs/cgroup/memory.max")

    (share,) = Collector(roots).collect().shares

    assert (share.label, share.limit_bytes, share.used_bytes) == ("Container", *[Absent.NOT_AVAILABLE] * 2)
    assert share.note == f"the limit of / cannot be read (Is a directory) and may be lower; {CGROUP_NOTE}"


def test_unreadable_limit_of_an_ancestor_is_named(tmp_path: Path) -> None:
    """Another limit is known and shown, but the unread one may be lower. Once it can be read, it counts."""
    roots, clock = copied(tmp_path, "container-nested"), ManualClock()
    folder = roots.sysfs / "fs/cgroup/kubepods.slice/kubepods-burstable.slice"
    make_unreadable(folder / "memory.max")
    collector = Collector(roots, clock=clock)
    (unread,) = collector.collect().shares
    (folder / "memory.max").rmdir()
    (folder / "memory.max").write_text("4294967296\n")
    clock.now += RESCAN_SECONDS
    (read,) = collector.collect().shares

    assert unread.note is not None
    assert unread.note.startswith("the limit of /kubepods.slice/kubepods-burstable.slice cannot be read")
    assert read.limit_bytes == 4 * GIB
    assert "cannot be read" not in (read.note or "")


def test_group_without_accounting_has_no_limit_to_read(tmp_path: Path) -> None:
    """Without the memory controller a group lacks the files, as the root of version 2 does."""
    roots = copied(tmp_path, "container-nested")
    folder = roots.sysfs / "fs/cgroup/kubepods.slice"
    for name in ("memory.max", "memory.current"):
        (folder / name).unlink(missing_ok=True)

    (share,) = Collector(roots).collect().shares

    assert "cannot be read" not in (share.note or "")


def test_new_limit_of_an_ancestor_is_used(tmp_path: Path) -> None:
    """A limit set while the daemon runs is read at the next tick, with the use that counts against it."""
    roots = copied(tmp_path, "container-nested")
    collector = Collector(roots)
    (roots.sysfs / "fs/cgroup/kubepods.slice/kubepods-burstable.slice/memory.max").write_text("4294967296\n")

    (share,) = collector.collect().shares

    assert share.limit_bytes == 4 * GIB
    assert share.used_bytes == 16_106_127_360 - 3_000_000_000 - 2_000_000_000 - 300_000_000


def test_cgroup_v2_without_memory_controller_is_unavailable(tmp_path: Path) -> None:
    """A hybrid layout whose v1 counts no memory has no limit. The error names the missing file."""
    roots = copied(tmp_path, "hybrid-v1v2")
    (roots.procfs / "self/cgroup").write_text("1:name=systemd:/docker/x\n0::/docker/x\n")

    with pytest.raises(SourceUnavailable, match=r"unified.*memory\.current"):
        Collector(roots)


def test_unmounted_hierarchy_is_unavailable() -> None:
    """The container has no cgroup file system."""
    with pytest.raises(SourceUnavailable, match="not mounted"):
        find_own_cgroup(b"0::/\n", b"", Roots())


def test_no_memory_controller_is_unavailable() -> None:
    """Neither cgroup v2 nor the v1 memory controller is present."""
    with pytest.raises(SourceUnavailable, match="no hierarchy"):
        find_own_cgroup(b"3:cpu:/\n", b"", Roots())


def test_cgroup_outside_the_mount_falls_back_to_the_mount() -> None:
    """A process beside the mounted subtree gets the mount, the nearest visible cgroup."""
    mountinfo = b"31 1 0:29 /docker/abc /sys/fs/cgroup rw - cgroup2 none rw\n"

    outside = find_own_cgroup(b"0::/../other\n", mountinfo, Roots())
    inside = find_own_cgroup(b"0::/docker/abc/deep\n", mountinfo, Roots())

    assert outside.folders == [Path("/sys/fs/cgroup")]
    assert inside.folders == [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/deep")]


def test_smallest_limit_binds() -> None:
    """Among equal limits the outermost counts, because it fills first. Unlimited groups never do."""
    outer, inner = CgroupLimit(Path("a"), 5 * GIB, 3 * GIB), CgroupLimit(Path("a/b"), 5 * GIB, GIB)
    free = CgroupLimit(Path("a/b/c"), None, GIB)

    assert limiting_cgroup([outer, inner, free], 8 * GIB) is outer
    assert limiting_cgroup([outer, inner, free], 5 * GIB) is None
    assert limiting_cgroup([free, CgroupLimit(Path("d"), 0, 0)], GIB) == CgroupLimit(Path("d"), 0, 0)


def test_unlimited_cgroups_are_parsed() -> None:
    """cgroup v2 has `max`. v1 has a number above any RAM, which is smaller with 64 KiB pages."""
    assert parse_limit(b"max\n") is None
    assert parse_limit(b"9223372036854771712\n") == 2**63 - 4096
    assert parse_limit(b"9223372036854710272\n") == 2**63 - 65536


@pytest.mark.parametrize("data", [b"", b"-1\n", b"max 5\n", b"1" * 21])
def test_invalid_limit_is_rejected(data: bytes) -> None:
    with pytest.raises(ParseError, match="is not a number of bytes"):
        parse_limit(data)


def test_use_is_never_negative() -> None:
    """Two files read at different times may show more cache than usage."""
    assert compute_used(V2, 100, {"inactive_file": 80, "active_file": 40}).bytes == 0
    assert compute_used(V1, 100, {"total_inactive_file": 30, "total_active_file": 40}) == (30, False)


def test_missing_memtotal_is_rejected() -> None:
    """A limit cannot be judged without the machine's size."""
    with pytest.raises(ParseError, match="MemTotal"):
        parse_size(b"XMemTotal: 5 kB\nMemTotal: 5")


@pytest.mark.parametrize(
    ("stat", "used"),
    [
        ({"anon": 5}, 4 * GIB),
        ({"inactive_file": GIB}, 3 * GIB),
        ({"inactive_file": (1 << 64) - 5, "active_file": GIB}, 3 * GIB),
        ({"inactive_file": 3 * GIB, "active_file": 3 * GIB}, 4 * GIB),
    ],
    ids=["no counters", "one counter", "wrapped", "sum"],
)
def test_cache_that_cannot_be_true_is_not_subtracted(stat: dict[str, int], used: int) -> None:
    """The use is too high then, and says so: a full container was empty."""
    assert compute_used(V2, 4 * GIB, stat) == (used, True)


@pytest.mark.parametrize(
    ("file", "text"),
    [("memory.current", "none\n"), ("memory.current", f"{1 << 63}\n"), ("memory.max", "none\n")],
)
def test_odd_figure_of_a_container_leaves_the_other(file: str, text: str, tmp_path: Path) -> None:
    roots = copied(tmp_path, "container-v2")
    with closing(Collector(roots)) as collector:
        sound = collector.collect().shares[0]
    (roots.sysfs / "fs/cgroup" / file).write_text(text)
    with closing(Collector(roots)) as collector:
        found = collector.collect()
    share = found.shares[0]

    expected = {"used_bytes": sound.used_bytes, "limit_bytes": sound.limit_bytes}
    expected["used_bytes" if file == "memory.current" else "limit_bytes"] = Absent.INCONSISTENT
    assert {"used_bytes": share.used_bytes, "limit_bytes": share.limit_bytes} == expected
    assert share.label == "Container limit"
    assert ("a limit cannot be read" in (share.note or "")) is (file == "memory.max")
    assert found.rejected == 1


def copied(tmp_path: Path, name: str) -> Roots:
    machine = machine_folder(name).roots
    roots = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "root")
    for source, target in (
        (machine.procfs, roots.procfs),
        (machine.sysfs, roots.sysfs),
        (machine.rootfs, roots.rootfs),
    ):
        shutil.copytree(source, target, symlinks=True)
    return roots


@pytest.mark.parametrize(
    ("limit", "used", "cost", "period"),
    [
        (None, GIB, 0.001, 10.0),
        (GIB, GIB // 2, 0.001, 1.0),
        (GIB, GIB * 6 // 10, 0.001, 0.1),
        (GIB, GIB * 6 // 10, 0.010, 0.5),
        (GIB, GIB // 2, 0.040, 2.0),
    ],
    ids=["no limit", "low", "near", "near and expensive", "low and expensive"],
)
def test_read_interval_shrinks_near_the_limit(limit: int | None, used: int, cost: float, period: float) -> None:
    """Ten times a second near the limit, and never more than 2% of one CPU."""
    assert compute_period(CgroupLimit(Path("/"), limit, used), cost) == pytest.approx(period)
    assert compute_period(None, cost) == 10.0


@pytest.mark.parametrize(
    ("used", "growth", "cost", "period"),
    [
        (900 << 20, 100 << 20, 1e-5, 0.04 * 1.24),
        (1020 << 20, 1 << 30, 1e-5, 0.005),
        (1020 << 20, 1 << 30, 1e-3, 0.05),
        (200 << 20, 100 << 20, 1e-5, 0.04 * 8.24),
        (200 << 20, 1 << 20, 1e-5, 1.0),
        (900 << 20, -(1 << 30), 1e-5, 0.1),
    ],
)
def test_limit_is_read_sooner_the_faster_it_fills(used: int, growth: float, cost: float, period: float) -> None:
    """Before 5 % of the rest is gone, at most 200 times a second, and within the same 2 % of one CPU."""
    found = compute_period(CgroupLimit(Path("/"), GIB, used), cost, growth)

    assert found == pytest.approx(period, rel=0.05)


def test_growth_of_the_limited_cgroup_shortens_its_interval(tmp_path: Path) -> None:
    """From 0.6 GiB below the limit of 6 GiB, ten times a second: 200 MiB more need the next reading after 9 ms."""
    clock, roots = ManualClock(), copied(tmp_path, "container-nested")
    (usage,) = roots.sysfs.glob("fs/cgroup/kubepods.slice/*/*pod*/memory.current")
    collector = Collector(roots, clock=clock)
    collector.collect()
    calm = collector.period_seconds
    clock.now += 0.1
    usage.write_text(f"{int(usage.read_text()) + (200 << 20)}\n")

    collector.collect()
    filling = collector.period_seconds
    collector.close()

    assert calm >= 0.1
    assert filling < 0.08


@pytest.mark.parametrize("version", [V1, V2], ids=["v1", "v2"])
def test_oom_kills_at_the_limit_are_counted(version: CgroupVersion, tmp_path: Path) -> None:
    """`oom_kill` of the group's own file; kernels before 4.13 have no such line."""
    stat = {V1: "total_inactive_file 0\ntotal_active_file 0\n", V2: "inactive_file 0\nactive_file 0\n"}[version]
    for name, text in ((version.limit, f"{GIB}\n"), (version.usage, "4096\n"), ("memory.stat", stat)):
        (tmp_path / name).write_text(text)
    with closing(GroupFiles(version, tmp_path)) as files:
        before = files.read()
    (tmp_path / version.events).write_text("low 0\nhigh 4\noom_kill_disable 0\nunder_oom 0\noom_kill 3\n")

    with closing(GroupFiles(version, tmp_path)) as files:
        after = files.read()

    assert before == CgroupLimit(tmp_path, GIB, 4096, None)
    assert after == CgroupLimit(tmp_path, GIB, 4096, 3)


@pytest.mark.parametrize(("hits", "kills"), [(1, 1), (0, 0)], ids=["at its limit", "of the machine"])
def test_only_kills_at_the_limit_are_those_of_the_container(hits: int, kills: int, tmp_path: Path) -> None:
    """`oom_kill` also counts a kill of the machine in the container."""
    roots = copied(tmp_path, "container-v2")
    events = roots.sysfs / "fs/cgroup/memory.events"
    events.write_text("oom 3\noom_kill 2\n")
    with closing(Collector(roots)) as collector:
        before = collector.collect().cgroup_oom_kills_total
        events.write_text(f"oom {3 + hits}\noom_kill 3\n")
        after = [collector.collect().cgroup_oom_kills_total for _ in range(2)]

    assert (before, after) == (0, [kills, kills])


def test_move_to_another_cgroup_is_followed(tmp_path: Path) -> None:
    """The files of the new cgroup stay open, and those of the old one are closed."""
    roots = copied(tmp_path, "container-nested")
    collector = Collector(roots)
    before = collector.collect().shares[0].used_bytes
    opened = descriptors()
    new = roots.sysfs / "fs/cgroup/moved"
    new.mkdir()
    for name, text in (("memory.max", f"{GIB}\n"), ("memory.current", "70000000\n")):
        (new / name).write_text(text)
    (new / "memory.stat").write_text("inactive_file 0\nactive_file 0\nslab_reclaimable 0\n")
    (roots.procfs / "self/cgroup").write_text("0::/moved\n")

    (share,) = collector.collect().shares

    assert before != 70_000_000
    assert (share.used_bytes, share.limit_bytes) == (70_000_000, GIB)
    assert descriptors() < opened
    collector.close()


def test_group_without_controller_does_not_fail_the_tick(tmp_path: Path) -> None:
    """Its open file fails as after the controller is disabled. The other groups are read in the same tick."""
    roots = copied(tmp_path, "container-nested")
    limit = next((roots.sysfs / "fs/cgroup").rglob("cri-containerd-*")) / "memory.max"
    expected = Collector(roots).collect().shares[0]
    limit.unlink()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as owner:
        limit.symlink_to(f"/proc/{owner.pid}/oom_score")
        collector = Collector(roots)
        inner = collector.collect().shares[0]
    owner.wait()

    (share,) = collector.collect().shares
    collector.close()

    assert isinstance(inner.limit_bytes, int)
    assert inner.limit_bytes < 2000
    assert share == expected


def test_memtotal_and_groups_are_rescanned_once_a_minute(tmp_path: Path) -> None:
    """A cgroup may be delegated later, and MemTotal may shrink."""
    roots = copied(tmp_path, "container-nested")
    watch = ManualClock()
    collector = Collector(roots, clock=watch)
    before = collector.collect().shares[0]
    meminfo = roots.procfs / "meminfo"
    meminfo.write_text(re.sub(r"MemTotal: +\d+", "MemTotal: 1000", meminfo.read_text()))

    early = collector.collect().shares[0]
    watch.now += RESCAN_SECONDS
    late = collector.collect().shares[0]
    collector.close()

    assert isinstance(before.limit_bytes, int)
    assert early == before
    assert late.limit_bytes is Absent.NOT_SUPPORTED


@pytest.mark.parametrize("left", range(5))
def test_descriptor_shortage_loses_no_limit(tmp_path: Path, left: int) -> None:
    """Descriptors run out during a rescan: an error now, the limit afterwards, and nothing left open."""
    roots = copied(tmp_path, "container-nested")
    before, watch = descriptors(), ManualClock()
    collector = Collector(roots, clock=watch)
    expected = collector.collect()

    with few_descriptors(left):
        assert collector.collect() == expected
        collector._close_files()
    with few_descriptors(left), pytest.raises(OSError, match="Too many open files"):
        collector.collect()
    after = collector.collect()
    collector.close()

    assert after == expected
    assert descriptors() == before


def test_failed_start_closes_its_files(tmp_path: Path) -> None:
    roots = copied(tmp_path, "container-nested")
    before = descriptors()
    (roots.procfs / "meminfo").write_text("MemFree: 5 kB\n")

    with pytest.raises(ParseError, match="MemTotal"):
        Collector(roots)

    assert descriptors() == before
