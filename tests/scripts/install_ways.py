"""Install memwatchd in each documented way, in a clean place, and print a table with times.

A way passes if the installed daemon becomes ready, serves its page, reports this machine's memory, and `memwatch
status` prints it. `--debian` also installs the package and runs `make run` in fresh Debian roots (needs root and
debootstrap). Takes 10 minutes. Exits with 1 if a way failed, after all were tried.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from support.connect_proxy import ConnectProxy
from support.daemon_process import get
from support.debian_root import chroot_command, debian_root
from support.free_ports import free_port
from support.paths import ROOT
from support.waiting import wait_until

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
DEBIANS = ("bookworm", "trixie")
MAX_SECONDS = 900
MEMTOTAL = int(Path("/proc/meminfo").read_text().split()[1]) * 1024


class WayFailedError(Exception):
    """A command failed; the message has the command and the end of its output."""


class Outcome(Struct, frozen=True):
    """One row: the way, the Python or system, seconds to install and from the start to readiness, or the error."""

    way: str
    system: str
    install_seconds: float | None = None
    ready_seconds: float | None = None
    error: str | None = None


class Place(Struct, frozen=True):
    """An empty folder with its own home, in which commands run with a clean environment."""

    folder: Path
    environment: Mapping[str, str]
    prefix: tuple[str, ...] = ()

    def run(self, *command: str | Path, **environ: str) -> str:
        done = subprocess.run(
            [*self.prefix, *map(str, command)],
            cwd=None if self.prefix else self.folder,
            env={**self.environment, **environ},
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        if done.returncode:
            output = (done.stdout + done.stderr).strip()[-600:]
            raise WayFailedError(f"{shlex.join(map(str, command))}: exit status {done.returncode}: {output}")
        return done.stdout

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        log = (self.folder / "daemon.log").open("wb")
        return subprocess.Popen(
            [*self.prefix, *map(str, command)],
            cwd=None if self.prefix else self.folder,
            env=dict(self.environment),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


# A way installs into a place and returns the commands that start the daemon and the client.
Commands = tuple[list[str], list[str]]
Way = Callable[[Place], Commands]


def registry_access() -> dict[str, str]:
    """Return the access to package registries: all that a way takes from its environment."""
    names = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    found = {name: value for name, value in os.environ.items() if name.startswith(names)}
    certificates = os.environ.get("PIP_CERT")  # uv reads another variable
    return {**found, "SSL_CERT_FILE": certificates} if certificates else found


@contextmanager
def clean_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="memwatchd-way-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        base = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": f"{folder}/home", "LANG": "C.UTF-8"}
        yield Place(folder, {**base, **registry_access()})


def wheels() -> list[Path]:
    return sorted((ROOT / "dist").glob("memwatch*.whl"))


def sdists() -> list[Path]:
    return sorted((ROOT / "dist").glob("memwatch*.tar.gz"))


def programs(folder: Path) -> Commands:
    return [str(folder / "memwatchd")], [str(folder / "memwatch")]


def in_venv(python: str, *arguments: str | Path) -> Way:
    """Return the way: `pip install ARGUMENTS` in a new virtual environment."""

    def install(place: Place) -> Commands:
        venv = place.folder / "venv"
        place.run(python, "-m", "venv", venv)
        place.run(venv / "bin/pip", "install", "--quiet", *arguments)
        return programs(venv / "bin")

    return install


def as_module(python: str) -> Way:
    """Return the way of starting with `python -m`, without the scripts on PATH."""

    def install(place: Place) -> Commands:
        in_venv(python, *wheels())(place)
        module = str(place.folder / "venv/bin/python")
        return [module, "-m", "memwatchd"], [module, "-m", "memwatch.cli"]

    return install


def from_wheelhouse(python: str) -> Way:
    """Return the way without a network: all wheels are downloaded first, then pip may not look elsewhere."""

    def install(place: Place) -> Commands:
        house = place.folder / "wheelhouse"
        place.run(python, "-m", "pip", "download", "--quiet", "--dest", house, *wheels())
        offline = ("unshare", "--net", "--map-root-user")
        venv = place.folder / "venv"
        place.run(python, "-m", "venv", venv)
        command = ("install", "--quiet", "--no-index", "--find-links", house, "memwatchd")
        place.run(*offline, venv / "bin/pip", *command, PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
        return programs(venv / "bin")

    return install


def through_proxy(python: str) -> Way:
    """Return the way through an HTTP proxy, which must have carried the connections."""

    def install(place: Place) -> Commands:
        with ConnectProxy() as proxy:
            commands = in_venv(python, "--no-cache-dir", "--proxy", proxy.url, *wheels())(place)
        if not proxy.targets:
            raise WayFailedError("pip did not use the proxy")
        return commands

    return install


def by_tool(python: str, tool: str, *command: str) -> Way:
    """Return the way by pipx or uv, which get their own environment first."""

    def install(place: Place) -> Commands:
        tools = place.folder / "tools"
        place.run(python, "-m", "venv", tools)
        place.run(tools / "bin/pip", "install", "--quiet", tool)
        checkout = copy_checkout(place.folder / "memwatchd")
        place.run("sh", "-c", f"cd {shlex.quote(str(checkout))} && {tools}/bin/{shlex.join(command)}")
        return programs(place.folder / "home/.local/bin")

    return install


def library_only(python: str) -> Way:
    """Return the way of `import memwatch` alone; the daemon that answers its command is one of the checkout."""

    def install(place: Place) -> Commands:
        (wheel,) = (one for one in wheels() if one.name.startswith("memwatch-"))
        in_venv(python, wheel)(place)
        place.run(place.folder / "venv/bin/python", "-c", "import memwatch; assert memwatch.memory_info()")
        return [sys.executable, "-m", "memwatchd"], [str(place.folder / "venv/bin/memwatch")]

    return install


def copy_checkout(folder: Path) -> Path:
    """Copy the committed files, as a clone has them."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


def check(place: Place, daemon: Sequence[str], client: Sequence[str]) -> float:
    """Start the daemon and use it. Return the seconds until it was ready."""
    port, begin = free_port(), time.monotonic()
    process = place.start(*daemon, "--listen", f"127.0.0.1:{port}")
    try:
        wait_until(lambda: process.poll() is not None or is_ready(port))
        ready = time.monotonic() - begin
        if process.poll() is not None:
            raise WayFailedError(f"the daemon exited: {(place.folder / 'daemon.log').read_text()[-400:]}")
        pools = get(port, "/api/v1/snapshot").json["pools"]
        if MEMTOTAL not in [pool["size_bytes"] for pool in pools]:
            raise WayFailedError(f"no pool has this machine's {MEMTOTAL} bytes: {pools}")
        if "System RAM" not in get(port, "/").body.decode():
            raise WayFailedError("the page does not show System RAM")
        if "System RAM" not in place.run(*client, "--url", f"http://127.0.0.1:{port}", "status"):
            raise WayFailedError("memwatch status does not show System RAM")
    finally:
        process.terminate()
        process.wait(30)
    return ready


def is_ready(port: int) -> bool:
    try:
        return get(port, "/readyz").status == 200
    except OSError:
        return False


class Attempt(Struct, frozen=True):
    """A way to try, with the system or the Python that it is tried on, and its clean place."""

    name: str
    system: str
    way: Way
    place: Callable[[], AbstractContextManager[Place]] = clean_place

    def run(self) -> Outcome:
        try:
            with self.place() as place:
                begin = time.monotonic()
                daemon, client = self.way(place)
                installed = time.monotonic() - begin
                return Outcome(self.name, self.system, installed, check(place, daemon, client))
        except (WayFailedError, AssertionError, OSError, subprocess.TimeoutExpired) as error:
            return Outcome(self.name, self.system, error=str(error))


def find_python(version: str) -> str | None:
    done = subprocess.run(
        ["sh", ROOT / "tests/tools/find_python.sh", version], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def ways_of_pythons() -> Iterator[Attempt]:
    found = {version: path for version in PYTHONS if (path := find_python(version))}
    for version, path in found.items():
        yield Attempt("pip, wheels, newest dependencies", version, in_venv(path, *wheels()))
    oldest, path = next(iter(found.items()))
    lowest = ROOT / "tests/constraints-lowest.txt"
    yield Attempt("pip, wheels, oldest dependencies", oldest, in_venv(path, "--constraint", lowest, *wheels()))
    yield Attempt("pip, source archives", oldest, in_venv(path, *sdists()))
    yield Attempt("`python -m memwatchd`", oldest, as_module(path))
    yield Attempt("library alone", oldest, library_only(path))
    yield Attempt("offline wheelhouse", oldest, from_wheelhouse(path))
    yield Attempt("pip behind a proxy", oldest, through_proxy(path))
    newest, path = list(found.items())[-1]
    yield Attempt("`pipx install .`", newest, by_tool(path, "pipx", "pipx", "install", "."))
    by_uv = by_tool(path, "uv", "uv", "tool", "install", "--python", path, ".")
    yield Attempt("`uv tool install .`", newest, by_uv)


def by_package(place: Place) -> Commands:
    """Install the Debian package with apt."""
    place.run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "/memwatchd.deb")
    return ["/usr/bin/memwatchd"], ["/usr/bin/memwatch"]


def by_make_run(place: Place) -> Commands:
    """Do what README says: `make run` in a checkout, until it has set everything up."""
    place.run("make", "-C", "/memwatchd", ".venv/.run")
    return ["/memwatchd/.venv/bin/memwatchd"], ["/memwatchd/.venv/bin/memwatch"]


def ways_of_debian(release: str, scratch: Path) -> Iterator[Attempt]:
    for name, way, packages in (
        ("Debian package", by_package, "python3"),
        ("`make run`", by_make_run, "python3,make"),
    ):
        yield Attempt(name, f"Debian {release}", way, partial(debian_place, release, packages, scratch))


@contextmanager
def debian_place(release: str, packages: str, scratch: Path) -> Iterator[Place]:
    """Return a fresh Debian with a checkout and the package, in which nothing else is installed."""
    with debian_root(release, packages, scratch) as root:
        package = (ROOT / "dist/memwatchd.deb").resolve()
        shutil.copy2(package, root / "memwatchd.deb")
        copy_checkout(root / "memwatchd")
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        yield Place(root, {**environment, **registry_access()}, chroot_command(root))


def table(outcomes: Sequence[Outcome]) -> str:
    rows = ["| way | Python or system | install | until ready |", "|---|---|---:|---:|"]
    for one in outcomes:
        times = "| failed | |"
        if one.install_seconds is not None and one.ready_seconds is not None:
            times = f"| {one.install_seconds:.1f} s | {one.ready_seconds:.2f} s |"
        rows.append(f"| {one.way} | {one.system} {times}")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--debian", action="store_true", help="also in fresh Debian roots")
    parser.add_argument("--only", default="", help="run only the ways with this text in their name")
    parser.add_argument("--scratch", type=Path, default=ROOT / "out/debian", help="folder for Debian roots")
    options = parser.parse_args()
    attempts = list(ways_of_pythons())
    for release in DEBIANS if options.debian else ():
        attempts += ways_of_debian(release, options.scratch)
    outcomes = []
    for one in attempts:
        if options.only in f"{one.name} {one.system}":
            outcomes.append(one.run())
            print(f"{one.name} ({one.system}): {outcomes[-1].error or 'passed'}", file=sys.stderr, flush=True)
    print(table(outcomes))
    return 1 if any(one.error for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
