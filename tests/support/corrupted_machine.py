"""Committed machines of which one figure of one kernel file or driver answer is corrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memwatch.core.accounting.compose import Composer
from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Collector, Host, ScanOptions
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.model import find_system_ram
from simulators.nvml_answers import answers_of, corrupt_answers, reading_of
from simulators.sample_nvml import READY
from support.answer_corruption import Corrupted, corrupt_lines, corrupt_values, corrupt_words
from support.field_law import Records, records_of
from support.machine_exports import RecordedTegrastats
from support.paths import MACHINES

FAILURES = (SourceUnavailable, ParseError, DecodeError, OSError)
# Collectors that would start a program, or have figures of their own texts in another law.
LEFT_OUT = frozenset(
    {"nvml", "tegrastats", "engines", "journal", "kmsg", "containers", "kubernetes", "amd_cli", "amdsmi"}
)


class Source(NamedTuple):
    """One kind of text: its files in a machine's folder, and the collectors that read them."""

    collectors: tuple[str, ...]
    patterns: tuple[str, ...]
    corrupt: Callable[[bytes], Iterator[Corrupted]] = corrupt_lines


SOURCES: Mapping[str, Source] = {
    "meminfo": Source(("meminfo",), ("proc/meminfo",)),
    "numa": Source(("numa",), ("sys/devices/system/node/node*/meminfo",)),
    "zram": Source(("zram",), ("sys/block/zram*/mm_stat",)),
    "cgroup": Source(
        ("cgroup",),
        tuple(
            f"sys/fs/cgroup/**/{name}"
            for name in (
                "memory.current",
                "memory.high",
                "memory.max",
                "memory.stat",
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
            )
        ),
    ),
    "amdgpu": Source(("amdgpu",), ("sys/class/drm/card*/device/mem_info_*",)),
    "fdinfo": Source(("drm",), ("proc/[0-9]*/fdinfo/*",)),
    "dmem": Source(("dmem", "drm"), ("sys/fs/cgroup/**/dmem.*",), corrupt_values),
    "tegrastats": Source(("tegrastats",), ("tegrastats",), corrupt_words),
}

NVML = "nvml"
ALL_SOURCES = (NVML, *SOURCES)


class Case(NamedTuple):
    """A corrupted figure: `field` is that of the file, `how` the kind of corruption.

    `data` is the file at `path`, or without a path the answers of the NVIDIA driver.
    """

    source: str
    path: Path | None
    field: str
    how: str
    data: Any


class CollectedMachine:
    """The collectors of a machine's folder, and the figures that follow from their findings."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        host = Host(Roots(folder / "proc", folder / "sys", folder / "root"), (ScanOptions(),), page_size=4096)
        self._makers: dict[str, Callable[[], Collector]] = {
            entry.name: entry.make for entry in list_collectors(host) if entry.name not in LEFT_OUT
        }
        line = folder / "tegrastats"
        if line.exists():
            self._makers["tegrastats"] = lambda: RecordedTegrastats(line.read_bytes())
        self._found = {name: self._collect(name) for name in self._makers}
        self._nvml = answers_of(READY[name]) if name in READY else None
        if self._nvml is not None:
            self._found["nvml"] = self._read_nvml(self._nvml)
        self.sound = self._records({})

    def _read_nvml(self, answers: Any) -> Findings:
        ram = find_system_ram(self._found["meminfo"].pools)
        return Findings(nvml=reading_of(answers, ram.size_bytes if ram else None))

    def _collect(self, name: str) -> Findings:
        try:
            collector = self._makers[name]()
        except FAILURES:
            return Findings()
        try:
            return collector.collect()
        except FAILURES:
            return Findings()
        finally:
            collector.close()

    def _records(self, changed: Mapping[str, Findings]) -> Records:
        return records_of(Composer().compose(tuple({**self._found, **changed}.values())))


class CorruptedMachine(CollectedMachine):
    """A copy of a committed machine, whose files can be corrupted one after the other."""

    def __init__(self, name: str, scratch: Path) -> None:
        shutil.copytree(MACHINES / name, scratch / name, symlinks=True)
        super().__init__(name, scratch / name)

    def cases(self, source: str) -> Iterator[Case]:
        """Yield every corruption of the texts of one kind."""
        if source == NVML:
            for field, how, answers in corrupt_answers(self._nvml) if self._nvml is not None else ():
                yield Case(source, None, field, how, answers)
            return
        kind = SOURCES[source]
        for path in self.files(source):
            for field, how, data in kind.corrupt(path.read_bytes()):
                yield Case(source, path, field or path.name, how, data)

    def files(self, source: str) -> list[Path]:
        """Return the files of one kind."""
        return sorted({one for pattern in SOURCES[source].patterns for one in self._folder.glob(pattern)})

    def corrupted(self, case: Case) -> Records:
        """Return the figures of the machine with one corrupted figure."""
        if case.path is None:
            return self._records({NVML: self._read_nvml(case.data)})
        sound = case.path.read_bytes()
        case.path.write_bytes(case.data)
        try:
            return self._records({name: self._collect(name) for name in SOURCES[case.source].collectors})
        finally:
            case.path.write_bytes(sound)
