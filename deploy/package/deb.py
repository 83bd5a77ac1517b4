"""Build a Debian package with all dependencies: python deploy/package/deb.py [--arch amd64|arm64] [--out dist].

Wheels need no compiler, so each architecture can be built on the other. One package supports Python 3.10 to 3.14:
its virtual environment has a site-packages folder per version, which refers to the wheels for that version.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import manual
from closure import build_environment, find_needed, pins_for

from memwatch import __version__

ROOT = Path(__file__).parent.parent.parent
HOME = "usr/lib/memwatchd"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# glibc 2.28: Debian 10, Ubuntu 20.04 and later.
TAGS = ("manylinux1", "manylinux_2_5", "manylinux_2_12", "manylinux2014", "manylinux_2_17", "manylinux_2_28")
COMPLETIONS = {
    "bash": "bash-completion/completions",
    "zsh": "zsh/vendor-completions",
    "fish": "fish/vendor_completions.d",
}
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
Depends: python3 (>= 3.10), python3 (<< 3.15), systemd | systemd-standalone-sysusers, init-system-helpers (>= 1.52),
 libc6 (>= 2.28), libgcc-s1
Section: admin
Priority: optional
Description: memory monitor for hosts and GPUs
 Shows pools of physical memory, the shares inside them, memory pressure, trends
 and the processes that use memory, on machines with dedicated or unified GPU
 memory. Provides a web dashboard, Prometheus metrics, a JSON API and webhooks.
"""
MODES = {"postinst": 0o755, "prerm": 0o755, "postrm": 0o755}
MAINTAINER = "The memwatchd authors <memwatchd@localhost>"


def download(python: str, machine: str, folder: Path) -> list[Path]:
    """Download the wheels for one Python version and machine type."""
    environment = build_environment(python, machine)
    pins = pins_for(environment)
    names = sorted(find_needed("memwatchd", ["auth"], environment, set()))
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [f"--platform={tag}_{machine}" for tag in TAGS]
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    subprocess.run([*command, f"--dest={folder}", *(name + pins[name] for name in names)], check=True)
    return sorted(folder.glob("*.whl"))


def own_wheels(folder: Path) -> list[Path]:
    """Build memwatch and memwatchd as for a release, from their source distributions."""
    shutil.rmtree(folder, ignore_errors=True)
    for project in (ROOT / "daemon", ROOT):
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, home: Path) -> str:
    """Unpack a wheel below the home of the package unless it is there; return its folder name."""
    target = home / "wheels" / wheel.stem
    if not target.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        for data in target.glob("*.data"):  # unused scripts
            shutil.rmtree(data)
    return wheel.stem


def make_environment(tree: Path, machine: str, work: Path) -> None:
    """Create a virtual environment for each interpreter of PYTHONS."""
    home = tree / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    own = own_wheels(work / "own")
    for python in PYTHONS:
        wheels = [*own, *download(python, machine, work / f"{machine}-{python}")]
        packages = home / "lib" / f"python{python}" / "site-packages"
        packages.mkdir(parents=True)
        lines = [f"../../../wheels/{unpack(wheel, home)}" for wheel in wheels]
        (packages / "memwatchd.pth").write_text("\n".join(lines) + "\n")


def put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def make_files(tree: Path, work: Path) -> None:
    """Write everything except the environment: programs, units, configuration, manual, completions."""
    for program, module in (("memwatchd", "memwatchd.cli"), ("memwatch", "memwatch.client.cli")):
        script = tree / "usr/bin" / program
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPT.format(home=HOME, module=module))
        script.chmod(0o755)
    units = ROOT / "systemd"
    for name in ("memwatchd.service", "memwatchd.slice"):
        put(units / name, tree / "lib/systemd/system" / name)
    put(units / "memwatchd.sysusers", tree / "usr/lib/sysusers.d/memwatchd.conf")
    put(units / "memwatchd.toml", tree / "etc/memwatchd/memwatchd.toml")
    documents = tree / "usr/share/doc/memwatchd"
    for drop_in in (units / "drop-ins").glob("*.conf"):
        put(drop_in, documents / "drop-ins" / drop_in.name)
    put(ROOT / "LICENSE", documents / "copyright")
    put(ROOT / "README.md", documents / "README.md")
    pages = work / "manual"
    manual.write_all(pages)
    for page in (pages / "man").iterdir():
        target = tree / "usr/share/man" / f"man{page.suffix[1:]}" / f"{page.name}.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
    for shell, place in COMPLETIONS.items():
        for file in (pages / "completions" / shell).iterdir():
            put(file, tree / "usr/share" / place / file.name)


def debian_version(version: str) -> str:
    """Convert a version for dpkg, which sorts 1.0~dev3 before 1.0 only with a tilde."""
    return re.sub(r"\.?(dev|a|b|rc)", r"~\1", version)


def make_control(tree: Path, arch: str) -> None:
    control = tree / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
    text = CONTROL.format(version=debian_version(__version__), arch=arch, maintainer=MAINTAINER, size=size)
    (control / "control").write_text(text)
    (control / "conffiles").write_text("/etc/memwatchd/memwatchd.toml\n")
    for name, mode in MODES.items():
        put(ROOT / "deploy/package/debian" / name, control / name)
        (control / name).chmod(mode)


def settle_modes(tree: Path, moment: int) -> None:
    """Set modes and times for a reproducible package, independent of umask and build time."""
    for path in sorted(tree.rglob("*"), reverse=True):
        if path.is_symlink():
            os.utime(path, (moment, moment), follow_symlinks=False)
            continue
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (moment, moment))


def source_moment() -> int:
    """Return the time of the last change to the sources: SOURCE_DATE_EPOCH or the last commit."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        return int(epoch)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", choices=MACHINES, default="arm64" if os.uname().machine == "aarch64" else "amd64")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    moment = source_moment()
    os.environ["SOURCE_DATE_EPOCH"] = str(moment)
    work = ROOT / "out" / "deb"
    tree = work / arguments.arch
    shutil.rmtree(tree, ignore_errors=True)
    make_environment(tree, MACHINES[arguments.arch], work)
    make_files(tree, work)
    make_control(tree, arguments.arch)
    settle_modes(tree, moment)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"memwatchd_{debian_version(__version__)}_{arguments.arch}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, file], check=True)


if __name__ == "__main__":
    main()
