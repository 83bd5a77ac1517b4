"""Sentences of incidents: the first letter, the end of the victim, and each evidence once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memwatch.reporting.incidents.cause import Finding, Rise
from memwatch.reporting.incidents.killer import Death, explains
from memwatch.reporting.incidents.readings import Holding, Reading
from memwatch.reporting.incidents.records import Killer, Suspect, Victim
from memwatch_monitor.incidents.sentence import (
    capitalized,
    describe_death,
    describe_device_memory,
    list_evidence,
    write_sentence,
)
from support.fakes import GIB

UNIX = 1_700_000_000.0
VICTIM = Victim("gnome-shell", 7, None, None, GIB, UNIX, "kernel_oom")
DEATH = Death(VICTIM, Killer("kernel_oom", "kernel log: killed gnome-shell"), source="kernel")
CAUSE = Suspect("vllm", 9, None, None, 50 * GIB, UNIX, 55 * GIB)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ""),
        ("undecided who filled System RAM", "Undecided who filled System RAM"),
        ("memory of no process took 2.0 GiB", "Memory of no process took 2.0 GiB"),
        ("the kernel killed vllm", "The kernel killed vllm"),
        ("vllm (PID 9) took 2.0 GiB", "vllm (PID 9) took 2.0 GiB"),
        ("memoryhog (PID 9) took 2.0 GiB", "memoryhog (PID 9) took 2.0 GiB"),
        ("theano (PID 9) took 2.0 GiB", "theano (PID 9) took 2.0 GiB"),
        ("2.0 GiB of System RAM was left", "2.0 GiB of System RAM was left"),
    ],
)
def test_sentence_begins_with_a_capital_unless_with_the_name_of_a_process(text: str, found: str) -> None:
    """A name is shown as it is: vllm is not Vllm."""
    assert capitalized(text) == found


def test_sentence_begins_with_the_name_of_the_cause_as_it_is() -> None:
    sentence = write_sentence("kill", "System RAM", Finding(CAUSE), DEATH, [VICTIM], None)

    assert sentence == "vllm (PID 9) took 50.0 GiB; the kernel killed gnome-shell (PID 7) with 1.0 GiB."


@pytest.mark.parametrize(
    ("is_cause", "end"),
    [(None, ""), (False, ", which was not the cause"), (True, ", which was a part of the cause")],
)
def test_end_of_the_victim_says_if_it_was_the_cause(is_cause: bool | None, end: str) -> None:
    """The mark is in the list of victims. Without the victim there, it is not known."""
    text = "the kernel killed gnome-shell (PID 7) with 1.0 GiB"

    assert describe_death(DEATH, [replace(VICTIM, is_cause=is_cause)]) == text + end
    assert describe_death(DEATH, [replace(VICTIM, is_cause=is_cause, pid=8)]) == text
    assert describe_death(DEATH, []) == text


def test_victim_that_is_the_cause_is_the_cause_itself() -> None:
    found = describe_death(DEATH, [replace(VICTIM, is_cause=True)], finding_pid=7)

    assert found.endswith(", the cause itself")


@pytest.mark.parametrize(
    ("others", "end"), [(0, ""), (1, " and 1 more"), (2, " and 2 more")], ids=["alone", "one", "two"]
)
def test_other_victims_are_counted(others: int, end: str) -> None:
    text = describe_death(DEATH, [VICTIM], others=others)

    assert text == f"the kernel killed gnome-shell (PID 7) with 1.0 GiB{end}"


def with_evidence(text: str) -> Death:
    return replace(DEATH, killer=Killer("kernel_oom", text))


@pytest.mark.parametrize(
    ("lines", "kept"), [((), []), (("a",), ["a"]), (("a", "b"), ["a", "b"]), (("a", "b", "a", "a"), ["a", "b"])]
)
def test_each_evidence_of_a_killer_is_listed_once(lines: tuple[str, ...], kept: list[str]) -> None:
    """One line of systemd-oomd is the evidence for all processes of a unit."""
    assert list(list_evidence("System RAM", Finding(), [with_evidence(one) for one in lines])) == kept


def rise(before: int, after: int) -> Rise:
    begin, peak = (
        Reading(at, UNIX + at, 10 * GIB, 54 * GIB, {}, {"page_cache": size})
        for at, size in ((0.0, before), (9.0, after))
    )
    return Rise(begin, peak, peak)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(("less", "count"), [(1, 0), (0, 1), (-1, 1)])
def test_change_of_other_memory_by_two_percent_is_evidence(direction: int, less: int, count: int) -> None:
    """Two percent of 64 GiB, in either direction."""
    change = direction * (int(0.02 * 64 * GIB) - less)
    found = list(list_evidence("System RAM", Finding(rise=rise(5 * GIB, 5 * GIB + change)), []))

    assert len([one for one in found if one.startswith("page cache: 5.0 GiB → ")]) == count


SSHD = Holding("sshd", "ssh.service", None, GIB, UNIX)


@pytest.mark.parametrize(
    ("victim_pid", "place", "holding", "is_explained"),
    [
        (7, "", SSHD, True),
        (8, "", SSHD, False),
        (8, "/system.slice/ssh.service", SSHD, False),
        (7, "", None, True),
        (None, "/system.slice/ssh.service", SSHD, True),
        (None, "/system.slice/cron.service", SSHD, False),
        (None, "/system.slice/ssh.service", None, False),
    ],
)
def test_kill_explains_the_end_of_a_process_by_its_pid_else_by_its_place(
    victim_pid: int | None, place: str, holding: Holding | None, is_explained: bool
) -> None:
    death = replace(DEATH, victim=replace(VICTIM, pid=victim_pid), place=place)

    assert explains(death, 7, holding) is is_explained


def test_memory_in_many_places_names_the_kinds_of_devices() -> None:
    held = {"gpu0.vram": GIB, "gpu0.gtt": GIB, "npu0.buffers": GIB}

    assert describe_device_memory(held, {}) == "3.0 GiB of GPU/NPU memory"
    assert describe_device_memory({"npu0.buffers": GIB}, {"npu0.buffers": "NPU"}) == "1.0 GiB of NPU"
