"""Functions that differ between two versions of the tests. Positions and imports do not count, decorators do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

# File, relative to the repository, and qualified name.
Function = tuple[str, str]


class Versions(Struct, frozen=True):
    """Text of a changed file before and now. An empty one: the file did not exist."""

    before: str
    now: str


def function_of(test: str) -> Function:
    """Return the function of a node id, without its parameters."""
    path, *names = test.partition("[")[0].split("::")
    return path, ".".join(names)


def changed(function: Function, files: Mapping[str, Versions]) -> bool:
    """Check if a function is new, or differs from the one before. A fixture made by a function is that function."""
    path, name = function
    if path not in files:
        return False
    outer = name.partition(".<locals>")[0]
    now, before = definitions(files[path].now), definitions(files[path].before)
    return outer not in now or now[outer] != before.get(outer)


def changed_functions(files: Mapping[str, Versions]) -> Iterator[Function]:
    """Yield all functions that are new or differ."""
    for path, versions in sorted(files.items()):
        yield from ((path, name) for name in definitions(versions.now) if changed((path, name), files))


def changed_tests(files: Mapping[str, Versions]) -> list[str]:
    """Return node ids of the tests that are new or differ, or whose fixture of the same file does."""
    found = []
    for path in sorted(path for path in files if path.rpartition("/")[2].startswith("test_")):
        functions = dict(_functions(ast.parse(files[path].now).body))
        different = {name for _, name in changed_functions({path: files[path]})}
        for name, node in functions.items():
            is_test = name.rpartition(".")[2].startswith("test")
            if is_test and (name in different or different.intersection(_arguments(node))):
                found.append(f"{path}::{name.replace('.', '::')}")
    return found


def first_change(test: str, fixtures: Iterable[Function], files: Mapping[str, Versions]) -> str:
    """Return the changed part of a test, its body or one of its fixtures, in words; empty without one."""
    if changed(function_of(test), files):
        return "its body changed"
    different = (one for one in fixtures if changed(one, files))
    return next((f"its fixture {name} in {path} changed" for path, name in different), "")


def definitions(text: str) -> dict[str, str]:
    """Return each function of a module and its classes, as a text without positions and imports."""
    body = ast.parse(text).body
    return {name: ast.dump(_without_imports(node)) for name, node in _functions(body)}


def _functions(
    body: Iterable[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def _without_imports(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [one for one in body if not isinstance(one, ast.Import | ast.ImportFrom)]
    return tree
