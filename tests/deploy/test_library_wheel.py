"""Test the wheel of memwatch, installed without memwatchd: with the dependencies that it names, no others."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from simulators.nvml_machine import Simulator
from simulators.sample_nvml import READY
from support.budget import within
from support.daemon_process import RunningDaemon, running_daemon
from support.dead_address import dead_address
from support.library_process import roots_environment
from support.paths import ROOT
from support.waiting import wait_until
from support.wheels import BUILD, Built, built_once, run

MAX_IMPORT_SECONDS = 0.005
MAX_DEPENDENCIES = 3
# The wheel, 1.05 MB in December 2026, and all files that `pip install memwatch` adds, 0.35 MB of them pynvml:
# records of answers, which the daemon writes and the commands read, are in the library.
MAX_WHEEL_BYTES, MAX_INSTALLED_BYTES = 1_100_000, 5_500_000
# A program that pins what the daemon would need newer: fastapi 0.95 is of 2023.
BESIDE = ("pydantic==1.10.24", "starlette==0.27.0", "fastapi==0.95.2")
UNIFIED = "import memwatch; print(memwatch.is_unified_memory_gpu(0))"
MEMORY = "import memwatch; print(memwatch.memory_info().total_bytes)"
FIT = ("fit", "20GiB", "--json")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built_once("memwatch", tmp_path_factory)


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of an environment with the wheel and what it requires on Linux."""
    folder = tmp_path_factory.mktemp("small")
    venv.create(folder, with_pip=False)
    packages = next((folder / "lib").glob("python*/site-packages"))
    for name in required(built):
        for path in files_of(name):
            (packages / path.name).symlink_to(path)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder)
    done = run(*pip, "install", "--no-deps", "--no-index", built.wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def required(built: Built) -> list[str]:
    """Return the packages that pip installs with the wheel here, without extras."""
    lines = built.read("METADATA").splitlines()
    found = [Requirement(line.partition(":")[2]) for line in lines if line.startswith("Requires-Dist:")]
    return [one.name for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def files_of(package: str) -> set[Path]:
    """Return the modules, folders of packages and metadata of an installed package."""
    found = distribution(package)
    names = {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}
    return {Path(str(found.locate_file(name))) for name in names}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), "--demo", "dgx-spark") as running:
        yield running


def nowhere() -> str:
    """Return an address of this machine without a daemon."""
    return f"http://{dead_address()}"


def python(programs: Path, code: str, **environ: str) -> str:
    done = run(programs / "python", "-c", code, cwd=programs, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.measure
def test_import_takes_at_most_5_ms(programs: Path) -> None:
    code = "import time; t = time.perf_counter(); import memwatch; print(time.perf_counter() - t)"

    took = min(float(python(programs, code)) for _ in range(5))
    within("import memwatch", took, MAX_IMPORT_SECONDS, "s")


@pytest.mark.parametrize("command", [("status",), ("devices",), ("backends",), ("status", "--json"), FIT])
def test_command_reads_the_machine_without_a_daemon(command: tuple[str, ...], programs: Path) -> None:
    done = run(programs / "memwatch", *command, cwd=programs, MEMWATCH_URL=nowhere())

    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("reading this machine directly\n")
    assert done.stdout
    assert done.returncode == 0 or command == FIT


def test_library_reads_the_machine_without_a_daemon(programs: Path) -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert int(python(programs, MEMORY, MEMWATCH_URL=nowhere())) == int(total.split()[1]) << 10


FIGURES = """
import json, time, memwatch, msgspec
while (here := memwatch.machine()).from_daemon is not BY_DAEMON or here.unread:
    time.sleep(0.05)  # the daemon or the driver has not answered yet
print(json.dumps(msgspec.to_builtins({
    "from_daemon": here.from_daemon, "architecture": here.architecture, "explanation": here.explanation,
    "pools": here.pools, "shares": here.shares,
    "gpus": [{name: getattr(gpu, name) for name in GPU} for gpu in here.devices],
    "unified": memwatch.is_unified_memory_gpu(0), "memory": memwatch.memory_info(0), "cpu": memwatch.memory_info(),
    "capacity": memwatch.get_device_memory_bytes(0),
})))
"""
# Sensors are not compared here: the library does not read those of AMD.
GPU = (
    "id",
    "name",
    "uuid",
    "driver",
    "architecture",
    "state",
    "allocates_from",
    "evidence",
    "notes",
    "process_list",
)
COMPARED = ("pools", "shares", "devices", "machine")


def with_device_memory(snapshot: Any) -> dict[int, dict[str, int]]:
    """Return the GPU memory of each process, by the pool or share that has it."""
    return {one["pid"]: one["device_bytes"] for one in snapshot["processes"] if one["device_bytes"]}


def read_status(programs: Path, folder: Path, environ: dict[str, str]) -> Any:
    """Return the status of the machine, once all drivers answer in the time that a command waits for them."""
    found: dict[str, Any] = {}

    def is_complete() -> bool:
        found.update(json.loads(run(programs / "memwatch", "status", "--json", cwd=folder, **environ).stdout))
        return all(one["state"] != "starting" for one in found["collectors"])

    wait_until(is_complete)
    return found


@pytest.mark.parametrize("name", ["gb10", "n1x-carveout", "rtx-4090", "gh200-numa", "h100-mig", "strix-halo"])
def test_plain_wheel_has_the_figures_of_a_daemon(programs: Path, tmp_path: Path, name: str) -> None:
    """Every pool, share and GPU in bytes, and the memory of each process, without a daemon or an extra."""
    simulator = Simulator.of(tmp_path, READY[name]) if name in READY else None
    driver, host = simulator.environ if simulator else {}, roots_environment(name)
    roots = [f"--{one}={host[f'MEMWATCHD_{one.upper()}']}" for one in ("procfs", "sysfs", "rootfs")]
    with running_daemon(tmp_path, *roots, environ=driver) as running:
        running.wait_for("/api/v1/devices", lambda found: [one["state"] for one in found] == ["ok"])
        theirs, code = running.snapshot(), f"GPU = {GPU}{FIGURES}"
        by_daemon = json.loads(python(programs, f"BY_DAEMON = True; {code}", MEMWATCH_URL=running.url, **host))
    here = {"MEMWATCH_URL": nowhere(), **host, **driver}
    alone = json.loads(python(programs, f"BY_DAEMON = False; {code}", **here))
    ours = read_status(programs, tmp_path, here)

    assert (by_daemon.pop("from_daemon"), alone.pop("from_daemon")) == (True, False)
    assert alone == by_daemon
    assert {key: ours[key] for key in COMPARED} == {key: theirs[key] for key in COMPARED}
    assert with_device_memory(ours) == with_device_memory(theirs)
    assert with_device_memory(ours) or name == "n1x-carveout"
    assert alone["unified"] is (name in ("gb10", "n1x-carveout", "strix-halo"))


def test_wheel_and_its_dependencies_are_small(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        own = sum(one.file_size for one in archive.infolist())
    parts = [path for name in required(built) for path in files_of(name)]
    files = [one for path in parts for one in (path.rglob("*") if path.is_dir() else [path])]
    theirs = sum(one.stat().st_size for one in files if one.is_file() and "__pycache__" not in one.parts)

    assert built.wheel.stat().st_size <= MAX_WHEEL_BYTES
    assert own + theirs <= MAX_INSTALLED_BYTES


@pytest.mark.parametrize("command", [("status", "--json"), ("history", "--json"), FIT])
def test_command_asks_a_daemon(command: tuple[str, ...], programs: Path, daemon: RunningDaemon) -> None:
    done = run(programs / "memwatch", "--url", daemon.url, *command, cwd=programs)

    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout


def test_library_asks_a_daemon(programs: Path, daemon: RunningDaemon) -> None:
    code = "import memwatch; print(memwatch.machine().host)"

    assert python(programs, code, MEMWATCH_URL=daemon.url).strip() == daemon.snapshot()["host"]


def test_client_of_another_version_is_answered(programs: Path, daemon: RunningDaemon) -> None:
    """It shows the same figures; an answer that it cannot use names the version to install."""
    code = (
        f"import memwatch; memwatch.__version__ = '9.0.0'; from memwatch.cli.cli import main;"
        f"main(['--url', {daemon.url!r}, 'devices', '--json'])"
    )

    assert json.loads(python(programs, code))[0]["id"] == daemon.snapshot()["devices"][0]["id"]


def test_recording_needs_no_daemon_package(programs: Path, daemon: RunningDaemon, tmp_path: Path) -> None:
    done = run(programs / "memwatch", "--url", daemon.url, "record", "box", "--for", "1s", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "box").stat().st_size


def pip(folder: Path, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = (folder / "bin/python", "-m", "pip", "--disable-pip-version-check", *arguments)
    return run(*command, cwd=folder, **environ)


def installed(folder: Path) -> dict[str, str]:
    listed = json.loads(pip(folder, "list", "--format=json").stdout)
    return {one["name"]: one["version"] for one in listed if one["name"] not in ("pip", "setuptools")}


def find_pythons() -> list[str]:
    """Return the oldest and the newest supported Python here."""
    tool = ROOT / "tests/tools/find_python.sh"
    found = [run("sh", tool, f"3.{minor}", cwd=ROOT).stdout.strip() for minor in range(10, 15)]
    here = [path for path in found if path]
    return [here[0], here[-1]]


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["oldest", "newest"])
def test_wheel_is_installed_without_a_compiler(which: int, built: Built, tmp_path: Path) -> None:
    """No compiler is on PATH, and none is needed: each dependency has a wheel."""
    folder = tmp_path / "env"
    assert run(find_pythons()[which], "-m", "venv", folder, cwd=tmp_path).returncode == 0
    done = pip(folder, "install", built.wheel, PATH=str(folder / "bin"), CC="/nonexistent/cc")

    assert done.returncode == 0, done.stderr
    assert "Building wheel" not in done.stdout
    assert len(installed(folder)) <= 1 + MAX_DEPENDENCIES
    shown = run(folder / "bin/memwatch", "--version", cwd=folder, PATH=str(folder / "bin"))
    assert shown.stdout == f"memwatch {BUILD.version} (revision {BUILD.revision})\n"
    assert python(folder / "bin", MEMORY).strip().isdigit()
    gpu = {**Simulator.of(tmp_path, READY["gb10"]).environ, **roots_environment("gb10")}
    assert python(folder / "bin", UNIFIED, MEMWATCH_URL=nowhere(), **gpu) == "True\n"


@pytest.mark.long
def test_wheel_fits_beside_old_web_frameworks(built: Built, tmp_path: Path) -> None:
    """memwatchd needs pydantic 2 and starlette 1.3. The library leaves the versions of a program alone."""
    folder = tmp_path / "env"
    assert run(find_pythons()[0], "-m", "venv", folder, cwd=tmp_path).returncode == 0
    assert pip(folder, "install", "--quiet", *BESIDE).returncode == 0
    before = installed(folder)

    done = pip(folder, "install", "--quiet", built.wheel)

    assert done.returncode == 0, done.stderr
    assert installed(folder).items() > before.items()
    check = pip(folder, "check")
    assert check.returncode == 0, check.stdout
    status = run(folder / "bin/memwatch", "status", cwd=folder, MEMWATCH_URL=nowhere())
    assert "System RAM" in status.stdout
