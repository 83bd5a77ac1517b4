"""Find the constants that limit a list, and compare them with `tests/list_limits.toml`.

python -m scripts.list_limits
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = ROOT / "tests/list_limits.toml"
PRODUCT = ("daemon/memwatch", "daemon/memwatch_monitor", "daemon/memwatchd", "web/memwatch_web")
LIMIT = re.compile(r"_?(?:MAX|SHOWN|TOP)_[A-Z0-9_]+")
# A size of one thing, a time or a ratio: no entries of a list.
NO_COUNT = re.compile(
    r".*_(?:BYTES|SECONDS|CHARACTERS|LENGTH|LETTERS|DIGITS|RATIO|WIDTH|KIB|CELSIUS|PERCENT|MILLIWATTS|TIME|AGE|NODE|PID"
    r"|PID_MAX|DEPTH|INTERVALS|CHANGES|CHANGES_OF_NAMES|COMMON_PAIRS|COMMON_PAIRS_JOINED|STEPS_UP|LINE|NAME|ID)"
)
# Kinds of answers to: what becomes of the entries beyond the limit?
KINDS = ("said", "refused", "oldest", "largest", "input", "internal")


def find_limits(root: Path = ROOT) -> dict[str, str]:
    """Return the path of each constant that limits a number of things, by "path:NAME"."""
    found = {}
    for folder in PRODUCT:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            text = file.read_text()
            for name in _limits_in(ast.parse(text)) if LIMIT.search(text) else ():
                found[f"{path}:{name}"] = path
    return found


def _limits_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if isinstance(name, ast.Name) and LIMIT.fullmatch(name.id) and not NO_COUNT.fullmatch(name.id):
                    yield name.id


def read_table(path: Path = TABLE) -> dict[str, tuple[str, str]]:
    """Return kind and reason of each constant, by "path:NAME"."""
    table: Mapping[str, Mapping[str, str]] = tomllib.loads(path.read_text())
    return {name: (kind, why) for kind, rows in table.items() for name, why in rows.items()}


if __name__ == "__main__":
    listed = read_table() if TABLE.exists() else {}
    for name in find_limits():
        if name not in listed:
            print(name)
