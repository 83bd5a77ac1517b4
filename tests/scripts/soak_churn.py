"""Churn of a busy day, faster than in reality: GPUs, holders of their memory, and short-lived processes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

from msgspec import Struct, field
from msgspec.structs import replace

from simulators import sample_nvml
from simulators.nvml_machine import Simulator
from simulators.nvml_state import Holder, Machine, Memory
from support.paths import TESTS

STORM = TESTS / "support" / "fork_storm.py"
CALM = sample_nvml.READY["8x-h100"]
GIB = 1 << 30
STEP_SECONDS = 0.5
# In steps: a GPU is lost every half minute, and the driver is replaced every four minutes.
LOST_EVERY, EXCHANGED_EVERY, TROUBLE_STEPS = 60, 480, 10
IS_LOST, VERSION_MISMATCH = 15, 18
PROCESSES, STORM_SECONDS = 600, 60.0


def machine_at(step: int, chance: random.Random) -> Machine:
    """Return eight GPUs at one step: with new holders each time, and with periodic faults."""
    if step % EXCHANGED_EVERY >= EXCHANGED_EVERY - TROUBLE_STEPS:
        return replace(CALM, down=VERSION_MISMATCH)
    machine = CALM
    for slot in range(8):
        # The sum is constant: ticks with a level change are stored, and filling their 2,000 places is not growth.
        used = (20 + slot) * GIB
        pids = [chance.randrange(1000, 60_000) for _ in range(chance.randrange(1, 4))]
        holders = tuple(Holder(pid, chance.randrange(1, 5) * GIB) for pid in pids)
        machine = machine.with_gpu(slot, compute=holders, memory=Memory(81_559 << 20, used, 479 << 20))
    if step % LOST_EVERY >= LOST_EVERY - TROUBLE_STEPS:
        machine = machine.with_gpu(step // LOST_EVERY % 8, down=IS_LOST)
    return machine


class Churn(Struct):
    """Churn while the context is open; it ends both threads promptly."""

    simulator: Simulator
    steps: int = 0
    storms: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Churn:
        for work in (self._turn_gpus, self._start_processes):
            self._threads.append(threading.Thread(target=work, daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)
        self.simulator.show(CALM)

    def _turn_gpus(self) -> None:
        chance = random.Random(1)
        while not self._stop.wait(STEP_SECONDS):
            self.simulator.show(machine_at(self.steps, chance))
            self.steps += 1

    def _start_processes(self) -> None:
        command = [sys.executable, "-S", "-E", str(STORM), str(PROCESSES), str(STORM_SECONDS)]
        while not self._stop.is_set():
            with subprocess.Popen(command) as storm:
                while storm.poll() is None and not self._stop.wait(0.2):
                    pass
                storm.terminate()
            self.storms += 1
