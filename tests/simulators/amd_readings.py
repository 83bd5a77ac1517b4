"""Readings of the AMD collector for a machine in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memwatch.core.collectors.amdgpu import Collector
from memwatch.core.drivers.amd.records import AmdGpu, AmdReading
from memwatch.core.findings import Findings
from memwatch.core.linux.pci import GpuPids
from memwatch.core.model import Absent, Words
from simulators.amd_machine import AmdMachine
from support.machine_folders import machine_folder, plain


class ManualClock:
    """Manual clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeIoctl:
    """Fake of the ioctl that records its calls."""

    def __init__(self, answer: bool | Absent = Absent.NOT_AVAILABLE) -> None:
        self.answer = answer
        self.nodes: list[str] = []

    def __call__(self, node: Path, status: Words) -> bool | Absent:
        assert status == "active"
        self.nodes.append(node.name)
        return self.answer


def reading_of(findings: Findings) -> AmdReading:
    assert findings.amdgpu is not None
    return findings.amdgpu


def read(machine: AmdMachine) -> Findings:
    collector = Collector(machine.roots, 4096, GpuPids(), FakeIoctl())
    try:
        return collector.collect()
    finally:
        collector.close()


def only_gpu(findings: Findings) -> AmdGpu:
    (gpu,) = reading_of(findings).gpus
    return gpu


def as_written(findings: Findings) -> Any:
    """Return findings as parsed from JSON, where keys are strings."""
    return json.loads(json.dumps(plain(findings)))


def read_folder(name: str) -> Findings:
    collector = Collector(machine_folder(name).roots, 4096, GpuPids(), FakeIoctl())
    try:
        return collector.collect()
    finally:
        collector.close()
