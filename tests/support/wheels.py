"""The files of a release, built as `make build` does: each wheel from its source distribution."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct

from memwatch_build import read_build
from support.daemon_process import clean_environment
from support.once import make_once
from support.paths import ROOT

# Of the start of the tests: an edit during a run would change the version.
BUILD = read_build()
SAME_BUILD = {"MEMWATCHD_BUILD_VERSION": BUILD.version, "MEMWATCHD_BUILD_REVISION": BUILD.revision}
PROJECTS = {"memwatch": ROOT / "daemon", "memwatchd": ROOT}


class Built(Struct, frozen=True):
    """The two files of a release of one package."""

    wheel: Path
    sdist: Path

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}

    def read(self, name: str) -> str:
        """Return a file of the wheel's metadata: METADATA, entry_points.txt."""
        (path,) = (one for one in self.wheel_names() if one.endswith(f".dist-info/{name}"))
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(path).decode()


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(**environ),
        capture_output=True,
        text=True,
        check=False,
    )


def build(name: str, folder: Path) -> Built:
    """Build a wheel from its source distribution, as `make build` does."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, PROJECTS[name])
    done = run(*command, cwd=folder, **SAME_BUILD)
    assert done.returncode == 0, done.stdout + done.stderr
    return _built(name, folder)


def built_once(name: str, factory: pytest.TempPathFactory) -> Built:
    """Return the files of a package, built once in a run."""
    return _built(name, make_once(factory, f"dist-{name}", partial(build, name)))


def _built(name: str, folder: Path) -> Built:
    return Built(next(folder.glob(f"{name}-*.whl")), next(folder.glob(f"{name}-*.tar.gz")))
