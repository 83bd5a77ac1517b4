"""Memory estimates for models, from their shape or their files' headers, and the devices with enough room."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent


@cache
def read_table(name: str, kind: Any) -> Any:  # noqa: ANN401  the type of the table's rows
    """Return the rows of a table by name, as the given type: families, models or products, a JSON file each."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=dict[str, kind])
