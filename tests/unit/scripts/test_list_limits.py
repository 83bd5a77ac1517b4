"""Every constant that limits a list is in `tests/list_limits.toml`, with what becomes of the others."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from memwatch.core.budget import Budgets
from memwatch.core.listing import LISTS
from scripts.list_limits import KINDS, find_limits, read_table


def test_every_limit_of_a_list_is_in_the_table() -> None:
    table = read_table()

    limits = find_limits()
    missing = [name for name in limits if not any(fnmatch(name, row) for row in table)]
    gone = [row for row in table if not any(fnmatch(name, row) for name in limits)]

    assert len(limits) > 150
    assert missing == [], "add each to tests/list_limits.toml, with what tells a reader that there are more"
    assert gone == [], "these limits are gone: remove their rows"


def test_every_row_has_a_known_kind_and_a_reason() -> None:
    table = read_table()

    assert {kind for kind, _ in table.values()} == set(KINDS)
    assert all(why for _, why in table.values())


def test_each_counted_list_has_its_limit() -> None:
    """The metric has no list without a maximum."""
    said = {why for kind, why in read_table().values() if kind == "said"}

    assert set(LISTS) <= said | set(Budgets().by_kind)


def test_new_limit_is_found(tmp_path: Path) -> None:
    file = tmp_path / "daemon/memwatch/new.py"
    file.parent.mkdir(parents=True)
    file.write_text("MAX_CARDS, MAX_BYTES = 4, 5\nclass A:\n    MAX_ROWS: int = 3\nMAX_SECONDS = 3\n")

    assert list(find_limits(tmp_path)) == ["daemon/memwatch/new.py:MAX_CARDS", "daemon/memwatch/new.py:MAX_ROWS"]
