"""Pages of incidents: readable without a script, with one picture, and safe for any name."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.incidents.records import Incident
from memwatch_web.pages.incident_chart import HEIGHT, build_incident_chart
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader
from support.incident_player import Player
from support.incident_scenarios import SCENARIOS


def incident() -> Incident:
    return Player(SCENARIOS[0]).play(240.0)[0]


def test_page_has_the_sentence_the_facts_and_the_timeline() -> None:
    found = incident()

    text = Reader(Pages().incident(found)).text

    assert found.sentence in text
    for words in (
        "vllm (PID 3921)",
        "gnome-shell (PID 2210)",
        "not the cause",
        "OOM killer of the kernel",
        "OOM killer: killed",
    ):
        assert words in text


def test_picture_stacks_the_holders_up_to_the_use_of_the_pool() -> None:
    """The stack ends at the use of System RAM at each moment. The kill is a mark."""
    found = incident()
    chart = build_incident_chart(found)

    assert chart is not None
    assert chart.areas[0].label == "vllm (3921)"
    assert chart.areas[-1].label == "other memory"
    first = [float(point.split(",")[1]) for point in chart.areas[-1].points.split()[: len(found.samples)]]
    used = [(1 - sample.used_bytes / chart.top_bytes) * HEIGHT for sample in found.samples]
    assert max(abs(one - other) for one, other in zip(first, used, strict=True)) < 0.1
    assert [mark.label for mark in chart.marks] == ["gnome-shell"]


def test_incident_without_samples_has_no_picture() -> None:
    found = replace(incident(), samples=())

    page = Pages().incident(found)

    assert build_incident_chart(found) is None
    assert b"incident-picture" not in page


def test_names_are_escaped() -> None:
    found = replace(incident(), sentence="<script>alert(1)</script> took it.")

    assert b"<script>alert" not in Pages().incident(found) + Pages().incidents([found])


def test_list_links_to_each_incident() -> None:
    found = incident()

    assert f'href="incidents/{found.id}"'.encode() in Pages().incidents([found])
    assert b"None." in Pages().incidents([])
