"""Test HTML of sentences."""

from __future__ import annotations

from memwatch_web.pages.template_environment import glue_units


def test_number_and_unit_stay_together_in_escaped_text() -> None:
    text = glue_units("<b>96.4% used; < 0.1% of 12.4 GiB")

    assert str(text) == (
        '&lt;b&gt;<span class="figure">96.4%</span> used; '
        '<span class="figure">&lt; 0.1%</span> of <span class="figure">12.4 GiB</span>'
    )
