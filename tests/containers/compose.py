"""docker-compose.yml and its variants by podman-compose, with what this machine cannot give taken out."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from containers.podman import Podman, execute, may_raise_limits
from support.paths import ROOT

PROJECT = "memwatch-test"
PROGRAM = os.environ.get("PODMAN_COMPOSE", "podman-compose")


class Compose:
    """Commands of podman-compose for these files and this profile."""

    def __init__(
        self, podman: Podman, files: Sequence[Path], profile: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._podman = podman
        self._environ = {**podman.environ, **(environ or {})}
        self._profile = profile
        self._files = [*files, adaptation(podman.folder, files)]

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        files = [word for file in self._files for word in ("--file", str(file))]
        command = (PROGRAM, *files, "--project-name", PROJECT, "--profile", self._profile, *words)
        return execute(*command, check=check, environ=self._environ, cwd=ROOT)

    def execute(self, service: str, *words: str, check: bool = True) -> str:
        return self._podman.run("exec", self.container(service), *words, check=check).stdout

    @staticmethod
    def container(service: str) -> str:
        return f"{PROJECT}_{service}_1"


def adaptation(folder: Path, files: Sequence[Path]) -> Path:
    """Write a Compose file that leaves out what needs CAP_SYS_RESOURCE, if this machine lacks it.

    These are a lower oom_score_adj, and more locked memory than this process may have.
    """
    found = [yaml.safe_load(file.read_text())["services"] for file in files]
    services: dict[str, object] = {}
    if not may_raise_limits():
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        own = {"oom_score_adj": 0, "ulimits": {"memlock": limit, "nofile": 4096, "nproc": 4096}}
        services = {name: own for one in found for name in one if name.startswith("memwatchd")}
        print("NOT RUN, as this machine lacks CAP_SYS_RESOURCE: oom_score_adj: -900, ulimits: memlock: -1")
    file = folder / "adaptation.yml"
    file.write_text(yaml.safe_dump({"services": services}))
    return file
