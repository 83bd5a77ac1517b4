"""Detection of containers: marker files, image layers, and virtual machines made from an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwatch.core.collectors.machine import Collector as MachineCollector
from memwatch.core.linux.cgroups import in_container
from memwatch.core.linux.files import Roots
from memwatch.core.snapshot import Machine

ALL_MARKERS = ("run/systemd/container", ".dockerenv", "run/.containerenv")


@pytest.mark.parametrize("marker", ALL_MARKERS)
def test_marker_file_means_container(tmp_path: Path, marker: str) -> None:
    """The marker file of any container runtime is enough."""
    (tmp_path / marker).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / marker).touch()

    assert in_container(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path))


LAYERS = "rw,lowerdir=/var/lib/docker/overlay2/l/A:/var/lib/docker/overlay2/l/B,upperdir=/var/lib/docker/overlay2/c"
KTHREADD = "2 (kthreadd) S 0 0 0 0 -1 2129984"


def marked_root(folder: Path, mounts: str, second: str = KTHREADD) -> Roots:
    """Create a root with every marker file, its mounts, and process 2."""
    for marker in ALL_MARKERS:
        (folder / "root" / marker).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / marker).write_text("docker\n")
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text(mounts)
    if second:
        (folder / "proc/2").mkdir()
        (folder / "proc/2/stat").write_text(second + "\n")
    return Roots(folder / "proc", folder / "sys", folder / "root")


def machine_of(roots: Roots) -> Machine:
    machine = MachineCollector(roots).collect().machine
    assert machine is not None
    return machine


@pytest.mark.parametrize(
    "mount",
    [
        "27 1 254:0 / / rw - ext4 none rw,discard",
        "1 1 0:2 / / rw - rootfs rootfs rw",
        "1 1 0:2 / / rw - rootfs rootfs rw\n27 1 8:2 / / rw - xfs /dev/sda2 rw",
    ],
    ids=["firecracker", "initramfs", "disk over initramfs"],
)
def test_virtual_machine_made_from_an_image_is_no_container(tmp_path: Path, mount: str) -> None:
    """Its root contains the marker files of the image. It has its own kernel threads and a whole file system."""
    roots = marked_root(tmp_path, f"22 27 0:21 / /proc rw - proc proc rw\n{mount}\n")

    assert not in_container(roots)
    assert "container" not in machine_of(roots).details


@pytest.mark.parametrize(
    "mount",
    [
        f"700 600 0:52 / / rw - overlay overlay {LAYERS}",
        "700 600 0:52 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw,lowerdir=/home/ada/l/A",
        "700 600 0:52 / / rw - zfs rpool/docker/8c1f rw",
        "700 600 0:31 /@/var/lib/docker/btrfs/subvolumes/8c1f / rw - btrfs /dev/nvme0n1p2 rw",
        "700 600 253:7 /rootfs / rw - ext4 /dev/mapper/docker-253:0-8c1f rw",
        "700 600 8:2 /var/lib/docker/vfs/dir/8c1f / rw - ext4 /dev/sda2 rw",
    ],
    ids=["overlay2", "fuse-overlayfs", "zfs", "btrfs", "devicemapper", "vfs"],
)
def test_container_with_the_processes_of_its_host_is_a_container(tmp_path: Path, mount: str) -> None:
    """With `docker run --pid=host` process 2 is the host's kthreadd, for every storage driver."""
    roots = marked_root(tmp_path, f"{mount}\n701 700 0:21 / /proc rw - proc proc rw\n")

    machine = machine_of(roots)

    assert in_container(roots)
    assert machine.sees_all_processes
    assert machine.details["container"] == "Podman"  # the first of the three markers


@pytest.mark.parametrize("second", ["", "2 (sh) S 1 2 2 0 -1 4194560"])
def test_marker_without_kernel_threads_means_container(tmp_path: Path, second: str) -> None:
    """A container whose root is a whole disk, such as an image file, has its own processes."""
    assert in_container(marked_root(tmp_path, "700 600 7:0 / / rw - ext4 /dev/loop0 rw\n", second))


def test_host_is_judged_by_its_own_root(tmp_path: Path) -> None:
    """A daemon in a container is given the root of a virtual machine that was made from an image."""
    layers = f"700 600 0:52 / / rw - overlay overlay {LAYERS}\n"
    host = f"710 700 254:0 / {tmp_path}/root ro - ext4 /dev/vda rw\n"

    assert not in_container(marked_root(tmp_path, layers + host))


def test_containerd_is_detected_by_its_overlay(tmp_path: Path) -> None:
    """In a cgroup namespace of containerd, only the image layers of the root mount reveal the container."""
    (tmp_path / "proc/self").mkdir(parents=True)
    layers = "lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs"
    (tmp_path / "proc/self/mountinfo").write_text(f"9 1 0:9 / {tmp_path} rw - overlay overlay rw,{layers}\n")
    inside = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path)
    looking_out = Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "host")

    assert in_container(inside)
    assert not in_container(looking_out)


def test_live_system_is_no_container(tmp_path: Path) -> None:
    """A system booted from a USB stick also has an overlay at its root."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        f"9 1 0:9 / {tmp_path} rw - overlay overlay rw,lowerdir=/run/live/rootfs\n"
    )

    assert not in_container(Roots(tmp_path / "proc", tmp_path / "sys", tmp_path))
