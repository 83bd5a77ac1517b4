"""AMD GPUs through amd-smi or rocm-smi: a fallback if the amdgpu driver's files are not visible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Struct

from memwatch.core.collectors.base import BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.drivers.amd import amdgpu_cards as cards
from memwatch.core.drivers.amd.records import AmdCard, AmdGpu, AmdReading, Region
from memwatch.core.drivers.amd.smi import (
    SmiGpu,
    SmiProcess,
    SmiReading,
    parse_count,
    parse_pci,
    parse_process,
    rocm_folder,
)
from memwatch.core.drivers.amd.sysfs import build_region
from memwatch.core.findings import Findings
from memwatch.core.helper.process import is_ready
from memwatch.core.linux.files import Roots, SourceUnavailable, names_in
from memwatch.core.linux.pci import AMD, is_awake, pci_vendors, read_gpu
from memwatch.core.model import Absent, Bytes, Words
from memwatch.core.options import AUTO, Accepts, Converter, SwitchableOptions, program_path
from memwatch.core.printable import printable
from memwatch.core.runtime.programs import Program, find_program, safe_search_path

# Starting a tool takes 0.1 to 0.25 s of CPU time (measured without a GPU), and it opens every GPU.
PERIOD_SECONDS = 30.0
DEADLINE_SECONDS = 20.0
ROCM_SMI = ("--showmeminfo", "all", "--showbus", "--showproductname", "--json")
# The process list is the longest output: a few hundred bytes per process.
_MAX_BYTES = 4 << 20


ADVICE = "set amd_smi or rocm_smi under [collectors.amd_cli], or do not run memwatchd as root"


class Options(SwitchableOptions, frozen=True, kw_only=True):
    amd_smi: Annotated[
        str,
        Converter(program_path),
        Accepts('"auto" or the path of a program', '"/opt/rocm/bin/amd-smi"'),
        Doc(
            'Path of amd-smi, or "auto" for the one on PATH or in ROCm\'s folder. A daemon that runs as root skips '
            "a program that other users could replace."
        ),
    ] = AUTO
    rocm_smi: Annotated[
        str,
        Converter(program_path),
        Accepts('"auto" or the path of a program', '"/opt/rocm/bin/rocm-smi"'),
        Doc("The same for rocm-smi."),
    ] = AUTO


class Tools(Struct, frozen=True):
    """Paths of the tools; None for a tool that is not installed. `rejected`: reason for one that was found."""

    amd_smi: str | None
    rocm_smi: str | None
    rejected: str = ""


def find_tools(environ: Mapping[str, str], options: Options = Options(), uid: int | None = None) -> Tools:  # noqa: B008
    """Find the tools: the configured paths as given, else those on PATH or in ROCm's folder."""
    path = os.pathsep.join((environ.get("PATH", os.defpath), os.path.join(rocm_folder(environ), "bin")))
    amd_smi = find_tool("amd-smi", options.amd_smi, path, uid)
    rocm_smi = find_tool("rocm-smi", options.rocm_smi, path, uid)
    return Tools(amd_smi.path, rocm_smi.path, amd_smi.rejected or rocm_smi.rejected)


def find_tool(name: str, configured: str, search_path: str, uid: int | None) -> Program:
    if configured == AUTO:
        return find_program(name, search_path, uid)
    return Program(configured if os.access(configured, os.X_OK) else None)


def explain_missing(tools: Tools, options: Options) -> str:
    if tools.rejected:
        return f"{tools.rejected}; {ADVICE}"
    named = [path for path in (options.amd_smi, options.rocm_smi) if path != AUTO]
    return f"{named[0]}: no such program" if named else "neither amd-smi nor rocm-smi is installed"


def run_tool(tool: str, *arguments: str, seconds: float = DEADLINE_SECONDS) -> bytes:
    """Return the output of a tool. Exit codes are ignored: without a driver, one tool returns 0, another 255."""
    name = os.path.basename(tool)
    nowhere = subprocess.DEVNULL
    # The tools are scripts of `env python3`.
    environ = {**os.environ, "PATH": safe_search_path()}
    try:
        started = subprocess.Popen(  # noqa: S603
            [tool, *arguments], stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, cwd="/", env=environ
        )
    except OSError as error:
        raise NoOutputError(f"{name} cannot be started: {error.strerror}") from None
    with started as running:
        try:
            return _read_output(running, name, seconds)
        finally:
            running.kill()


def _read_output(running: subprocess.Popen[bytes], name: str, seconds: float) -> bytes:
    output, until = b"", time.monotonic() + seconds
    assert running.stdout is not None  # noqa: S101  it was asked for
    while len(output) <= _MAX_BYTES:
        if not is_ready(running.stdout.fileno(), until - time.monotonic()):
            raise NoOutputError(f"{name} did not answer for {seconds:g} s")
        part = os.read(running.stdout.fileno(), 1 << 16)
        if not part:
            return output
        output += part
    raise NoOutputError(f"{name} printed more than {_MAX_BYTES >> 20} MiB")


def build_gpu(memory: SmiMemory) -> AmdGpu:
    """Build a GPU from its memory figures and, if known, its PCI address."""
    card = AmdCard(
        pci=memory.pci or f"{memory.index:03}",
        cards=(),
        render_node=Absent.NOT_AVAILABLE,
        device_id="",
        revision="",
        name=memory.name if isinstance(memory.name, str) else "AMD GPU",
        vram_bytes=memory.vram.total_bytes,
        visible_vram_bytes=memory.visible_vram.total_bytes,
        gtt_bytes=memory.gtt.total_bytes,
        may_sleep=True,
    )
    return AmdGpu(card, memory.vram, memory.visible_vram, memory.gtt, Absent.NOT_AVAILABLE)


def build_reading(found: list[SmiMemory], source: str) -> AmdReading:
    gpus = sorted(map(build_gpu, found), key=lambda gpu: gpu.card.pci)
    return AmdReading(tuple(gpus), Absent.NOT_AVAILABLE, Absent.NOT_AVAILABLE, source=source)


class Collector(BaseCollector):
    """Runs amd-smi, or rocm-smi if that is not installed or reports nothing."""

    name = "amd_cli"
    period_seconds = PERIOD_SECONDS
    may_block = True
    options: type[Options] = Options

    def __init__(
        self,
        roots: Roots,
        environ: Mapping[str, str] = os.environ,
        options: Options = Options(),  # noqa: B008
    ) -> None:
        self._drm, self._pci = roots.sysfs / "class/drm", roots.sysfs / "bus/pci/devices"
        self._refuse_if_superseded()
        if AMD not in pci_vendors(roots):
            raise SourceUnavailable("no AMD GPU on the PCI bus")
        self._tools = find_tools(environ, options)
        self._addresses: Mapping[int, str] = {}
        if self._tools.amd_smi is None and self._tools.rocm_smi is None:
            raise SourceUnavailable(explain_missing(self._tools, options))

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, options=host.options_for(Options))

    def collect(self) -> Findings:
        self._refuse_if_superseded()
        self._refuse_to_wake()
        try:
            return self._ask_amd_smi()
        except NoOutputError as without:
            try:
                return self._ask_rocm_smi()
            except NoOutputError as within:
                raise SourceUnavailable(f"{without}; {within}") from None

    def _refuse_if_superseded(self) -> None:
        if cards.find(self._drm).gpus:
            raise SourceUnavailable("not needed: the amdgpu driver's files are visible")

    def _refuse_to_wake(self) -> None:
        """Raise if a GPU is suspended. The pause between two runs lets an idle one be suspended."""
        for pci in names_in(self._pci):
            gpu = read_gpu(self._pci / pci)
            if gpu is not None and gpu.vendor == AMD and not is_awake(self._pci / pci):
                raise SourceUnavailable("a GPU is suspended, and AMD's tools would wake it")

    def _ask_amd_smi(self) -> Findings:
        tool = self._tools.amd_smi
        if tool is None:
            raise NoOutputError("amd-smi is not installed")
        if not self._addresses:
            self._addresses = amd_smi_addresses(parse_document(run_tool(tool, "list", "--json"), "amd-smi"))
        usage = parse_document(run_tool(tool, "metric", "--mem-usage", "--json"), "amd-smi")
        found = amd_smi_memory(usage, self._addresses)
        if not found:
            raise NoOutputError("amd-smi lists no GPU")
        processes = amd_smi_processes(parse_document(run_tool(tool, "process", "--json"), "amd-smi"))
        listed = [SmiGpu(one.pci, processes=processes.get(one.index, ())) for one in found if one.pci]
        return Findings(amdgpu=build_reading(found, "amd-smi"), amd_smi=SmiReading(tuple(listed)))

    def _ask_rocm_smi(self) -> Findings:
        tool = self._tools.rocm_smi
        if tool is None:
            raise NoOutputError("rocm-smi is not installed")
        found = rocm_smi_memory(parse_document(run_tool(tool, *ROCM_SMI), "rocm-smi"))
        if not found:
            raise NoOutputError("rocm-smi lists no GPU")
        return Findings(amdgpu=build_reading(found, "rocm-smi"))


# Parsers of `rocm-smi --json` and `amd-smi --json`, whose format changed with every release.

_CARD = re.compile(r"card\d{1,5}")
# These tools print MiB as MB: bytes divided by 1048576, rounded down.
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_PARTS = ("total", "used")
# Characters of a line that stands where JSON should.
_REASON_LENGTH = 160


class NoOutputError(Exception):
    """The tool ran and printed no usable output, usually because the driver is not loaded."""


class SmiMemory(Struct, frozen=True):
    """One GPU's memory as reported by a tool. `index` is the tool's own number of the GPU."""

    index: int
    pci: str | None
    name: Words
    vram: Region
    visible_vram: Region
    gtt: Region


def parse_document(output: bytes, tool: str) -> Any:  # noqa: ANN401  any JSON
    """Parse the JSON in a tool's output. Text may precede it. Without a driver the output is empty.

    That of ROCm 7.0 is as well for a user who is not in the groups `render` and `video` (ROCm/amdsmi#125, #184).
    Other text is a reason.
    """
    text = output.decode("utf-8", "replace")
    if not text.strip():
        raise NoOutputError(
            f"{tool} printed nothing, as it does without a driver, or without a right to use the GPU"
        )
    start = re.search(r"^\s*[\[{]", text, re.MULTILINE)
    try:
        if start is None:
            raise ValueError
        return json.JSONDecoder().raw_decode(text[start.end() - 1 :])[0]
    except (ValueError, RecursionError):
        first = printable(text.strip().partition("\n")[0][:_REASON_LENGTH])
        raise NoOutputError(f"{tool} printed no valid JSON: {first}") from None


def rocm_smi_memory(document: Any) -> list[SmiMemory]:  # noqa: ANN401
    """Parse `--showmeminfo all --showbus --showproductname --json`: an object of cards by name.

    Numbers are strings, and the case of keys varies.
    """
    found = []
    for name, value in _items(document):
        if _CARD.fullmatch(name) and isinstance(value, Mapping):
            card = {str(key).lower(): one for key, one in value.items()}
            series = card.get("card series") or card.get("card model")
            found.append(
                SmiMemory(
                    int(name[4:]),
                    parse_pci(card.get("pci bus")),
                    printable(series[:80]) if isinstance(series, str) and series != "N/A" else Absent.NOT_AVAILABLE,
                    _rocm_region(card, "vram"),
                    _rocm_region(card, "vis_vram"),
                    _rocm_region(card, "gtt"),
                )
            )
    return found


def _rocm_region(card: Mapping[str, Any], kind: str) -> Region:
    total, used = card.get(f"{kind} total memory (b)"), card.get(f"{kind} total used memory (b)")
    return build_region(_parse_bytes(total), _parse_bytes(used))


def amd_smi_memory(document: Any, addresses: Mapping[int, str]) -> list[SmiMemory]:  # noqa: ANN401
    """Parse `metric --mem-usage --json`: a list, or since ROCm 7.2 a list under `gpu_data`."""
    found = []
    for gpu in _gpus(document):
        index, usage = parse_count(gpu.get("gpu")), gpu.get("mem_usage")
        if index is not None and isinstance(usage, Mapping):
            regions = [_amd_region(usage, kind) for kind in ("vram", "visible_vram", "gtt")]
            found.append(SmiMemory(index, addresses.get(index), Absent.NOT_AVAILABLE, *regions))
    return found


def _amd_region(usage: Mapping[str, Any], kind: str) -> Region:
    total, used = (_parse_size(usage.get(f"{part}_{kind}")) for part in _PARTS)
    return build_region(total, used)


def amd_smi_addresses(document: Any) -> dict[int, str]:  # noqa: ANN401
    """Parse `list --json`: PCI addresses by the tool's own GPU numbers."""
    found = {parse_count(gpu.get("gpu")): parse_pci(gpu.get("bdf")) for gpu in _gpus(document)}
    return {index: pci for index, pci in found.items() if index is not None and pci is not None}


def amd_smi_processes(document: Any) -> dict[int, tuple[SmiProcess, ...]]:  # noqa: ANN401
    """Parse `process --json`. For a GPU without processes the list contains a text instead of a process."""
    found: dict[int, tuple[SmiProcess, ...]] = {}
    for gpu in _gpus(document):
        index, listed = parse_count(gpu.get("gpu")), gpu.get("process_list")
        if index is not None:
            processes = [_parse_process(one) for one in (listed if isinstance(listed, list) else ())]
            found[index] = tuple(one for one in processes if one is not None)
    return found


def _parse_process(entry: Any) -> SmiProcess | None:  # noqa: ANN401
    info = entry.get("process_info", entry) if isinstance(entry, Mapping) else None
    parts = info.get("memory_usage") if isinstance(info, Mapping) else None
    if not isinstance(info, Mapping) or not isinstance(parts, Mapping):
        return None
    sizes = {key: size for key, one in parts.items() if isinstance(size := _parse_size(one), int)}
    return parse_process({"pid": info.get("pid"), "memory_usage": sizes})


def _gpus(document: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
    listed = document.get("gpu_data") if isinstance(document, Mapping) else document
    return (gpu for gpu in (listed if isinstance(listed, list) else ()) if isinstance(gpu, Mapping))


def _items(document: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    return [(str(name), value) for name, value in document.items()] if isinstance(document, Mapping) else []


def _parse_size(field: Any) -> Bytes:  # noqa: ANN401
    """Parse `{"value": 8176, "unit": "MB"}`. An unavailable field is the text "N/A" instead."""
    if not isinstance(field, Mapping):
        return Absent.NOT_SUPPORTED if field in (None, "N/A") else Absent.INCONSISTENT
    count, unit = _parse_bytes(field.get("value")), _UNITS.get(str(field.get("unit")).upper())
    return count * unit if isinstance(count, int) and unit else Absent.INCONSISTENT


def _parse_bytes(value: Any) -> Bytes:  # noqa: ANN401
    if value in (None, "N/A"):
        return Absent.NOT_SUPPORTED
    count = parse_count(value)
    return Absent.INCONSISTENT if count is None else count
