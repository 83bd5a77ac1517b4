"""Measure monitors by the machines of this suite: `python -m conformance --tool nvtop --machine gb10`, as root."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from conformance.data import read_index, read_machine
from conformance.page import page_of
from conformance.rules import Verdict
from conformance.runner import Homes, Result, result_of, run, versions
from conformance.tools import TOOLS, Tool
from support.debian_root import make_base

# The newest versions that Debian has.
SUITE = "sid"
FAULTS = (Verdict.WRONG, Verdict.TWICE)


def parser() -> argparse.ArgumentParser:
    one = argparse.ArgumentParser(prog="memwatch-conformance", description=(__doc__ or "").partition("\n")[0])
    one.add_argument("--tool", action="append", metavar="NAME", help="only this tool; may be repeated")
    one.add_argument(
        "--adapter", type=Path, metavar="FILE", help="a tool of your own: a Python file with TOOL = Tool(…)"
    )
    one.add_argument("--machine", action="append", metavar="NAME", help="only this machine; may be repeated")
    one.add_argument("--python", type=Path, default=Path(sys.executable), help="Python with the tools of PyPI")
    one.add_argument("--root", type=Path, help="root folder of Debian with the tools of Debian")
    one.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="write the verdicts to this file; those of other pairs in it are kept",
    )
    one.add_argument("--read", type=Path, metavar="FILE", help="read such a file in place of a run")
    one.add_argument("--page", type=Path, help="write the page")
    one.add_argument("--date", default=str(date.today()), help="date of the page, by default today")
    one.add_argument("--jobs", type=int, default=2, help="jobs at a time")
    one.add_argument("--check", action="store_true", help="exit with 1 if a figure is wrong or counted twice")
    one.add_argument("--list", action="store_true", help="print the names of tools and machines")
    return one


def chosen(options: argparse.Namespace) -> list[Tool]:
    if options.adapter:
        return [runpy.run_path(str(options.adapter))["TOOL"]]
    names = options.tool or [tool.name for tool in TOOLS]
    known = {tool.name: tool for tool in TOOLS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(
            f"no adapter for {', '.join(unknown)}: there is one for {', '.join(known)}, or give --adapter"
        )
    return [known[name] for name in names]


def packages() -> list[str]:
    """Return the packages of Debian that the root folder has."""
    wanted = [tool for tool in TOOLS if tool.home == "debian"]
    return sorted({name for tool in wanted for name in (tool.package, *tool.needs)})


def measured(options: argparse.Namespace, tools: Sequence[Tool], homes: Homes) -> list[Result]:
    """Run all pairs and print each figure that is not absent."""
    machines = [read_machine(name) for name in options.machine or read_index()]
    pairs = [(tool, machine) for tool in tools for machine in machines]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for result in pool.map(lambda pair: run(pair[0], pair[1], homes), pairs):
            results.append(result)
            show(result)
    return results


def added(file: Path, found: Sequence[Result], installed: Mapping[str, str]) -> tuple[list[Result], dict[str, str]]:
    """Add verdicts to those in the file, and return all of them."""
    before = json.loads(file.read_text()) if file.exists() else {"versions": {}, "results": []}
    new = {(one.tool, one.machine): one for one in found}
    every = {(one["tool"], one["machine"]): result_of(one) for one in before["results"]} | new
    names = {**before["versions"], **installed}
    written = {"versions": names, "results": [one.as_json() for one in every.values()]}
    file.write_text(json.dumps(written, indent=1) + "\n")
    return list(every.values()), names


def show(result: Result) -> None:
    print(f"{result.tool} on {result.machine}{': not run: ' + result.error if result.error else ''}", flush=True)
    for name, one in result.figures.items():
        if one.verdict is not Verdict.ABSENT:
            print(f"  {one.verdict.value}: {name} {one.said:,.16g}{'; ' + one.why if one.why else ''}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.list:
        print("tools:", *(tool.name for tool in TOOLS), "\nmachines:", *read_index())
        return 0
    tools = chosen(options)
    homes = Homes(options.python.absolute(), Path(sys.executable), options.root)
    if options.root and any(tool.home == "debian" for tool in tools):
        make_base(SUITE, ",".join(packages()), options.root)
    if options.read:
        written = json.loads(options.read.read_text())
        found, installed = [result_of(one) for one in written["results"]], written["versions"]
    else:
        found, installed = measured(options, tools, homes), versions(tools, homes)
        if options.results:
            found, installed = added(options.results, found, installed)
    if options.page:
        options.page.write_text(page_of(found, installed, options.date))
    faults = [one for result in found for one in result.figures.values() if one.verdict in FAULTS]
    return int(options.check and bool(faults))


if __name__ == "__main__":
    sys.exit(main())
