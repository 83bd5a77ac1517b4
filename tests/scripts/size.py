"""Count what the product and the tests consist of: `make size`.

A logical line is a statement, as `tokenize` ends it with NEWLINE; a physical line is a line of the file. Comments
are counted per hundred logical lines, docstrings as a share of public modules, classes and functions.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
# Parts of the package memwatch that consist of packages.
ROOMS = ("core", "reporting")
PRODUCT = ("daemon", "web")
# The longest module that has one importer only and is a candidate to be joined with it, see docs/contributing.
SMALL_LINES = 80


class Size(Struct):
    """Counts of some files."""

    modules: int = 0
    physical: int = 0
    logical: int = 0
    comments: int = 0
    public: int = 0
    documented: int = 0
    small: int = 0
    functions: list[int] = []

    def add(self, text: str) -> None:
        """Count a module."""
        lines = text.count("\n")
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        self.modules += 1
        self.physical += lines
        self.small += lines < SMALL_LINES
        self.logical += sum(token.type == tokenize.NEWLINE for token in tokens)
        self.comments += sum(token.type == tokenize.COMMENT for token in tokens)
        tree = ast.parse(text)
        for node in (tree, *public_definitions(tree.body)):
            self.public += 1
            self.documented += ast.get_docstring(node) is not None
        self.functions += [
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    def row(self, name: str) -> str:
        """Return a line of the table."""
        density = 100 * self.comments / max(1, self.logical)
        covered = 100 * self.documented / max(1, self.public)
        longest, median = max(self.functions, default=0), statistics.median(self.functions or [0])
        return (
            f"{name:28}{self.modules:8}{self.physical:10}{self.logical:9}{density:10.1f}{covered:11.1f}"
            f"{self.small:7}{median:8.0f}{longest:9}"
        )


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public_definitions(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    """Yield classes and functions with a public name, and the public methods of such classes."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def size_of(files: Iterable[Path]) -> Size:
    size = Size(functions=[])
    for file in files:
        size.add(file.read_text())
    return size


def files_of(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def packages() -> Iterator[tuple[str, list[Path]]]:
    """Yield the packages below the top ones with their files, and the modules beside them."""
    for top in (
        "daemon/memwatch",
        *(f"daemon/memwatch/{room}" for room in ROOMS),
        "daemon/memwatch_monitor",
        "daemon/memwatchd",
        "web/memwatch_web",
    ):
        folder = ROOT / top
        yield f"{folder.name}/*.py", sorted(folder.glob("*.py"))
        inside = sorted(path for path in folder.iterdir() if (path / "__init__.py").exists())
        for inner in inside if top != "daemon/memwatch" else [path for path in inside if path.name not in ROOMS]:
            yield f"{folder.name}/{inner.name}", sorted(inner.rglob("*.py"))


def main() -> int:
    header = f"{'':28}{'modules':>8}{'physical':>10}{'logical':>9}{'comments':>10}{'docstrings':>11}{'small':>7}"
    print(f"{header}{'median':>8}{'longest':>9}")
    for name, files in packages():
        print(size_of(files).row(name))
    print(size_of(files_of(*PRODUCT)).row("product"))
    print(size_of(files_of("tests")).row("tests"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
