"""Comparison of functions between two versions of a test file."""

from support.function_changes import Versions, changed, changed_tests, first_change, function_of

PATH = "tests/integration/test_x.py"
BEFORE = """
import os

@pytest.fixture
def daemon(tmp_path):
    return tmp_path

def test_a(daemon):
    import json
    assert daemon

class TestB:
    @pytest.mark.parametrize("n", [1, 2])
    def test_c(self, n):
        assert n
"""


def files(*replacements: tuple[str, str]) -> dict[str, Versions]:
    now = BEFORE
    for old, new in replacements:
        assert old in now
        now = now.replace(old, new)
    return {PATH: Versions(BEFORE, now)}


def test_node_id_is_split_into_file_and_function() -> None:
    assert function_of("tests/a.py::TestB::test_c[x::y-[1]]") == ("tests/a.py", "TestB.test_c")


def test_changed_body_is_a_change() -> None:
    after = files(("assert daemon", "assert not daemon"))

    assert first_change(f"{PATH}::test_a", [], after) == "its body changed"
    assert first_change(f"{PATH}::TestB::test_c[1]", [], after) == ""


def test_changed_decorator_is_a_change() -> None:
    assert first_change(f"{PATH}::TestB::test_c[1]", [], files(("[1, 2]", "[1, 3]"))) == "its body changed"


def test_new_test_is_a_change() -> None:
    assert changed((PATH, "test_a"), {PATH: Versions("", BEFORE)})
    assert changed((PATH, "test_new"), files())


def test_changed_fixture_is_a_change_of_its_tests() -> None:
    after = files(("return tmp_path", "return tmp_path / 'x'"))

    words = f"its fixture daemon in {PATH} changed"
    assert first_change(f"{PATH}::test_a", [("tests/conftest.py", "other"), (PATH, "daemon")], after) == words
    assert first_change(f"{PATH}::test_a", [("tests/conftest.py", "daemon")], after) == ""


def test_fixture_made_by_a_function_changes_with_it() -> None:
    before, now = (f"def make():\n    def one(): return {n}" for n in (1, 2))
    made = {"tests/support/x.py": Versions(before, now)}

    assert changed(("tests/support/x.py", "make.<locals>.one"), made)


def test_imports_positions_and_comments_are_no_change() -> None:
    after = files(
        ("import os\n", "import os\nimport sys\n\n\n# A comment.\n"),
        ("    import json\n", "    from json import loads\n"),
    )

    assert not changed((PATH, "test_a"), after)
    assert not changed((PATH, "TestB.test_c"), after)


def test_unchanged_file_has_no_change() -> None:
    assert first_change(f"{PATH}::test_a", [(PATH, "daemon")], {}) == ""


def test_tests_to_stress_are_new_or_use_a_changed_fixture_of_their_file() -> None:
    assert changed_tests(files()) == []
    assert changed_tests(files(("assert n", "assert n > 0"))) == [f"{PATH}::TestB::test_c"]
    assert changed_tests(files(("return tmp_path", "yield tmp_path"))) == [f"{PATH}::test_a"]
    assert changed_tests({"tests/support/x.py": Versions("", "def test_x(): pass")}) == []
