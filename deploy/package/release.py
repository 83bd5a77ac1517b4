"""Build all files of a release twice, compare, checksum and sign them: make release [KEY=KEY].

Both builds are made from the commit, in fresh clones with different folders, umasks, time zones and hash seeds. The
second one gets the wheels of the first, without an index. A difference is an error: a user who builds the release
to verify it would find another one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from closure import MACHINES, ROOT
from image_context import write_context
from memwatch_build import Build, read_base, read_git

SUMS = "SHA256SUMS"
# What differs between two machines.
FIRST = {"TZ": "UTC", "PYTHONHASHSEED": "1"}
SECOND = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2"}
UMASKS = (0o022, 0o027)


class ReleaseError(Exception):
    """A release that cannot be made. The message has the reason and the remedy."""


def clone(commit: str, folder: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", "--detach", commit], check=True)


def build_all(
    source: Path, out: Path, build: Build, arches: Sequence[str], umask: int, environ: Mapping[str, str]
) -> None:
    """Build wheels, source distributions, packages with their SBOMs, and the image's context from a clone."""
    paths = os.pathsep.join(str(source / name) for name in ("daemon", "web"))
    environment = {**os.environ, **environ, "PYTHONPATH": paths, "SOURCE_DATE_EPOCH": str(build.epoch)}

    def python(*arguments: str | Path) -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, check=True, cwd=source, env=environment, umask=umask, stdout=subprocess.DEVNULL)

    for project in (source / "daemon", source):
        python("-m", "build", "--no-isolation", "--outdir", out, project)
    for arch in arches:
        python(source / "deploy/package/deb.py", "--arch", arch, "--out", out)
    (out / "memwatchd.deb").unlink(missing_ok=True)
    write_context(source, out / f"memwatchd-{build.version}-image.tar.gz", build)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.name != SUMS}


def compare(first: Path, second: Path) -> None:
    """Raise ReleaseError if the two folders differ."""
    one, other = digests(first), digests(second)
    differing = sorted(name for name in {**one, **other} if one.get(name) != other.get(name))
    if differing:
        raise ReleaseError(
            f"two builds of the same commit differ in {', '.join(differing)}: compare {first} and {second}"
        )


def write_sums(folder: Path) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in digests(folder).items()]
    (folder / SUMS).write_text("".join(lines))


def signing_command(key: str, file: Path) -> list[str]:
    """Return the command for a private key of minisign or SSH, or for a key of gpg by its name."""
    path = Path(key).expanduser()
    if not path.is_file():
        return ["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", str(file)]
    text = path.read_text("utf-8", "replace")
    if text.startswith("untrusted comment:"):
        return ["minisign", "-S", "-s", str(path), "-m", str(file)]
    if "OPENSSH PRIVATE KEY" in text or text.startswith(("ssh-", "sk-", "ecdsa-")):
        return ["ssh-keygen", "-Y", "sign", "-f", str(path), "-n", "file", str(file)]
    raise ReleaseError(f"{path} is no key of minisign or SSH; name one of these, or a key of gpg by its id")


def sign(folder: Path, key: str) -> None:
    command = signing_command(key, folder / SUMS)
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is not installed, which this key needs; install it") from None
    except subprocess.CalledProcessError as error:
        raise ReleaseError(f"{command[0]} did not sign {SUMS}: it ended with {error.returncode}") from None


def read_commit() -> Build:
    """Return the build of this checkout. Raise ReleaseError if it has changes."""
    try:
        build = read_git(ROOT, read_base())
    except (OSError, subprocess.CalledProcessError):
        raise ReleaseError(f"{ROOT} is no git repository, or git is missing: release from a clone") from None
    if build.revision.endswith("-dirty"):
        raise ReleaseError("the checkout has changes, which a release would not contain: commit or stash them")
    return build


def release(arches: Sequence[str], out: Path, key: str | None) -> Path:
    """Build, compare, checksum and sign. Return the folder with the files."""
    build = read_commit()
    folder = out / f"memwatchd-{build.version}"
    work = Path(tempfile.mkdtemp(prefix="memwatchd-release-"))
    clones, outs = (work / "one", work / "a folder with another name"), (work / "1", work / "2")
    for source in clones:
        clone(build.revision, source)
    build_all(clones[0], outs[0], build, arches, UMASKS[0], FIRST)
    wheels = [str(one) for one in sorted((clones[0] / "out/deb").glob("*-3.*"))]
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": " ".join(wheels)}
    build_all(clones[1], outs[1], build, arches, UMASKS[1], {**SECOND, **offline})
    compare(*outs)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(outs[0], folder)
    shutil.rmtree(work)
    write_sums(folder)
    if key:
        sign(folder, key)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--arch", action="append", choices=[*MACHINES, "none"], help="packages to build; default: all"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="parent of the release's folder")
    parser.add_argument("--key", help="file of a private minisign or SSH key, or the id of a gpg key")
    options = parser.parse_args()
    arches = [arch for arch in options.arch or MACHINES if arch != "none"]
    try:
        folder = release(arches, options.out.absolute(), options.key)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(map(str, error.cmd))} failed, see above", file=sys.stderr)
        return 1
    base = read_base()
    if folder.name != f"memwatchd-{base}":
        print(f"a development build: this commit has no tag v{base}")
    print(f"two equal builds: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
