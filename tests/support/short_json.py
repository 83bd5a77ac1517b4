"""JSON for messages of failed tests: pretty printed, and at most forty lines."""

from __future__ import annotations

import json
from typing import Any

MAX_LINES = 40
MAX_TEXT = 160
# Kept depth of objects, and items of each list or object. The last one always fits.
DETAIL = ((20, 100), (8, 12), (5, 8), (4, 5), (3, 4), (2, 8), (1, 36))


def short_json(value: Any) -> str:
    """Return as many keys or items as fit, and then as much of them; the rest is counted, such as `"… 12 more"`."""
    width = len(value) if isinstance(value, dict | list) else 1
    fitting: list[tuple[int, int, str]] = []
    for depth, items in DETAIL:
        text = json.dumps(_pruned(value, depth, items), indent=1, ensure_ascii=False)
        lines = len(text.splitlines())
        if lines <= MAX_LINES:
            fitting.append((min(width, items), lines, text))
    return max(fitting)[2]


def _pruned(value: Any, depth: int, items: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}… {len(value) - MAX_TEXT} more characters"
    if not isinstance(value, dict | list) or not value:
        return value
    if depth == 0:
        return f"… {len(value)} {'keys' if isinstance(value, dict) else 'items'}"
    more = len(value) - items
    if isinstance(value, list):
        kept = [_pruned(one, depth - 1, items) for one in value[:items]]
        return [*kept, f"… {more} more"] if more > 0 else kept
    pairs = {key: _pruned(one, depth - 1, items) for key, one in list(value.items())[:items]}
    return {**pairs, "…": f"{more} more"} if more > 0 else pairs
