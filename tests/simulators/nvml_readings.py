"""Responses of the NVML helper for simulated machines: one process reads all of them.

A daemon starts a helper for its machine, 0.2 s of CPU time. This process imports the helper's modules once and
forks for each machine, so that no state of the library or of the driver passes from one machine to the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from memwatch.core.collectors.base import BaseCollector
from memwatch.core.collectors.nvml import Collector, helper_options, parse_reading, pids_with_memory
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots, SourceUnavailable
from memwatch.core.linux.gpu_presence import is_nvidia_here
from memwatch.core.linux.pci import GpuPids
from simulators.nvml_machine import LIBRARY, built_library
from support.daemon_process import clean_environment


def read_all(machines: Mapping[str, tuple[str | None, Roots]]) -> dict[str, bytes]:
    """Return the helper's response for each machine, by name.

    Machines are the state of a driver, None for one without the driver's library, and a host.
    """
    with tempfile.TemporaryDirectory() as scratch:
        states = {
            name: Path(scratch, f"{name}.state") for name, (state, _) in machines.items() if state is not None
        }
        for name, file in states.items():
            file.write_text(machines[name][0] or "")
        orders = [
            (str(states[name]) if name in states else None, helper_options(roots))
            for name, (_, roots) in machines.items()
        ]
        environ = {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [scratch, os.environ.get("LD_LIBRARY_PATH")])),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, "-m", "simulators.nvml_readings", scratch, str(built_library())],
            input=json.dumps(orders).encode(),
            stdout=subprocess.PIPE,
            env=clean_environment(**environ),
            check=True,
        )
    return dict(zip(machines, done.stdout.splitlines(), strict=True))


class RecordedNvml(BaseCollector):
    """The NVML collector with the recorded response of a helper."""

    name = Collector.name
    period_seconds = Collector.period_seconds

    def __init__(self, roots: Roots, pids: GpuPids, response: bytes) -> None:
        super().__init__(roots)
        if not is_nvidia_here(roots):
            raise SourceUnavailable("no NVIDIA GPU and no NVIDIA driver found")
        self._pids = pids
        self._response = response

    def collect(self) -> Findings:
        reading = parse_reading(self._response)
        self._pids.update(self.name, pids_with_memory(reading))
        return Findings(nvml=reading, rejected=sum(reading.rejected.values()))


def _install(place: Path, library: str | None) -> None:
    """Put the library in its place, or an empty file, which hides one that may be installed."""
    place.unlink(missing_ok=True)
    if library is None:
        place.touch()
    else:
        place.symlink_to(library)


def _response_of(state: str | None, options: Sequence[str]) -> bytes:
    """Run the helper in a fork, and kill it after its first response, as the daemon does at its end."""
    from memwatch.core.drivers.nvml import child  # loads pynvml, which only this process needs

    commands, sender = os.pipe()
    receiver, answers = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(commands, 0)
        os.dup2(answers, 1)
        os.environ["NVML_SIM_STATE"] = state or ""
        sys.exit(child.main(options))
    os.write(sender, b"read\n")
    for descriptor in (commands, answers):
        os.close(descriptor)
    with open(receiver, "rb") as lines:
        response = lines.readline()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(sender)
    assert response, f"the helper sent no response for {state}"
    return response


def _main(folder: str, library: str) -> None:
    for state, options in json.load(sys.stdin):
        _install(Path(folder, LIBRARY), library if state else None)
        os.write(1, _response_of(state, options))


if __name__ == "__main__":
    _main(*sys.argv[1:])
