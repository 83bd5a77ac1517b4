"""Check tests/disturbed.toml, and the commits that removed entries: python -m scripts.check_disturbed."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.check_language import repository_of
from support import disturbed
from support.change_base import Repository, find_base
from support.disturbed import FILE, Entry, MalformedError
from support.function_changes import function_of


def removals(repository: Repository) -> Iterator[str]:
    """Yield entries that commits since the base have removed without a cause."""
    base = find_base(repository).commit
    span = f"{base}..HEAD" if base else "HEAD"
    for commit in repository.git("log", "--no-merges", "--format=%H", span, "--", FILE).split():
        before, after = (_entries_at(repository, revision) for revision in (f"{commit}^", commit))
        message = repository.git("show", "--no-patch", "--format=%B", commit)
        yield from (f"{commit[:10]}: {text}" for text in disturbed.unexplained(before, after, message))


def _entries_at(repository: Repository, revision: str) -> list[Entry]:
    """Return the entries of a commit; none where it could not be read, which was refused then."""
    try:
        return disturbed.parse(repository.text(revision, FILE))
    except MalformedError:
        return []


def texts_of(root: Path, entries: list[Entry]) -> dict[str, str]:
    """Return the files of the listed tests by path, without those that do not exist."""
    paths = {function_of(entry.test)[0] for entry in entries}
    return {path: (root / path).read_text() for path in paths if path.endswith(".py") and (root / path).is_file()}


def check(root: Path, today: datetime.date) -> tuple[list[str], list[str]]:
    """Return findings and warnings."""
    try:
        entries = disturbed.read_entries(root)
    except MalformedError as error:
        return [str(error)], []
    found = [*disturbed.findings(entries, texts_of(root, entries)), *removals(Repository(root))]
    return found, list(disturbed.warnings(entries, today))


def main() -> None:
    """Print findings and warnings; exit with 1 where there are findings."""
    found, old = check(repository_of(Path.cwd()), datetime.date.today())
    for text in old:
        print(f"{FILE}: warning: {text}")
    for text in found:
        print(f"{FILE}: {text}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
