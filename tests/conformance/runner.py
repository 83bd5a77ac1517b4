"""Run tools over machines, as root: one job in separate namespaces for each pair. See inside.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.data import HERE, Machine
from conformance.rules import Judged, Verdict, judge_all
from conformance.tools import Tool
from simulators.nvml_machine import LIBRARY, built_library

NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
# Without root, the job is root of a user namespace.
USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
OF_DEBIAN = ("dpkg-query", "-W", "-f", "${Version}")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Homes:
    """Places of the tools: the Python of those of PyPI, a root folder of Debian, and that of memwatchd."""

    pip: Path
    ours: Path
    debian: Path | None = None


@dataclass(frozen=True)
class Result:
    """Verdicts of one tool on one machine. `error`: the reason why it could not be run, if it could not."""

    tool: str
    machine: str
    figures: Mapping[str, Judged] = field(default_factory=dict)
    error: str = ""
    missing_files: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        figures = {key: {**asdict(one), "verdict": one.verdict.value} for key, one in self.figures.items()}
        return {**asdict(self), "figures": figures}


def result_of(written: Mapping[str, Any]) -> Result:
    figures = {
        key: Judged(Verdict(one["verdict"]), one["said"], one["why"]) for key, one in written["figures"].items()
    }
    return Result(**{**written, "figures": figures})


def run(tool: Tool, machine: Machine, homes: Homes) -> Result:
    """Return the verdicts; a tool without an answer is not run, with its last line as the reason."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        answer = run_job(job_of(tool, machine, homes, Path(folder)))
        if tool.home == "debian":
            shutil.rmtree(f"{homes.debian}{folder}", ignore_errors=True)
    if not answer["text"].strip():
        return Result(tool.name, machine.name, error=answer["error"])
    try:
        answers = tool.parse(answer["text"])
    except (ValueError, LookupError, TypeError) as error:
        said = answer["error"] or repr(error)
        return Result(tool.name, machine.name, error=f"no answer that can be read: {said}")
    return Result(
        tool.name, machine.name, judge_all(machine.figures, answers), "", tuple(answer.get("missing_files", ()))
    )


def job_of(tool: Tool, machine: Machine, homes: Homes, scratch: Path) -> dict[str, Any]:
    """Return the job of inside.py, with the driver's library and the tool's file in the job's folder."""
    if tool.home == "debian" and homes.debian is None:
        raise ValueError(f"{tool.name} needs the root folder of Debian: make conformance builds it")
    python = homes.ours if tool.home == "ours" else homes.pip
    environ = {"PATH": f"{python.parent}:{PATH}", "HOME": str(scratch), "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    if machine.state:
        shutil.copy(built_library(), scratch / LIBRARY)
        shutil.copy(machine.state, scratch / "nvml.state")
        environ |= {"LD_LIBRARY_PATH": str(scratch), "NVML_SIM_STATE": str(scratch / "nvml.state")}
        environ |= {"NVML_SIM_LOG": str(scratch / "calls")}
    places = {"{python}": str(python), "{bin}": str(python.parent), "{scratch}": str(scratch)}
    (scratch / "tool.conf").write_text(_placed(tool.file, places))
    return {
        "command": [_placed(word, places) for word in tool.command],
        "ask": tool.ask,
        "addresses": tool.addresses,
        "until": tool.until,
        "settle_seconds": tool.settle_seconds,
        "machine": str(machine.host),
        "scratch": str(scratch),
        "environ": environ,
        "root": str(homes.debian) if tool.home == "debian" else None,
        "python": str(homes.pip),
    }


def _placed(text: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(name, place)
    return text


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run inside.py in its namespaces and return what it prints."""
    done = subprocess.run(
        [*NAMESPACES, *USER, job["python"], str(HERE / "inside.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        check=False,
    )
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        said = done.stderr.strip().splitlines()[-1:]
        return {"text": "", "error": " ".join([f"the job ended with {done.returncode}:", *said])}


def versions(tools: Sequence[Tool], homes: Homes) -> dict[str, str]:
    """Return the installed version of each tool, by its registry's own command."""
    return {tool.name: _version(tool, homes) for tool in tools}


def _version(tool: Tool, homes: Homes) -> str:
    if tool.home == "ours":
        command = [str(homes.ours.with_name(tool.package)), "--version"]
    elif tool.home == "debian":
        command = ["chroot", str(homes.debian), *OF_DEBIAN, tool.package]
    elif tool.home == "host":
        command = [*OF_DEBIAN, tool.package]
    else:
        ask = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        command = [str(homes.pip), "-c", ask, tool.package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = [word for word in done.stdout.split() if word != tool.package]
    return words[0] if words else "not installed"
