"""Build the Debian package by `make deb`, in a new virtual environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from memwatch_build import debian_version
from support.daemon_process import clean_environment
from support.paths import ROOT
from support.wheels import BUILD, SAME_BUILD

MOMENT = {"SOURCE_DATE_EPOCH": "1795663226"}


class DebianPackage(Struct, frozen=True):
    """The package, and the virtual environment that built it."""

    file: Path
    environment: Path


def run(*command: str | Path, umask: int = 0o022, **environ: str) -> str:
    words, environment = [str(one) for one in command], clean_environment(**environ)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, umask=umask)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_deb(folder: Path) -> None:
    """Run `make deb` with a virtual environment that it has to make."""
    venv, out = folder / "venv", folder / "dist"
    settings = (f"PYTHON={sys.executable}", f"VENV={venv}", f"DEB_ARGS=--arch amd64 --out {out}")
    run("make", "-C", ROOT, "deb", *settings, umask=0o022, **SAME_BUILD, **MOMENT)


def made_deb(folder: Path) -> DebianPackage:
    """Return what `make_deb` has made in this folder."""
    (file,) = (folder / "dist").glob("memwatchd_*_amd64.deb")
    assert file.name == f"memwatchd_{debian_version(BUILD.version)}_amd64.deb"
    return DebianPackage(file, folder / "venv")


def unpack(package: Path, folder: Path) -> Path:
    run("dpkg-deb", "-x", package, folder)
    (folder / "usr/bin/python3").symlink_to("/usr/bin/python3")
    return folder


def used_bytes(folder: Path) -> int:
    """Return the bytes on the disk below a folder, as du(1) counts."""
    return 1024 * int(run("du", "--summarize", "--block-size=1K", folder).split()[0])
