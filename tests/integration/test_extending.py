"""docs/contributing/extending.md: every recipe has an example, and named files exist."""

from __future__ import annotations

import re

import pytest

from support.paths import ROOT

PAGE = (ROOT / "docs" / "contributing" / "extending.md").read_text()
EXAMPLES = dict(re.findall(r"^## ([\w ]+)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
NAMED = re.findall(r"`((?:daemon|web|tests|systemd|docs)/[\w./-]+)`", PAGE)


def test_every_recipe_has_an_example() -> None:
    assert list(EXAMPLES) == re.findall(r"^## (.*)", PAGE, re.MULTILINE)
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("path", NAMED)
def test_named_file_exists(path: str) -> None:
    assert any(ROOT.glob(path.replace("NAME", "*")))
