"""Test HTML of sentences."""

from __future__ import annotations

from memwatch_web.pages.template_environment import glue_units


def test_number_and_unit_stay_together_in_escaped_text() -> None:
    text = glue_units("<b>96.4% used; < 0.1% of 12.4 GiB")

    assert str(text) == (
        '&lt;b&gt;<span class="figure">96.4%</span> used; '
        '<span class="figure">&lt; 0.1%</span> of <span class="figure">12.4 GiB</span>'
    )


def test_figures_of_a_gpu_stay_with_their_units() -> None:
    """On a phone "700" was on one line and "W" on the next."""
    text = glue_units("97% busy · 68 °C · 700 W, 5 Watts")

    assert str(text) == (
        '<span class="figure">97%</span> busy · <span class="figure">68 °C</span> · '
        '<span class="figure">700 W</span>, 5 Watts'
    )
