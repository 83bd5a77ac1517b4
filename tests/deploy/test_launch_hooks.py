"""Test the examples of deploy/launch: each file is validated, and its command runs beside a daemon."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from support.compose_schema import check_compose
from support.daemon_process import MEMWATCHD, RunningDaemon, clean_environment, running_daemon
from support.login_settings import TOKEN, login_config
from support.mutable_machine import MutableMachine
from support.paths import ROOT
from support.waiting import MAX_WAIT_SECONDS

NEEDED_PROGRAMS = ("systemd-analyze",)

LAUNCH = ROOT / "deploy/launch"
MEMWATCH = str(Path(MEMWATCHD).with_name("memwatch"))
UNITS = {"vllm.service": LAUNCH / "vllm.service", "ollama.service": LAUNCH / "ollama.conf"}
COMPOSE = LAUNCH / "compose.yml"


@contextmanager
def unified_machine(tmp_path: Path, used: float, config: str = "") -> Iterator[RunningDaemon]:
    """Run a daemon on 122 GiB of System RAM, of which this part is used."""
    machine = MutableMachine.of("gb10", tmp_path / "machine")
    machine.use(used)
    with running_daemon(tmp_path, *machine.arguments, config=config) as daemon:
        yield daemon


def run(command: list[str], daemon: RunningDaemon, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_WAIT_SECONDS,
        env=clean_environment(**{"MEMWATCH_URL": daemon.url, **environ}),
    )


def settings_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z]+)=(.*)$", text, re.MULTILINE))


def waiting_command(unit: str, timeout: str = "") -> list[str]:
    """Return ExecStartPre= of a unit with this environment's memwatch, and another timeout if it is given."""
    line = settings_of(UNITS[unit].read_text())["ExecStartPre"].replace("/usr/bin/memwatch", MEMWATCH)
    return shlex.split(re.sub(r"--timeout \S+", f"--timeout {timeout}", line) if timeout else line)


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


@pytest.mark.parametrize("unit", UNITS)
def test_unit_is_valid_and_systemd_waits_longer_than_memwatch(unit: str, tmp_path: Path) -> None:
    """No unknown key and no invalid value; a timeout of systemd would hide the reason."""
    text = UNITS[unit].read_text()
    (tmp_path / f"{unit}.d").mkdir()
    (tmp_path / unit).write_text("[Service]\nExecStart=/bin/true\n")
    valid = re.sub(r"^(ExecStart\w*)=\S+", r"\1=/bin/true", text, flags=re.MULTILINE).replace(
        "User=vllm", "User=root"
    )
    place = tmp_path / f"{unit}.d/memory.conf" if UNITS[unit].suffix == ".conf" else tmp_path / unit
    place.write_text(valid)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = waiting_command(unit)

    assert [line for line in done.stderr.splitlines() if unit in line and "is transient" not in line] == []
    assert seconds(settings_of(text)["TimeoutStartSec"]) > seconds(words[words.index("--timeout") + 1])


@pytest.mark.parametrize(("used", "status"), [(0.3, 0), (0.8, 1)])
def test_vllm_waits_for_system_ram_of_a_unified_machine(tmp_path: Path, used: float, status: int) -> None:
    """85 GiB are available, or 24; the reason is in the journal."""
    with unified_machine(tmp_path, used) as daemon:
        done = run(waiting_command("vllm.service", "1s"), daemon)

    assert done.returncode == status, done.stderr
    assert ("60GiB did not become available within 1.0 s" in done.stderr) == bool(status)


def test_ollama_waits_for_its_gpu(tmp_path: Path) -> None:
    """The demo's GPU is empty at first. A larger size than the whole GPU fails at once."""
    with running_daemon(tmp_path, "--demo=rtx4090", "--at=0s", "--speed=0.1") as daemon:
        command = waiting_command("ollama.service", "1s")
        done = run(command, daemon)
        too_large = run([word.replace("8GiB", "80GiB") for word in command], daemon)

    assert done.returncode == 0, done.stderr
    assert too_large.returncode == 2


@pytest.mark.host
def test_llama_swap_starts_the_server_with_its_memory_reserved(tmp_path: Path) -> None:
    """`memwatch wait` is replaced by the server, which gets the port and keeps the process id.

    Leases need the processes of this machine, so the sizes are smaller here.
    """
    models = yaml.safe_load((LAUNCH / "llama-swap.yaml").read_text())["models"]
    server = tmp_path / "bin/llama-server"
    server.parent.mkdir()
    server.write_text('#!/bin/sh\necho "$$" "$@"\nsleep 2\n')
    server.chmod(0o755)
    path = f"{server.parent}:{Path(MEMWATCH).parent}:{os.environ['PATH']}"
    with running_daemon(tmp_path, watches_this_machine=True) as daemon:
        for model in models.values():
            # As llama-swap: the lines are one command, without a shell.
            text, sizes = re.subn(r"--free \d+GiB", "--free 64MiB", model["cmd"])
            command = shlex.split(text.replace("${PORT}", "5800"))
            assert sizes == 1
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env=clean_environment(MEMWATCH_URL=daemon.url, PATH=path),
            )
            assert process.stdout is not None
            line = process.stdout.readline()
            leases = daemon.get("/api/v1/leases").json
            process.kill()
            process.wait(MAX_WAIT_SECONDS)
            process.stdout.close()

            assert line.startswith(f"{process.pid} --port 5800 --model /models/"), line
            assert [one["pid"] for one in leases if one["pid"] == process.pid] == [process.pid]


def test_compose_file_is_valid_by_the_specification() -> None:
    """The JSON schema of the Compose specification accepts it, and the server waits for the check."""
    code, output = check_compose(COMPOSE)
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

    assert code == 0, output
    assert services["vllm"]["depends_on"] == {"room": {"condition": "service_healthy"}}
    assert services["room"]["image"] == whole["services"]["memwatchd"]["image"]
    assert services["room"]["volumes"][0]["source"] in whole["volumes"]


@pytest.mark.parametrize(("used", "status"), [(0.3, 0), (0.8, 1)])
def test_health_check_of_compose_is_healthy_with_enough_memory(tmp_path: Path, used: float, status: int) -> None:
    """It reads the token of memwatchd's first start."""
    kind, text = yaml.safe_load(COMPOSE.read_text())["services"]["room"]["healthcheck"]["test"]
    (tmp_path / "token").write_text(TOKEN)
    with unified_machine(tmp_path, used, login_config(tmp_path)) as daemon:
        for ours, theirs in {
            "$$": "$",
            "/var/lib/memwatchd-token/token": str(tmp_path / "token"),
            "http://memwatchd:6360": daemon.url,
            "memwatch --url": f"{MEMWATCH} --url",
        }.items():
            assert ours in text
            text = text.replace(ours, theirs)
        done = run(["sh", "-c", text], daemon)

    assert kind == "CMD-SHELL"
    assert done.returncode == status, done.stderr


def prolog(daemon: RunningDaemon, **environ: str) -> subprocess.CompletedProcess[str]:
    defaults = {"MEMWATCH": MEMWATCH, "MEMWATCH_TIMEOUT": "1s", "SLURM_JOB_ID": "7"}
    return run(["bash", str(LAUNCH / "slurm-prolog.sh")], daemon, **{**defaults, **environ})


def test_prolog_of_slurm_succeeds_when_memory_is_back(tmp_path: Path) -> None:
    """System RAM and the GPUs of the job."""
    with running_daemon(tmp_path, "--demo=h100x8-mig", "--at=0s", "--speed=0.1") as daemon:
        done = prolog(daemon, SLURM_JOB_GPUS="0,1")

    assert (done.returncode, done.stderr) == (0, "")


def test_prolog_of_slurm_fails_for_missing_memory_only(tmp_path: Path) -> None:
    """A failure drains the node. It names the job and the place; what cannot be measured is logged."""
    with running_daemon(tmp_path, "--demo=rtx4090", "--at=0s", "--speed=0.1") as daemon:
        missing = prolog(daemon, SLURM_JOB_GPUS="0", MEMWATCH_FREE_GPU="23.5GiB", MEMWATCH_FREE_RAM="1GiB")
        unknown = prolog(daemon, SLURM_JOB_GPUS="9", MEMWATCH_FREE_RAM="1GiB")
        unreachable = prolog(daemon, MEMWATCH_URL="http://127.0.0.1:1")

    assert missing.returncode == 1
    assert "job 7: GPU 0: " in missing.stderr
    assert "23.5GiB did not become available within 1.0 s" in missing.stderr
    assert (unknown.returncode, unreachable.returncode) == (0, 0)
    assert "job 7: GPU 9: " in unknown.stderr
    assert "cannot reach memwatchd" in unreachable.stderr


def test_prolog_of_slurm_needs_no_search_path(tmp_path: Path) -> None:
    """slurmd starts it without PATH; the program is named by its path."""
    text = (LAUNCH / "slurm-prolog.sh").read_text()
    with running_daemon(tmp_path, "--demo=h100x8-mig", "--at=0s", "--speed=0.1") as daemon:
        environ = {"MEMWATCH": MEMWATCH, "MEMWATCH_URL": daemon.url}
        done = subprocess.run(
            ["/bin/bash", str(LAUNCH / "slurm-prolog.sh")], env=environ, capture_output=True, text=True, check=False
        )

    assert done.returncode == 0, done.stderr
    assert "MEMWATCH=${MEMWATCH:-/usr/bin/memwatch}" in text
