"""Check the licences of everything that is distributed with memwatchd: part of make audit, without a network.

These are the Python packages of the Debian package and the image, as installed here, and the files under
web/memwatch_web/static/vendor. A licence that is not in ALLOWED, or not known, is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from msgspec import Struct

from support.paths import ROOT

VENDORED = ROOT / "web/memwatch_web/static/vendor"
# Licences that permit redistribution with a program under Apache-2.0. MPL-2.0 covers its own, unchanged files.
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    }
)
# Names in the metadata of older packages. "BSD License" stands for two or three clauses.
SPDX = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
TEXTS = ("LICEN", "COPYING", "NOTICE")


class Licence(Struct, frozen=True):
    """Licence of a component, as an SPDX expression; empty if it is not known. `has_text`: its text is included."""

    name: str
    expression: str
    has_text: bool


def read_package(name: str) -> Licence:
    """Return the licence of an installed package."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Licence(name, "", False)
    has_text = any(is_text(file.name) for file in found.files or ())
    return Licence(f"{name} {found.version}", read_expression(found), has_text)


def read_expression(found: Distribution) -> str:
    """Return the SPDX expression (PEP 639), else the classifiers, else the older field of free text."""
    about = found.metadata
    if "License-Expression" in about:
        return str(about["License-Expression"])
    classifiers = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or () if "License ::" in one]
    free = str(about["License"]) if "License" in about else ""
    return free if free in ALLOWED else " AND ".join(SPDX.get(one, one) for one in classifiers) or free


def is_text(name: str) -> bool:
    return any(word in name.upper() for word in TEXTS)


def read_vendored(folder: Path = VENDORED) -> Iterator[Licence]:
    """Yield the licence of each vendored file, from the table in its README."""
    table = {}
    for line in (folder / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6:
            table[cells[0]] = cells[1], cells[3]
    texts = {table[file.name][0] for file in folder.iterdir() if is_text(file.name) and file.name in table}
    for file in sorted(folder.iterdir()):
        if file.name != "README.md" and not is_text(file.name):
            package, words = table.get(file.name, ("", ""))
            yield Licence(file.name, words.partition(" and ")[0], package in texts)


def is_allowed(expression: str) -> bool:
    """Evaluate an SPDX expression of AND and OR without brackets: one alternative must be allowed as a whole."""
    alternatives = (part.split(" AND ") for part in expression.split(" OR "))
    return any(all(one.strip() in ALLOWED for one in parts) for parts in alternatives)


def findings_in(licences: Iterable[Licence]) -> Iterator[str]:
    for one in licences:
        if not one.expression:
            yield f"{one.name}: its licence is not known: install it here, or name its licence"
        elif not is_allowed(one.expression):
            yield f"{one.name}: {one.expression[:80]!r} is not in ALLOWED: replace it, or add it"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", type=Path, help="runtime dependencies, one NAME==VERSION a line")
    parser.add_argument("--vendored", type=Path, default=VENDORED, help="folder of vendored files")
    options = parser.parse_args()
    names = [re.split(r"[=<>\s]", line)[0] for line in options.requirements.read_text().splitlines() if line]
    packages, files = [read_package(name) for name in names], list(read_vendored(options.vendored))
    findings = list(findings_in([*packages, *files]))
    print(f"checked the licences of {len(packages)} packages and {len(files)} vendored files")
    if without := [one.name for one in [*packages, *files] if one.expression and not one.has_text]:
        print(f"published without the text of their licence: {', '.join(without)}")
    print("\n".join(findings) or "all licences permit redistribution")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
