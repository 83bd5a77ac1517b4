"""Context of the container image as one file: what deploy/Dockerfile needs, with version and revision set."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from memwatch_build import Build

DOCKERFILE = "deploy/Dockerfile"


def list_files(source: Path) -> Iterator[str]:
    """Yield the committed files that .dockerignore does not exclude, and those that docker itself reads."""
    rules = (source / ".dockerignore").read_text().splitlines()
    kept = tuple(rule.removeprefix("!") for rule in rules if rule.startswith("!"))
    command = ["git", "-C", str(source), "ls-files", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in sorted(filter(None, names)):
        if name in (DOCKERFILE, ".dockerignore") or any(name == one or name.startswith(f"{one}/") for one in kept):
            yield name


def read_file(source: Path, name: str, build: Build) -> bytes:
    data = (source / name).read_bytes()
    if name != DOCKERFILE:
        return data
    text = re.sub(r"(?m)^ARG VERSION=.*$", f"ARG VERSION={build.version}", data.decode())
    return re.sub(r"(?m)^ARG REVISION=.*$", f"ARG REVISION={build.revision}", text).encode()


def write_context(source: Path, path: Path, build: Build) -> None:
    """Write the archive: the same bytes for the same commit."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in list_files(source):
            data = read_file(source, name, build)
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), build.epoch or 0
            member.mode = 0o755 if (source / name).stat().st_mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(data))
