"""The page docs/quality/conformance.md, from the verdicts of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from conformance.data import Figure, Machine, read_index, read_machine
from conformance.rules import Judged, Verdict
from conformance.runner import Result
from conformance.tools import BIN, NOT_RUN, SCRIPTS, TOOLS, Tool

MIB = 1 << 20
INTRO = """# Conformance of memory monitors

<!-- Written by `make conformance`. -->

On a machine whose GPU uses system RAM, the same bytes are visible in several places, and drivers do not report
some of them at all. Here each monitor runs over the same {machines} machines, with {figures} figures whose right
value is known from `/proc`, `/sys` or the driver. {unified} of the machines have unified memory; the others are for
comparison.

Measured on {date} with `make conformance`, each tool on each machine by its latest run of that day.

- **right**: the value of the suite, or another that it accepts, within the tool's own rounding.
- **wrong**: another value, or a number where none is known.
- **counted twice**: the same bytes are in two figures of the tool that do not say so.
- **absent**: the tool has no such figure there. This is no fault: many tools are not for GPUs.
- **not run**: the tool gave no answer on that machine. It is not counted.

Machines are simulated: a tool reads the machine's files in its own namespaces, and NVIDIA's library is a simulated
one that answers as the driver of that machine. A tool that asks a kernel driver by ioctl, such as nvtop for AMD and
Intel, finds no device there, and is not run. The format, the rules and the way to dispute a figure are in
`tests/conformance/README.md`.
"""


def page_of(results: Sequence[Result], versions: Mapping[str, str], date: str | None) -> str:
    machines = {name: read_machine(name) for name in read_index()}
    unified = [one for one in machines.values() if one.unified]
    others = [one for one in machines.values() if not one.unified]
    names = [tool.name for tool in TOOLS if tool.name in versions]
    intro = INTRO.format(
        machines=len(machines),
        figures=sum(len(one.figures) for one in machines.values()),
        unified=len(unified),
        date=date,
    )
    found = {(one.tool, one.machine): one for one in results}
    parts = [
        intro,
        "## Tools\n",
        *commands([tool for tool in TOOLS if tool.name in versions], versions),
        "\n## Sums on machines with unified memory\n",
        *sums(names, unified, found),
        "\n## Figures of GPUs on machines with unified memory\n",
        "Sizes, used memory and processes of GPUs. A cell has the number of right figures; `w` is wrong, `t`"
        " counted twice, `-` not run. An empty cell is absent.\n",
        *matrix([name for name in names if has_gpu(name, results)], unified, found, "gpu"),
        "\n## Figures of RAM and swap on machines with unified memory\n",
        *matrix(names, unified, found, ""),
        "\n## Other machines, all figures\n",
        *matrix(names, others, found, None),
        "\n## Each wrong figure\n",
        *faults(names, machines, found),
        "\n## Not run\n",
        *not_run(names, results),
        "",
    ]
    return "\n".join(parts)


def commands(tools: Sequence[Tool], versions: Mapping[str, str]) -> Iterator[str]:
    """Yield each tool with its version and command. Words in braces are places of the job."""
    origins = {
        "ours": "this repository",
        "pip": "PyPI",
        "debian": "Debian unstable",
        "host": "Debian of the machine",
    }
    yield "| tool | version | from | command |"
    yield "|---|---|---|---|"
    for tool in tools:
        words = [word.replace(f"{BIN}/", "").replace(f"{SCRIPTS.parent}/", "") for word in tool.command]
        yield f"| {tool.name} | {versions[tool.name]} | {origins[tool.home]} | `{' '.join(words)}` |"


def has_gpu(name: str, results: Sequence[Result]) -> bool:
    judged = [one for result in results if result.tool == name for one in result.figures.items()]
    return any(key.startswith("gpu") and one.verdict is not Verdict.ABSENT for key, one in judged)


def sums(
    names: Sequence[str], machines: Sequence[Machine], found: Mapping[tuple[str, str], Result]
) -> Iterator[str]:
    yield "| tool | machines | right | wrong | counted twice | absent | not run on |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name in names:
        ran = [found[name, one.name] for one in machines if (name, one.name) in found]
        counts = Counter(one.verdict for result in ran for one in result.figures.values())
        failed = sum(1 for result in ran if result.error)
        cells = [counts[verdict] for verdict in (Verdict.RIGHT, Verdict.WRONG, Verdict.TWICE, Verdict.ABSENT)]
        yield f"| {name} | {len(ran) - failed} | {' | '.join(map(str, cells))} | {failed} |"


def matrix(
    names: Sequence[str], machines: Sequence[Machine], found: Mapping[tuple[str, str], Result], part: str | None
) -> Iterator[str]:
    """Yield a row for each machine. `part`: `gpu`, "" for all but GPUs, None for all figures."""
    yield f"| machine | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for machine in machines:
        cells = [cell(found.get((name, machine.name)), part) for name in names]
        yield f"| {machine.title} | {' | '.join(cells)} |"


def cell(result: Result | None, part: str | None) -> str:
    if result is None or result.error:
        return "-"
    kept = [
        one.verdict
        for key, one in result.figures.items()
        if part is None or key.startswith("gpu") == (part == "gpu")
    ]
    marks = {Verdict.RIGHT: "", Verdict.WRONG: " w", Verdict.TWICE: " t"}
    counts = Counter(kept)
    return " ".join(f"{counts[verdict]}{mark}" for verdict, mark in marks.items() if counts[verdict])


def faults(
    names: Sequence[str], machines: Mapping[str, Machine], found: Mapping[tuple[str, str], Result]
) -> Iterator[str]:
    yield "| tool | machine | figure | expected | said | why |"
    yield "|---|---|---|---:|---:|---|"
    for name in names:
        for machine in machines.values():
            result = found.get((name, machine.name))
            for key, one in (result.figures if result else {}).items():
                if one.verdict in (Verdict.WRONG, Verdict.TWICE):
                    yield fault(name, machine, key, one)


def fault(name: str, machine: Machine, key: str, one: Judged) -> str:
    figure = machine.figures[key]
    expected = "absent" if figure.value is None else shown(figure.value, figure)
    why = f"{one.verdict.value}: {one.why}" if one.verdict is Verdict.TWICE else one.why
    return f"| {name} | {machine.title} | `{key}` | {expected} | {shown(one.said or 0, figure)} | {why} |"


def shown(value: float, figure: Figure) -> str:
    return f"{value:.1%}" if figure.unit == "ratio" else f"{value / MIB:,.0f} MiB"


def not_run(names: Sequence[str], results: Sequence[Result]) -> Iterator[str]:
    for name in names:
        failed = [one for one in results if one.tool == name and one.error]
        for error in sorted({one.error for one in failed}):
            where = ", ".join(one.machine for one in failed if one.error == error)
            yield f"- {name} on {where}: {error}"
    for one in NOT_RUN:
        yield f"- {one.name}: {one.reason}"
