"""`memwatch doctor --report`: from a machine to an archive without secrets, and from there to a machine folder."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from memwatch.build_info import __version__
from memwatch.reporting.report.contents import FOLDER
from scripts import machine_from_report
from scripts.golden import host_in, host_of
from simulators import sample_nvml, sample_nvml_integrated
from simulators.nvml_machine import Simulator
from support.client_process import SCRIPT, memwatch
from support.daemon_process import MEMWATCHD, POWERLESS, clean_environment, run_program, running_daemon, sample_once
from support.paths import MACHINES, ROOT
from support.report_bundle import Bundle, read_bundle
from support.shared_daemons import SharedDaemons
from support.waiting import MAX_WAIT_SECONDS, wait_until

SECRET = "zanzibar"
CONTAINER = "5eed" * 16
UUID = "5eed5eed-0b00-4a11-8a51-5eed5eed5eed"
SERIAL = 0x5EED5EED5EED5EED
# A recording with its header has less, with a snapshot more.
HEADER_BYTES = 400
# Every one of these words is on the machine, at the place that its name tells.
SECRETS = {
    "host name": f"{SECRET}-host",
    "user": f"{SECRET}-user",
    "user without processes": f"{SECRET}-idle",
    "process name": f"{SECRET}-proc",
    "command line": f"{SECRET}-command",
    "environment": f"{SECRET}-environment",
    "unit": f"{SECRET}-unit",
    "LXC container": f"{SECRET}-lxc",
    "container id": CONTAINER,
    "short container id": CONTAINER[:12],
    "pod": UUID.replace("-", "_"),
    "boot id": UUID,
    "machine id": f"{SECRET}-machine-id",
    "boot option": f"{SECRET}-option",
    "disk": f"{SECRET}-disk",
    "network share": f"{SECRET}-share",
    "mount point": f"{SECRET}-mount",
    "open file": f"{SECRET}-file",
    "name of a GPU client": f"7{SECRET}",
    "container's file": f"{SECRET}-containerenv",
    "distribution": f"{SECRET}-os",
    "MAC address": "5e:ed:00:5e:ed:01",
    "IPv4 address": "203.0.113.77",
    "IPv6 address": "2001:db8:5eed::77",
    "AMD serial number": f"{SERIAL:016x}",
    "AMD serial number in KFD": str(SERIAL),
    "NVIDIA UUID": "5eed0000-7c1e-4b02-9d8f-c0ffee005eed",
    "any of them": SECRET,
}


class Reported(Struct, frozen=True):
    """A report, its file, and what the command printed."""

    file: Path
    bundle: Bundle
    text: str
    everything: bytes


def environment_of(roots: list[str]) -> dict[str, str]:
    """Return the settings of a client that reads the machine of a daemon with these arguments."""
    pairs = (argument.removeprefix("--").split("=", 1) for argument in roots)
    return {f"MEMWATCHD_{name.upper()}": folder for name, folder in pairs}


def report_of(file: Path, *arguments: str, **environ: str) -> Reported:
    done = memwatch(*arguments, "doctor", "--report", str(file), "--for", "1s", **environ)
    assert done.returncode == 0, done.stderr
    return Reported(file, read_bundle(file), done.stdout, unpacked(file))


def unpacked(file: Path) -> bytes:
    """Return the names and contents of all members, the recording decompressed."""
    found = b""
    with tarfile.open(file) as archive:
        for member in archive:
            opened = archive.extractfile(member)
            data = opened.read() if opened else b""
            found += repr(member.get_info()).encode() + (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return found


def plant(folder: Path) -> None:
    """Write the secrets to the places of a machine with an AMD card where such words stand."""
    process, own = folder / "proc/4821", folder / "proc/self"
    unit, pod = f"/system.slice/{SECRET}-unit.service", f"/kubepods.slice/kubepods-pod{SECRETS['pod']}.slice"
    written = {
        "proc/sys/kernel/hostname": f"{SECRET}-host\n",
        "proc/sys/kernel/random/boot_id": f"{UUID}\n",
        "proc/cmdline": f"root=UUID={UUID} psi=1 x={SECRET}-option ip=203.0.113.77\n",
        "proc/4821/cmdline": f"python\0--token\0{SECRET}-command\0",
        "proc/4821/environ": f"PASSWORD={SECRET}-environment\0",
        "proc/4821/cgroup": f"0::{pod}/cri-containerd-{CONTAINER}.scope\n",
        "proc/5230/cgroup": f"0::{unit}\n",
        "proc/3120/cgroup": f"0::/lxc.payload.{SECRET}-lxc/init.scope\n",
        "proc/driver/nvidia/params": 'RegistryDwords: "5e:ed:00:5e:ed:01 203.0.113.77 2001:db8:5eed::77"\n',
        "root/etc/machine-id": f"{SECRET}-machine-id\n",
        "root/etc/os-release": f'ID=debian\nVERSION_ID="12"\nHOME_URL="https://{SECRET}-os/"\n',
        "root/run/.containerenv": f'name="{SECRET}-containerenv"\n',
        "sys/class/dmi/id/product_name": f"Box of {SECRET}-user at {SECRET}-host 203.0.113.77\n",
    }
    for path, text in written.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    append(
        folder / "root/etc/passwd", f"{SECRET}-user:x:70123:70123::/:/bin/sh\n{SECRET}-idle:x:70124:1::/:/bin/sh\n"
    )
    edit(process / "status", "Uid:\t1000\t1000\t1000\t1000", "Uid:\t70123\t70123\t70123\t70123")
    for name, mark in (("stat", "(python3)"), ("status", "Name:\tpython3")):
        edit(process / name, mark, mark.replace("python3", f"{SECRET}-proc"))
    append(process / "fdinfo/4", f"drm-client-name:\t7{SECRET}\n")
    (process / "fd/9").symlink_to(f"/home/{SECRET}-user/{SECRET}-file")
    mounts = f"90 1 8:2 / /mnt/{SECRET}-mount rw - ext4 /dev/mapper/{SECRET}-disk rw\n"
    append(own / "mountinfo", mounts + f"91 1 0:9 / /home/x rw - nfs4 {SECRET}-share:/x rw,addr=203.0.113.77\n")
    for file in folder.glob("sys/devices/pci*/**/unique_id"):
        file.write_text(f"{SERIAL:016x}\n")
    append(folder / "sys/class/kfd/kfd/topology/nodes/1/properties", f"unique_id {SERIAL}\n")


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def edit(file: Path, old: str, new: str) -> None:
    before = file.read_text()
    assert old in before, f"{file} has no {old!r}"
    file.write_text(before.replace(old, new))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    """A report of a machine with secrets, made beside its daemon."""
    scratch = tmp_path_factory.mktemp("planted")
    folder = scratch / f"{SECRET}-folder"
    shutil.copytree(MACHINES / "rx-7900-xtx", folder, symlinks=True)
    plant(folder)
    gpu = {"uuid": f"GPU-{SECRETS['NVIDIA UUID']}", "serial": f"{SECRET}-serial"}
    nvml = Simulator.of(scratch, sample_nvml.RTX_4090.with_gpu(0, **gpu))
    roots = [f"--{root}fs={folder / root}" for root in ("proc", "sys", "root")]
    with running_daemon(scratch, *roots, environ=nvml.environ) as daemon:
        daemon.wait_until_ok("nvml")
        yield report_of(scratch / "report.tar.gz", "--url", daemon.url, **nvml.environ, **environment_of(roots))


@pytest.mark.parametrize("place", SECRETS)
def test_no_secret_of_the_machine_is_in_the_report(planted: Reported, place: str) -> None:
    """Not in a file, its name or the recording, compressed or not, and not on the terminal."""
    secret = SECRETS[place].encode()

    for found in (planted.everything, planted.file.read_bytes()):
        assert secret not in found
        assert secret.lower() not in found.lower()
    shown = planted.text.replace(str(planted.file), "FILE").replace(str(planted.file.parent), "")
    assert SECRETS[place] not in shown


def test_planted_machine_was_read(planted: Reported) -> None:
    """The test above would pass for an empty report: its places are in it, redacted."""
    assert planted.bundle.summary["versions"]["memwatchd"] == __version__
    assert planted.bundle.summary["settings"] == "valid"
    files = planted.bundle.files
    for path in (
        "proc/1001/cgroup",
        "proc/sys/kernel/hostname",
        "proc/driver/nvidia/params",
        "root/etc/os-release",
    ):
        assert files[path]
    assert files["root/etc/os-release"] == b'ID=debian\nVERSION_ID="12"\n'
    assert files["proc/cmdline"] == b"psi=1\n"
    assert b"ip-" in files["proc/driver/nvidia/params"]
    assert b"mac-1" in files["proc/driver/nvidia/params"]
    assert planted.bundle.drivers["nvml"]["reading"]["gpus"][0]["name"] == "NVIDIA GeForce RTX 4090"
    assert planted.bundle.recording
    for kind in ("hosts", "users", "units", "UUIDs", "IP addresses", "MAC addresses", "process names"):
        assert kind in planted.text


def pools(snapshot: Any) -> list[Any]:
    sizes = ("size_bytes", "used_bytes", "available_bytes", "free_bytes", "unattributed_bytes")
    return [
        *(
            [pool["id"], pool["kind"], *(pool[name] for name in sizes), pool["contents"]]
            for pool in snapshot["pools"]
        ),
        *(
            [share["id"], share["within"], share["used_bytes"], share["limit_bytes"]]
            for share in snapshot["shares"]
        ),
        *(
            [one["id"], one["name"], one["architecture"], one["headroom_after_reclaim_bytes"]]
            for one in snapshot["devices"]
        ),
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("gb10", "mi300a-x4", "container-v1"),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("h100-mig", "8x-h100", "strix-halo", "jetson-orin-nano", "wsl2")
        ),
    ],
)
def test_report_becomes_a_machine_with_the_same_figures(name: str, tmp_path: Path) -> None:
    """Report beside a daemon, then `make machine`, then a daemon on the new folder: equal to the byte."""
    host = host_of(name, tmp_path)
    with running_daemon(tmp_path, *host.roots, environ=host.environ) as daemon:
        for collector in host.waits_for:
            daemon.wait_until_ok(collector)
        environ = {**host.environ, **environment_of(host.roots)}
        found = report_of(tmp_path / "report.tar.gz", "--url", daemon.url, **environ)
        before = daemon.get("/api/v1/snapshot").json

    made = machine_from_report.make_machine(found.bundle, tmp_path, "made")
    (tmp_path / "again").mkdir()
    again = host_in(made.folder, tmp_path / "again")
    after = sample_once(*again.roots, **again.environ)

    assert pools(after) == pools(before)
    assert len(after["processes"]) == len(before["processes"])
    assert (made.folder / "metrics.txt").read_text()


def test_made_machine_passes_the_tests_of_machines(tmp_path: Path) -> None:
    """Its expected.json and metrics.txt are what the tests of all machine folders compare."""
    machines = tmp_path / "machines"
    machines.mkdir()
    done = memwatch("doctor", "--report", str(tmp_path / "box.tar.gz"), "--for", "1s", **spark(tmp_path))
    assert done.returncode == 0, done.stderr

    code = machine_from_report.main([str(tmp_path / "box.tar.gz"), "--name", "spark", "--into", str(machines)])

    written = json.loads((machines / "spark/expected.json").read_bytes())
    assert code == 0
    assert {path.name for path in (machines / "spark").iterdir()} == {
        "proc", "sys", "root", "expected.json", "metrics.txt", "nvml.state",
    }  # fmt: skip
    assert "gpu.0.pci.device_id = 772935902\n" in (machines / "spark/nvml.state").read_text()
    assert written["collectors"] == machine_from_report.results_of(machines / "spark", written["page_size"])
    ram = written["collectors"]["meminfo"]["pools"][0]
    assert ram["size_bytes"] == sample_nvml_integrated.GB10_RAM
    assert sum(ram["contents"].values()) == ram["size_bytes"]


def test_machine_with_an_unreadable_file_is_made_and_says_so(planted: Reported, tmp_path: Path) -> None:
    """A file that no parser accepts is the reason for the report: the folder is made, and its test fails."""
    files = {**planted.bundle.files, "proc/buddyinfo": b"Node 0, zone ?\n"}

    made = machine_from_report.make_machine(replace(planted.bundle, files=files), tmp_path, "odd")

    written = json.loads((made.folder / "expected.json").read_bytes())["collectors"]
    assert written["buddyinfo"]["failed"].startswith("ParseError: ")
    assert any(remark.startswith("buddyinfo fails on these files") for remark in made.remarks)
    assert written["meminfo"]["pools"]


def test_make_machine_names_the_report_and_the_folder() -> None:
    make = ["make", "--dry-run", "--no-print-directory", "-C", str(ROOT), "machine"]
    found = subprocess.run([*make, "FROM=box.tar.gz", "NAME=box"], capture_output=True, text=True, check=True)

    assert 'scripts.machine_from_report "box.tar.gz" --name "box"' in found.stdout


def spark(tmp_path: Path) -> dict[str, str]:
    host = host_of("gb10", tmp_path)
    elsewhere = {"MEMWATCH_URL": f"unix:{tmp_path}/none"}  # a daemon may run on this machine
    return {**host.environ, **environment_of(host.roots), **elsewhere}


def test_report_is_made_without_a_daemon(tmp_path: Path) -> None:
    """The machine is read directly, the recording too, and the file is readable by its owner only."""
    file = tmp_path / "box.tar.gz"

    done = memwatch("doctor", "--report", str(file), "--for", "2s", **spark(tmp_path))

    bundle = read_bundle(file)
    assert "reading this machine directly" in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert bundle.summary["daemon"] == "none: the machine was read directly"
    assert bundle.summary["machine"]["name"] == "NVIDIA DGX Spark"
    assert "memwatchd" not in bundle.summary["versions"]
    assert gzip.decompress(bundle.recording).count(b"\n") == 3
    assert file.stat().st_size < 64 << 10


def test_report_with_invalid_settings_has_their_error_and_all_else(tmp_path: Path) -> None:
    """The daemon does not start with them, so a report that stops at the same error would be of no use."""
    file, settings = tmp_path / "box.tar.gz", tmp_path / "memwatchd.toml"
    settings.write_text("[sampling]\nintervall = 1\n")

    done = memwatch(
        "doctor", "--report", str(file), "--for", "1s", **spark(tmp_path), MEMWATCHD_CONFIG=str(settings)
    )

    bundle = read_bundle(file)
    assert done.returncode == 0
    assert "did you mean interval?" in bundle.summary["settings"]
    assert f"  settings     {bundle.summary['settings']}\n" in done.stdout
    assert bundle.summary["machine"]["name"] == "NVIDIA DGX Spark"


def test_recording_of_a_report_can_be_replayed(planted: Reported, tmp_path: Path) -> None:
    recording = tmp_path / "box.memwatch"
    recording.write_bytes(planted.bundle.recording)

    done = run_program(MEMWATCHD, "--once", "--json", "--replay", str(recording))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pools"]


def test_report_of_a_demo_has_a_recording_and_no_files(tmp_path: Path, shared_daemons: SharedDaemons) -> None:
    """Files of this machine are no evidence for simulated data. No machine folder is made of such a report."""
    found = report_of(tmp_path / "demo.tar.gz", "--url", shared_daemons.demo("dgx-spark").url)

    assert found.bundle.files == {}
    assert found.bundle.drivers == {}
    assert found.bundle.recording
    assert "files        none: the data is simulated" in found.text
    assert machine_from_report.main([str(found.file), "--into", str(tmp_path)]) == 1


def test_report_of_another_machine_has_no_files_of_this_one(tmp_path: Path) -> None:
    host = host_of("old-kernel", tmp_path)
    with running_daemon(tmp_path, *host.roots) as daemon:
        found = report_of(tmp_path / "other.tar.gz", "--url", daemon.url)

    assert found.bundle.files == {}
    assert "the daemon watches another machine than this one" in found.text


def test_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    """A link is replaced, and never followed."""
    file, victim, environ = tmp_path / "box.tar.gz", tmp_path / "victim", spark(tmp_path)
    victim.write_text("precious")
    file.symlink_to(victim)

    refused = memwatch("doctor", "--report", str(file), "--for", "1s", **environ)
    done = memwatch("doctor", "--report", str(file), "--for", "1s", "--overwrite", **environ)

    assert (refused.returncode, "recording" in refused.stderr) == (1, False)
    assert "exists; name another file, or replace it with --overwrite" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert victim.read_text() == "precious"
    assert not file.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_interrupted_recording_has_the_seconds_until_then(tmp_path: Path) -> None:
    """Ctrl-C ends the recording, and the report is written."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [*SCRIPT, "doctor", "--report", str(tmp_path / "box.tar.gz"), "--for", "60s"]
    environ = clean_environment(TMPDIR=str(folder), **spark(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as process:
        try:
            wait_until(lambda: any(one.stat().st_size > HEADER_BYTES for one in folder.glob("*/*")))
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=MAX_WAIT_SECONDS)
        finally:
            process.kill()

    assert process.returncode == 0
    assert re.search(r"recording +\d+ snapshots?: interrupted after \d+ of 60 s\n", text)


def test_options_of_a_report_need_a_report() -> None:
    done = memwatch("doctor", "--for", "5s")

    assert done.returncode == 2
    assert "--for and --overwrite need --report" in done.stderr


def test_files_without_permission_are_listed(tmp_path: Path) -> None:
    """They are named with the reason, in the report and on the terminal."""
    folder = tmp_path / "machine"
    shutil.copytree(MACHINES / "rx-7900-xtx", folder, symlinks=True)
    for path in ("proc/4821/fd", "proc/vmstat", "sys/class/kfd/kfd/topology/nodes"):
        (folder / path).chmod(0)
        if POWERLESS:  # as root: the owner of a file may not be the user who reads it
            os.chown(folder / path, 65534, 65534)
    roots = environment_of([f"--{root}fs={folder / root}" for root in ("proc", "sys", "root")])
    command = [*POWERLESS, *SCRIPT, "doctor", "--report", str(tmp_path / "box.tar.gz"), "--for", "1s"]
    environ = {**os.environ, **roots, "MEMWATCH_URL": f"unix:{tmp_path}/none"}

    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr
    unread = read_bundle(tmp_path / "box.tar.gz").summary["files"]["unread"]
    reasons = {path: why for path, why in unread.items() if why == "permission denied"}
    assert {"proc/vmstat", "sys/class/kfd/kfd/topology/nodes"} < reasons.keys()
    assert any(path.startswith("proc/10") and path.endswith("/fd") for path in reasons)
    assert "files were not read" in done.stdout
    assert "proc/vmstat: permission denied" in done.stdout


def test_archive_tells_nothing_about_its_author(planted: Reported) -> None:
    with tarfile.open(planted.file) as archive:
        for member in archive:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            assert member.name.startswith(f"{FOLDER}/")
