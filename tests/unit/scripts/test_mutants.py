"""Test the mutation check: its rules, its table, the tests that it chooses, and that it sees a failing test."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from scripts.mutants import (
    EQUIVALENT,
    KNOWN,
    TABLE_FILE,
    Known,
    list_chosen,
    list_counts,
    list_due,
    list_part,
    list_pure_modules,
    list_survivors,
    summarize,
)
from support import mutation_runner, mutations
from support.mutation_runner import CAUGHT, OPTIONS, SURVIVED, TIMEOUT, Outcome, patch_functions, patch_limits
from support.mutations import TABLE, Mutation, compile_mutation, draw, list_mutations, list_row
from support.paths import ROOT
from support.related_tests import MARK, MarkingFinder, MarkingLoader, Ran, RelatedTests, add_marks

TEXT = '''"""A module."""
MAX_ITEMS, RATIO = 20, 0.5
SMALL = 3
BYTES = 4 << 10
name = 7


def check(values, limit=MAX_ITEMS):
    """Return a number."""
    if not values:
        return 0
    for value in values:
        if value < 1 and value != limit:
            continue
        return min(value, SMALL)
    return -1


class Holder:
    def is_full(self):
        return self.used >= BYTES or self.left is None
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    (tmp_path / "daemon/memwatch/core/pressure").mkdir(parents=True)
    path = "daemon/memwatch/core/pressure/sample.py"
    (tmp_path / path).write_text(TEXT)
    return path


def test_each_rule_finds_its_places(module: str) -> None:
    """Widths of shifts, values of other names and defaults of parameters are no limits."""
    found = [(one.rule, one.name, one.before, one.after) for one in list_mutations(module)]

    assert found == [
        ("limit", "MAX_ITEMS RATIO", "20", "200"),
        ("limit", "MAX_ITEMS RATIO", "20", "2"),
        ("limit", "MAX_ITEMS RATIO", "0.5", "5.0"),
        ("limit", "MAX_ITEMS RATIO", "0.5", "0.05"),
        ("limit", "SMALL", "3", "4"),
        ("limit", "SMALL", "3", "2"),
        ("limit", "BYTES", "4", "5"),
        ("limit", "BYTES", "4", "3"),
        ("early-exit", "check", "if not values:     return 0", "pass"),
        ("not", "check", "not values", "values"),
        ("early-exit", "check", "if value < 1 and value != limit:     continue", "pass"),
        ("and-or", "check", "value < 1 and value != limit", "value < 1 or value != limit"),
        ("comparison", "check", "value < 1", "value <= 1"),
        ("comparison", "check", "value != limit", "value == limit"),
        ("min-max", "check", "min(value, SMALL)", "max(value, SMALL)"),
        ("and-or", "Holder.is_full", "self.used >= BYTES or self.left is None",
         "self.used >= BYTES and self.left is None"),
        ("comparison", "Holder.is_full", "self.used >= BYTES", "self.used > BYTES"),
        ("comparison", "Holder.is_full", "self.left is None", "self.left is not None"),
    ]  # fmt: skip


def run(mutation: Mutation) -> dict[str, object]:
    found: dict[str, object] = {}
    exec(compile_mutation(mutation), found)
    return found


def find(path: str, before: str, after: str) -> Mutation:
    return next(one for one in list_mutations(path) if (one.before, one.after) == (before, after))


def test_compiled_module_has_the_one_change(module: str) -> None:
    check = run(find(module, "min(value, SMALL)", "max(value, SMALL)"))["check"]
    limits = run(find(module, "0.5", "5.0"))

    assert callable(check)
    assert (check([5]), check([])) == (5, 0)
    assert (limits["RATIO"], limits["MAX_ITEMS"], limits["BYTES"]) == (5.0, 20, 4096)


def test_limit_is_seen_by_tests_of_the_functions_that_use_it(module: str) -> None:
    """All functions of the module where none does: `RATIO` may be imported elsewhere."""
    found = {one.name: one.functions for one in list_mutations(module)}

    assert found["SMALL"] == (8,)
    assert found["BYTES"] == (20,)
    assert found["check"] == (8,)
    assert found["Holder.is_full"] == (20,)


def test_equal_changes_have_different_names(module: str, tmp_path: Path) -> None:
    (tmp_path / module).write_text("LIMITS = (5, 5)\n")

    keys = [one.key for one in list_mutations(module)]

    assert keys == [
        f"{module} LIMITS limit: 5 → 6",
        f"{module} LIMITS limit: 5 → 4",
        f"{module} LIMITS limit: 5 → 6 #2",
        f"{module} LIMITS limit: 5 → 4 #2",
    ]


def test_draw_keeps_its_choice_when_others_are_added(module: str) -> None:
    """Each change has its own place in the draw, so a new module takes the places of few."""
    some = list_mutations(module)
    drawn = {one.key for one in draw(some[::2], 4, 1)}
    both = {one.key for one in draw(some, len(some), 1)}

    assert len(drawn) == 4
    assert (
        drawn
        == {one.key for one in draw(list(reversed(some[::2])), 4, 1)}
        != {one.key for one in draw(some[::2], 4, 2)}
    )
    assert both == {one.key for one in some}


def test_row_of_the_table_needs_text_that_is_there_once(module: str) -> None:
    row = list_row(module, "return min(value, SMALL)", "return value")
    limit = list_row(module, "SMALL = 3", "SMALL = 30")

    assert (row.rule, row.name, row.line, row.functions) == (TABLE, "", 15, (8,))
    assert (limit.name, limit.is_limit, limit.functions) == ("SMALL", True, (8,))
    assert run(limit)["SMALL"] == 30
    with pytest.raises(ValueError, match="has 3 times"):
        list_row(module, "value ", "")
    with pytest.raises(ValueError, match="has 0 times"):
        list_row(module, "absent", "")


@pytest.fixture(scope="module")
def chosen() -> list[Mutation]:
    return list_chosen()


def test_table_of_this_tree_has_44_rows_and_the_draw_300(chosen: list[Mutation]) -> None:
    """Each row is in its module once, and no name occurs twice."""
    rows = msgspec.json.decode(TABLE_FILE.read_bytes(), type=list[dict[str, str]])

    assert len(rows) == 44
    assert len({one.key for one in chosen}) == len(chosen) == 344


def test_reasons_belong_to_changes_of_this_tree(chosen: list[Mutation]) -> None:
    """A reason of a change that is gone would hide a new one of that name."""
    known = msgspec.json.decode(KNOWN.read_bytes(), type=dict[str, Known])

    assert known.keys() <= {one.key for one in chosen}
    assert {one.verdict for one in known.values()} <= {EQUIVALENT, "open"}
    assert all(one.reason for one in known.values())


def test_modules_with_input_and_output_are_not_changed() -> None:
    found = set(list_pure_modules())

    assert {"daemon/memwatch/core/pressure/judge.py", "daemon/memwatch/planning/fit.py"} <= found
    assert "daemon/memwatch/library/wait.py" not in found
    assert "daemon/memwatch_monitor/history/ring_file.py" not in found


@pytest.fixture
def loaded(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, as if it were imported."""
    found = ModuleType("memwatch.core.pressure.sample")
    found.__file__ = str(tmp_path / module)
    exec(compile(TEXT, found.__file__, "exec"), vars(found))
    monkeypatch.setattr(mutation_runner, "ROOT", tmp_path)
    monkeypatch.setitem(sys.modules, found.__name__, found)
    return found


def test_function_gets_its_new_code_wherever_it_is_imported(module: str, loaded: ModuleType) -> None:
    imported = loaded.check

    assert imported([5]) == 3
    assert patch_functions(find(module, "min(value, SMALL)", "max(value, SMALL)"))
    assert imported([5]) == 5


def test_limit_is_set_where_only_functions_read_it(
    module: str, loaded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of a parameter and the import of another module have the value already."""
    small = find(module, "3", "4")

    assert not patch_limits(find(module, "20", "200"))
    assert not patch_functions(small)
    assert patch_limits(small)
    assert loaded.check([5]) == 4
    other = ModuleType("memwatch.core.pressure.other")
    vars(other)["SMALL"] = loaded.SMALL
    monkeypatch.setitem(sys.modules, other.__name__, other)
    assert not patch_limits(small)


@pytest.mark.process
def test_tests_of_a_change_are_collected_with_the_options_of_the_check() -> None:
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--collect-only", "tests/unit/accounting/test_labels.py"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, "tests/unit/accounting/test_labels.py::" in done.stdout) == (0, True), done.stderr


def ran(folder: Path, tests: dict[str, tuple[float, Sequence[str]]]) -> RelatedTests:
    found = {name: Ran(seconds, tuple(called)) for name, (seconds, called) in tests.items()}
    (folder / "gw0.json").write_bytes(msgspec.json.encode(found))
    return RelatedTests(folder)


def test_quick_tests_of_the_package_come_first(module: str, tmp_path: Path) -> None:
    """Tests that do not call the function are left out, and so are those beyond a time."""
    own, place = "tests/unit/pressure", f"{module}:8"
    related = ran(
        tmp_path,
        {
            f"{own}/test_a.py::test_slow": (3.0, [place]),
            f"{own}/test_b.py::test_quick": (0.1, [place, "other.py:1"]),
            f"{own}/test_b.py::test_other": (0.1, [f"{module}:20"]),
            f"{own}/test_c.py::test_endless": (99.0, [place]),
            "tests/unit/render/test_d.py::test_view": (0.2, [place]),
        },
    )

    found = related.choose(find(module, "value < 1", "value <= 1"))

    assert found == (
        [f"{own}/test_b.py::test_quick", f"{own}/test_a.py::test_slow"],
        ["tests/unit/render/test_d.py::test_view"],
    )


def test_marks_name_the_functions_that_are_called() -> None:
    """They come after the docstring, which stays one."""
    called: list[str] = []
    found: dict[str, object] = {MARK: called.append}
    exec(compile(add_marks(ast.parse(TEXT), "sample.py"), "sample.py", "exec"), found)
    check = found["check"]
    assert callable(check)

    assert check([]) == 0
    assert called == ["sample.py:8"]
    assert check.__doc__ == "Return a number."


def test_calls_of_each_changed_module_are_recorded() -> None:
    """Without marks in a module no test is known to call it, and each of its changes survives."""
    for path in list_pure_modules():
        name = path.removeprefix("daemon/").removesuffix(".py").replace("/", ".")
        spec = MarkingFinder().find_spec(name, [str((ROOT / path).parent)])

        assert spec is not None, path
        assert isinstance(spec.loader, MarkingLoader), path


def change(rule: str, number: int = 0) -> Mutation:
    return Mutation("daemon/memwatch/core/pressure/a.py", rule, "f", f"a | {number}", "b", 1, (1,))


MADE = [change("limit", number) for number in range(4)] + [change("not")]
RESULTS = {
    MADE[0].key: Outcome(CAUGHT, "tests/x.py::test_x", 0.5),
    MADE[1].key: Outcome(TIMEOUT),
    MADE[2].key: Outcome(SURVIVED),
    MADE[4].key: Outcome(SURVIVED),
}


def test_equivalent_changes_do_not_count() -> None:
    known = {MADE[2].key: Known(EQUIVALENT, "the same value")}

    assert summarize(MADE, RESULTS, known) == (
        "Of 5 changes 4 were tried, and 2 caught. 1 of the other 2 are equivalent. So tests catch 66.7% of those "
        "that make a difference."
    )
    assert list(list_survivors(MADE, RESULTS, known))[2:] == [
        "| `core/pressure/a.py` | `f`: `a \\| 2` → `b` | equivalent | the same value |",
        "| `core/pressure/a.py` | `f`: `a \\| 0` → `b` | open | not looked at yet |",
    ]


def test_counts_are_by_rule_and_by_package() -> None:
    assert list(list_counts(MADE, RESULTS, "rule"))[2:] == ["| limit | 1 | 1 | 1 |", "| not | 0 | 0 | 1 |"]
    assert list(list_counts(MADE, RESULTS, "package"))[2:] == ["| pressure | 1 | 1 | 2 |"]


@pytest.mark.parametrize(("again", "due"), [(None, [3]), (SURVIVED, [2, 3, 4]), ("all", [0, 1, 2, 3, 4])])
def test_results_are_not_tried_again_unless_asked_for(again: str | None, due: list[int]) -> None:
    assert list_due(MADE, RESULTS, again) == [MADE[number] for number in due]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_parts_are_the_whole_and_have_no_change_twice(parts: int) -> None:
    found = [one.key for number in range(1, parts + 1) for one in list_part(MADE, number, parts)]

    assert sorted(found) == sorted(one.key for one in MADE)
