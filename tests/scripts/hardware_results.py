"""Table of the machines on which `make test-hardware` was run: make hardware-result FROM=FILE [NAME=NAME].

Copies the report of a run to tests/hardware/results, and writes docs/quality/hardware.md from all reports there and
tests/hardware/public-reports.md.
Without a report it only writes the page.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hardware.comparison import Verdict
from support.paths import ROOT

RESULTS = ROOT / "tests/hardware/results"
PAGE = ROOT / "docs/quality/hardware.md"
# Reports of other tools, rebuilt: not results of this script, but of the same page.
REBUILT = ROOT / "tests/hardware/public-reports.md"
END_OF_PAGE = "<!-- The page ends here. -->"
TITLE = "# memwatchd on real hardware"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,60}")
FACTS = ("date", "machine", "GPU", "driver", "kernel", "memwatchd")
SIMULATED = "simulated"
MAX_REPORT_BYTES = 256 * 1024


HEAD = """# Results on real hardware

Each row is a run of [`make test-hardware`](../../CONTRIBUTING.md#on-real-hardware) by the owner of a machine. Its
report, with every figure, its tolerance and the vendor's own, is a file under `tests/hardware/results`. This page
is written from these files.
"""
EMPTY = "**There is no result yet.** [Hardware](../explanation/hardware.md) lists the simulations."
FOOT = """
## Add a result

<!-- checked: needs a GPU -->
```sh
make test-hardware | tee report.md
make hardware-result FROM=report.md NAME=dgx-spark-1
```

The report names the machine, but no host and no UUID. A run with a wrong figure is a result as well. Without a
checkout, open an issue with the report."""


class ReportError(Exception):
    """A file that is not a complete report. The message names it and the remedy."""


class Result(Struct, frozen=True):
    """Facts and verdicts of one report."""

    name: str
    facts: Mapping[str, str]
    verdicts: Mapping[str, int]

    @property
    def words(self) -> str:
        return ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items() if count)


def read_report(name: str, text: str) -> Result:
    """Read a report. Raises ReportError if a part is missing or its last line differs from its rows."""
    if not NAME.fullmatch(name):
        raise ReportError(f"{name!r} is not a name for a result: use a to z, 0 to 9, -, as in NAME=dgx-spark-1")
    if not text.startswith(TITLE):
        raise ReportError(f"{name}: does not begin with {TITLE!r}; give the whole output of make test-hardware")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    facts = {row[0]: row[1] for row in cells if len(row) == 2}
    if missing := [fact for fact in FACTS if fact not in facts]:
        raise ReportError(f"{name}: lacks {', '.join(missing)}; run make test-hardware of this version again")
    found = Counter(row[6].partition(":")[0] for row in cells if len(row) == 7)
    verdicts = {one.value: found[one.value] for one in Verdict}
    result = Result(name, facts, verdicts)
    if not re.search(rf"^\*\*(All figures are right|FAILED): {re.escape(result.words)}\.\*\*$", text, re.MULTILINE):
        raise ReportError(f"{name}: its last line is not the count of its rows ({result.words}); give it unchanged")
    return result


def read_all(folder: Path = RESULTS) -> list[Result]:
    return [read_report(file.stem, file.read_text()) for file in sorted(folder.glob("*.md"))]


def render_page(results: Sequence[Result]) -> str:
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Sequence[Result]) -> Iterator[str]:
    yield HEAD
    if not results:
        yield EMPTY
    else:
        yield "| report | date | machine | GPU | driver | kernel | memwatchd | figures |"
        yield f"|{'---|' * 8}"
    for one in results:
        mark = f" ({SIMULATED})" if SIMULATED in one.facts else ""
        link = f"[{one.name}](../../tests/hardware/results/{one.name}.md)"
        yield f"| {link}{mark} | {' | '.join(one.facts[name] for name in FACTS)} | {one.words} |"
    yield FOOT
    yield f"\n{REBUILT.read_text().partition(END_OF_PAGE)[0].rstrip()}"


def add(report: Path, name: str, folder: Path, allow_simulated: bool) -> None:
    """Check a report and copy it into the folder of results."""
    data = report.read_bytes()
    if len(data) > MAX_REPORT_BYTES:
        raise ReportError(f"{report}: has {len(data)} bytes; give the output of make test-hardware only")
    # make prints its own lines before the report.
    text = data.decode("utf-8", "replace")
    text = text[max(text.find(TITLE), 0) :].rstrip() + "\n"
    result = read_report(name, text)
    if SIMULATED in result.facts and not allow_simulated:
        raise ReportError(f"{report}: is of a simulated machine ({result.facts[SIMULATED]}); run it on a real one")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="?", help="output of make test-hardware")
    parser.add_argument("--name", help="name of the result; by default that of the file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the reports")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write")
    parser.add_argument("--allow-simulated", action="store_true", help="for tests: accept a simulated machine")
    options = parser.parse_args()
    try:
        if options.report is not None:
            add(options.report, options.name or options.report.stem, options.results, options.allow_simulated)
        options.page.write_text(render_page(read_all(options.results)))
    except (ReportError, OSError) as error:
        print(f"hardware-result: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
