"""`memwatch fit --measure`: the cost of a GPU context from a process that opens one by the driver API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.published_models import MODELS
from simulators import sample_nvml
from simulators.driver_sim import CONTEXT_BYTES
from simulators.gpu_programs import simulated_cuda
from simulators.nvml_state import Machine
from support.client_process import memwatch
from support.daemon_process import RunningDaemon, running_daemon
from support.library_process import run_json
from support.shared_daemons import SharedDaemons

CONFIGS = {model.name: model.config for model in MODELS}
CARD, UNIFIED = sample_nvml.RTX_4090, sample_nvml.READY["gb10"]


@contextmanager
def running(tmp_path: Path, machine: Machine) -> Iterator[tuple[RunningDaemon, dict[str, str], str]]:
    """Yield a daemon, the environment of programs on its machine, and a model."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Llama 3.2 1B"]))
    with simulated_cuda(tmp_path, machine) as environ, running_daemon(tmp_path, environ=environ) as daemon:
        daemon.wait_for("/api/v1/devices", lambda devices: [one["state"] for one in devices] == ["ok"])
        yield daemon, environ, str(tmp_path)


def ask(daemon: RunningDaemon, environ: dict[str, str], model: str, *options: str) -> tuple[dict[str, Any], str]:
    done = memwatch("--url", daemon.url, "fit", model, "--json", *options, **environ)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("machine", [CARD, UNIFIED], ids=["card", "unified"])
def test_context_costs_what_a_process_that_opens_one_takes(machine: Machine, tmp_path: Path) -> None:
    """On unified memory it is the change of MemAvailable. Without the option nothing is measured."""
    with running(tmp_path, machine) as (daemon, environ, model):
        plain, _ = ask(daemon, environ, model)
        found, errors = ask(daemon, environ, model, "--measure", "--launch", "vllm")
        text = memwatch("--url", daemon.url, "fit", model, "--measure", **environ).stdout

    assert errors == ""
    assert (plain["parts"]["runtime"], found["parts"]["runtime"]) == (512 << 20, CONTEXT_BYTES)
    assert plain["runtime_source"].startswith("typical value: a context takes 107 to 555 MiB")
    assert found["runtime_source"] == "measured: a context without kernels"
    assert found["bytes"] == plain["bytes"] - (512 << 20) + CONTEXT_BYTES
    assert re.search(r"^  runtime \(GPU context and kernels\) +312\.0 MiB$", text, re.MULTILINE)
    assert "Runtime measured: a context without kernels.\n" in text


def test_library_measures_too(tmp_path: Path) -> None:
    code = "import json, memwatch; print(json.dumps(memwatch.fit({!r}, measure=True).need.parts['runtime']))"
    with running(tmp_path, CARD) as (daemon, environ, model):
        assert run_json(code.format(model), daemon.url, **environ) == CONTEXT_BYTES


def test_machine_without_the_driver_counts_the_typical_value(tmp_path: Path, shared_daemons: SharedDaemons) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Llama 3.2 1B"]))
    found, errors = ask(shared_daemons.demo("strix-halo"), {}, str(tmp_path), "--measure")

    assert found["parts"]["runtime"] == 512 << 20
    assert "was not measured: no NVIDIA driver is installed (libcuda.so.1 cannot be loaded); counting" in errors


def test_context_on_another_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Llama 3.2 1B"]))
    done = memwatch("--url", "http://192.0.2.1:6360", "fit", str(tmp_path), "--measure")

    assert done.returncode == 2
    assert "--measure opens a GPU context on this machine, and http://192.0.2.1:6360 is another one" in done.stderr


def test_driver_without_a_device_is_reported(tmp_path: Path) -> None:
    """Its kernel part is gone."""
    with running(tmp_path, CARD) as (daemon, environ, model):
        gone = {**environ, "GPU_SIM_SOCKET": str(tmp_path / "gone")}
        found, errors = ask(daemon, gone, model, "--measure")

    assert found["parts"]["runtime"] == 512 << 20
    assert "was not measured: cuInit failed: no CUDA-capable device is detected; counting a typical value" in errors
