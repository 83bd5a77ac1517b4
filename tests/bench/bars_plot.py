"""Bar charts as SVG, readable on white and black, without a dependency."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

ROW, NAME, PANEL, GAP, HEAD = 24, 250, 220, 70, 34
OWN, OTHER, WORDS = "#3f6fc6", "#8a94a3", "#7a8494"


def bars(names: Sequence[str], panels: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return one panel of bars for each title, side by side; the first name is ours."""
    width, height = NAME + len(panels) * (PANEL + GAP), HEAD + ROW * len(names) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{WORDS}">'
    ]
    for place, name in enumerate(names):
        lines.append(f'<text x="0" y="{_middle(place)}">{escape(name)}</text>')
    for number, (title, figures) in enumerate(panels):
        left, most = NAME + number * (PANEL + GAP), max(figures) or 1.0
        lines.append(f'<text x="{left}" y="16" font-weight="bold">{escape(title)}</text>')
        for place, figure in enumerate(figures):
            length = max(1.0, figure / most * PANEL)
            colour = OTHER if place else OWN
            top = HEAD + place * ROW + 4
            lines.append(f'<rect x="{left}" y="{top}" width="{length:.1f}" height="{ROW - 8}" fill="{colour}"/>')
            lines.append(f'<text x="{left + length + 6:.1f}" y="{_middle(place)}">{_formatted(figure)}</text>')
    return "\n".join([*lines, "</svg>\n"])


def _middle(place: int) -> int:
    return HEAD + place * ROW + ROW // 2 + 5


def _formatted(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}" if figure < 1 else f"{figure:.1f}"
