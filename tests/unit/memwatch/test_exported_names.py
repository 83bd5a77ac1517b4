"""Names of `import memwatch`, which are loaded on first use: type checkers and users see the same ones."""

from __future__ import annotations

import ast
from pathlib import Path

import memwatch


def test_type_checkers_see_every_name_that_is_loaded_on_first_use() -> None:
    """Type checkers have a separate list, which must name the modules that the names are loaded from."""
    tree = ast.parse(Path(memwatch.__file__).read_text())
    (block,) = (one for one in tree.body if isinstance(one, ast.If))
    seen = {
        alias.asname: f"{one.module}.{alias.name}"
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
    }

    loaded = {name: f"{module}.{name}" for name, module in memwatch._MODULE_OF.items()}
    assert seen == loaded
    assert set(memwatch.__all__) == set(loaded)
    assert all(getattr(memwatch, name) is not None for name in memwatch.__all__)
