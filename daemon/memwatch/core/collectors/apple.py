"""Apple machines through macOS tools: memory in use by the GPU, and memory pressure."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.drivers.apple import (
    SETTINGS,
    AppleReading,
    Metal,
    parse_ioreg,
    parse_memory_size,
    parse_metal,
    parse_pressure_level,
    parse_sysctl,
    parse_wired_limit,
)
from memwatch.core.findings import Findings
from memwatch.core.helper.process import python_child
from memwatch.core.linux.files import ParseError, SourceUnavailable
from memwatch.core.model import Absent, Words
from memwatch.core.snapshot import Machine

PERIOD_SECONDS = 5.0
DEADLINE_SECONDS = 4.0
# Metal's recommended working set changes only with an administrator's setting.
METAL_SECONDS = 300.0
# Parts of macOS, where only the system can write.
TOOLS = {"ioreg": "/usr/sbin/ioreg", "sysctl": "/usr/sbin/sysctl"}
IOREG = ("ioreg", "-a", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
METAL = "memwatch.core.drivers.apple"


class Collector(BaseCollector):
    """Runs two short-lived child processes every 5 s (ioreg takes about 24 ms), in its own thread."""

    name = "apple"
    period_seconds = PERIOD_SECONDS
    may_block = True

    def __init__(
        self,
        tools: Mapping[str, str] = TOOLS,
        metal: Sequence[str] | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """`metal`: command of the child that reads Metal's properties, instead of `METAL`."""
        missing = [tool for tool, path in tools.items() if not os.access(path, os.X_OK)]
        if missing:
            raise SourceUnavailable(f"{' and '.join(missing)} not found: this is not macOS")
        self._tools = dict(tools)
        self._metal_argv = metal or python_child(METAL)
        self._deadline = deadline_seconds
        self._metal: Metal | Absent = Absent.NOT_AVAILABLE
        self._metal_asked_at: float | None = None

    @classmethod
    def create(cls, _host: Host) -> Collector:
        return cls()

    def collect(self) -> Findings:
        settings = parse_sysctl(self._run_tool("sysctl", *SETTINGS))
        reading = AppleReading(
            chip=settings.get("machdep.cpu.brand_string", Absent.NOT_SUPPORTED),
            model=settings.get("hw.model", Absent.NOT_SUPPORTED),
            memory_bytes=parse_memory_size(settings),
            accelerators=parse_ioreg(self._run_tool(*IOREG)),
            pressure=parse_pressure_level(settings),
            wired_limit_bytes=parse_wired_limit(settings),
            metal=self._read_metal(),
        )
        return Findings(apple=reading, machine=build_machine(reading))

    def _run_tool(self, tool: str, *arguments: str) -> bytes:
        """Return the output of a tool. Exit codes are ignored: sysctl exits with 1 if one setting is unknown."""
        try:
            return _output([self._tools[tool], *arguments], self._deadline)
        except subprocess.TimeoutExpired:
            raise ParseError(f"{tool} did not answer for {self._deadline:g} s and was killed") from None

    def _read_metal(self) -> Metal | Absent:
        now = time.monotonic()
        if self._metal_asked_at is None or now - self._metal_asked_at > METAL_SECONDS:
            self._metal_asked_at = now
            try:
                self._metal = parse_metal(_output(self._metal_argv, self._deadline))
            except (OSError, subprocess.TimeoutExpired):
                self._metal = Absent.NOT_AVAILABLE
        return self._metal


def _output(argv: Sequence[str], seconds: float) -> bytes:
    done = subprocess.run(  # noqa: S603  system tools, and a module of this package
        argv,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
    )
    return done.stdout[: 1 << 20]


def build_machine(reading: AppleReading) -> Machine:
    """Name the machine after its chip. The system's memory pressure level is a detail."""
    name: Words = reading.chip if isinstance(reading.chip, str) else reading.model
    words = {"model": reading.model, "memory_pressure": reading.pressure}
    return Machine(
        name=name,
        architecture="unknown",
        explanation="The GPU and the relation of its memory to System RAM are unknown.",
        details={key: word for key, word in words.items() if isinstance(word, str)},
    )
