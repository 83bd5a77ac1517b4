"""Rows at the bottom of the overview: events with their incident, and what is above OK with many GPUs."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from memwatch.core.events import Event
from memwatch.core.kernel_log import KernelLog, OomKill
from memwatch.core.model import Absent, Process
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Level
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.render import words
from memwatch_monitor.notify.status import Receipt
from memwatch_web.pages.overview import build_firing, find_top_holders, link_events, name_few, shorten_event
from memwatch_web.pages.renderer import Pages
from support.html_reader import Reader
from support.sample_mig import eight_by_seven
from support.sample_parts import GIB
from support.sample_snapshots import calm_workstation, critical_gb10, discrete_gpu

KILL = OomKill(1, 51210, "train.py", int(39.9 * GIB), "machine").text
INCIDENT = Incident("inc_1", "kill", "ram", "System RAM", 100.0, 130.0, "train.py filled System RAM")


def test_event_of_an_incident_leads_to_it() -> None:
    """That of its target, between its begin and end; others lead to the history of their moment."""
    events = [
        Event(5, 120.0, "oom_kill", "OOM killer: killed train.py (51210), 37.0 GiB anonymous", "ram"),
        Event(4, 140.0, "level", "System RAM: critical → medium (66.0% used)", "ram"),
        Event(3, 120.0, "level", "GPU 0 VRAM: OK → high (80.1% used)", "gpu0"),
        Event(2, 120.0, "mark", "epoch 3"),
        Event(1, 50.0, "incident", "train.py filled System RAM (inc_1)", "ram"),
    ]

    rows = link_events(events, [INCIDENT], 200.0)

    assert [one.word for one in rows] == ["incident", "then", "then", "then", "incident"]
    assert rows[0].href == "incidents/inc_1"
    assert rows[1].href == "history?range=10m&at=1970-01-01T00:02:20Z"
    assert [one.level for one in rows] == ["critical", "medium", "high", "unknown", "unknown"]


def test_incident_that_lasts_has_the_events_until_now() -> None:
    event = Event(1, 180.0, "level", "System RAM: OK → critical (96.0% used)", "ram")

    assert link_events([event], [replace(INCIDENT, ended=None)], 200.0)[0].word == "incident"
    assert link_events([event], [INCIDENT], 200.0)[0].word == "then"


@pytest.mark.parametrize(
    ("kind", "text", "short"),
    [
        (
            "level",
            "System RAM: high → critical (95.2% used; full in about 15 s)",
            "System RAM: high → critical (95.2%)",
        ),
        ("level", "GPU 7 · MIG 2: OK → high (1.2 GiB available)", "GPU 7 · MIG 2: OK → high"),
        (
            "alert",
            "alert firing: VRAM 1 critical, now also: 97.0% used; x",
            "alert of VRAM 1, now also: 97.0% used",
        ),
        (
            "alert",
            "alert firing: System RAM critical, now also: OOM killer: killed train.py (51210); full in about 4 s",
            "alert of System RAM, now also: OOM kill",
        ),
        (
            "alert",
            "alert still firing: VRAM 2 high (rule) (now OK), now also: full in about 20 s at the current rate",
            "alert of VRAM 2, now also: full in about 20 s",
        ),
        (
            "alert",
            "alert firing: System RAM critical, now also: full in about 5 s at the current rate (20 s ago)",
            "alert of System RAM, now also: full in about 5 s (20 s ago)",
        ),
        ("alert", "alert firing: VRAM 1 critical", "alert firing: VRAM 1 critical"),
        ("late", "1 sample missed: the machine was too busy", "1 sample missed"),
        ("alert", "alert resolved: System RAM critical (now OK)", "alert resolved: System RAM critical"),
        ("oom_kill", "OOM killer: killed train (1).py (51210), 39.9 GiB", "OOM kill: train (1).py, 39.9 GiB"),
        ("oom_kill", KILL, "OOM kill: train.py, 39.9 GiB anonymous"),
        ("oom_kill", "OOM killer: killed 3 more processes", "OOM killer: killed 3 more processes"),
        (
            "incident",
            "incident recorded: train.py (PID 7) took 12.3 GiB in 1 min 29 s; 1.0 GiB was left. (20261130T151653Z)",
            "recorded: train.py took 12.3 GiB",
        ),
        (
            "incident",
            "Undecided who filled System RAM: no process grew by enough; no sample was taken. (20261130T151653Z)",
            "Undecided who filled System RAM",
        ),
        ("incident", "GPU 0 is lost. (20261130T151653Z)", "GPU 0 is lost"),
        ("mark", "Before VAE Load (process 4242)", "Before VAE Load (process 4242)"),
    ],
)
def test_event_is_short_in_a_table_of_a_card(kind: str, text: str, short: str) -> None:
    assert shorten_event(Event(1, 0.0, kind, text)) == short


def test_process_that_grows_is_first() -> None:
    """Then the largest."""
    base = critical_gb10()
    small = base.processes[-1]

    holders = find_top_holders(base, (), small)

    assert (holders[0].process, holders[0].grows) == (small, True)
    assert [one.process for one in holders[1:]] == [one for one in base.processes if one is not small][:4]
    assert not any(one.grows for one in find_top_holders(base, ()))


def test_many_gpus_have_a_table_of_what_is_above_ok() -> None:
    snapshot = eight_by_seven()
    first = snapshot.processes[0]
    grown = [ProcessGrowth(first, 0.0, 0, 600.0, GIB, True)]

    rows = build_firing(snapshot, [], grown)

    assert 0 < len(rows) <= 7
    assert [one.verdict.level for one in rows] == sorted((one.verdict.level for one in rows), reverse=True)
    assert all(one.verdict.level > Level.LOW and one.since_unix is None for one in rows)
    assert all(one.grown_bytes in (GIB, Absent.NOT_AVAILABLE) for one in rows)
    assert b"Above OK" in Pages().page("overview", snapshot)


def test_other_machines_have_the_table_of_holders() -> None:
    assert build_firing(critical_gb10(), [], ()) == ()
    page = Reader(Pages().page("overview", calm_workstation()))
    assert "Who holds it" in page.text


def test_many_receivers_are_counted_and_failed_ones_are_named() -> None:
    ok, other, waits, failed = (
        Receipt("ops", "delivered"),
        Receipt("mail", "delivered"),
        Receipt("chat", "queued"),
        Receipt("pager", "failed", "timeout"),
    )

    assert name_few([ok, failed]) == (ok, failed)
    assert name_few([ok, failed, other]) == (failed, Receipt("2 others", "delivered"))
    assert name_few([ok, waits, other]) == (Receipt("2 receivers", "delivered"), Receipt("1 receiver", "queued"))


def test_killed_process_keeps_a_row_for_a_minute_with_what_came_back() -> None:
    """It is no holder any more, although the last scan still has it; the table stays as high."""
    base = critical_gb10()
    gone, *others = base.processes
    kill = OomKill(1, gone.pid, "train.py", 40 * GIB, "machine")
    snapshot = replace(base, kernel_log=KernelLog(kills=(kill,)))
    event = Event(1, snapshot.unix - 6, "oom_kill", kill.text, "ram")
    pages = Pages(events=lambda: [event])

    page = Reader(pages.page("overview", snapshot))
    rows = [one for one in page.values("id") if one.startswith(("who-", "ghost-"))]

    assert f" train.py {gone.pid} killed " in page.text
    assert ", 40.0 GiB came back" in page.text.replace("\xa0", " ")
    assert "s" in [tag for tag, _ in page.tags]
    assert rows[-1] == f"ghost-{gone.pid}"
    assert not any(one.startswith(f"who-{gone.pid}-") for one in rows)
    assert any(one.startswith(f"who-{others[0].pid}-") for one in rows)
    later = Pages(events=lambda: [replace(event, unix=snapshot.unix - 61)])
    assert b'class="ghost"' not in later.page("overview", snapshot)


def test_ranks_of_a_job_are_one_row_with_their_sizes() -> None:
    """Not those of another user, nor a small or a much larger process of the same name."""
    base = replace(critical_gb10().processes[0], device_bytes={}, user="ada", container=None, unit="a.scope")

    def rank(number: int, size: int, user: str = "ada") -> Process:
        return replace(
            base, pid=100 + number, script="train.py", rank=number, user=user, rss_bytes=size, footprint_bytes=size
        )

    ranks = [rank(number, (100 + number) * GIB // 10) for number in range(7)]
    others = [rank(8, 10 * GIB, "eve"), rank(9, 40 * GIB), rank(10, GIB // 2)]
    snapshot = replace(critical_gb10(), processes=(*ranks, *others))

    holders = find_top_holders(snapshot, (), ranks[3])

    assert [one.label for one in holders] == ["7 ranks of train.py", "", "", ""]
    assert holders[0].process == ranks[3]
    assert {one.pid for one in holders[0].alike} == {one.pid for one in ranks}
    assert holders[0].footprints == "10.0 – 10.6 GiB each"
    text = Reader(Pages().page("overview", snapshot)).text.replace("\xa0", " ")
    assert "7 ranks of train.py" in text
    assert "10.0 – 10.6 GiB each" in text
    assert all(f"rank {one.rank}, {one.pid} " in text for one in ranks)


def test_two_processes_alike_stay_two_rows() -> None:
    base = critical_gb10().processes[0]
    two = [replace(base, pid=pid) for pid in (1001, 1002)]

    assert [one.alike for one in find_top_holders(replace(critical_gb10(), processes=two), ())] == [(), ()]


def test_tables_of_many_gpus_have_as_many_rows_at_every_level() -> None:
    """Nothing moves when the first of them is above OK."""
    firing = eight_by_seven()
    calm = replace(firing, pressure=tuple(replace(one, level=Level.LOW, ratio=0.1) for one in firing.pressure))
    events = [Event(number, firing.unix - number, "mark", f"step {number}") for number in range(9)]
    pages = Pages(events=lambda: events)
    shown = [pages.page("overview", one).decode() for one in (firing, calm)]

    assert ["firing-table" in page for page in shown] == [True, False]
    assert [page.count('id="event-') for page in shown] == [7, 7]
    assert shown[0].count('<tr id="firing-') == shown[1].count('<tr id="who-') == 7
    assert all("pair-many" in page for page in shown)


def test_each_of_several_pools_says_what_is_used_of_it() -> None:
    """A phone, whose pictures have no words beside them, showed "3 min ago 26.9%" and no use of now."""
    snapshot = discrete_gpu()
    page = Pages().page("overview", snapshot).decode()
    heads = re.findall(r'<p class="tower-then">(.*?)</p>', page)

    used = [one.used_bytes for one in snapshot.pools if not isinstance(one.used_bytes, Absent)]
    assert heads == [
        f"{words.ratio(held / one.size_bytes)} used" for held, one in zip(used, snapshot.pools, strict=True)
    ]
