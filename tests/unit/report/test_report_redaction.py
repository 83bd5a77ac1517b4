"""Redaction of the files in a report: names are replaced, formats and figures stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwatch.core.linux.cgroups import parse_cgroup, parse_owners
from memwatch.reporting.recording import Redactor
from memwatch.reporting.report.redaction import TextRedactor, cgroup_path, redact_file
from memwatch.reporting.report.sources import Kind

CONTAINER = "1f6bd2a9e2c7" * 5 + "abcd"
POD = "5b4e1c1e_3c1f_4a7e_8a51_1f0a3c1f4a7e"


def names() -> TextRedactor:
    found = TextRedactor(Redactor(("pci",), {1: 1, 2: 2}, 1001))
    found.add_names("host", ["falcon-7"])
    found.add_names("user", ["ada"])
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada on falcon-7", "user-1 on host-1"),
        ("/home/grace/.venv/lib", "/home/user-2/.venv/lib"),
        ("from 192.168.7.20:6360", "from ip-1:6360"),
        ("from fe80::5054:ff:fe12:3456", "from ip-1"),
        ("at 52:54:00:12:34:56", "at mac-1"),
        ("GPU-5A3D1210-7c1e-4b02-9d8f-c0ffee000000", "GPU-00000000-0000-0000-0000-000000000001"),
        ("ada@example.com", "mail-1"),
        ("1f6bd2a9e2c7 exited", "000000000001 exited"),
        ("docker-" + CONTAINER + ".scope", "docker-" + f"{1:064x}" + ".scope"),
    ],
)
def test_names_addresses_and_ids_are_replaced(text: str, expected: str) -> None:
    assert names().text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0000:03:00.0 at 00000000:1B:00.0",
        "http://127.0.0.1:6360 and [::1]:6360",
        "580.126.09 with 13.580.126.09",
        "5.15.153.1-microsoft-standard-WSL2",
        "12:00:01 uses 130663165952 bytes, canada",
        "NVIDIA GeForce RTX 4090",
        "root and memwatchd",
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert names().text(text) == text


@pytest.mark.parametrize(
    "path",
    [
        f"/system.slice/docker-{CONTAINER}.scope",
        f"/docker/{CONTAINER}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{CONTAINER}.scope",
        f"/kubepods/besteffort/pod{POD.replace('_', '-')}/{CONTAINER}",
        "/lxc.payload.falke/system.slice/falke.service",
        "/user.slice/user-70123.slice/user@70123.service/app.slice/app-falke-12.scope",
        "/system.slice/slurmstepd.scope/job_8812/step_0/user/task_0",
        "/pbs_jobs.service/jobid/8812[4].falke",
        "/pbspro.service/jobs/8812.1",
        "/pbspro.slice/pbspro-8812.falke.slice",
        "/torque/8812.falke",
        "/lsf/falke/job.8812.4242.1732800000/x",
        "/system.slice/htcondor/condor_var_lib_falke_execute_slot1_23@falke",
        "/falke/falke-2",
        "/falke/8812.falke.service",
    ],
)
def test_redacted_cgroup_has_the_same_kinds_of_owners(path: str) -> None:
    """Unit, container, pod and job are found as before, each with another name."""
    redacted = cgroup_path(names(), path)
    before, after = (parse_owners(parse_cgroup(f"0::{one}\n".encode())) for one in (path, redacted))

    for kind in ("container", "pod", "job", "unit"):
        assert (getattr(before, kind) is None) == (getattr(after, kind) is None)
    assert not {before.container, before.pod, before.job} - {None} & {after.container, after.pod, after.job}
    for secret in ("falke", "70123", CONTAINER, POD, "8812"):
        assert secret not in redacted


def test_process_files_keep_figures_and_hide_names() -> None:
    found = names()
    stat = b"4242 (falke) (x)) S 3105 4242 4242 0 -1 4194560 12 0 0 0 7 3 0 0 20 0 1 0 9931 1000 250\n"
    status = (
        b"Name:\tfalke) (x)\nPid:\t4242\nPPid:\t0\nUid:\t70123\t70123\t0\t0\nGroups:\t4 70123\nVmRSS:\t   4 kB\n"
    )

    assert redact_file(Kind.STAT, stat, found).decode() == (
        "1001 (process-1) S 1002 1001 1001 0 -1 4194560 12 0 0 0 7 3 0 0 20 0 1 0 9931 1000 250\n"
    )
    assert redact_file(Kind.STATUS, status, found).decode() == (
        "Name:\tprocess-1\nPid:\t1001\nPPid:\t0\nUid:\t1001\t1001\t0\t0\nVmRSS:\t   4 kB\n"
    )


def test_boot_options_that_are_not_known_are_left_out() -> None:
    text = b"root=UUID=5b4e1c1e-3c1f-4a7e-8a51-1f0a3c1f4a7e psi=1 amdgpu.gttsize=98304 ip=10.1.2.3\n"

    assert redact_file(Kind.BOOT_OPTIONS, text, names()) == b"psi=1 amdgpu.gttsize=98304\n"


def test_descriptors_keep_only_figures() -> None:
    text = b"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-name:\tfalke\ndrm-resident-vram:\t40 MiB\nnote:\tfalke\n"

    assert redact_file(Kind.FDINFO, text, names()) == b"pos:\t0\ndrm-driver:\tamdgpu\ndrm-resident-vram:\t40 MiB\n"


def test_mounts_of_disks_are_left_out() -> None:
    text = (
        b"1 0 8:1 / / rw - ext4 /dev/mapper/falke--vg-root rw\n"
        b"2 1 0:9 / /home/falke/data rw - nfs4 falke.example.com:/data rw,addr=10.1.2.3\n"
        b"3 1 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
    )

    found = redact_file(Kind.MOUNTS, text, names()).decode()

    assert (
        found
        == "1 0 8:1 / / rw - ext4 none rw\n3 1 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
    )


@pytest.mark.parametrize("kind", Kind)
@given(data=st.binary(max_size=400))
def test_any_content_is_redacted_without_an_error(kind: Kind, data: bytes) -> None:
    assert isinstance(redact_file(kind, data, names()), bytes)
