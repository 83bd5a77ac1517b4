"""Podman with its own storage and configuration, in one folder. Needs root, Debian's podman, runc and netavark."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

from msgspec import Struct

from memwatch.core.linux.process_files import has_capability

CAP_SYS_RESOURCE = 24
MAX_SECONDS = 600.0
# Podman lowers its own limit of processes to 32,768 before it builds, and cannot raise it again.
MAX_LIMIT = 4096
# Short: sockets lie there, and their paths have at most 107 characters.
RUN_FOLDER = Path("/run/memwatchd-containers")

STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{folder}/graph"
runroot = "{run}/storage"
"""
# crun 1.8 stops with "cgroups in hybrid mode not supported" where cgroup v1 and v2 are both mounted. runc does not.
# Without systemd there is no other cgroup manager and no journal. The default limits exceed those of a container.
CONTAINERS = """\
[containers]
default_ulimits = {ulimits}
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{run}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""


class Podman(Struct, frozen=True):
    """Commands of Podman. `folder` holds its configuration and images."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
        }

    def configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        places = {"folder": self.folder, "run": RUN_FOLDER}
        (self.folder / "storage.conf").write_text(STORAGE.format(driver=self._driver(), **places))
        (self.folder / "containers.conf").write_text(CONTAINERS.format(ulimits=json.dumps(ulimits()), **places))

    def run(self, *words: str | Path, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of podman, and return its output. A failure shows what it printed."""
        return execute("podman", *words, check=check, environ=self.environ, **more)

    def has_image(self, name: str) -> bool:
        return self.run("image", "exists", name, check=False).returncode == 0

    def inspect(self, container: str) -> Any:
        return json.loads(self.run("container", "inspect", container).stdout)[0]

    def logs(self, container: str) -> str:
        done = self.run("logs", container, check=False)
        return done.stdout + done.stderr

    def _driver(self) -> str:
        """Return the storage driver. An overlay cannot lie on another, as the root file system of a container."""
        found = execute("stat", "--file-system", "--format=%T", self.folder)
        return "vfs" if found.stdout.strip() == "overlayfs" else "overlay"


def execute(
    *words: str | Path, check: bool = True, environ: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        stdin=more.pop("stdin", subprocess.DEVNULL),
        timeout=more.pop("seconds", MAX_SECONDS),
        env={**os.environ, **(environ or {})},
        **more,
    )
    assert not check or done.returncode == 0, (
        f"{words}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done


def may_raise_limits() -> bool:
    """Return True if a container may have higher limits than this process. Else it may only have the same."""
    return has_capability(CAP_SYS_RESOURCE)


def ulimits() -> list[str]:
    """Return default limits of containers: none, or those of this process where it cannot raise them."""
    if may_raise_limits():
        return []
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    low = {name: min(resource.getrlimit(number)[1], MAX_LIMIT) for name, number in limits.items()}
    return [f"{name}={limit}:{limit}" for name, limit in low.items()]
