"""Pages of incidents: readable without a script, with one picture, and safe for any name."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from memwatch.reporting.incidents.records import Incident
from memwatch_web.pages.renderer import Pages
from memwatch_web.pages.server_charts import INCIDENT_HEIGHT, Edge, Place, build_incident_chart, find_place
from support.html_reader import Reader
from support.incident_player import Player
from support.incident_scenarios import SCENARIOS


def incident() -> Incident:
    return play(SCENARIOS[0].name)


@cache
def play(beginning: str) -> Incident:
    return Player(next(one for one in SCENARIOS if one.name.startswith(beginning))).play(240.0)[0]


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


def test_failed_allocation_is_no_kill() -> None:
    """The page of a program that could not allocate names no killer and no victim."""
    text = Reader(Pages().incident(play("another process fills the GPU"))).text

    assert "Program ollama (PID 4600)" in text
    assert "dashed: failed allocations" in text
    assert [word for word in ("Killer", "Victim", "kill") if word in text] == []


def test_lost_gpu_returns_no_memory() -> None:
    text = Reader(Pages().incident(play("GPU falls off"))).text

    assert "came back" not in text.lower()


def test_picture_stacks_the_holders_up_to_the_use_of_the_pool() -> None:
    """The stack ends at the use of System RAM at each moment. The kill is a mark."""
    found = incident()
    chart = build_incident_chart(found)

    assert chart is not None
    assert chart.areas[0].label == "vllm (3921)"
    assert chart.areas[-1].label == "other memory"
    first = [float(point.split(",")[1]) for point in chart.areas[-1].points.split()[: len(found.samples)]]
    used = [(1 - sample.used_bytes / chart.top_bytes) * INCIDENT_HEIGHT for sample in found.samples]
    assert max(abs(one - other) for one, other in zip(first, used, strict=True)) < 0.1
    assert [mark.label for mark in chart.marks] == ["gnome-shell"]


def test_picture_has_the_colours_of_the_kinds_of_holders() -> None:
    """Processes in System RAM, GPU memory in that of a GPU, and the rest in grey."""
    in_ram, on_gpu = (build_incident_chart(one) for one in (incident(), play("PyTorch cannot allocate")))

    assert in_ram is not None
    assert on_gpu is not None
    assert [area.holder for area in in_ram.areas] == ["processes"] * (len(in_ram.areas) - 1) + ["unattributed"]
    assert [(area.label, area.holder) for area in on_gpu.areas] == [
        ("train.py (4500)", "gpu"),
        ("Xorg (4501)", "gpu"),
        ("other memory", "unattributed"),
    ]


def test_memory_of_a_unified_gpu_has_the_colour_of_gpu_memory() -> None:
    found = play("18 GiB in 10 s")
    chart = build_incident_chart(found)

    assert chart is not None
    assert found.target == "ram"
    assert {area.label: area.holder for area in chart.areas}["VLLM::EngineCore (700)"] == "gpu"


def test_name_is_inside_its_area() -> None:
    """A band that rises too fast, or is too thin for a line of text, has no name."""
    level = [Edge(0.0, 100.0, 200.0), Edge(500.0, 110.0, 200.0), Edge(1000.0, 180.0, 201.0)]
    thin = [Edge(0.0, 100.0, 110.0), Edge(1000.0, 100.0, 110.0)]
    steep = [Edge(0.0, 0.0, 100.0), Edge(1000.0, 100.0, 200.0)]

    assert find_place(level) == Place(0.0, 1.0, 190.0)
    assert find_place(thin) is None
    assert find_place(steep) is None


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
