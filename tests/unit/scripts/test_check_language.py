"""The checker of the project's language finds a violation of each of its rules, and nothing in clean text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_language import (
    MAX_PAGES,
    MAX_README_LINES,
    MIN_PAGES,
    RULES,
    check_commit,
    check_files,
    check_page_count,
    is_checked,
    new_commits,
)
from support.paths import TESTS

CHECKER = TESTS / "scripts" / "check_language.py"


def rules_of(path: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in check_files({path: text})]


@pytest.mark.parametrize("opening", ["What", "Whether", "Who", "Whose", "How", "Where"])
def test_docstring_that_begins_with_a_headless_clause_is_found(opening: str) -> None:
    text = f'def f() -> None:\n    """{opening} it is."""\n'

    assert rules_of("daemon/a.py", text) == [(2, "docstring-opening")]


def test_docstring_of_module_class_and_coroutine_is_checked() -> None:
    text = '"""How."""\nclass A:\n    """Who."""\nasync def f() -> None:\n    """Where."""\n'

    assert [rule for _, rule in rules_of("web/a.py", text)] == ["docstring-opening"] * 3


@pytest.mark.parametrize("name", ["MOST_ROWS", "LEAST_ROWS", "ROWS_MOST", "ROWS_LEAST", "_MOST_ROWS"])
def test_limit_that_is_not_called_max_or_min_is_found(name: str) -> None:
    assert rules_of("daemon/a.py", f"x = 1\n{name} = 2\n") == [(2, "limit-name")]


def test_limit_of_another_module_is_found_where_it_is_used() -> None:
    text = "from a import MOST_ROWS\n\nprint(a.LEAST_ROWS)\n"

    assert rules_of("daemon/a.py", text) == [(1, "limit-name"), (3, "limit-name")]


def test_exception_whose_name_does_not_end_in_error_is_found() -> None:
    text = "class Refused(Exception):\n    pass\n\n\nclass Busy(Refused):\n    pass\n"

    assert rules_of("daemon/a.py", text) == [(1, "exception-name"), (5, "exception-name")]


def test_exception_that_inherits_from_another_file_is_found() -> None:
    texts = {"a.py": "class StoreError(ValueError): ...\n", "b.py": "class Full(a.StoreError): ...\n"}

    assert [str(finding) for finding in check_files(texts)] == [
        "b.py:1: exception-name: Full is an exception; write the name of the failure and Error"
    ]


def test_warning_ends_in_warning() -> None:
    assert rules_of("a.py", "class SlowWarning(UserWarning): ...\n") == []
    assert rules_of("a.py", "class Slow(UserWarning): ...\n") == [(1, "exception-name")]


WORDS_NOT_USED = (
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "whoever",
    "whosoever",
    "anew",
    "for want of",
    "so long as",
    "for so long",
    "so much",
    "so many",
    "is told of",
    "was told that",
    "lets go of",
    "let go",
    "gives way",
    "gave way",
    "lost its mind",
    "has patience",
    "besides",
    "dear",
    "of its own",
    "a look",
    "one look",
    "but for",
    "who is new",
    "the same that",
    "what fires",
    "who dies",
    "thereof",
)


@pytest.mark.parametrize(
    ("path", "frame"),
    [
        ("docs/a.md", "# Title\n\nThis is {} here.\n"),
        ("daemon/a.py", "x = 1\n\n# This is {} here.\n"),
        ("daemon/b.py", 'def f() -> None:\n    """Return it.\n    This is {} here."""\n'),
        ("web/c.py", 'x = 1\n\ny = "This is {} here."\n'),
        ("web/memwatch_web/templates/a.html", "<p>\n<b>\nThis is {} here.</b>\n"),
    ],
    ids=["page", "comment", "docstring", "string", "template"],
)
def test_word_that_is_not_used_is_found(path: str, frame: str) -> None:
    found = {words: rules_of(path, frame.format(words)) for words in WORDS_NOT_USED}

    assert {words: rules for words, rules in found.items() if rules != [(3, "word")]} == {}


def test_words_are_found_over_the_end_of_a_line_and_in_capitals() -> None:
    assert rules_of("a.py", "# So long\n# as it runs\n") == [(1, "word")]
    assert rules_of("a.py", 'x = (\n    "for want "\n    "of memory"\n)\n') == [(2, "word")]


def test_finding_says_what_to_write() -> None:
    (finding,) = check_files({"docs/a.md": "Started anew.\n"})

    assert str(finding) == "docs/a.md:1: word: “anew”; write: again"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "Write *again*, not `anew`.\n"),
        ("a.py", 'user = "nobody"\npasswd = "nobody:x:65534"\n'),
        ("a.py", 'class ReadError(Exception):\n    """Reading failed."""\n\n\nMAX_ROWS = 3\nALMOST_ALL = 4\n'),
        ("a.py", 'def f() -> int:\n    """Return what is left."""\n'),
    ],
    ids=["quoted", "account", "names", "docstring"],
)
def test_clean_text_has_no_finding(path: str, text: str) -> None:
    assert rules_of(path, text) == []


def test_readme_that_is_too_long_is_found() -> None:
    assert rules_of("README.md", "a\n" * MAX_README_LINES) == []
    assert rules_of("README.md", "a\n" * (MAX_README_LINES + 1)) == [(1, "size")]


def test_page_is_as_long_as_its_subject() -> None:
    assert rules_of("docs/start/install.md", "a\n" * (MAX_README_LINES + 1)) == []


@pytest.mark.parametrize(
    ("count", "found"), [(MIN_PAGES - 1, 1), (MIN_PAGES, 0), (MAX_PAGES, 0), (MAX_PAGES + 1, 1)]
)
def test_number_of_pages_is_limited(count: int, found: int) -> None:
    pages = [f"docs/howto/{number}.md" for number in range(count)] + ["README.md", "docs/bench.svg"]

    assert [finding.rule for finding in check_page_count(pages)] == ["page-count"] * found


@pytest.mark.parametrize(
    "message",
    [
        "metrics: " + "x" * 64,
        "rename everything",
        "metrics: renamed two families",
        "metrics: renaming two families",
        "metrics: what is missing is named",
        "metrics: the names are new",
        "metrics: add two families\nwithout an empty line",
    ],
)
def test_commit_that_breaks_the_rules_is_found(message: str) -> None:
    assert [finding.rule for finding in check_commit("0123abc", message)] == ["subject"]


@pytest.mark.parametrize(
    "message",
    [
        "metrics: add two families",
        "CI, docs: embed fonts\n\nBecause the site works offline.",
        "README.md: " + "x" * 61,
    ],
)
def test_commit_that_keeps_the_rules_is_not_found(message: str) -> None:
    assert list(check_commit("0123abc", message)) == []


@pytest.mark.parametrize(
    ("path", "checked"),
    [
        ("daemon/memwatch/core/model.py", True),
        ("Makefile", True),
        (".ci/run", True),
        ("systemd/memwatchd.toml", True),
        ("tests/machines/jetson/proc/version", False),
        ("web/memwatch_web/static/vendor/htmx.js", False),
        ("docs/page-phone.webp", False),
    ],
)
def test_files_of_others_are_not_checked(path: str, checked: bool) -> None:
    assert is_checked(path) is checked


def git(folder: Path, *arguments: str) -> None:
    person = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *person, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two commits before the checker and two after it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    git(folder, "init", "--quiet")
    for subject in ("old", "new: add a", "Newest"):
        git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return folder


def test_every_rule_is_listed() -> None:
    calls = r'Finding\((?:[^()]|\([^()]*\))*?, "([a-z-]+)", '
    found = set(re.findall(calls, CHECKER.read_text()))

    assert found == set(RULES)


@pytest.mark.process
def test_without_a_remote_the_last_commit_is_checked(repository: Path) -> None:
    assert list(new_commits(repository).values()) == ["Newest"]


@pytest.mark.process
def test_clone_checks_its_last_commit_and_those_not_pushed(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", repository.as_uri(), str(clone)], check=True)
    assert list(new_commits(clone).values()) == ["Newest"]

    for subject in ("mine: add b", "mine: add c"):
        git(clone, "commit", "--quiet", "--allow-empty", "--message", subject)

    assert set(new_commits(clone).values()) == {"mine: add b", "mine: add c"}


@pytest.mark.process
def test_folder_that_is_no_checkout_has_no_commits(tmp_path: Path) -> None:
    assert new_commits(tmp_path) == {}


def run(folder: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CHECKER), *paths], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.process
def test_program_prints_findings_and_fails(repository: Path) -> None:
    (repository / "a.py").write_text('"""What it is."""\n')

    done = run(repository)

    assert done.returncode == 1
    assert "a.py:1: docstring-opening: " in done.stdout
    assert ":1: subject: write “area: imperative …”: Newest" in done.stdout
    assert "docs:1: page-count: 0 pages" in done.stdout


@pytest.mark.process
def test_program_checks_the_given_paths_only(repository: Path) -> None:
    (repository / "a.py").write_text('"""What it is."""\n')
    (repository / "b").mkdir()
    (repository / "b" / "c.py").write_text('"""A part."""\n')

    assert run(repository, "b").returncode == 0
    assert run(repository, "a.py").stdout == (
        "a.py:1: docstring-opening: a docstring begins with 'What'; write “Return …”, “Check …” or a noun phrase\n"
    )
