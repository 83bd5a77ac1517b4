"""Long tests are run when what they are about changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.long_of_change import CONCERNED, concerned
from support.paths import ROOT

TEMPLATE = "web/memwatch_web/templates/base.html"
# A page that is read, not only asked for.
READS_A_PAGE = re.compile(r"get\(f?'/(?!api/|metrics|openapi)[^']*'\)\.(text|body)|as page\b|read_on_a_phone\(")


def long_functions(file: Path) -> Iterator[str]:
    """Yield the source of each long test of a file."""
    text = file.read_text()
    if "mark.long" not in text:
        return
    all_are_long = re.search(r"^pytestmark = .*mark\.long", text, re.MULTILINE) is not None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(one) for one in node.decorator_list]
            if all_are_long or any(one.startswith("pytest.mark.long") for one in marks):
                yield ast.unparse(node)


def test_a_changed_page_concerns_every_long_test_that_reads_one() -> None:
    """A test in tests/deploy looked for an old heading, and was run last of all."""
    files = [path for path in sorted((ROOT / "tests").glob("*/**/test_*.py")) if "machines" not in path.parts]
    readers = {
        str(path.relative_to(ROOT))
        for path in files
        if any(READS_A_PAGE.search(source) for source in long_functions(path))
    }
    chosen = concerned([TEMPLATE])

    assert len(readers) > 3
    assert {name for name in readers if not any(name.startswith(one.partition("::")[0]) for one in chosen)} == set()


def test_chosen_tests_exist_and_are_named_once() -> None:
    chosen = {one for tests in CONCERNED.values() for one in tests}

    for one in chosen:
        path, _, function = one.partition("::")
        assert f"def {function}" in (ROOT / path).read_text() if function else (ROOT / path).exists(), one
    reader = "tests/deploy/test_dashboards.py"
    assert [one for one in concerned([TEMPLATE]) if one.startswith(reader)] != [reader]
    assert [one for one in concerned([TEMPLATE, reader]) if one.startswith(reader)] == [reader]
    assert concerned([TEMPLATE, "tests/browser/test_every_page.py"]) == concerned([TEMPLATE])
