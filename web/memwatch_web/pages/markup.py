"""HTML of sentences."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_NUMBER = re.compile(r"(?:&lt; )?\d[\d.,]*(?:%| (?:[KMGTPE]iB|B|µs|ms|s|min|h|d))(?!\w)")


def glue_units(text: str) -> Markup:
    """Escape a sentence and keep each number on one line with its unit."""
    return Markup(_NUMBER.sub(r'<span class="figure">\g<0></span>', str(escape(text))))  # noqa: S704  escaped
