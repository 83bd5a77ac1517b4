"""Turn a report of `memwatch doctor --report` into a machine folder: `make machine FROM=FILE [NAME=NAME]`.

The folder has the machine's files, the state of its NVIDIA driver, and the results of this version as
`expected.json` and `metrics.txt`. Review both: the program writes what memwatch finds, also if that is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from memwatch.core.collectors import list_collectors
from memwatch.core.collectors.base import Collector, Host
from memwatch.core.linux.files import Roots, SourceUnavailable
from scripts import golden
from simulators.nvml_from_reading import find_gaps, machine_from
from simulators.nvml_state_file import state_file
from support.machine_exports import export_folder
from support.machine_folders import NVML_STATE, plain
from support.paths import MACHINES
from support.report_bundle import Bundle, BundleError, read_bundle

Json = Any

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}")
# Their results are in expected.json also if the machine does not have them; of the others only results are.
ALWAYS = (
    "meminfo",
    "psi",
    "vmstat",
    "buddyinfo",
    "numa",
    "zram",
    "cgroup",
    "machine",
    "processes",
    "tegra",
    "nvmap",
)
# They start programs, load libraries or read a log, and not the folder.
LEFT_OUT = ("nvml", "tegrastats", "amdsmi", "amd_cli", "kmsg", "containers", "kubernetes", "cgroup_pressure")


# Of a collector that fails on the machine, in expected.json.
FAILED = "failed"


class MadeMachine(Struct, frozen=True):
    """A new machine folder, and sentences about what to add or check."""

    folder: Path
    remarks: tuple[str, ...]


def make_machine(bundle: Bundle, machines: Path, name: str | None) -> MadeMachine:
    """Write a machine folder below `machines`. It appears complete or not at all. Raises BundleError."""
    if not bundle.files:
        why = bundle.summary.get("files", {}).get("why_none") or "no reason is given"
        raise BundleError(f"it has no files of the machine ({str(why)[:200]}), only the recording")
    name = name or slug(bundle.summary)
    if not NAME.fullmatch(name):
        raise BundleError(f'the name "{name}" is not of lower-case letters, digits, dots and dashes; set NAME=')
    if (machines / name).exists():
        raise BundleError(f"{machines / name} exists; choose another name with NAME=")
    with tempfile.TemporaryDirectory(dir=machines, prefix=".new-") as scratch:
        folder = Path(scratch, name)
        write_files(bundle, folder)
        write_results(bundle, folder)
        remarks = tuple(list_remarks(bundle, folder))
        folder.replace(machines / name)
    return MadeMachine(machines / name, remarks)


def slug(summary: Json) -> str:
    """Return a folder name from the machine's name: nvidia-dgx-spark."""
    machine = summary.get("machine")
    name = str(machine.get("name") or "").lower() if isinstance(machine, dict) else ""
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:48].strip("-")


def write_files(bundle: Bundle, folder: Path) -> None:
    """Write the files, then the links, and check that no link leads out of the folder."""
    for root in ("proc", "sys", "root"):
        (folder / root).mkdir(parents=True)
    for path in bundle.folders:
        (folder / path).mkdir(parents=True, exist_ok=True)
    for path, data in bundle.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    for path, target in bundle.links.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    inside = os.path.realpath(folder)
    for path in bundle.links:
        end = os.path.realpath(folder / path)
        if not end.startswith(f"{inside}{os.sep}"):
            raise BundleError(f"the link {path!r} leads out of the folder")
        if not os.path.lexists(end) and not Path(end).is_relative_to(f"{inside}/root/dev"):
            Path(end).mkdir(parents=True)
    reading = nvml_reading(bundle)
    if reading is not None:
        (folder / NVML_STATE).write_text(describe_driver(reading, bundle))


def nvml_reading(bundle: Bundle) -> Json | None:
    driver = bundle.drivers.get("nvml")
    reading = driver.get("reading") if isinstance(driver, dict) else None
    return reading if isinstance(reading, dict) else None


def describe_driver(reading: Json, bundle: Bundle) -> str:
    try:
        return state_file(machine_from(reading, bundle.files))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"its reading of NVML is not valid ({type(error).__name__}: {error})") from None


def write_results(bundle: Bundle, folder: Path) -> None:
    """Write expected.json by the collectors, and metrics.txt by a daemon's parts on the folder."""
    page_size = bundle.summary.get("page_size")
    if page_size not in (4096, 16384, 65536):
        raise BundleError(f"its page size is {str(page_size)[:20]}, which Linux does not have")
    found = {"page_size": page_size, "collectors": results_of(folder, page_size)}
    (folder / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
    if page_size == os.sysconf("SC_PAGE_SIZE"):
        exposition = golden.stable_part(export_folder(folder).metrics)
        (folder / "metrics.txt").write_text(golden.samples_of(exposition))


def results_of(folder: Path, page_size: int) -> dict[str, Json]:
    """Return the findings of each collector that reads files, or why there are none."""
    host = Host(Roots(folder / "proc", folder / "sys", folder / "root"), platform="linux", page_size=page_size)
    found: dict[str, Json] = {}
    for entry in list_collectors(host, LEFT_OUT):
        try:
            collector = entry.make()
        except SourceUnavailable as error:
            if entry.name in ALWAYS:
                found[entry.name] = {
                    "unavailable": re.escape(str(error).replace(str(folder), "").rpartition(": ")[2])
                }
            continue
        with closing(collector), suppress(SourceUnavailable, OSError):
            result = collect(collector)
            if result or entry.name in ALWAYS:
                found[entry.name] = result
    return found


def collect(collector: Collector) -> Json:
    """Return the findings. A file that this version cannot parse is what the new folder is needed for."""
    try:
        return plain(collector.collect())
    except (SourceUnavailable, OSError):
        raise
    except Exception as error:
        return {FAILED: f"{type(error).__name__}: {error}"[:300]}


def list_remarks(bundle: Bundle, folder: Path) -> Iterator[str]:
    """Yield what a reviewer has to check, and what to add by hand."""
    files = bundle.summary.get("files", {})
    yield f"check expected.json and metrics.txt against the report: {str(files.get('text'))[:200]}"
    written = json.loads((folder / "expected.json").read_bytes())["collectors"]
    for name in (name for name, result in written.items() if FAILED in result):
        yield f"{name} fails on these files, so its test will: {written[name][FAILED]}"
    unread = files.get("unread")
    if isinstance(unread, dict) and unread:
        yield f"{len(unread)} files could not be read there, such as {str(next(iter(unread)))[:200]}"
    if not (folder / "metrics.txt").exists():
        yield "metrics.txt is missing: this kernel has pages of another size than that machine"
    reading = nvml_reading(bundle)
    if reading is not None:
        yield from (f"{NVML_STATE}: {gap}" for gap in find_gaps(reading))
    elif any(name.startswith("proc/driver/nvidia") for name in bundle.files):
        yield f"no reading of NVML: write {NVML_STATE} by hand, see tests/simulators/nvml_state_file.py"
    if isinstance(bundle.drivers.get("tegrastats"), dict) and "reading" in bundle.drivers["tegrastats"]:
        yield "add a file tegrastats with one line of its output: the report has only its figures"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="a file of memwatch doctor --report")
    parser.add_argument("--name", help="name of the folder; without it, the machine's own")
    parser.add_argument("--into", type=Path, default=MACHINES, help="folder of the machines")
    given = parser.parse_args(arguments)
    try:
        made = make_machine(read_bundle(given.report), given.into, given.name or None)
    except BundleError as error:
        print(f"no machine was made of {given.report}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"no machine was made of {given.report}: {error}", file=sys.stderr)
        return 1
    print(f"{made.folder} is ready for review:")
    print("\n".join(f"  - {remark}" for remark in made.remarks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
