"""The page of processes says who holds memory, what is not seen, who grew, and what nobody holds."""

from __future__ import annotations

import pytest

from memwatch.model import Absent, Process
from memwatch.processes.growth import Growth
from memwatch.processes.leaks import LeakRules
from memwatch.render import words as wording
from memwatch_web.pages.process_list import View
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader, read
from support.sample_parts import GIB, MIB, UNIX
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners


def test_owners_with_what_their_cgroups_say() -> None:
    """Footprints with their bounds, the cgroup's own figure, and the sentence about what that leaves out."""
    text = Reader(Pages().page("processes", many_owners(), view=View("container"))).text

    assert "Containers" in text
    assert "3.0 – 5.0 GiB" in text
    assert "9.0 GiB may not include all GPU memory" in text
    assert "— not permitted" in text
    assert "Kubernetes pods" not in text


def test_what_is_hidden_is_said_first() -> None:
    """A list that is partial says so above the list, and in what nobody holds."""
    text = read(many_owners(), "processes").text

    assert text.index("Processes outside this container are not seen.") < text.index("llama-server")
    assert "Usually what processes hold that cannot be seen from here" in text
    assert "Processes outside this container are not seen." in read(many_owners()).text
    assert "not seen" not in read(critical_gb10(), "processes").text


def test_names_of_containers_and_owners_stay_text() -> None:
    """What others call their containers and units becomes no markup."""
    for view in (View(), View("container")):
        page = Pages().page("processes", many_owners(), view=view)

        assert b"<i>vllm" not in page
        assert b"<b>bold" not in page
        assert "</th><i>vllm" in Reader(page).text


def test_what_nobody_holds_of_a_share() -> None:
    """The part of GTT that no process holds stands beside the pools' remainders."""
    page = read(many_owners(), "processes")

    assert "GTT ⊂ System RAM" in page.text
    assert "rest-gpu0.gtt" in page.values("id")


def grown(pid: int, size: int) -> Process:
    return Process(pid, UNIX - 1e6, f"p{pid}", size, size, "rss", user="ada", unit=None, container=None)


def test_who_grew_and_who_may_leak() -> None:
    """The fastest first, with what is known of each window; a suspect with its evidence, and what it is not."""
    growth, rules = Growth(), LeakRules(1200.0)
    for at in range(0, 1201, 10):
        growth.add(float(at), [grown(5, GIB + at * MIB), grown(6, GIB + at * 1024), grown(7, GIB)], rules)

    text = Reader(Pages(growth=growth).page("processes", calm_workstation())).text

    (suspect,) = growth.suspects()
    assert text.index("Suspected leaks") < text.index(f"p5 (process 5, ada) {suspect.evidence}.")
    assert "A hint, not a verdict" in text
    assert "+600.0 MiB 2.2 GiB +60.0 MiB +600.0 MiB —" in text
    assert text.index(" p5 +600.0 MiB") < text.index(" p6 +600.0 KiB")
    assert " p7 " not in text


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (GIB, 2 * GIB, "1.0 – 2.0 GiB"),
        (900 * MIB, 2 * GIB, "900.0 MiB – 2.0 GiB"),
        (GIB, GIB + 1, "1.0 GiB"),
        (GIB, Absent.NOT_PERMITTED, "≥ 1.0 GiB"),
        (0, 5, "0 – 5 B"),
    ],
)
def test_bounds_in_words(low: int, high: int | Absent, words: str) -> None:
    """The unit once where it is the same; one figure where the bounds read alike."""
    assert wording.between(low, high) == words


def test_changes_in_words() -> None:
    """What came has a plus, what went a minus, and what is not known its reason."""
    assert [wording.change(size) for size in (MIB, -MIB, 0, Absent.NOT_AVAILABLE)] == [
        "+1.0 MiB",
        "−1.0 MiB",
        "0 B",
        "— not available",
    ]
