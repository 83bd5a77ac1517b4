"""Colours of the pages: contrast of neighbours in both themes, and levels apart from holders."""

from __future__ import annotations

import re
from itertools import product

import pytest

from support.paths import STATIC

# Neighbours in a memory map are separated by a gap in the colour of the card: the edge of each is seen against it.
HOLDERS = ("gpu", "processes", "shared", "huge", "kernel", "unattributed", "reclaimable")
LEVELS = ("low", "medium", "high", "critical")
MIN_CONTRAST = 3.0
THEMES = ("light", "dark")


def colours(theme: str) -> dict[str, str]:
    styles = (STATIC / "app.css").read_text()
    pairs = re.findall(
        r"--([\w-]+): (?:var\(--light, )?(#[0-9a-f]{6})(?:\) var\(--dark, (#[0-9a-f]{6})\))?;", styles
    )
    return {name: (dark or light) if theme == "dark" else light for name, light, dark in pairs}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("theme", "holder"), list(product(THEMES, HOLDERS)))
def test_holder_stands_out_from_the_gap_to_its_neighbour(theme: str, holder: str) -> None:
    found = colours(theme)

    assert contrast(found[holder], found["card"]) >= MIN_CONTRAST


@pytest.mark.parametrize("theme", THEMES)
def test_reclaimable_and_free_memory_stand_out(theme: str) -> None:
    """Hatching on free ground, and the outline of a map on the card."""
    found = colours(theme)

    assert contrast(found["reclaimable"], found["free"]) >= MIN_CONTRAST
    assert contrast(found["limit"], found["card"]) >= MIN_CONTRAST
    assert contrast(found["edge"], found["free"]) >= MIN_CONTRAST


@pytest.mark.parametrize("theme", THEMES)
def test_no_holder_and_no_curve_is_yellow_orange_or_red(theme: str) -> None:
    """Those colours are for levels: in them red is the strongest part and blue the weakest."""
    found = colours(theme)
    warm = {name for name, one in found.items() if one[1:3] > one[3:5] and one[1:3] > one[5:7] and one[5:7] < "90"}

    assert not warm & {*HOLDERS, *(f"series-{number}" for number in range(1, 6))}
    assert set(LEVELS[1:]) <= warm


def test_severity_of_a_rule_has_no_colour_of_another_level() -> None:
    """ "warning" was in the orange of the level "high"."""
    found = re.findall(
        r"^\.severity-(\w+) \{ color: var\(--([\w-]+)\)", (STATIC / "app.css").read_text(), re.MULTILINE
    )

    assert found == [("critical", "critical"), ("warning", "text")]
