"""Test the wheel of memwatch, installed without memwatchd: with msgspec and click, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from simulators.nvml_machine import Simulator
from simulators.sample_nvml import READY
from support.budget import within
from support.daemon_process import RunningDaemon, running_daemon
from support.dead_address import dead_address
from support.paths import MACHINES, ROOT
from support.wheels import BUILD, Built, build, run

MAX_IMPORT_SECONDS = 0.005
MAX_DEPENDENCIES = 2
# A program that pins what the daemon would need newer: fastapi 0.95 is of 2023.
BESIDE = ("pydantic==1.10.24", "starlette==0.27.0", "fastapi==0.95.2")
MEMORY = "import memwatch; print(memwatch.memory_info().total_bytes)"
FIT = ("fit", "20GiB", "--json")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build("memwatch", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of an environment with the wheel, msgspec and click."""
    folder = tmp_path_factory.mktemp("small")
    venv.create(folder, with_pip=False)
    packages = next((folder / "lib").glob("python*/site-packages"))
    for name in ("msgspec", "click"):
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder)
    done = run(*pip, "install", "--no-deps", "--no-index", built.wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


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


@pytest.mark.parametrize("installed", [False, True], ids=["without nvidia-ml-py", "with it"])
def test_nvidia_gpus_are_read_with_the_extra(programs: Path, tmp_path: Path, installed: bool) -> None:
    """Without it the collector says what to install."""
    machine = READY["rtx-4090"]
    simulator, host = Simulator.of(tmp_path, machine), MACHINES / str(machine.host)
    roots = {f"MEMWATCHD_{name.upper()}FS": str(host / name) for name in ("proc", "sys", "root")}
    if installed:
        (tmp_path / "pynvml.py").symlink_to(str(pynvml.__file__))
        roots["PYTHONPATH"] = str(tmp_path)
    done = run(
        *(programs / "memwatch", "status", "--json"),
        cwd=tmp_path,
        MEMWATCH_URL=nowhere(),
        **simulator.environ,
        **roots,
    )

    found = json.loads(done.stdout)
    (nvml,) = [one for one in found["collectors"] if one["name"] == "nvml"]
    if installed:
        assert nvml["state"] == "ok"
        assert [type(gpu["headroom_after_reclaim_bytes"]) for gpu in found["devices"]] == [int]
    else:
        assert nvml["error"] == "nvidia-ml-py is not installed: pip install nvidia-ml-py"


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
