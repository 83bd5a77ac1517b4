"""AMD's library in a helper process: it may fail, print or hang without affecting anything else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from memwatch.core.collectors.amdsmi import CHILD, Collector, parse_reading
from memwatch.core.drivers.amd.smi_child import NO_DRIVER
from memwatch.core.findings import Findings
from memwatch.core.helper.process import python_child
from memwatch.core.helper.supervisor import Helper
from memwatch.core.linux.files import ParseError, SourceUnavailable
from simulators.amd_machine import GIB, PCI, AmdMachine, discrete
from support.daemon_process import RunningDaemon, running_daemon
from support.paths import TESTS

SIM = TESTS / "simulators/amdsmi"
QUICK = '[collectors.amdsmi]\nrestart_after = "1s"\n'
GOOD = {
    "ecc": {"correctable_count": 7, "uncorrectable_count": 1, "deferred_count": 0},
    "bad_pages": [{"value": 0, "page_address": 4096, "page_size": 4096, "status": 0}],
    "vram": {"vram_type": 4, "vram_vendor": "SAMSUNG", "vram_size": 24560},
    "processes": [
        {"pid": 700, "name": "x", "mem": 0, "memory_usage": {"vram_mem": GIB, "gtt_mem": 0, "cpu_mem": 0}}
    ],
}


class Simulated(Struct, frozen=True):
    """Machine with one card and AMD's library."""

    machine: AmdMachine
    file: Path

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(SIM), os.environ.get("PYTHONPATH", ""))))
        return {"PYTHONPATH": path, "AMDSMI_SIM": str(self.file)}

    @property
    def prelude(self) -> str:
        """Return code after which a forked daemon and its helper find the library."""
        return f"import os\nos.environ.update({self.environ})\nsys.path.insert(0, {str(SIM)!r})"

    def set_state(self, **state: Any) -> None:
        self.file.write_text(json.dumps(state))

    def calls(self) -> list[str]:
        return self.file.with_name("calls").read_text().split("\n")


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    monkeypatch.syspath_prepend(str(SIM))  # for collectors inside this process
    machine = AmdMachine(tmp_path / "box")
    machine.host(64 * GIB, 50 * GIB)
    machine.gpu(discrete(used=5 * GIB))
    found = Simulated(machine, tmp_path / "state.json")
    found.set_state(gpus={PCI: GOOD})
    return found


def state_of(found: Any) -> tuple[str, str | None]:
    return next((one["state"], one["error"]) for one in found if one["name"] == "amdsmi")


def wait_for_state(daemon: RunningDaemon, wanted: Callable[[str, str | None], bool]) -> str:
    found = daemon.wait_for("/api/v1/collectors", lambda found: wanted(*state_of(found)))
    return state_of(found)[1] or ""


def test_library_adds_errors_and_vram_type(simulated: Simulated, tmp_path: Path) -> None:
    """Error counters, bad pages and the memory type. Its output reaches no log."""
    arguments = simulated.machine.arguments
    with running_daemon(tmp_path, *arguments, prelude=simulated.prelude, config=QUICK) as daemon:
        wait_for_state(daemon, lambda state, _: state == "ok")
        (device,) = daemon.wait_for("/api/v1/devices", lambda devices: devices[0]["errors"])
        pools = daemon.get("/api/v1/pools").json
        log = daemon.read_log()

    assert device["errors"] == {"ecc_corrected": 7, "ecc_uncorrected": 1, "ecc_deferred": 0, "pages_retired": 1}
    assert device["details"]["vram_type"] == "HBM3"
    assert next(pool for pool in pools if pool["id"] == "gpu0")["used_bytes"] == 5 * GIB
    assert "noise" not in log
    assert "rsmi_init" not in log


@pytest.mark.parametrize("error", ["KeyError", "AttributeError", "OSError", "ImportError", "SystemExit"])
def test_failing_import_makes_the_collector_unavailable(error: str, simulated: Simulated, tmp_path: Path) -> None:
    """The daemon starts, reports why the library is missing, and keeps its stdout clean."""
    simulated.set_state(**{"import": error})
    arguments = simulated.machine.arguments
    with running_daemon(tmp_path, *arguments, prelude=simulated.prelude) as daemon:
        reason = wait_for_state(daemon, lambda state, _: state == "unavailable")
        pools = daemon.get("/api/v1/pools").json
        log = daemon.read_log()

    assert reason.startswith(f"amdsmi cannot be imported ({error}: ")
    assert [pool["id"] for pool in pools] == ["ram", "gpu0"]
    assert "noise" not in log


def test_library_is_retried_until_the_driver_is_loaded(simulated: Simulated, tmp_path: Path) -> None:
    """Code 34 is no error. The library is retried with pauses."""
    simulated.set_state(init=NO_DRIVER)
    arguments = simulated.machine.arguments
    with running_daemon(tmp_path, *arguments, prelude=simulated.prelude, config=QUICK) as daemon:
        reason = wait_for_state(daemon, lambda state, _: state == "unavailable")
        simulated.set_state(gpus={PCI: GOOD})
        wait_for_state(daemon, lambda state, _: state == "ok")

    assert "the amdgpu driver is not loaded" in reason


class Watch:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def collector_of(simulated: Simulated, watch: Watch, pause_seconds: float = 0.0) -> Collector:
    environ = {**os.environ, **simulated.environ}
    return Collector(simulated.machine.roots, pause_seconds, environ, deadline_seconds=5.0, monotonic=watch)


def errors_in(found: Findings) -> dict[str, int]:
    assert found.amd_smi is not None
    return dict(found.amd_smi.gpus[0].errors)


def test_failing_query_affects_only_its_own_value(
    simulated: Simulated,
) -> None:
    """Code 2 (not supported) is permanent, code 10 is retried, and other queries are answered."""
    simulated.set_state(gpus={PCI: {**GOOD, "bad_pages": 2, "processes": 10}})
    collector = collector_of(simulated, Watch())

    rounds = [collector.collect() for _ in range(3)]
    collector.close()

    reading = rounds[-1].amd_smi
    assert reading is not None
    assert reading.gpus[0].codes == {"bad_pages": 2, "processes": 10}
    assert errors_in(rounds[-1]) == {"ecc_corrected": 7, "ecc_uncorrected": 1, "ecc_deferred": 0}
    calls = simulated.calls()
    assert calls.count(f"bad_pages {PCI}") == 1
    assert calls.count(f"processes {PCI}") == 3
    assert calls.count("init") == 1


def test_missing_driver_is_retried_with_exponential_backoff(
    simulated: Simulated,
) -> None:
    """Each pause is twice the last. No process is started in between."""
    simulated.set_state(init=NO_DRIVER)
    watch = Watch()
    collector = collector_of(simulated, watch, pause_seconds=0.01)
    starts = []
    for _ in range(200):
        with pytest.raises(SourceUnavailable, match="driver is not loaded"):
            collector.collect()
        starts.append(simulated.calls().count("init"))
        watch.now += 0.005
        time.sleep(0.002)
    collector.close()

    # At 0, 0.01, 0.03, 0.07, 0.15, 0.31 and 0.63 of the one second that passed.
    assert starts[-1] == 7


def test_hanging_library_is_killed_and_restarted(simulated: Simulated) -> None:
    simulated.set_state(gpus={PCI: {**GOOD, "vram": "hang"}})
    collector = collector_of(simulated, Watch())

    with pytest.raises(ParseError, match="did not answer for 5 s and was killed"):
        collector.collect()
    simulated.set_state(gpus={PCI: GOOD})
    after = collector.collect()
    collector.close()

    assert errors_in(after)


def test_library_is_not_started_when_a_gpu_may_sleep(simulated: Simulated) -> None:
    """The library opens every GPU."""
    simulated.machine.gpu(
        {**discrete(), "power/control": "auto", "power/runtime_status": "suspended"}, pci="0000:0a:00.0", card=2
    )
    collector = collector_of(simulated, Watch())

    with pytest.raises(SourceUnavailable, match="library would wake it"):
        collector.collect()
    collector.close()

    assert not simulated.file.with_name("calls").exists()


def test_release_closes_the_library_for_the_requested_time(simulated: Simulated) -> None:
    """An administrator can use the driver exclusively. The library is opened again afterwards."""
    watch = Watch()
    collector = collector_of(simulated, watch)
    collector.collect()

    collector.release(30.0)
    with pytest.raises(SourceUnavailable, match="released on request"):
        collector.collect()
    watch.now += 31
    after = collector.collect()
    collector.close()

    assert errors_in(after)
    assert simulated.calls().count("init") == 2


def test_no_amd_gpu_starts_no_helper(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="no AMD GPU on the PCI bus"):
        Collector(AmdMachine(tmp_path).roots)


def test_missing_library_makes_the_collector_unavailable(tmp_path: Path) -> None:
    """Most machines do not have it."""
    machine = AmdMachine(tmp_path)
    machine.gpu(discrete())

    with pytest.raises(SourceUnavailable, match="amdsmi is not installed"):
        Collector(machine.roots, environ={"ROCM_PATH": str(tmp_path)})


@pytest.mark.parametrize("line", [b"", b"reading {}", b"reading 5", b"failure {", b"hello"])
def test_invalid_helper_output_is_rejected(line: bytes) -> None:
    with pytest.raises(ParseError, match="sent an invalid answer"):
        parse_reading(line)


def test_helper_exits_when_its_pipe_closes(simulated: Simulated) -> None:
    helper = Helper(python_child(CHILD), 10.0, 0.0, {**os.environ, **simulated.environ})
    answer = helper.ask(b"read")
    wrong = helper.ask(b"sing")
    pid = helper.pid
    helper.stop()

    assert answer.startswith(b"reading ")
    assert wrong.startswith(b"failure ")
    assert pid is not None
    assert not Path(f"/proc/{pid}/fd").exists() or not os.listdir(f"/proc/{pid}/fd")
