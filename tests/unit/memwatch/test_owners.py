"""Test memory by unit, container, pod, job and user: all processes are counted, devices included."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memwatch.core.accounting.device_memory import DeviceMemory
from memwatch.core.accounting.relations import with_device_bytes
from memwatch.core.collectors.processes import Collector
from memwatch.core.linux.cgroup_mounts import CgroupUsage
from memwatch.core.linux.cgroups import owner_folders, parse_cgroup, parse_owners
from memwatch.core.linux.files import Roots
from memwatch.core.model import Absent, Architecture, Bytes, Device, Process, Quality, Share, ShareKind
from memwatch.core.owners import Owner, build_totals, sum_owners
from support.process_folders import add_process, folder_of, stat_line, statm_line

ID = "3fa9c1d07be24586" * 4
POD = "8a1f3c52-9d0e-4b7a-8a55-0c1de2f3a4b5"
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
OTHER_ID = "07fd3be6a9c21845" * 4
GUEST = "0::/lxc/101/ns"
KIND = f"0::/docker/{OTHER_ID}/kubelet.slice"
OAR = "/oar.slice/oar-u1000.slice/oar-u1000-j45670.slice"
YARN = "container_e17_1410901177871_0001_01_000005"
MESOS = "9a18ffb8-8513-11e7-b26e-7e29fbe2a5a3"
NSPAWN = "0::/machine.slice/systemd-nspawn@web.service"
KEPT = "0::/machine.slice/container@docker.service"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service"
SLURM, SLUID = "0::/system.slice/slurmstepd.scope", "s5K1KKYAYG5D00"
ECS, ECS_ID = f"/ecs/{'9d' * 16}", f"{'9d' * 16}-2495160603"
GIB = 1 << 30
DEVICE = Device("gpu0", "NVIDIA", "GPU", Architecture.UNIFIED)


@pytest.mark.parametrize(
    ("line", "kind", "name", "folder"),
    [
        (f"0::/kubepods.slice/{SLICE}/cri-containerd-{ID}.scope", "pod", POD, f"/kubepods.slice/{SLICE}"),
        (f"4:memory:/kubepods/burstable/pod{POD}/{ID}", "pod", POD, f"/kubepods/burstable/pod{POD}"),
        (f"0::/kubepods/besteffort/pod{'9d' * 16}/{ID}", "pod", "9d" * 16, f"/kubepods/besteffort/pod{'9d' * 16}"),
        (f"0::/kubepods/podcast/{ID}", "pod", None, None),
        ("4:memory:/slurm/uid_1000/job_81/step_0/task_0", "job", "81", "/slurm/uid_1000/job_81"),
        (
            "0::/system.slice/slurmstepd.scope/job_81/step_batch/user/task_0",
            "job",
            "81",
            "/system.slice/slurmstepd.scope/job_81",
        ),
        ("0::/actions/job_7", "job", None, None),
        (f"{SLURM}/{SLUID}/step_0/user/task_0", "job", SLUID, f"{SLURM[3:]}/{SLUID}"),  # slurm-job-exporter#66
        ("0::/system.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00/step_batch", "job", SLUID, None),
        (f"{SLURM}/{SLUID.lower()}/step_0", "job", None, None),
        (f"0::/slurm/{SLUID}", "job", None, None),
        ("4:memory:/slurm_n1/uid_1000/job_81/step_0/task_0", "job", "81", None),  # ceems#284
        ("4:memory:/pbs_jobs.service/jobid/2404743.opbs", "job", "2404743", "/pbs_jobs.service/jobid/2404743.opbs"),
        ("4:memory:/pbs_jobs.service/jobid/12345[2].pbs/child", "job", "12345[2]", None),
        ("0::/pbs_jobs.service/jobs/12345.pbs", "job", "12345", "/pbs_jobs.service/jobs/12345.pbs"),
        ("0::/pbspro.service/jobs/12345.2/child", "job", "12345.2", "/pbspro.service/jobs/12345.2"),
        ("0::/pbs_jobs.service/jobs/12345", "job", "12345", None),
        ("4:memory:/pbspro.slice/pbspro-12345.node1.slice", "job", "12345", None),
        ("4:memory:/torque/81.server.example/x", "job", "81", "/torque/81.server.example"),
        ("0::/system.slice/pbs.service/jobs", "job", None, None),
        ("0::/system.slice/my.service/jobs/81", "job", None, None),
        (
            "4:memory:/lsf/cluster1/job.8812.29275.1388030206",
            "job",
            "8812",
            "/lsf/cluster1/job.8812.29275.1388030206",
        ),
        ("0::/lsf/cluster1/job.8812[3].1.2/x", "job", "8812[3]", None),
        ("0::/lsf/cluster1/jobs", "job", None, None),
        ("4:memory:/htcondor/condor_var_lib_condor_execute_slot1", "job", "slot1", None),
        (
            "0::/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@node7/x",
            "job",
            "slot1_23",
            "/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@node7",
        ),
        ("0::/system.slice/condor.service", "job", None, None),
        (f"0::{OAR}/oar-u1000-j45670-s1.scope", "job", "45670", OAR),
        (f"0::{OAR.rpartition('/')[0]}/init.scope", "job", None, None),
        # Nomad with version 1, its hierarchies of memory and of CPUs.
        ("4:memory:/nomad/0a1b2c3d.web", "container", "0a1b2c3d.web", "/nomad/0a1b2c3d.web"),
        ("4:cpuset:/nomad/share/0a1b2c3d.web/x", "container", "0a1b2c3d.web", None),
        ("4:cpuset:/nomad/share", "container", None, None),
        (f"{GUEST}/pbs_jobs.service/jobs/81", "job", "81 in lxc/101", f"{GUEST[3:]}/pbs_jobs.service/jobs/81"),
        (f"4:memory:{ECS}/{ID}", "container", ID[:12], None),
        (f"0::{ECS}/{ECS_ID}", "container", ECS_ID, f"{ECS}/{ECS_ID}"),  # google/cadvisor#3923
        (f"0::/ecstasks.slice/ecstasks-{'9d' * 16}.slice/docker-{ID}.scope", "container", ID[:12], None),
        (f"0::/system.slice/containerd.service/cpuset/{ID}", "container", ID[:12], None),  # netdata#13470
        ("0::/lxc.payload.web/system.slice/nginx.service", "container", "web", "/lxc.payload.web"),
        ("0::/lxc.payload.web/system.slice/nginx.service", "unit", "nginx.service in lxc/web", None),
        (
            f"{GUEST}/system.slice/ollama.service",
            "unit",
            "ollama.service in lxc/101",
            f"{GUEST[3:]}/system.slice/ollama.service",
        ),
        (f"{GUEST}/system.slice/ollama.service", "container", "101", "/lxc/101"),
        (f"{GUEST}", "unit", None, None),
        (f"{GUEST}/docker/{ID}", "container", ID[:12], f"/lxc/101/ns/docker/{ID}"),
        (f"{GUEST}/system.slice/docker-{ID}.scope", "unit", f"docker-{ID}.scope", None),
        ("0::/lxc.monitor/101", "container", None, None),
        ("0::/lxc.payload/web/init.scope", "container", "web", "/lxc.payload/web"),
        ("0::/lxc.payload.web/lxc.payload.in/a.service", "container", "web/in", "/lxc.payload.web/lxc.payload.in"),
        ("0::/lxc.payload.web/lxc.payload.in/a.service", "unit", "a.service in lxc/in in lxc/web", None),
        (f"{NSPAWN}/payload/system.slice/ollama.service", "unit", "ollama.service in nspawn/web", None),
        (f"{NSPAWN}/payload/system.slice/ollama.service", "container", "web", NSPAWN[3:]),
        (f"{NSPAWN}/supervisor", "container", None, None),
        (f"{NSPAWN}/supervisor", "unit", "systemd-nspawn@web.service", NSPAWN[3:]),
        # NixOS runs systemd-nspawn --keep-unit in another service: moby/moby#44402, netdata#20146.
        (f"{KEPT}/payload/system.slice/docker.service", "unit", "docker.service in nspawn/docker", None),
        (f"{KEPT}/payload/system.slice/docker.service", "container", "docker", KEPT[3:]),
        (f"{KEPT}/payload", "container", "docker", KEPT[3:]),
        (f"{KEPT}/supervisor", "unit", "container@docker.service", KEPT[3:]),
        (f"{KEPT}/supervisor", "container", None, None),
        (r"0::/system.slice/my\x2dbox.service/payload/init.scope", "unit", "init.scope in nspawn/my-box", None),
        ("0::/system.slice/payload/a.service", "unit", "a.service", "/system.slice/payload/a.service"),
        (r"0::/machine.slice/machine-a\x2db.scope/payload/x.service", "unit", "x.service in nspawn/a-b", None),
        (r"0::/machine.slice/machine-qemu\x2d2\x2ddb.scope/libvirt/emulator", "container", None, None),
        (
            f"0::/system.slice/docker-{ID}.scope/a.service",
            "unit",
            f"a.service in docker/{ID[:12]}",
            None,
        ),
        (f"0::/machine.slice/libpod-{ID}.scope/a.service", "unit", f"a.service in podman/{ID[:12]}", None),
        (f"0::/system.slice/a.service/libpod-payload-{ID}", "unit", "a.service", "/system.slice/a.service"),
        (f"{MANAGER}/app.slice/train.service", "unit", "train.service in user/1000", None),
        (f"{MANAGER}/user.slice/libpod-{ID}.scope/container", "unit", f"libpod-{ID}.scope", None),
        (f"{MANAGER}/user.slice/lxc.payload.web", "container", "user/1000/web", None),
        (MANAGER, "unit", "user@1000.service", MANAGER[3:]),
        (f"{KIND}/kubelet-{SLICE}/cri-containerd-{ID}.scope", "pod", POD, None),
        (
            f"{KIND}/kubelet-{SLICE}/cri-containerd-{ID}.scope",
            "container",
            ID[:12],
            None,
        ),
        (f"0::/kubepods.slice/{SLICE}/crio-{ID}.scope/container", "container", ID[:12], None),
        (f"0::/kubepods.slice/{SLICE}/crio-conmon-{ID}.scope", "container", None, None),
        (f"0::/system.slice/containerd.service/{SLICE}:cri-containerd:{ID}", "pod", POD, None),
        (f"0::/kubepods/burstable/pod{POD}/crio-{ID}", "container", ID[:12], None),
        (f"0::/kubepods/pod{POD}/kata_{ID}", "container", ID[:12], None),
        (f"0::/kubepods/pod{POD}/kata_{ID}", "pod", POD, None),
        (f"0::/kata_overhead/{ID}", "container", ID[:12], None),
        ("0::/system.slice/n1_slurmstepd.scope/job_81/step_0/user/task_0", "job", "81", None),
        (f"{GUEST}/system.slice/slurmstepd.scope/job_81/step_0", "job", "81 in lxc/101", None),
        # apache/mesos#551, cloudfoundry/bpm-release#109.
        (f"0::/mesos/{MESOS}/leaf", "container", MESOS, f"/mesos/{MESOS}"),
        (f"4:memory:/mesos/{MESOS}", "container", MESOS, f"/mesos/{MESOS}"),
        ("4:memory:/bpm/router", "container", "router", "/bpm/router"),
        ("0::/system.slice/mesos/a.service", "container", None, None),
        (f"0::/mesos/{MESOS}/a.service", "unit", f"a.service in mesos/{MESOS}", None),
        # apache/hadoop#6734 and #6834: containers of YARN, in a folder of any name.
        (f"0::/hadoop-yarn/{YARN}", "container", YARN, f"/hadoop-yarn/{YARN}"),
        (f"4:memory:/yarn/{YARN}", "job", "1410901177871_0001", f"/yarn/{YARN}"),
        ("0::/yarn/container_1409135750325_26943_01_000002", "job", "1409135750325_26943", None),
        ("0::/yarn/container_of_mine", "container", None, None),
        (f"0::/system.slice/nerdctl-{ID}.scope", "container", ID[:12], None),  # falcosecurity/plugins#1378
        (f"0::/user.slice/session-3.scope/libpod-payload-{ID}", "container", ID[:12], None),  # backend.ai#13797
        (f"0::/system.slice/docker-{ID}.scope/init", "container", ID[:12], f"/system.slice/docker-{ID}.scope"),
        (f"0::/system.slice/docker-{ID}.scope (deleted)", "container", ID[:12], None),  # of a zombie
        ("0::/system.slice/ssh.service (deleted)", "unit", "ssh.service", None),
        (f"4:memory:/libpod_parent/libpod-{ID}/ctr", "container", ID[:12], None),  # podman#826
        (f"4:memory:/docker/{ID}\n1:name=systemd:/", "container", ID[:12], None),  # moby#33352
        (f"4:memory:/docker/{OTHER_ID}/docker/{ID}", "container", ID[:12], None),  # DataDog/dd-agent#3274
        (  # containerd/runwasi#821
            f"0::/{SLICE.replace('burstable', 'besteffort')}:cri-containerd:{ID}",
            "container",
            ID[:12],
            f"/{SLICE.replace('burstable', 'besteffort')}:cri-containerd:{ID}",
        ),
        (  # coreos/fedora-coreos-tracker#682: only some hierarchies of version 1 have the container
            f"11:freezer:/kubepods/burstable/pod{POD}/{ID}\n10:cpu,cpuacct:/\n8:pids:/system.slice/docker.service",
            "pod",
            POD,
            None,
        ),
        ("0::/system.slice/ssh.service/sub", "unit", "ssh.service", "/system.slice/ssh.service"),
        ("1:name=systemd:/system.slice/a.service\n4:memory:/system.slice/a.service", "unit", "a.service", None),
        ("1:name=systemd:/system.slice/a.service\n4:memory:/", "unit", "a.service", "nowhere"),
    ],
)
def test_owner_and_its_cgroup(line: str, kind: str, name: str | None, folder: str | None) -> None:
    """Cgroup paths of each runtime, of both versions, give the owner and the cgroup that contains all of it."""
    paths = parse_cgroup(line.encode() + b"\n")
    place = parse_owners(paths)
    folders = owner_folders(place, paths.get("memory", paths.get("", "")))

    assert getattr(place, kind) == name
    if folder == "nowhere":
        assert kind not in folders
    elif folder:
        assert folders[kind] == folder


def process(pid: int, rss: int, **fields: object) -> Process:
    return Process(pid, 0.0, f"p{pid}", rss, rss, "rss", unit=None, container=None, **fields)  # type: ignore[arg-type]


def held(holder: Process, size: Bytes, kind: ShareKind) -> Process:
    """Return the process with `size` bytes of a share of this kind."""
    share = Share("share", kind, "Share", "ram", size, "test", Quality.MEASURED)
    device_memory = DeviceMemory(DEVICE, "", shares=(share,), held={holder.pid: {"share": size}})
    (found,) = with_device_bytes((holder,), device_memory)
    return found


def test_cuda_memory_is_added_to_the_footprint() -> None:
    """CUDA memory is in no resident set, so the footprint is one number."""
    found = held(process(1, GIB), 2 * GIB, ShareKind.CUDA_POOL)

    assert (found.footprint_bytes, found.footprint_basis) == (3 * GIB, "rss + device")
    assert found.footprint_low_bytes == found.footprint_high_bytes == 3 * GIB


@given(rss=st.integers(0, 1 << 40), size=st.integers(1, 1 << 40))
def test_overlapping_memory_makes_the_footprint_a_range(rss: int, size: int) -> None:
    """The true footprint lies between the larger of the two and their sum."""
    found = held(process(1, rss), size, ShareKind.GTT)

    assert found.footprint_bytes is Absent.NOT_SUPPORTED
    assert (found.footprint_low_bytes, found.footprint_high_bytes) == (max(rss, size), rss + size)


def test_unknown_device_memory_makes_the_footprint_unknown() -> None:
    """A process whose part of a GPU is unknown has a minimum footprint only."""
    found = held(process(1, GIB), Absent.NOT_PERMITTED, ShareKind.CUDA_POOL)

    assert found.footprint_bytes is Absent.NOT_PERMITTED
    assert (found.footprint_low_bytes, found.footprint_high_bytes) == (GIB, Absent.NOT_PERMITTED)


def test_totals_add_devices_to_all_processes() -> None:
    """A unit's total is the RSS of all its processes plus the device memory of the listed ones."""
    owners = [Owner("user", "ada", 7, 5 * GIB), Owner("user", "bob", 2, 6 * GIB), Owner("unit", None, 9, 11 * GIB)]
    holders = [
        held(process(1, GIB, user="ada"), 2 * GIB, ShareKind.CUDA_POOL),
        held(process(2, GIB, user="ada"), 3 * GIB, ShareKind.CUDA_POOL),
    ]

    ada, bob = build_totals(owners, holders, "user")

    assert (ada.name, ada.processes, ada.rss_bytes, ada.footprint_bytes) == ("ada", 7, 5 * GIB, 10 * GIB)
    assert ada.device_bytes == {"share": 5 * GIB}
    assert (bob.name, bob.footprint_bytes, bob.device_bytes) == ("bob", 6 * GIB, {})


def test_total_with_a_range_is_a_range() -> None:
    """One process that may overlap gives its owner bounds; one of unknown size removes the upper bound."""
    owner = Owner("user", "ada", 2, 4 * GIB)
    perhaps = held(process(1, GIB, user="ada"), 2 * GIB, ShareKind.GPU_BUFFERS)
    unknown = held(process(2, GIB, user="ada"), Absent.STALE, ShareKind.CUDA_POOL)

    (bounded,) = build_totals([owner], [perhaps], "user")
    (open_ended,) = build_totals([owner], [perhaps, unknown], "user")

    assert (bounded.footprint_low_bytes, bounded.footprint_high_bytes) == (5 * GIB, 6 * GIB)
    assert bounded.footprint_bytes is Absent.NOT_SUPPORTED
    assert (open_ended.footprint_low_bytes, open_ended.footprint_high_bytes) == (5 * GIB, Absent.STALE)
    assert open_ended.footprint_bytes is Absent.STALE
    assert open_ended.device_bytes == {"share": Absent.STALE}


def test_cgroup_note_names_excluded_gpu_memory() -> None:
    """The note is added only for owners that hold a device's memory."""
    ada = Owner("user", "ada", 1, GIB, cgroup_bytes=GIB)
    exact = held(process(1, GIB, user="ada"), 2 * GIB, ShareKind.CUDA_POOL)
    perhaps = held(process(1, GIB, user="ada"), 2 * GIB, ShareKind.GTT)

    on_npu = replace(perhaps, device_bytes={"npu0.buffers": 2 * GIB})

    notes = [build_totals([ada], holders, "user")[0].cgroup_note for holders in ([exact], [perhaps], [on_npu], [])]

    assert notes == [
        "does not include GPU memory",
        "may not include all GPU memory",
        "may not include all NPU memory",
        None,
    ]


def test_processes_are_added_up_by_owner() -> None:
    """Sums by each kind of owner; a process known only to a driver is in no sum, as on a live machine."""
    processes = [
        replace(process(1, 30, user="ada"), container="c1"),
        process(2, 50, user="ada"),
        replace(process(3, 10, user="root"), container="c1"),
        Process(4, 0.0, "x", Absent.NOT_PERMITTED, Absent.NOT_PERMITTED, "none", "ada", None, "c1"),
    ]

    owners = sum_owners(processes)

    assert [(one.kind, one.name, one.processes, one.rss_bytes) for one in owners] == [
        ("container", None, 1, 50),
        ("container", "c1", 2, 40),
        ("user", "ada", 2, 80),
        ("user", "root", 1, 10),
    ]


def test_row_without_an_owner_is_last() -> None:
    """Processes without a container are a row as well, so that the rows cover all processes."""
    owners = [Owner("container", None, 5, 9 * GIB), Owner("container", "web", 1, GIB)]

    assert [total.name for total in build_totals(owners, (), "container")] == ["web", None]


def host(tmp_path: Path, mountinfo: bytes, own: bytes) -> Roots:
    folder_of(tmp_path / "proc", stat_line(2, "kthreadd", rss=0, flags=0x208040))
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/mountinfo").write_bytes(mountinfo)
    (tmp_path / "proc/self/cgroup").write_bytes(own)
    return Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)


V2 = (b"30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", b"0::/system.slice/memwatchd.service\n")
V1 = (b"33 1 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", b"4:memory:/\n0::/\n")


@pytest.mark.parametrize(
    ("mounted", "line", "file"),
    [
        (
            V2,
            f"0::/system.slice/docker-{ID}.scope\n",
            f"sys/fs/cgroup/system.slice/docker-{ID}.scope/memory.current",
        ),
        (V1, f"4:memory:/docker/{ID}\n0::/\n", f"sys/fs/cgroup/memory/docker/{ID}/memory.usage_in_bytes"),
    ],
    ids=["v2", "v1"],
)
def test_container_of_many_processes_is_one_owner(
    tmp_path: Path, mounted: tuple[bytes, bytes], line: str, file: str
) -> None:
    """Thirty processes of one container are one owner with the cgroup's own value, though only two are listed."""
    roots = host(tmp_path, *mounted)
    for pid in range(100, 130):
        status = b"Uid:\t33\t33\t33\t33\nVmSwap:\t     12 kB\n"
        add_process(roots.procfs, stat_line(pid, rss=10), cgroup=line.encode(), status=status)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("123456789\n")
    collector = Collector(roots, top=2, page_size=4096)

    findings = collector.collect()
    collector.close()

    owners = {(owner.kind, owner.name): owner for owner in findings.owners}
    assert owners["container", ID[:12]] == Owner("container", ID[:12], 30, 30 * 10 * 4096, 123456789)
    assert owners["user", "33"] == Owner("user", "33", 30, 30 * 10 * 4096)
    assert len(findings.processes) == 2
    assert findings.processes[0].swap_bytes == 12 << 10


@pytest.mark.parametrize(
    ("text", "figure"),
    [("12\n", 12), ("nonsense\n", Absent.INCONSISTENT), ("", Absent.INCONSISTENT), ("9" * 30, Absent.INCONSISTENT)],
)
def test_invalid_cgroup_file_is_inconsistent(tmp_path: Path, text: str, figure: Bytes) -> None:
    """Invalid text is no value; a missing cgroup has none, and a path above the mount is not read."""
    roots = host(tmp_path, *V2)
    (tmp_path / "sys/fs/cgroup/a").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/a/memory.current").write_text(text)
    usage = CgroupUsage(roots)
    usage.refresh()

    assert usage.read("/a") == figure
    assert usage.read("/b") is None
    assert usage.read("/../a") is None


def test_moved_process_is_found_in_its_unit(tmp_path: Path) -> None:
    """systemd moves a process into its unit shortly after its start: the next reading finds it there."""
    roots = host(tmp_path, *V2)
    for pid in range(10, 14):
        add_process(roots.procfs, stat_line(pid, rss=pid), cgroup=b"0::/init.scope\n")
    collector = Collector(roots, top=1, page_size=4096)
    before = {owner.name: owner.processes for owner in collector.collect().owners if owner.kind == "unit"}
    (roots.procfs / "10/cgroup").write_bytes(b"0::/system.slice/late.service\n")

    after = {owner.name: owner.processes for owner in collector.collect().owners if owner.kind == "unit"}
    collector.close()

    assert before == {"init.scope": 4}
    assert after == {"init.scope": 3, "late.service": 1}


def test_process_that_moved_while_listed_is_found_in_its_unit(tmp_path: Path) -> None:
    """Read among the largest before it moved to its unit, and no longer among them later: still found."""
    roots = host(tmp_path, *V2)
    add_process(roots.procfs, stat_line(10, rss=500), cgroup=b"0::/init.scope\n")
    add_process(roots.procfs, stat_line(11, rss=100), cgroup=b"0::/init.scope\n")
    collector = Collector(roots, top=1, page_size=4096)
    collector.collect()
    add_process(roots.procfs, stat_line(10, rss=50), cgroup=b"0::/system.slice/late.service\n")

    owners = collector.collect().owners
    collector.close()

    assert {owner.name: owner.rss_bytes >> 12 for owner in owners if owner.kind == "unit"} == {
        "init.scope": 100,
        "late.service": 50,
    }


def test_sleeping_process_that_moved_is_shown_in_its_unit(tmp_path: Path) -> None:
    """A listed process whose pages never change is shown with the owner that its memory is counted for."""
    roots = host(tmp_path, *V2)
    add_process(roots.procfs, stat_line(10), cgroup=b"0::/init.scope\n", statm=statm_line(5))
    collector = Collector(roots)
    collector.collect()
    (roots.procfs / "10/cgroup").write_bytes(b"0::/system.slice/late.service\n")

    readings = [collector.collect() for _ in range(3)]
    collector.close()

    assert [owner.name for owner in readings[0].owners if owner.kind == "unit"] == ["late.service"]
    assert [one.processes[0].unit for one in readings[1:]] == ["late.service"] * 2


@pytest.mark.parametrize("configured", [False, True])
def test_command_lines_are_read_only_if_configured(tmp_path: Path, configured: bool) -> None:
    """If disabled, they are not even opened; if enabled, long ones are cut."""
    roots = host(tmp_path, *V2)
    add_process(roots.procfs, stat_line(9), cmdline=b"python3\0train.py\0--key=" + b"x" * 5000 + b"\0")
    collector = Collector(roots, commands=configured)

    (found,) = collector.collect().processes
    collector.close()

    assert found.command is None if not configured else str(found.command).startswith("python3 train.py --key=x")
    assert len(str(found.command)) <= 256


@pytest.mark.parametrize(
    ("option", "sees_init", "partial"),
    [
        ("hidepid=invisible", False, True),
        ("hidepid=2", False, True),
        ("hidepid=2", True, False),
        ("rw", False, False),
    ],
)
def test_hidden_processes_make_the_list_partial(
    tmp_path: Path, option: str, sees_init: bool, partial: bool
) -> None:
    """With hidepid, other users' processes are hidden; the list is partial and its note gives the fix."""
    roots = host(tmp_path, V2[0] + b"22 1 0:21 / /proc rw - proc proc rw,%s\n" % option.encode(), V2[1])
    if sees_init:
        add_process(roots.procfs, stat_line(1, "systemd"))
    collector = Collector(roots)

    scan = collector.collect().process_scan
    collector.close()

    assert scan is not None
    assert (scan.process_list == "partial", "hidepid" in (scan.note or "")) == (partial, partial)
