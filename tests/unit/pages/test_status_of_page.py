"""The status on the overview: at every level, the figures, what to do, and who is notified."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from msgspec.structs import replace

from memwatch.core.model import Absent, Process
from memwatch.core.pressure.judge import HeldSignal, add_age
from memwatch.core.pressure.signals import Signal
from memwatch.core.processes.growth import GrowthTracker, LeakRules
from memwatch.core.silences import Silence
from memwatch.core.snapshot import Level, Pressure, Reason, Snapshot
from memwatch.reporting.answers import AlertRow
from memwatch.reporting.render.words import ratio
from memwatch_monitor.notify.status import AlertView, DeliveryRow, ReceiverRow
from memwatch_web.pages.renderer import Pages
from memwatchd.recording.demos import path_of
from memwatchd.recording.player import read_frames
from support.html_reader import Reader
from support.sample_parts import GIB
from support.sample_snapshots import calm_workstation, critical_gb10

TRAIN = Process(
    51210, 700.0, "train.py", 37 * GIB, 37 * GIB, "rss", user="ada", unit="session-7.scope", container=None
)
FIRING = AlertRow("ram", "pressure.critical", "critical", "firing", 100.0, False, ())


def at(level: Level, ratio: float, *processes: Process, left: float | None = None) -> Snapshot:
    base = critical_gb10()
    verdict = Pressure(
        "ram",
        level,
        level,
        ratio,
        size_bytes=120 * GIB,
        thresholds=base.pressure[0].thresholds,
        seconds_to_full=Absent.NOT_AVAILABLE if left is None else left,
    )
    return replace(base, pressure=(verdict,), processes=processes or base.processes)


def read(snapshot: Snapshot, view: AlertView | None = None) -> Reader:
    return Reader(Pages(alerting=lambda: view or AlertView()).page("overview", snapshot))


def replay(name: str, seconds: int) -> tuple[Snapshot, GrowthTracker]:
    """Return the state of a demo after a time, and the sizes of its processes until then."""
    tracker = GrowthTracker()
    for snapshot in islice(read_frames(path_of(name)), seconds):
        tracker.add(snapshot.monotonic, snapshot.processes, LeakRules())
    return snapshot, tracker


def test_job_on_many_gpus_is_one_grower_and_one_step_with_all_that_it_frees() -> None:
    """The page said "growing train.py 200101 +130.5 MiB/s" of seven ranks, and "frees 73.5 GiB" of eight GPUs."""
    snapshot, tracker = replay("h100x8-mig", 260)

    text = " ".join(Reader(Pages(growth=tracker).page("overview", snapshot)).text.split())

    assert "growing train.py 7 ranks +858.8 MiB/s in all" in text
    assert "stop train.py and 7 more processes, frees 515.4 GiB on 8 GPUs, 73.5 GiB on VRAM 0 →" in text


def receiver(name: str, result: str, failure: str = "") -> ReceiverRow:
    sent = DeliveryRow(
        name, "msg_1", FIRING.rule, "ram", "firing", result, 1, None, failure, critical_gb10().unix, None
    )
    outcomes = {"delivered": 1, "retry": 0, "gave_up": 0, "disabled": 0, "superseded": 0}
    return ReceiverRow(name, "webhook", name, (FIRING.rule,), (), False, 0, outcomes, failure, None, None, (sent,))


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (calm_workstation(), ["OK", "growing no process", "Room 37.8 GiB more fit", "Alerts go to:"]),
        (
            at(Level.MEDIUM, 0.66),
            ["medium System RAM", "66.0% used", "growing", "Room 4.3 GiB more fit", "Runbook"],
        ),
        (at(Level.HIGH, 0.85, TRAIN, left=72.0), ["high System RAM", "Full in ~1 min 10 s", "Do stop train.py"]),
        (
            at(Level.CRITICAL, 0.988, TRAIN, left=4.0),
            [
                "critical System RAM",
                "Full in seconds",
                "Do stop train.py, frees 37.0 GiB → 68.0%, medium (ada, session-7)",
            ],
        ),
    ],
    ids=("ok", "medium", "high", "critical"),
)
def test_status_says_at_every_level_what_to_do(snapshot: Snapshot, words: list[str]) -> None:
    text = " ".join(read(snapshot).text.split())

    for one in [*words, "used of System RAM", "can be allocated", "Alerts go to: no receiver yet Add a receiver"]:
        assert one in text, one


def test_command_to_copy_is_an_attribute_of_its_button() -> None:
    hostile = replace(TRAIN, unit='"><script>.service')
    tags = read(at(Level.CRITICAL, 0.97, hostile)).tags

    copied = [attributes["data-copy"] for name, attributes in tags if "data-copy" in attributes]
    assert copied == ["systemctl stop '\"><script>.service'"]


@pytest.mark.parametrize(
    ("snapshot", "anchor"),
    [
        (at(Level.CRITICAL, 0.97), "memorycritical"),
        (at(Level.HIGH, 0.9), "memoryhighforlong"),
        (calm_workstation(), None),
    ],
    ids=("critical", "high", "ok"),
)
def test_runbook_is_that_of_the_level(snapshot: Snapshot, anchor: str | None) -> None:
    links = [str(attributes.get("href")) for name, attributes in read(snapshot).tags if name == "a"]

    assert [one for one in links if one.startswith("runbooks#")] == ([f"runbooks#{anchor}"] if anchor else [])


def test_silence_of_the_level_is_in_the_status_with_a_button_that_ends_it() -> None:
    """There and in the title: the list of silences below does not repeat it."""
    silenced = replace(
        at(Level.CRITICAL, 0.97, TRAIN),
        silences=(Silence("sil_1", critical_gb10().unix + 3600, 0.0, 3600.0, made_by="root (uid 0)"),),
    )
    found = read(silenced, AlertView((FIRING,), receivers=(receiver("ops", "delivered"),)))

    text = " ".join(found.text.split())
    assert text.count("ilenced by root until") == 2
    assert "Silenced by root until 11:22 UTC : no one is notified" in text.replace("UTC:", "UTC :")
    assert "Notified" not in text
    assert [one["hx-delete"] for name, one in found.tags if "hx-delete" in one] == ["api/v1/silences/sil_1"]


def test_deliveries_of_the_firing_alert_are_named_with_the_reason_of_a_failure() -> None:
    view = AlertView((FIRING,), receivers=(receiver("ops", "delivered"), receiver("mail", "retry", "refused")))
    text = " ".join(read(at(Level.CRITICAL, 0.97, TRAIN), view).text.split())

    assert "Notified 10:22:33 UTC : ops ✓, mail ✗ (refused)" in text.replace("UTC:", "UTC :")
    assert "Silence 1 h" in text


def test_level_that_is_held_is_recovering_with_the_use_and_when_it_clears() -> None:
    """Without a time the use alone is the headline, and the reasons stand below it as before."""
    base = critical_gb10()
    kill = HeldSignal(
        Signal("oom_kill", Level.CRITICAL, "OOM killer: killed train.py (51210), 37.0 GiB anonymous"), 98.0, 130.0
    )
    held = Reason("oom_kill", add_age(kill, 100.0))
    verdict = Pressure("ram", Level.CRITICAL, Level.LOW, 0.66, (held,), clears_in_seconds=59.0, clears_to=Level.LOW)
    used = base.pools[0].used_bytes
    assert isinstance(used, int)
    use = ratio(used / base.pools[0].size_bytes)

    timed = read(replace(base, pressure=(verdict,))).text.replace("\xa0", " ")
    plain = read(replace(base, pressure=(replace(verdict, clears_in_seconds=Absent.NOT_AVAILABLE),))).text

    assert f"Recovering System RAM for 2 s {use}, OK in 59 s" in timed
    assert "OK in 59 s · OOM kill" not in timed
    assert "OOM kill 2 s ago: train.py" in timed
    assert f"Recovering System RAM for 2 s {use} used " in plain.replace("\xa0", " ")


def test_reasons_of_a_recovery_do_not_repeat_its_headline() -> None:
    """It was "66.0% used, OK in 9 s" with "66.0% used" below it."""
    base = critical_gb10()
    used = base.pools[0].used_bytes
    assert isinstance(used, int)
    use = ratio(used / base.pools[0].size_bytes)
    held = Reason("util", f"{use} used; calm for 8 s; medium clears after 30 s below 57%")
    verdict = Pressure(
        "ram", Level.CRITICAL, Level.LOW, 0.66, (held,), clears_in_seconds=9.0, clears_to=Level.MEDIUM
    )

    page = read(replace(base, pressure=(verdict,)))

    assert f"{use}, medium in 9 s OK after 30 s below 57% " in " ".join(page.text.replace("\xa0", " ").split())
    assert "reason" not in page.values("class")
    assert "status-do-clears" not in page.values("id")


@pytest.mark.parametrize(
    "snapshot",
    [calm_workstation(), at(Level.MEDIUM, 0.66), at(Level.HIGH, 0.85, TRAIN), critical_gb10()],
    ids=("ok", "medium", "high", "critical"),
)
def test_every_step_has_an_id_of_its_own(snapshot: Snapshot) -> None:
    """Without one, an update makes the reasons out of a step, which is a move across the line."""
    page = Pages(alerting=AlertView).page("overview", snapshot).decode()
    steps = page.partition('class="do-steps">')[2].partition('<div class="do-told">')[0]
    own = re.sub(r'<ul class="why-text">.*?</ul>', "", steps, flags=re.DOTALL)
    ids = re.findall(r'<li id="(status-do-[\w-]+)"', own)

    assert len(ids) == own.count("<li")
    assert len(set(ids)) == len(ids) >= 1


def test_holders_have_the_column_of_gpu_memory_on_every_machine_with_a_gpu() -> None:
    """It does not come and go with the processes that hold some: the other columns would move."""
    base = critical_gb10()
    none = replace(base, processes=tuple(replace(one, device_bytes={}) for one in base.processes))

    assert "of it GPU" in read(base).text
    assert "of it GPU" in read(none).text
    assert "of it GPU" not in read(calm_workstation()).text
