"""Check the mechanical rules of the project's language: python -m scripts.check_language [PATH …].

Without paths it checks every file of the repository, the sizes and number of pages, and the subjects of commits.
Each finding is printed as `file:line: rule: the text, and the fix`; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

NEEDED_PROGRAMS = ("git",)

# The README is a tour: a reader sees it whole. Pages are as long as their subject is.
MAX_README_LINES = 220
MIN_PAGES, MAX_PAGES = 18, 80
MAX_SUBJECT = 72

TEXT_SUFFIXES = frozenset({".py", ".md", ".html", ".js", ".css", ".c", ".h", ".sh", ".txt", ".cfg"}) | frozenset(
    {".toml", ".yml", ".yaml", ".conf", ".service", ".slice", ".sysusers"}
)
TEXT_NAMES = frozenset({"Makefile", "Dockerfile", "run", "postinst", "postrm", "prerm"})
# Captured machines, inputs of fuzzers, and libraries of others hold the words of others.
FOREIGN = ("tests/machines/", "tests/fuzz/corpus/", "web/memwatch_web/static/vendor/", "tests/constraints")
# These two hold the words that they are about.
EXEMPT = frozenset({"check_language.py", "test_check_language.py"})

RULES = (
    "docstring-opening",
    "limit-name",
    "exception-name",
    "word",
    "size",
    "page-count",
    "subject",
)
DOCSTRING_OPENINGS = frozenset({"what", "whether", "who", "whose", "how", "where"})
# The first is raised where a machine lacks something that not every machine has: no error by design. The second
# is a name of AMD's library, which tests imitate.
EXCEPTIONS_BY_DESIGN = frozenset({"SourceUnavailable", "AmdSmiLibraryException"})

# Each expression is matched in prose, comments and strings, also over the end of a line.
WORDS = {
    r"(?:some|any|every)body": "name the role: another process, an operator, every client",
    r"(?<![\"'])nobody(?![\"':/])": "name the role: no client, no process",
    r"who(?:so)?ever": "name the role: the client, an operator",
    r"anew": "again",
    r"(?:for|from) want of": "out of memory, without, for lack of",
    r"so long as": "while, as long as",
    r"for so long": "for N seconds, for that time",
    r"so (?:much|many)": "that much, that many, or the number",
    r"(?:is|are|was|were|be|been) told (?:of|at|by|about|that|to)": "receives, is notified, reports, until",
    r"(?:let|lets|letting) go(?: of)?": "release, releases",
    r"(?:give|gives|gave|giving|given) way": "is closed, is replaced",
    r"(?:lose|loses|lost|losing) its mind": "is broken, returns garbage",
    r"has patience": "waits, retries",
    r"besides": "also, beside",
    r"dear": "expensive",
    r"of its own(?! accord)": "its own, separate",
    r"(?:a|another|one) look": "a check, a read",
    r"but for": "except",
    r"who is new": "a new receiver",
    r"the same that": "the same as, the one that",
    r"what fires": "firing alerts",
    r"who dies": "a process that is killed",
    r"by-?and-?by|ere|thereof|therein|whereof|wherein|heretofore": "plain words",
}
_BETWEEN = r"[\s#\"'*>]+"
_WORDS = [
    (re.compile(rf"\b(?:{pattern.replace(' ', _BETWEEN)})\b", re.IGNORECASE), instead)
    for pattern, instead in WORDS.items()
]
_LIMIT_NAME = re.compile(r"^_?(?:MOST|LEAST)_\w+$|^\w+_(?:MOST|LEAST)$")
_SUBJECT = re.compile(r"^[\w.,/ -]+: (?P<verb>\S+)")
_NOT_IMPERATIVE = re.compile(
    r"^(?:what|who|whose|whether|how|where|which|the|an?|each|every|all|no|it|there|\w+(?:ed|ing))$", re.IGNORECASE
)
_VERBS_LIKE_THESE = frozenset(
    {"embed", "feed", "need", "seed", "shed", "speed", "bring", "ping", "string", "proceed"}
)
# In a page, code is quoted and not prose.
_CODE_SPAN = re.compile(r"`[^`\n]+`")


class Finding(NamedTuple):
    """One violation of one rule."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        """Render as compilers do, so that editors can jump to it."""
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def check_docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find docstrings that begin with a headless clause."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        opening = re.match(r"\w+", text or "")
        if opening and opening.group().lower() in DOCSTRING_OPENINGS:
            message = f"a docstring begins with {opening.group()!r}; write “Return …”, “Check …” or a noun phrase"
            yield Finding(path, node.body[0].lineno, "docstring-opening", message)


def check_names(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Find limits that are not called MAX_ or MIN_."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.alias):
            name = node.name
        if _LIMIT_NAME.match(name):
            yield Finding(path, getattr(node, "lineno", 1), "limit-name", f"{name}; write MAX_… or MIN_…")


def check_exceptions(trees: dict[str, ast.Module]) -> Iterator[Finding]:
    """Find exception classes whose names do not end in Error, also those that inherit from one another."""
    classes = [
        (path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    known = {name for name, it in vars(builtins).items() if isinstance(it, type) and issubclass(it, BaseException)}
    known |= EXCEPTIONS_BY_DESIGN
    grown = True
    while grown:
        found = {node.name for _, node in classes if any(_last_name(base) in known for base in node.bases)}
        grown = bool(found - known)
        known |= found
    for path, node in classes:
        bases = [_last_name(base) for base in node.bases]
        if not any(base in known or base.endswith(("Error", "Exception")) for base in bases):
            continue
        ending = "Warning" if any(base.endswith("Warning") for base in bases) else "Error"
        if not node.name.endswith(ending) and node.name not in EXCEPTIONS_BY_DESIGN:
            message = f"{node.name} is an exception; write the name of the failure and {ending}"
            yield Finding(path, node.lineno, "exception-name", message)


def _last_name(base: ast.expr) -> str:
    return base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""


def check_words(path: str, text: str) -> Iterator[Finding]:
    """Find words that this project does not use."""
    if path.endswith(".md"):
        text = _CODE_SPAN.sub(lambda span: "`" * len(span.group()), text)
    for pattern, instead in _WORDS:
        for match in pattern.finditer(text):
            words = re.sub(_BETWEEN, " ", match.group())
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(path, line, "word", f"“{words}”; write: {instead}")


def check_size(path: str, text: str) -> Iterator[Finding]:
    """Find a README that is too long."""
    lines = text.count("\n")
    if path == "README.md" and lines > MAX_README_LINES:
        yield Finding(path, 1, "size", f"{lines} lines; at most {MAX_README_LINES}: move a subject to a page")


def check_page_count(paths: Iterable[str]) -> Iterator[Finding]:
    """Find a tree of too few or too many pages."""
    pages = sum(path.startswith("docs/") and path.endswith(".md") for path in paths)
    if not MIN_PAGES <= pages <= MAX_PAGES:
        message = f"{pages} pages; between {MIN_PAGES} and {MAX_PAGES}: merge or split pages, one job each"
        yield Finding("docs", 1, "page-count", message)


def check_commit(revision: str, text: str) -> Iterator[Finding]:
    """Find a subject that is too long, has no area or no imperative, and a body that touches it."""
    subject, _, body = text.partition("\n")
    match = _SUBJECT.match(subject)
    verb = match["verb"] if match else ""
    if len(subject) > MAX_SUBJECT:
        yield Finding(revision, 1, "subject", f"{len(subject)} characters; at most {MAX_SUBJECT}: {subject}")
    if not match:
        yield Finding(revision, 1, "subject", f"write “area: imperative …”: {subject}")
    elif _NOT_IMPERATIVE.match(verb) and verb.lower() not in _VERBS_LIKE_THESE:
        yield Finding(
            revision, 1, "subject", f"“{verb}” is no imperative; write “area: add …”, “area: fix …”: {subject}"
        )
    if body.strip() and not body.startswith("\n"):
        yield Finding(revision, 2, "subject", f"leave the second line empty: {subject}")


def check_files(texts: dict[str, str]) -> Iterator[Finding]:
    """Apply the rules for files: path, relative to the repository, and text."""
    trees = {path: ast.parse(text) for path, text in texts.items() if path.endswith(".py")}
    for path, text in texts.items():
        if path in trees:
            yield from check_docstrings(path, trees[path])
            yield from check_names(path, trees[path])
        if Path(path).name not in EXEMPT:
            yield from check_words(path, text)
        yield from check_size(path, text)
    yield from check_exceptions(trees)


def is_checked(path: str) -> bool:
    """Return if the file at this path of the repository holds words of this project."""
    file = Path(path)
    return not path.startswith(FOREIGN) and (file.suffix in TEXT_SUFFIXES or file.name in TEXT_NAMES)


def listed_files(root: Path) -> list[str]:
    """Return the files that git tracks or would track; all, where this is no checkout."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return sorted(path for path in done.stdout.splitlines() if (root / path).is_file())
    files = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
    return sorted(str(file) for file in files if not file.parts[0].startswith(".") and file.parts[0] != "out")


def new_commits(root: Path) -> dict[str, str]:
    """Return messages by revision, of commits that can still be amended: the last one, and those on no remote.

    Where this is no checkout there is none.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    log = ("log", "--no-merges", "-z", "--format=%h%x01%B")
    last = git(*log, "-1")
    unpushed = git(*log, "HEAD", "--not", "--remotes") if git("remote") else ""
    pairs = [record.partition("\x01") for record in (last + "\0" + unpushed).split("\0") if record]
    return {revision: message.strip() for revision, _, message in pairs}


def read_files(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return text by path, of the files to check."""
    return {path: (root / path).read_text(errors="replace") for path in paths if is_checked(path)}


def repository_of(folder: Path) -> Path:
    """Return the nearest folder at or above this one that has pyproject.toml."""
    return next((parent for parent in (folder, *folder.parents) if (parent / "pyproject.toml").exists()), folder)


def main() -> None:
    """Print findings; exit with 1 where there are some."""
    parser = argparse.ArgumentParser(prog="check_language", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="check these files and folders only")
    asked: list[Path] = parser.parse_args().paths
    root = repository_of(Path.cwd())
    wanted = [str(path.resolve().relative_to(root)) for path in asked]
    every = listed_files(root)
    chosen = [path for path in every if not asked or any(Path(path).is_relative_to(folder) for folder in wanted)]
    findings = list(check_files(read_files(root, chosen)))
    if not asked:
        findings += check_page_count(every)
        for revision, message in new_commits(root).items():
            findings += check_commit(revision, message)
    for finding in sorted(findings):
        print(finding)
    if findings:
        print(f"{len(findings)} findings; CONTRIBUTING.md lists the rules", file=sys.stderr)
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
