"""`memwatch doctor`: rules, versions from files, and simulated machines through the daemon."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memwatch.core.collectors.kmsg import explain_denial
from memwatch.core.linux.files import Roots
from memwatch.core.linux.process_files import parse_effective
from memwatch.core.model import Absent
from memwatch.core.snapshot import CollectorStatus, ProcessScan
from memwatch.reporting.answers import Check, Examination, Verdict
from memwatch.reporting.doctor.checks import find_remedy, run_checks
from memwatch.reporting.doctor.examiner import Examiner
from memwatch.reporting.doctor.versions import (
    InstalledVersions,
    find_known_issues,
    find_version,
    parse_numbers,
    read_versions,
)
from scripts.golden import host_of
from support.api_schema import check_answer
from support.client_process import memwatch
from support.daemon_process import running_daemon
from support.paths import MACHINES
from support.sample_snapshots import calm_workstation, discrete_gpu, failing_collector, stale_collector


def by_id(checks: tuple[Check, ...] | list[Check]) -> dict[str, Check]:
    return {check.id: check for check in checks}


@pytest.mark.parametrize(
    ("found", "check", "part"),
    [
        (InstalledVersions(nvidia_module="580.95.05", nvidia_library="575.57.08"), "nvidia.versions", "error 18"),
        (InstalledVersions(packages={"pynvml": "11.5.3"}), "packages.pynvml", "deprecated"),
        (InstalledVersions(packages={"amdsmi": "6.4.4"}), "amdsmi.library", "no libamd_smi.so is installed"),
        (
            InstalledVersions(packages={"amdsmi": "7.0.2"}, amd_smi_library="libamd_smi.so.27.1"),
            "amdsmi.versions",
            "older than the library libamd_smi.so.27.1",
        ),
        (InstalledVersions(rocm="6.4.1"), "rocm.processes", "too little memory of processes"),
        (InstalledVersions(rocm="7.10.0"), "rocm.kfd", "cannot be reloaded"),
        (InstalledVersions(has_psi=False, boot_options=("quiet", "psi=0")), "psi", "psi=0"),
        (InstalledVersions(has_psi=False), "psi", "no pressure stall information"),
    ],
)
def test_bad_version_combinations_are_reported_with_a_remedy(
    found: InstalledVersions, check: str, part: str
) -> None:
    issue = by_id(list(find_known_issues(found)))[check]

    assert part in issue.text
    assert issue.verdict is not Verdict.OK
    assert issue.remedy


@pytest.mark.parametrize(
    "found",
    [
        InstalledVersions(),
        InstalledVersions(nvidia_module="580.95.05", nvidia_library="580.95.05"),
        InstalledVersions(packages={"pynvml": "13.0.1", "nvidia-ml-py": "13.580.82"}),
        InstalledVersions(packages={"amdsmi": "7.0.2"}, amd_smi_library="libamd_smi.so.26.0"),
        InstalledVersions(packages={"amdsmi": "10.1.0"}, amd_smi_library="libamd_smi.so.27.1"),
        InstalledVersions(rocm="7.12.0"),
        InstalledVersions(rocm="10.1.0"),
    ],
)
def test_good_version_combinations_are_not_reported(found: InstalledVersions) -> None:
    """7.12 and 10.1 are newer than 7.2."""
    assert list(find_known_issues(found)) == []


@pytest.mark.parametrize(
    ("text", "version"),
    [(b"6.4.1-83\n", "6.4.1"), (b"580.95.05\n", "580.95.05"), (b"", None), (b"\xff\xfe", None), (b"7", None)],
)
def test_first_version_in_a_file_is_read(text: bytes, version: str | None) -> None:
    """None where there is no version."""
    assert find_version(text) == version


def test_versions_compare_as_numbers() -> None:
    """6.10 is newer than 6.4. An invalid version is older than all."""
    assert parse_numbers("6.10") > parse_numbers("6.4.2") > parse_numbers("unknown") == ()


def test_installed_versions_are_read_from_files(tmp_path: Path) -> None:
    """Drivers, libraries by their link targets, ROCm, and the kernel command line."""
    for path, text in (
        ("root/opt/rocm/.info/version", "6.4.1-83\n"),
        ("sys/module/nvidia/version", "580.95.05\n"),
        ("proc/cmdline", "BOOT_IMAGE=/vmlinuz psi=0 quiet\n"),
        ("root/usr/lib64/libnvidia-ml.so.575.57.08", ""),
        ("root/opt/rocm/lib/libamd_smi.so.27.1", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "root/usr/lib64/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.575.57.08")
    (tmp_path / "root/opt/rocm/lib/libamd_smi.so").symlink_to("libamd_smi.so.27.1")

    found = read_versions(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "root"), {"amdsmi": "7.0.2"}.get)

    assert found == InstalledVersions(
        packages={"amdsmi": "7.0.2"},
        rocm="6.4.1",
        amd_smi_library="libamd_smi.so.27.1",
        nvidia_module="580.95.05",
        nvidia_library="575.57.08",
        boot_options=("BOOT_IMAGE=/vmlinuz", "psi=0", "quiet"),
        has_psi=False,
    )


def test_empty_root_has_no_versions(tmp_path: Path) -> None:
    """Packages of this Python do not belong to that machine."""
    found = read_versions(Roots(tmp_path, tmp_path, tmp_path))

    assert found == InstalledVersions(has_psi=False)


def test_failing_collector_is_a_problem_with_its_error() -> None:
    """The working collectors share one line."""
    checks = by_id(list(run_checks(failing_collector())))
    (failed,) = [one for one in failing_collector().collectors if one.state == "failing"]

    assert checks[f"collectors.{failed.name}"].verdict is Verdict.PROBLEM
    assert str(failed.error) in checks[f"collectors.{failed.name}"].text
    assert checks["collectors"].verdict is Verdict.OK


def test_stalled_collector_is_a_problem() -> None:
    """Its values are stale."""
    stalled = [one.name for one in stale_collector().collectors if one.state == "stalled"]
    checks = by_id(list(run_checks(stale_collector())))

    assert stalled
    assert all(checks[f"collectors.{name}"].verdict is Verdict.PROBLEM for name in stalled)


def test_lost_gpu_is_a_problem_and_unknown_headroom_is_reported() -> None:
    snapshot = discrete_gpu()
    device = replace(snapshot.devices[0], state="needs_reset", headroom_after_reclaim_bytes=Absent.STALE)

    checks = by_id(list(run_checks(replace(snapshot, devices=(device,)))))

    assert checks[f"devices.{device.id}"].verdict is Verdict.PROBLEM
    assert "needs reset" in checks[f"devices.{device.id}"].text
    assert checks[f"devices.{device.id}.headroom"].text.endswith("is stale")


def test_unreadable_processes_are_a_hint() -> None:
    """The remedy names the missing capability."""
    snapshot = replace(calm_workstation(), process_scan=ProcessScan(seen=300, unreadable=12))

    hint = by_id(list(run_checks(snapshot)))["processes.unreadable"]

    assert hint.verdict is Verdict.HINT
    assert "CAP_SYS_PTRACE" in str(hint.remedy)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (CollectorStatus("nvml", "ok"), None),
        (CollectorStatus("nvml", "unavailable", error="no NVIDIA GPU and no NVIDIA driver found"), None),
        (
            CollectorStatus("nvml", "unavailable", error="…: no NVIDIA driver is installed (NVML_ERROR_…)"),
            "install NVIDIA's driver, and its library in a container",
        ),
        (CollectorStatus("meminfo", "failing", error="[Errno 5] Input/output error"), None),
    ],
)
def test_remedy_is_given_for_known_failures_only(status: CollectorStatus, remedy: str | None) -> None:
    assert find_remedy(status) == remedy


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ((), Verdict.OK),
        ((Verdict.OK, Verdict.HINT), Verdict.HINT),
        ((Verdict.PROBLEM, Verdict.OK, Verdict.HINT), Verdict.PROBLEM),
    ],
)
def test_worst_verdict_wins(verdicts: tuple[Verdict, ...], worst: Verdict) -> None:
    assert Examination(tuple(Check("x", verdict, "x") for verdict in verdicts)).worst is worst


def test_kernel_without_psi_is_a_hint() -> None:
    """The machine `no-psi` has no PSI files. The hint appears once."""
    folder = MACHINES / "no-psi"

    found = Examiner(Roots(folder / "proc", folder / "sys", folder / "root")).examine(calm_workstation())

    assert by_id(found.checks)["psi"].verdict is Verdict.HINT


def run_doctor(name: str, tmp_path: Path, *roots: str) -> tuple[Any, str, int]:
    """Return the daemon's response on a simulated machine, the command's output, and its exit code.

    `roots`: options that replace folders of the machine.
    """
    host = host_of(name, tmp_path)
    # The limit on locked memory is that of the machine that runs the tests.
    environ = {**host.environ, "MEMWATCHD_SAMPLING_LOCK_MEMORY": "false"}
    with running_daemon(tmp_path, *host.roots, *roots, environ=environ) as daemon:
        daemon.wait_for("/api/v1/collectors", lambda found: all(one["state"] != "starting" for one in found))
        answer = daemon.get("/api/v1/doctor")
        printed = memwatch("--url", daemon.url, "doctor")
    check_answer(answer.body, "Examination")
    return answer.json, printed.stdout, printed.returncode


def with_kernel_log(name: str, tmp_path: Path) -> str:
    """Return the option for a root folder like the machine's, with a kernel log. Only root can make a device."""
    root = tmp_path / "with-log"
    (root / "dev").mkdir(parents=True)
    (root / "dev/kmsg").touch()
    for path in (MACHINES / name / "root").iterdir():
        (root / path.name).symlink_to(path)
    return f"--rootfs={root}"


def with_pci(name: str, tmp_path: Path, gpus: dict[str, str], driver: str = "", parent: str = "") -> str:
    """Return the option for a /sys like the machine's, with further GPUs on the bus: device ids by address."""
    sysfs = tmp_path / "sys"
    shutil.copytree(MACHINES / name / "sys", sysfs, symlinks=True)
    for address, ids in gpus.items():
        folder = sysfs / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        vendor, device = ids.split(":")
        for file, text in {"class": "0x030000", "vendor": f"0x{vendor}", "device": f"0x{device}"}.items():
            (folder / file).write_text(f"{text}\n")
        if driver:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if parent:
            (folder / "physfn").symlink_to(f"../{parent}")
    return f"--sysfs={sysfs}"


def test_healthy_gb10_has_no_problem(tmp_path: Path) -> None:
    """The output names the reason why its memory is unified."""
    answer, printed, code = run_doctor("gb10", tmp_path, with_kernel_log("gb10", tmp_path))

    assert (answer["worst"], code) == ("ok", 0)
    assert "✓ gpu0, NVIDIA GB10: unified (NVML memory info is not supported)" in printed
    assert printed.endswith("No problems found.\n")


def test_gpu_without_driver_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    """A workstation without drivers: which GPUs are present, why they are not read, and the remedy."""
    answer, printed, code = run_doctor("workstation", tmp_path)

    assert (answer["worst"], code) == ("problem", 1)
    assert "✗ A GPU is present (NVIDIA 10de:2684" in printed
    assert "    → install NVIDIA's driver" in printed
    assert printed.endswith("1 problem and 2 hints: see the lines marked ✗ and !.\n")


def test_container_without_host_pids_is_a_hint(tmp_path: Path) -> None:
    """The hint names the container option that shows host processes."""
    answer, printed, code = run_doctor("container-hidden-pids", tmp_path)

    assert (answer["worst"], code) == ("hint", 0)
    assert "--pid=host" in printed


def test_unreadable_kernel_log_is_a_hint(tmp_path: Path) -> None:
    """A GB10 without /dev/kmsg: everything else works, and the missing data is named."""
    answer, printed, code = run_doctor("gb10", tmp_path)

    assert (answer["worst"], code) == ("hint", 0)
    assert "! kmsg is unavailable: " in printed
    assert "; errors of GPU drivers, and processes that the OOM killer ended, are not known\n" in printed
    assert "    → give memwatchd the host's /dev/kmsg and CAP_SYSLOG\n" in printed
    assert "kmsg" not in printed.partition("not applicable here: ")[2]
    assert printed.endswith("No problems, 1 hint: see the lines marked !.\n")


def test_memory_that_cannot_be_locked_is_a_hint(tmp_path: Path) -> None:
    """A real limit of 64 KiB, as in a container. Root also loses CAP_IPC_LOCK, which lifts the limit."""
    limited = ["prlimit", "--memlock=65536:65536"]
    if os.geteuid() == 0:
        limited = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *limited]
    with running_daemon(tmp_path, through=limited) as daemon:
        found = daemon.get("/api/v1/doctor").json
        is_locked = daemon.get("/api/v1/snapshot").json["self"]["memory_locked"]

    (hint,) = (one for one in found["checks"] if one["id"] == "memory_lock")
    assert is_locked is False
    assert hint["verdict"] == "hint"
    assert (
        hint["text"]
        == "memory is not locked (Cannot allocate memory): memwatchd reacts late while the machine swaps"
    )
    assert "memlock: -1" in hint["remedy"]


def test_denied_device_is_told_from_a_missing_capability() -> None:
    """EPERM with CAP_SYSLOG comes from the container's device cgroup, EACCES from the file's mode."""
    mode = explain_denial(PermissionError(errno.EACCES, "Permission denied"))
    status = CollectorStatus(
        "kmsg", "unavailable", error="/dev/kmsg: not permitted: this container may open no such device; "
        "pass it as a device, not as a mount"
    )  # fmt: skip

    assert "CAP_SYSLOG" in mode
    assert "devices in Compose" in str(find_remedy(status))


@pytest.mark.parametrize(
    ("status", "mask"),
    [
        (b"Name:\tx\nCapEff:\t0000000400004000\nCapBnd:\t0\n", 0x400004000),
        (b"Name:\tx\nCapEff:\tnone\n", 0),
        (b"Name:\tx\nCapEff:", 0),
        (b"", 0),
    ],
)
def test_effective_capabilities_are_parsed(status: bytes, mask: int) -> None:
    """A line without a number means no capability."""
    assert parse_effective(status) == mask


def test_kernel_log_of_another_kind_is_a_hint(tmp_path: Path) -> None:
    """A container has /dev/null there. Permission is refused likewise, except to root."""
    root = with_kernel_log("gb10", tmp_path)
    (tmp_path / "with-log/dev/kmsg").unlink()
    (tmp_path / "with-log/dev/kmsg").symlink_to("/dev/null")

    answer, printed, _ = run_doctor("gb10", tmp_path, root)

    assert answer["worst"] == "hint"
    assert "not the kernel log, which is character device 1:11" in printed


@pytest.mark.parametrize(
    ("driver", "reason", "remedy"),
    [
        ("", "no driver is bound", "install or load its driver"),
        ("nouveau", "its driver is nouveau", "install NVIDIA's driver: nouveau does not"),
        ("nvidia", "its driver is nvidia", "see the collectors below"),
    ],
)
def test_gpu_that_no_collector_reports_is_a_problem(driver: str, reason: str, remedy: str, tmp_path: Path) -> None:
    """A second card beside one that NVML reports."""
    roots = (
        with_pci("rtx-4090", tmp_path, {"0000:65:00.0": "10de:2684"}, driver),
        with_kernel_log("rtx-4090", tmp_path),
    )

    answer, printed, code = run_doctor("rtx-4090", tmp_path, *roots)

    assert (answer["worst"], code) == ("problem", 1)
    assert f"✗ NVIDIA 10de:2684 at 0000:65:00.0 is not reported by any collector ({reason})" in printed
    assert f"    → {remedy}" in printed
    assert printed.endswith("1 problem and 0 hints: see the lines marked ✗ and !.\n")


def test_gpu_of_a_virtual_machine_is_a_hint(tmp_path: Path) -> None:
    """Its memory is not the host's to read."""
    sysfs = with_pci("rtx-4090", tmp_path, {"0000:65:00.0": "10de:2684"}, "vfio-pci")

    answer, printed, _ = run_doctor("rtx-4090", tmp_path, sysfs, with_kernel_log("rtx-4090", tmp_path))

    assert answer["worst"] == "hint"
    assert "! NVIDIA 10de:2684 at 0000:65:00.0 is assigned to a virtual machine (vfio-pci)" in printed


def test_virtual_functions_are_not_missing_gpus(tmp_path: Path) -> None:
    """They are parts of a GPU that NVML reports."""
    sysfs = with_pci("rtx-4090", tmp_path, {"0000:01:00.4": "10de:2684"}, parent="0000:01:00.0")

    answer, _, _ = run_doctor("rtx-4090", tmp_path, sysfs, with_kernel_log("rtx-4090", tmp_path))

    assert answer["worst"] == "ok"


def test_card_of_unknown_architecture_is_a_problem(tmp_path: Path) -> None:
    """An idle card with the driver i915: no client reports the location of its buffers."""
    host = MACHINES / "arc-a770-i915"
    empty = tmp_path / "proc"
    shutil.copytree(host / "proc", empty, symlinks=True, ignore=shutil.ignore_patterns("fdinfo", "fd"))

    answer, printed, code = run_doctor(host.name, tmp_path, f"--procfs={empty}")

    assert (answer["worst"], code) == ("problem", 1)
    assert "architecture unknown (the driver is i915; no client reports the location of its buffers), so" in printed


def test_machine_without_a_visible_bus_is_a_hint(tmp_path: Path) -> None:
    """A container without /sys: a GPU may be there."""
    (tmp_path / "sys").mkdir()
    roots = (f"--sysfs={tmp_path / 'sys'}", with_kernel_log("zram-laptop", tmp_path))

    answer, printed, _ = run_doctor("zram-laptop", tmp_path, *roots)

    assert answer["worst"] == "hint"
    assert "! It is unknown if there is a GPU: no bus is visible." in printed
