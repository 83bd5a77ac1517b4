"""Build a Debian package with all dependencies: python deploy/package/deb.py [--arch amd64|arm64] [--out dist].

Wheels need no compiler, so each architecture can be built on the other. One package supports Python 3.10 to 3.15:
its virtual environment has a site-packages folder per version, which refers to the wheels for that version.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import shared_files
from closure import MACHINES, PYTHONS, ROOT, build_environment, locked_for
from documents import MAINTAINER, compress, write_documents
from memwatch_build import debian_version, read_build
from sbom import list_components, write_sbom

HOME = "usr/lib/memwatchd"
# glibc 2.28: Debian 10, Ubuntu 20.04 and later.
TAGS = ("manylinux1", "manylinux_2_5", "manylinux_2_12", "manylinux2014", "manylinux_2_17", "manylinux_2_28")
COMPLETIONS = {
    "bash": "bash-completion/completions",
    "zsh": "zsh/vendor-completions",
    "fish": "fish/vendor_completions.d",
}
PROGRAMS = (
    ("memwatchd", "memwatchd.cli"),
    ("memwatchd-guardian", "memwatchd.guardian_cli"),
    ("memwatch", "memwatch.cli.cli"),
)
SCRIPT = """#!/{home}/bin/python3 -I
import sys

from {module} import main

sys.exit(main())
"""
CONTROL = """Package: memwatchd
Version: {version}
Architecture: {arch}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: {depends}
Section: admin
Priority: optional
Description: memory monitor for hosts and GPUs
 Shows pools of physical memory, the shares inside them, memory pressure, trends
 and the processes that use memory, on machines with dedicated or unified GPU
 memory. Provides a web dashboard, Prometheus metrics, a JSON API and webhooks.
"""
DEPENDS = (
    "python3 (>= 3.10)",
    f"python3 (<< 3.{int(PYTHONS[-1].partition('.')[2]) + 1})",  # the lock has wheels for PYTHONS only
    "systemd | systemd-standalone-sysusers",
    "init-system-helpers (>= 1.52)",
    "libc6 (>= 2.28)",
    "libgcc-s1",
)
MODES = {"postinst": 0o755, "prerm": 0o755, "postrm": 0o755}


@cache
def download(python: str, machine: str, folder: Path) -> list[Path]:
    """Download the wheels for one Python version and machine type, once."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(one.line() for one in locked_for(build_environment(python, machine))) + "\n")
    platforms = [f"--platform={tag}_{machine}" for tag in TAGS]
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", f"--requirement={wanted}"]
    command += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    subprocess.run([*command, f"--dest={folder}"], check=True)
    return sorted(folder.glob("*.whl"))


def own_wheels(folder: Path) -> list[Path]:
    """Build memwatch and memwatchd as for a release, from their source distributions."""
    shutil.rmtree(folder, ignore_errors=True)
    for project in (ROOT / "daemon", ROOT):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, home: Path) -> Path:
    """Unpack a wheel below the home of the package unless it is there; return its folder."""
    target = home / "wheels" / wheel.stem
    if not target.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        for data in target.glob("*.data"):  # scripts, which are not used, and our files of /usr/share
            shutil.rmtree(data)
    return target


def make_environment(tree: Path, machine: str, work: Path) -> dict[Path, Path]:
    """Create a virtual environment for each interpreter of PYTHONS. Return all wheels by their folders."""
    home = tree / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").symlink_to("../../../bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    own = own_wheels(work / "own")
    unpacked: dict[Path, Path] = {}
    for python in PYTHONS:
        wheels = [*own, *download(python, machine, work / f"{machine}-{python}")]
        packages = home / "lib" / f"python{python}" / "site-packages"
        packages.mkdir(parents=True)
        folders = {unpack(wheel, home): wheel for wheel in wheels}
        lines = [f"../../../wheels/{folder.name}" for folder in folders]
        (packages / "memwatchd.pth").write_text("\n".join(lines) + "\n")
        unpacked |= folders
    return unpacked


def put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def make_files(tree: Path, work: Path) -> None:
    """Write everything except the environment: programs, units, configuration, manual, completions."""
    for program, module in PROGRAMS:
        script = tree / "usr/bin" / program
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPT.format(home=HOME, module=module))
        script.chmod(0o755)
    units = ROOT / "systemd"
    for name in ("memwatchd.service", "memwatchd-guardian.service", "memwatchd.slice"):
        put(units / name, tree / "lib/systemd/system" / name)
    put(units / "memwatchd.sysusers", tree / "usr/lib/sysusers.d/memwatchd.conf")
    put(units / "memwatchd.toml", tree / "etc/memwatchd/memwatchd.toml")
    shared_files.write_files(ROOT, tree / "usr/share")
    pages = work / "manual"
    write_manual(pages, work)
    for page in (pages / "man").iterdir():
        compress(tree / "usr/share/man" / f"man{page.suffix[1:]}" / f"{page.name}.gz", page.read_bytes())
    for shell, place in COMPLETIONS.items():
        for file in (pages / "completions" / shell).iterdir():
            put(file, tree / "usr/share" / place / file.name)


def write_manual(folder: Path, work: Path) -> None:
    """Run manual.py, which imports the programs, with their dependencies for this Python."""
    machine, python = os.uname().machine, f"{sys.version_info[0]}.{sys.version_info[1]}"
    wheels = download(python, machine, work / f"{machine}-{python}")
    paths = [ROOT / "daemon", ROOT / "web", *(unpack(wheel, work / "programs") for wheel in wheels)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    subprocess.run([sys.executable, ROOT / "deploy/package/manual.py", folder], check=True, env=environment)


def make_control(tree: Path, arch: str, version: str) -> None:
    control = tree / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
    text = CONTROL.format(version=version, arch=arch, maintainer=MAINTAINER, size=size, depends=", ".join(DEPENDS))
    (control / "control").write_text(text)
    (control / "conffiles").write_text("/etc/memwatchd/memwatchd.toml\n")
    for name, mode in MODES.items():
        put(ROOT / "deploy/package/debian" / name, control / name)
        (control / name).chmod(mode)


def settle_modes(tree: Path, moment: int) -> None:
    """Set modes and times for a reproducible package, independent of umask and build time."""
    for path in (*sorted(tree.rglob("*"), reverse=True), tree):
        if path.is_symlink():
            os.utime(path, (moment, moment), follow_symlinks=False)
            continue
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (moment, moment))


def source_moment(epoch: int | None) -> int:
    """Return the time of the last change to the sources: SOURCE_DATE_EPOCH, or that of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH") or epoch
    if given is None:
        raise SystemExit("deb.py: the time of the commit is not known: this is no checkout; set SOURCE_DATE_EPOCH")
    return int(given)


def link_newest(file: Path) -> None:
    """Let memwatchd.deb be the newest package for this machine: dist may have those of earlier commits."""
    link = file.parent / "memwatchd.deb"
    link.unlink(missing_ok=True)
    link.symlink_to(file.name)


@contextmanager
def building_alone(work: Path) -> Iterator[None]:
    """Wait for another build of this checkout, which uses the same folder."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    here = "arm64" if os.uname().machine == "aarch64" else "amd64"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", choices=MACHINES, default=here)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    work = ROOT / "out" / "deb"
    with building_alone(work):
        build_package(arguments.arch, arguments.out, work, is_of_here=arguments.arch == here)


def build_package(arch: str, out: Path, work: Path, is_of_here: bool) -> None:
    build = read_build()
    version, moment = debian_version(build.version), source_moment(build.epoch)
    os.environ["SOURCE_DATE_EPOCH"] = str(moment)
    tree = work / arch
    shutil.rmtree(tree, ignore_errors=True)
    unpacked = make_environment(tree, MACHINES[arch], work)
    components = list_components((wheel, folder) for folder, wheel in unpacked.items())
    make_files(tree, work)
    write_documents(tree, unpacked, version, build.revision, moment)
    write_sbom(tree / "usr/share/doc/memwatchd/memwatchd.cdx.json", build.version, components)
    make_control(tree, arch, version)
    settle_modes(tree, moment)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"memwatchd_{version}_{arch}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, file], check=True)
    shutil.copyfile(tree / "usr/share/doc/memwatchd/memwatchd.cdx.json", file.with_suffix(".cdx.json"))
    if is_of_here:
        link_newest(file)


if __name__ == "__main__":
    main()
