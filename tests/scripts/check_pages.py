"""Check the pages of the documentation without running them: python -m scripts.check_pages.

Links and anchors end at something, Markdown renders on forges and on the site, and every name of a metric, target,
option or file exists. Each finding is printed as `page:line: rule: the text`; the exit code is 1 if there is one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import yaml

from memwatch_web.metrics.samples import PREFIX
from scripts.check_language import RULES as LANGUAGE_RULES
from support.exported_metrics import exported_names
from support.page_blocks import RUN_LANGUAGES, BlockError, check_names_in_shell, check_syntax, console_commands
from support.pages import Fence, anchors, fences, headings, links, pages, slug, without_fences
from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NEEDED_PROGRAMS = ("git",)

FRONT, README, ATTACKS = Path("docs/index.md"), Path("README.md"), Path("docs/quality/attacks.md")
CONTRIBUTING, SECURITY = Path("CONTRIBUTING.md"), Path("SECURITY.md")
WITH_TESTS = (
    ATTACKS,
    Path("docs/quality/attacks-on-secrets.md"),
    Path("docs/quality/wrong-figures.md"),
    SECURITY,
    Path("docs/explanation/readings.md"),
    Path("docs/explanation/alerts.md"),
)
MAX_PICTURES, MAX_PICTURE_BYTES = 4, 80_000
SAMPLES = frozenset({"console", "text", "promql", "ini", ""})
DATA = frozenset({"toml", "yaml", "json"})
DIRECTIVES = {"": "run", "live": "live", "in background": "background", "system": "system"}

_LIST = re.compile(r" *(?:[-*]|\d+\.) ")

Texts = Mapping[Path, str]


class Finding(NamedTuple):
    """A place of a page that breaks a rule."""

    page: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.rule}: {self.text}"


def check_links(page: Path, text: str) -> Iterator[Finding]:
    """Find links that end at no file or anchor."""
    for link in links(text):
        if not is_whole(page, link.target):
            yield Finding(page, link.line, "link", f"{link.target} does not exist")


def is_whole(page: Path, target: str) -> bool:
    """Return if a link of a page ends at something. Addresses of other sites are not tried."""
    path, mark, anchor = unquote(target).partition("#")
    if re.match(r"(?:https?|mailto):", path):
        return True
    file = (ROOT / page.parent / path).resolve() if path else ROOT / page
    if not file.exists() or not file.is_relative_to(ROOT):
        return False
    return not mark or (file.suffix == ".md" and anchor in anchors_of(file))


@cache
def anchors_of(file: Path) -> set[str]:
    return anchors(file.read_text())


def check_title(page: Path, text: str) -> Iterator[Finding]:
    """Find a page that does not begin with its only title."""
    titles = re.findall(r"^# .+$", without_fences(text), re.MULTILINE)
    if not text.startswith("# ") or len(titles) != 1:
        yield Finding(page, 1, "title", f"begin the page with its only title; found {titles}")


def check_rendering(page: Path, text: str) -> Iterator[Finding]:
    """Find lists, tables and blocks without an empty line before them. Forges render them, the site does not."""
    lines = text.splitlines()
    opening = {fence.line - 2 - (fence.directive is not None) for fence in fences(text)}
    prose = without_fences(text).splitlines()
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        begins_list = bool(_LIST.match(prose[number])) and not (_LIST.match(before) or before.startswith(" "))
        begins_table = prose[number].startswith("|") and not before.startswith("|")
        if before.strip() and (begins_list or begins_table or number in opening):
            yield Finding(page, number + 1, "rendering", f"add an empty line before: {line}")


@cache
def known_metrics() -> frozenset[str]:
    recording = (ROOT / "deploy/prometheus/rules/recording.yml").read_text()
    recorded = re.findall(rf"{PREFIX}\w+", recording)
    return frozenset([*recorded, *(PREFIX + name for name in exported_names())])


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_names(page: Path, text: str) -> Iterator[Finding]:
    """Find metrics and make targets that do not exist. A metric may be named by its beginning."""
    for match in re.finditer(rf"\b{PREFIX}[a-z0-9_]+[a-z0-9]\b", text):
        name, line = match.group(), text.count("\n", 0, match.start()) + 1
        is_known = any(f"{one}_".startswith(f"{name}_") for one in known_metrics())
        if name not in ("memwatch_web", "memwatch_monitor", "memwatchd") and not is_known:
            yield Finding(page, line, "metric", f"{name} is not exported")
    for match in re.finditer(r"`make ([a-z0-9-]+)", text):
        if match[1] not in make_targets():
            yield Finding(page, text.count("\n", 0, match.start()) + 1, "target", f"make has no {match[1]}")


def verb_of(fence: Fence) -> str:
    """Return `run`, `live`, `background`, `system` or `check`; empty for an unknown directive."""
    verb, argument = fence.directive or ("", "")
    return "check" if verb == "checked" else DIRECTIVES.get(argument, "")


def check_blocks(page: Path, text: str) -> Iterator[Finding]:
    """Find blocks of unknown languages or directives, and those that name something that does not exist."""
    for fence in fences(text):
        if fence.language not in RUN_LANGUAGES | DATA | SAMPLES:
            yield Finding(page, fence.line, "block", f"{fence.language} would be neither run nor checked")
        is_checked = fence.language in RUN_LANGUAGES | DATA
        if not verb_of(fence) or (fence.directive is not None and not is_checked):
            yield Finding(page, fence.line, "directive", f"unknown or of no effect: {fence.directive}")
        complaint = complaint_about(fence)
        if complaint:
            yield Finding(page, fence.line, "block", complaint)


def complaint_about(fence: Fence) -> str:
    """Return the reason for which the text of a block is invalid in its language, or empty."""
    try:
        PARSERS.get(fence.language, str)(fence.code)
    except (BlockError, SyntaxError, ValueError, yaml.YAMLError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def parse_console(code: str) -> None:
    if not console_commands(code):
        raise BlockError("no line begins with “$ ”; use text")
    check_names_in_shell(console_commands(code))


def parse_yaml(code: str) -> None:
    if not list(yaml.safe_load_all(code)):
        raise BlockError("there is no document")


PARSERS: Mapping[str, Callable[[str], object]] = {
    "sh": check_names_in_shell,
    "console": parse_console,
    "python": lambda code: compile(code, "block", "exec"),
    "toml": tomllib.loads,
    "yaml": parse_yaml,
    "json": json.loads,
}


def check_shell_syntax(texts: Texts) -> Iterator[Finding]:
    """Find blocks with invalid syntax: bash reads all of them at once, and each of them only if that fails."""
    blocks = [
        (page, fence.line, fence.code if fence.language == "sh" else console_commands(fence.code) + "\n")
        for page, text in texts.items()
        for fence in fences(text)
        if fence.language in ("sh", "console")
    ]
    if not syntax_error("".join(code for _, _, code in blocks)):
        return
    for page, line, code in blocks:
        if error := syntax_error(code):
            yield Finding(page, line, "block", error)


def syntax_error(code: str) -> str:
    try:
        check_syntax(code)
    except BlockError as error:
        return str(error)
    return ""


def check_pictures(texts: Texts) -> Iterator[Finding]:
    """Find pictures of the README that are too many or too large: a clone fetches each version of them."""
    pictures = [link for link in links(texts[README]) if link.is_image]
    if not 1 <= len(pictures) <= MAX_PICTURES:
        yield Finding(README, 1, "picture", f"{len(pictures)} pictures; 1 to {MAX_PICTURES}")
    for one in pictures:
        file = ROOT / one.target
        if file.exists() and not 0 < file.stat().st_size <= MAX_PICTURE_BYTES:
            yield Finding(README, one.line, "picture", f"{one.target}: at most {MAX_PICTURE_BYTES:,} bytes")


def check_front_page(texts: Texts) -> Iterator[Finding]:
    """Find pages that the front page does not link."""
    targets = (link.target.partition("#")[0] for link in links(texts[FRONT]))
    linked = {(ROOT / FRONT.parent / target).resolve() for target in targets}
    for page in texts:
        if page.name != FRONT.name and (ROOT / page).resolve() not in linked:
            yield Finding(FRONT, 1, "front-page", f"{page} is not linked")


def check_reference(texts: Texts) -> Iterator[Finding]:
    """Find subjects of reference pages without one anchor for each: other pages link to these."""
    for page, text in texts.items():
        if page.parent != Path("docs/reference"):
            continue
        subjects = [slug(one) for one in re.findall(r"^## (.+)$", text, re.MULTILINE)]
        if not subjects or len(subjects) != len(set(subjects)) or len(headings(text)) <= len(subjects):
            yield Finding(page, 1, "anchor", "each subject needs a heading of the second level with its own anchor")


def check_documented_rules(texts: Texts) -> Iterator[Finding]:
    """Find rules of the language checker that CONTRIBUTING.md does not list."""
    for rule in LANGUAGE_RULES:
        if f"`{rule}`" not in texts[CONTRIBUTING]:
            yield Finding(CONTRIBUTING, 1, "rule", f"`{rule}` of check_language is not documented")


def check_named_tests(texts: Texts) -> Iterator[Finding]:
    """Find test files named by the pages of attacks and laws that do not exist."""
    folders = [ROOT / "tests" / name for name in ("unit", "incidents", "integration", "faults", "deploy")]
    known = {file.stem for folder in folders for file in folder.rglob("test_*.py")}
    for page in WITH_TESTS:
        for name in sorted(set(re.findall(r"`(test_\w+)`", texts[page])) - known):
            yield Finding(page, 1, "test", f"there is no {name}.py")


PAGE_CHECKS = (check_links, check_title, check_rendering, check_names, check_blocks)
TREE_CHECKS = (
    check_shell_syntax,
    check_pictures,
    check_front_page,
    check_reference,
    check_documented_rules,
    check_named_tests,
)


def check_all(texts: Texts) -> Iterator[Finding]:
    """Apply every rule to pages: path, relative to the repository, and text."""
    for page, text in texts.items():
        for check in PAGE_CHECKS:
            yield from check(page, text)
    for check_tree in TREE_CHECKS:
        yield from check_tree(texts)


def read_pages(paths: Iterable[Path]) -> dict[Path, str]:
    return {page: (ROOT / page).read_text() for page in paths}


def main() -> None:
    """Print findings; exit with 1 if there is one."""
    texts = read_pages(pages())
    assert {README, FRONT, CONTRIBUTING, Path("docs/reference/metrics.md")} <= texts.keys()
    findings = sorted(check_all(texts))
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} findings in {len(texts)} pages", file=sys.stderr)
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
