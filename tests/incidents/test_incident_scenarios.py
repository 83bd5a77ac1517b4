"""Scripted incidents with known answers, their titles, and the words of displays meanwhile.

Each script is played once for all: the cause, the killer and the victim are those of the script, and a process that
has ended is not called growing.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from msgspec import Struct

from memwatch.cli.terminal.frame import View
from memwatch.cli.terminal.moment import Moment
from memwatch.cli.terminal.pages import render
from memwatch.cli.terminal.state import State
from memwatch.cli.terminal.style import plain
from memwatch.core.processes.growth import ProcessGrowth
from memwatch.core.snapshot import Snapshot
from memwatch.core.snapshot_json import snapshot_from
from memwatch.core.wire import to_bytes
from memwatch.reporting.incidents import words
from memwatch.reporting.incidents.cause import NO_PROCESS
from memwatch.reporting.incidents.records import Incident
from memwatch.reporting.incidents.words import incident_json
from memwatch.reporting.render.json import snapshot_json
from memwatch_monitor.incidents.store import head_of
from memwatch_monitor.loop import Monitor
from memwatch_monitor.processes import GrowthWatch
from memwatch_monitor.render.owners_json import OWNERS, GrowthTimes
from memwatch_monitor.render.status_line import GROWTH_SECONDS, build_status_line
from scripts.reference import incident_samples
from support.incident_player import COMPLETE_SECONDS, Player, Scenario
from support.incident_scenarios import SCENARIOS
from support.monitors import incidents
from support.paths import ROOT

SCRIPTS = {one.name: one for one in SCENARIOS}
# The beginning of a script's name, and the title of its incident.
TITLES = {
    "GB10: available 29": "vllm filled System RAM in 9.0 s; the kernel killed gnome-shell",
    "GB10: 34.0 to 12.7": "python3 took 27.1 GiB of System RAM in 2.5 s so far",
    "18 GiB in 10 s": "VLLM::EngineCore took 18.0 GiB of System RAM in 10 s so far",
    "61.5 GiB of locked": "sglang took 61.0 GiB of System RAM in 30 s so far",
    "1 GiB machine": "hog filled System RAM in 2.8 s; the kernel killed it",
    "collapse between": "python3 filled System RAM in 1.5 s; the kernel killed chromium",
    "limit of a container: the trainer": (
        "python reached the limit of docker-1f6b2c3d4e5f.scope; the kernel killed it"
    ),
    "limit of a container: its small": "ollama reached the limit of 1f6b2c3d4e5f; the kernel killed sh",
    "unit at its limit": "immich reached the limit of immich.service; the kernel killed it",
    "systemd-oomd kills": "rustc took 24.0 GiB of System RAM in 20 s; systemd-oomd killed it",
    "earlyoom ends the process": "cluster took 23.0 GiB of System RAM in 20 s; earlyoom killed it",
    "earlyoom ends the browser": "llama-server took 23.9 GiB of System RAM in 20 s; earlyoom killed chromium",
    "nohang": "mysqld filled System RAM in 30 s; nohang killed it",
    "kubelet": "java took 35.0 GiB of System RAM in 25 s; the kubelet killed default/nginx",
    "docker stop": "vllm took 55.0 GiB of System RAM in 25 s; the container runtime killed it",
    "containerd": "worker reached the limit of 1f6b2c3d4e5f; the kernel killed it",
    "kill -9": "train.py filled System RAM in 25 s; an unknown sender killed it",
    "kernel log not": "blender filled System RAM in 20 s; the kernel killed a process",
    "PyTorch": "train.py took 18.0 GiB of gpu0 VRAM in 20 s; its own allocation failed",
    "another process": "comfyui filled gpu0 VRAM in 20 s; an allocation of ollama failed",
    "GPU falls": "NVIDIA RTX 4090 (gpu0) is lost (XID 79)",
    "livelock": "vllm filled System RAM in 12 s; the machine did not respond",
    "sixteen": "16 processes of 1f6b2c3d4e5f filled System RAM in 30 s; the kernel killed cc1plus",
    "leak": "node took 57.3 GiB of System RAM in 1 h so far",
    "the first container": "vllm filled System RAM in 15 s; the kernel killed comfyui",
    "undecided: two": "System RAM is critical; undecided between job-a and job-b",
    "undecided: the driver": "System RAM is critical; memory of no process grew",
    "undecided: full": "System RAM is critical; no process grew",
}
# `memwatch top` asks for growth at this interval.
ASK_SECONDS = 5
# Words are compared until so long after the end of a script.
WORDS_SECONDS = 30.0


class EndedPlayer(Player):
    """A player whose machine reports the ends of processes as they happen, as pidfds do.

    `named` has the process that the status line calls growing, by second, and `wrong` each display that names an
    ended process.
    """

    def __init__(self, script: Scenario) -> None:
        super().__init__(script)
        self.named: dict[float, int] = {}
        self.wrong: list[tuple[float, str]] = []
        self._asked: dict[int, Any] = {}

    def tick(self, second: float) -> None:
        for at, pid, _ in self._due(self.script.ends, second):
            start = next(
                (one.process(0.0) or one.process(at) for one in self.script.actors if one.pid == pid), None
            )
            ends = incidents(self.monitor).ended.ends
            if start is not None and ends is not None:
                ends.ended[pid] = start.start_time
        super().tick(second)
        assert self.monitor.latest is not None
        if second <= self.script.seconds + WORDS_SECONDS:
            self._read_words(second, self.monitor.latest)

    def _read_words(self, second: float, snapshot: Snapshot) -> None:
        """Read the status line of the pages, the API, and `memwatch top`, whose growth is up to 5 s older."""
        gone = ended_pids(self.script, snapshot, second)
        grown = grown_since(self.monitor, snapshot, GROWTH_SECONDS)
        if int(second) % ASK_SECONDS == 0:
            self._asked = {
                one.process.pid: asked(self.monitor, one) for one in self._grown_in_ten_minutes(snapshot)
            }
        status = build_status_line(snapshot, (), grown)
        if status.grower is not None:
            self.named[second] = status.grower.process.pid
        if self.named.get(second) in gone:
            self.wrong.append((second, "status line"))
        if {one.process.pid for one in grown} & gone:
            self.wrong.append((second, "API"))
        if gone & self._asked.keys():
            shown = top_of(snapshot, self._asked)
            self.wrong += [(second, "top") for pid in gone if f" {pid} +" in shown]

    def _grown_in_ten_minutes(self, snapshot: Snapshot) -> list[ProcessGrowth]:
        return grown_since(self.monitor, snapshot, 600.0)


class Played(Struct, frozen=True):
    """Result of a script: its incidents, and the words of displays, as in EndedPlayer."""

    incidents: list[Incident]
    named: dict[float, int]
    wrong: list[tuple[float, str]]


@cache
def played(name: str) -> Played:
    player = EndedPlayer(SCRIPTS[name])
    return Played(player.play(COMPLETE_SECONDS), player.named, player.wrong)


def ended_pids(script: Scenario, snapshot: Snapshot, second: float) -> set[int]:
    """Return the processes that are known to have ended: killed, reported, or no more in the newest list."""
    log = snapshot.kernel_log
    killed = {kill.pid for kill in getattr(log, "kills", ())}
    reported = {pid for at, pid, _ in script.ends if at <= second}
    listed = {process.pid for process in snapshot.processes}
    return {one.pid for one in script.actors if one.pid in killed | reported or one.pid not in listed}


def grown_since(monitor: Monitor, snapshot: Snapshot, seconds: float) -> list[ProcessGrowth]:
    return monitor.features.get(GrowthWatch).tracker.since(
        monitor.features.get(GrowthWatch).tracker.boottime - seconds, snapshot.unix - seconds
    )


def asked(monitor: Monitor, one: ProcessGrowth) -> Any:
    return json.loads(
        to_bytes(OWNERS.encode(one, GrowthTimes(0.0, monitor.features.get(GrowthWatch).tracker.growth_by_window)))
    )


def top_of(snapshot: Snapshot, growth: dict[int, Any]) -> str:
    """Return the lines of `memwatch top` that say what grows."""
    sent = snapshot_from(to_bytes(snapshot_json(snapshot)))
    view = View(Moment(sent, growth=growth), State(), 150, 40, snapshot.unix, has_colour=False)
    return " ".join(plain(line) for line in render(view).lines if "↑" in plain(line))


def expected(script: Scenario) -> Incident:
    """Return the incident of the script; of several the one of the expected kind."""
    found = played(script.name).incidents
    assert found, "no incident"
    wanted = [one for one in found if one.kind == script.truth.kind]
    assert wanted, [(one.kind, one.sentence) for one in found]
    return wanted[0]


def culprit_of(one: Incident) -> int | str | None:
    if one.cause is None:
        return None
    return one.cause.pid if one.cause.pid is not None else one.cause.container or one.cause.unit


def victim_of(one: Incident) -> int | str | None:
    if one.victim is None:
        return None
    return one.victim.pid if one.victim.pid is not None else one.victim.who


def test_page_of_the_samples_is_up_to_date() -> None:
    """It explains the same plays as the tests of this file, which take 5 s of CPU time."""
    page = ROOT / "docs/reference/incident-samples.md"

    assert page.read_text() == incident_samples.render(expected), "run: make reference"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripted_incident_is_explained(name: str) -> None:
    """The culprit, the killer and the victim are those of the script, and no wrong name is in any."""
    script = SCRIPTS[name]
    found = expected(script)

    assert culprit_of(found) == script.truth.culprit, found.sentence
    assert (found.killer.kind if found.killer else None) == script.truth.killer, found.sentence
    if script.truth.victim is not None:
        assert victim_of(found) == script.truth.victim, found.sentence
    assert found.evidence


def test_growth_before_a_long_creep_stays_explained() -> None:
    """The driver's memory grows for 20 s, then vllm by a few MiB: it was "no process grew" after two minutes."""
    (name,) = (one for one in SCRIPTS if "the driver's memory grows" in one)

    found = expected(SCRIPTS[name])

    assert [one.who for one in found.candidates][:1] == [NO_PROCESS]


@pytest.mark.parametrize("name", SCRIPTS)
def test_process_that_has_ended_is_not_called_growing(name: str) -> None:
    """By the status line of the pages, by the API, and by `memwatch top`."""
    assert played(name).wrong == []


@pytest.mark.parametrize("name", ["unit at its limit, full since its start an hour ago", "kill -9 by hand"])
def test_growing_process_is_named_until_it_is_killed(name: str) -> None:
    """One kill is in the kernel's log, the other reported by a pidfd. Else the test above could not fail."""
    script = SCRIPTS[name]
    killed_at = min([at for at, _ in script.kernel] + [at for at, _, _ in script.ends])
    named = [second for second, pid in played(name).named.items() if pid == script.truth.victim]

    assert named
    assert killed_at - 1.0 <= max(named) < killed_at


def test_every_script_has_its_title() -> None:
    expected = {name: title for name in SCRIPTS for part, title in TITLES.items() if name.startswith(part)}

    assert {name: words.write_title(played(name).incidents[0]) for name in SCRIPTS} == expected
    assert len(TITLES) == len(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_title_names_only_what_the_record_has(name: str) -> None:
    """Without a cause no process is the subject, and the title of the list is that of the whole record."""
    one = played(name).incidents[0]
    title = words.write_title(one)

    assert title == words.write_title(head_of(one)) == incident_json(one)["title"]
    assert one.id not in title
    assert one.cause is None or title.startswith(one.cause.who)
    if one.cause is None:
        assert not title.startswith(tuple(each.who for each in one.candidates) or "\0")
