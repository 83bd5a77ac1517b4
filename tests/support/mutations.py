"""Small changes of a module's meaning, by rules on its syntax tree: limits, comparisons, conditions, exits."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from support.paths import ROOT

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SOURCE = "daemon/memwatch"
MONITOR = "daemon/memwatch_monitor"
# Parts of the package that consist of packages.
ROOMS = ("core", "monitor", "reporting")
PACKAGES = (
    "accounting",
    "alerts",
    "engines",
    "history",
    "incidents",
    "library",
    "monitor",
    "neighbours",
    "planning",
    "pressure",
    "processes",
    "reading",
    "training",
)
# Whole numbers up to this one are changed by 1, others by a factor of 10.
SMALL = 10
MAX_TEXT = 90
RULES = ("comparison", "limit", "min-max", "early-exit", "and-or", "not")
TABLE = "table"


class Mutation(Struct, frozen=True):
    """One change of one module. `functions`: the lines of those that a test has to call to see it.

    `name` is that of the function, or those of the constants for a limit. `number` is the index of the node in
    `ast.walk`, and `variant` that of its changes. Rows of the table replace the text `before` by `after` instead.
    """

    path: str
    rule: str
    name: str
    before: str
    after: str
    line: int
    functions: tuple[int, ...]
    number: int = -1
    variant: int = 0
    twin: int = 0

    @property
    def is_limit(self) -> bool:
        return bool(self.name) and all(name.isupper() for name in self.name.split())

    @property
    def key(self) -> str:
        twin = f" #{self.twin + 1}" if self.twin else ""
        return f"{self.path} {self.name} {self.rule}: {self.before} → {self.after}{twin}"

    @property
    def module(self) -> str:
        return self.path.removeprefix("daemon/").removesuffix(".py").replace("/", ".")

    @property
    def package(self) -> str:
        return package_of(self.path)


def _parts(path: str) -> list[str]:
    """Return the room of a module and its path there. The package memwatch_monitor is a room like the others."""
    return path.replace(MONITOR, f"{SOURCE}/monitor").removeprefix(f"{SOURCE}/").split("/")


def package_of(path: str) -> str:
    """Return the package of a module by its name in its room, or the room's for a module beside the packages."""
    room, *inner = _parts(path)
    return inner[0] if len(inner) > 1 and room in ROOMS else room


class Place(NamedTuple):
    """Place of a node: its function or limit, and if its statement is the last one."""

    function: str
    limit: str
    functions: tuple[int, ...]
    is_last: bool = False


def list_mutations(path: str) -> list[Mutation]:
    """Return all mutations of a module by the rules, in the order of its text."""
    tree = ast.parse((ROOT / path).read_text())
    places, users = dict(_walk_places(tree)), map_users(tree)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        place = places.get(id(node))
        if place is None:
            continue
        functions = place.functions or find_users(users, place.limit)
        for variant, (rule, changed) in enumerate(list_changes(node, place)):
            before, after = (ast.unparse(one)[:MAX_TEXT].replace("\n", " ") for one in (node, changed))
            name = place.function or place.limit
            line = getattr(node, "lineno", 0)
            found.append(Mutation(path, rule, name, before, after, line, functions, number, variant))
    return _number_twins(sorted(found, key=lambda one: (one.line, one.number)))


def _number_twins(mutations: Sequence[Mutation]) -> list[Mutation]:
    seen: Counter[str] = Counter()
    found = []
    for one in mutations:
        found.append(replace(one, twin=seen[one.key]))
        seen[one.key] += 1
    return found


def list_changes(node: ast.AST, place: Place) -> list[tuple[str, ast.AST]]:
    """Return the changes of a node, each with its rule."""
    if place.limit:
        return [("limit", ast.Constant(value)) for value in change_number(node)]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return [("comparison", ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators))]
    if isinstance(node, ast.BoolOp):
        return [("and-or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [("not", node.operand)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other = ast.Name("max" if node.func.id == "min" else "min", ast.Load())
        return [("min-max", ast.Call(other, node.args, node.keywords))]
    if isinstance(node, ast.If) and not node.orelse and not place.is_last and _exits(node.body[-1]):
        return [("early-exit", ast.Pass())]
    return []


def _exits(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Return, ast.Continue, ast.Break))


def change_number(node: ast.AST) -> list[float]:
    """Return other values of a number: ten times as much and a tenth, or one more and one less."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value == 0:
        return []
    if isinstance(value, float):
        return [value * 10, value / 10]
    return [value + 1, value - 1] if value <= SMALL else [value * 10, value // 10]


def _walk_places(tree: ast.Module) -> Iterator[tuple[int, Place]]:
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield from _walk_definition(statement, statement.name)
        elif limit := name_of_limit(statement):
            yield from ((id(node), Place("", limit, ())) for node in _walk_numbers(statement))


def _walk_definition(definition: ast.FunctionDef | ast.ClassDef, name: str) -> Iterator[tuple[int, Place]]:
    if isinstance(definition, ast.FunctionDef):
        place = Place(name, "", (definition.lineno,))
        yield from _walk_statements(definition.body, place, is_outer=True)
        return
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef):
            yield from _walk_definition(statement, f"{name}.{statement.name}")


def _walk_statements(body: Sequence[ast.stmt], place: Place, is_outer: bool = False) -> Iterator[tuple[int, Place]]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield from _walk_definition(statement, f"{place.function}.{statement.name}")
            continue
        inner = [block for field in ("body", "orelse", "finalbody") if (block := getattr(statement, field, []))]
        inner += [handler.body for handler in getattr(statement, "handlers", ())]
        here = place._replace(is_last=is_outer and statement is body[-1])
        yield from ((id(node), here) for node in _walk_expressions(statement))
        for block in inner:
            yield from _walk_statements(block, place)


def _walk_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, but not the statements inside."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        inner = (ast.stmt, ast.ExceptHandler, ast.match_case)
        waiting += [one for one in ast.iter_child_nodes(node) if not isinstance(one, inner)]


def name_of_limit(statement: ast.stmt) -> str:
    """Return the names of constants that a statement of a module sets, empty for other statements."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = [node.id for one in targets if one for node in ast.walk(one) if isinstance(node, ast.Name)]
    return " ".join(names) if names and all(name.isupper() for name in names) else ""


def _walk_numbers(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the numbers of a limit, but not how far one is shifted."""
    shifts = {id(node.right) for node in ast.walk(statement) if isinstance(node, ast.BinOp)}
    value = getattr(statement, "value", None)
    for node in ast.walk(value) if value else ():
        if isinstance(node, ast.Constant) and id(node) not in shifts:
            yield node


def map_users(tree: ast.Module) -> dict[str, set[int]]:
    """Return the lines of the functions that use each name, and under "" those of all functions."""
    users: dict[str, set[int]] = {"": set()}
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef):
            users[""].add(one.lineno)
            for node in ast.walk(one):
                if isinstance(node, ast.Name):
                    users.setdefault(node.id, set()).add(one.lineno)
    return users


def find_users(users: Mapping[str, set[int]], limit: str) -> tuple[int, ...]:
    """Return the lines of the functions that use one of the names of a limit, of all functions if none does."""
    found = {line for name in limit.split() for line in users.get(name, ())}
    return tuple(sorted(found or users[""]))


def is_used_outside_functions(mutation: Mutation) -> bool:
    """Return True if a limit is part of something that is built when its module is imported."""
    names, tree = set(mutation.name.split()), ast.parse((ROOT / mutation.path).read_text())
    bodies = [one.body for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    inside = {id(node) for body in bodies for statement in body for node in ast.walk(statement)}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in names
        and id(node) not in inside
        for node in ast.walk(tree)
    )


def list_row(path: str, before: str, after: str) -> Mutation:
    """Return a row of the table: text that is in the module once. Raises ValueError."""
    text = (ROOT / path).read_text()
    if text.count(before) != 1:
        raise ValueError(f"{path} has {text.count(before)} times {before!r}; correct the row of the table")
    tree, line = ast.parse(text), text[: text.index(before)].count("\n") + 1
    name = next((name_of_limit(one) for one in tree.body if one.lineno <= line <= (one.end_lineno or 0)), "")
    around = [
        one.lineno
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.lineno <= line <= (one.end_lineno or 0)
    ]
    return Mutation(path, TABLE, name, before, after, line, tuple(around) or find_users(map_users(tree), name))


def compile_mutation(mutation: Mutation) -> CodeType:
    """Return the code of the changed module."""
    file = ROOT / mutation.path
    text = file.read_text()
    if mutation.rule == TABLE:
        return compile(text.replace(mutation.before, mutation.after), str(file), "exec")
    tree = ast.parse(text)
    node = list(ast.walk(tree))[mutation.number]
    place = dict(_walk_places(tree))[id(node)]
    _replace(tree, node, copy.deepcopy(list_changes(node, place)[mutation.variant][1]))
    return compile(ast.fix_missing_locations(tree), str(file), "exec")


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    ast.copy_location(new, old)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(one is old for one in value):
                setattr(parent, name, [new if one is old else one for one in value])


def _without_room(mutation: Mutation) -> str:
    room, *inner = _parts(mutation.path)
    is_inside = len(inner) > 1 and room in ROOMS
    return mutation.key.replace(mutation.path, "/".join((SOURCE, *((room,) * (not is_inside)), *inner)), 1)


def draw(mutations: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """Return `count` of them. Those of a module do not depend on changes of another one, nor on its room."""
    ranked = sorted(mutations, key=lambda one: hashlib.sha256(f"{seed} {_without_room(one)}".encode()).digest())
    return sorted(ranked[:count], key=lambda one: (one.path, one.line, one.key))
