"""Find defaults that may stand for "not read" in parsers and collectors.

They are `.get(key, 0)`, `map(x.get, keys, ZEROS)`, `or 0` and `return []`. Unknown is not zero: a line that is
missing, or a file that cannot be read, is `Absent` or None.

    python -m scripts.unread_defaults
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = ROOT / "tests/unread_defaults.toml"
READERS = tuple(f"daemon/memwatch/core/{name}" for name in ("linux", "collectors", "drivers", "engines"))
# Errors of reading and parsing. Programming errors are no reading.
READ_ERRORS = frozenset({"OSError", "FileNotFoundError", "PermissionError", "ValueError", "ParseError", "KeyError"})


def find_defaults(root: Path = ROOT) -> Counter[str]:
    """Return the number of such defaults, by "path:function"."""
    found: Counter[str] = Counter()
    for folder in READERS:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            _visit(ast.parse(file.read_text()), path, "", found)
    return found


def _visit(node: ast.AST, path: str, function: str, found: Counter[str]) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}" if function else node.name
    if is_default(node):
        found[f"{path}:{function}"] += 1
    for child in ast.iter_child_nodes(node):
        _visit(child, path, function, found)


def is_default(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "map":
            return len(node.args) == 3 and is_get(node.args[0])
        return is_get(node.func) and len(node.args) == 2 and is_empty(node.args[1])
    if isinstance(node, ast.BoolOp):
        return isinstance(node.op, ast.Or) and is_number(node.values[-1])
    if isinstance(node, ast.ExceptHandler):
        return _names(node.type) <= READ_ERRORS and any(
            isinstance(line, ast.Return) and line.value is not None and is_empty(line.value) for line in node.body
        )
    return False


def is_get(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "get"


def is_empty(value: ast.expr) -> bool:
    """Return True for 0, "" and empty lists, which a reader takes for a reading."""
    if isinstance(value, ast.List | ast.Tuple):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Constant) and value.value in (0, "", b"") and value.value is not False


def is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0 and value.value is not False


def _names(kind: ast.expr | None) -> set[str]:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return {one.id if isinstance(one, ast.Name) else "" for one in kinds}


def read_table(path: Path = TABLE) -> dict[str, tuple[int, str]]:
    """Return the number of defaults and their reason, by "path:function"."""
    table = tomllib.loads(path.read_text())
    return {
        f"{file}:{name}": (int(row[0]), str(row[1])) for file, rows in table.items() for name, row in rows.items()
    }


if __name__ == "__main__":
    for place, count in find_defaults().items():
        print(count, place)
