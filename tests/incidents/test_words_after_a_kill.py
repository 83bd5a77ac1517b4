"""Words about processes during scripted incidents: one that has ended is not called growing, by any display."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from memwatch.client.terminal.frame import View
from memwatch.client.terminal.moment import Moment
from memwatch.client.terminal.pages import render
from memwatch.client.terminal.state import State
from memwatch.client.terminal.style import plain
from memwatch.monitor.loop import Monitor
from memwatch.processes.growth import ProcessGrowth
from memwatch.render.json import grown_json, snapshot_json, to_bytes
from memwatch.render.status_line import GROWTH_SECONDS, build_status_line
from memwatch.snapshot import Snapshot
from support.incident_player import Player, Scenario
from support.incident_scenarios import SCENARIOS

NAMES = [one.name for one in SCENARIOS]
# `memwatch top` asks for growth at this interval.
ASK_SECONDS = 5


class EndedPlayer(Player):
    """A player whose machine reports the ends of processes as they happen, as pidfds do."""

    def tick(self, second: float) -> None:
        for at, pid, _ in self._due(self.script.ends, second):
            start = next(
                (one.process(0.0) or one.process(at) for one in self.script.actors if one.pid == pid), None
            )
            if start is not None and self.monitor.incidents.ends is not None:
                self.monitor.incidents.ends.ended[pid] = start.start_time
        super().tick(second)


def ticks_of(script: Scenario) -> Iterator[tuple[float, Monitor, Snapshot]]:
    player, second = EndedPlayer(script), 0.0
    while second <= script.seconds + 30.0:
        player.tick(second)
        assert player.monitor.latest is not None
        yield second, player.monitor, player.monitor.latest
        second += script.step


def ended_pids(script: Scenario, snapshot: Snapshot, second: float) -> set[int]:
    """Return the processes that are known to have ended: killed, reported, or no more in the newest list."""
    log = snapshot.kernel_log
    killed = {kill.pid for kill in getattr(log, "kills", ())}
    reported = {pid for at, pid, _ in script.ends if at <= second}
    listed = {process.pid for process in snapshot.processes}
    return {one.pid for one in script.actors if one.pid in killed | reported or one.pid not in listed}


def grown_since(monitor: Monitor, snapshot: Snapshot, seconds: float) -> list[ProcessGrowth]:
    return monitor.growth.since(monitor.growth.boottime - seconds, snapshot.unix - seconds)


@pytest.mark.parametrize("script", SCENARIOS, ids=NAMES)
def test_process_that_has_ended_is_not_called_growing(script: Scenario) -> None:
    """By the status line of the pages, by the API, and by `memwatch top`, whose growth is up to 5 s older."""
    asked: dict[int, Any] = {}
    for second, monitor, snapshot in ticks_of(script):
        gone = ended_pids(script, snapshot, second)
        grown = grown_since(monitor, snapshot, GROWTH_SECONDS)
        if int(second) % ASK_SECONDS == 0:
            asked = {
                one.process.pid: json.loads(
                    to_bytes(grown_json(one, monitor.growth.growth_by_window(one.process), 0.0))
                )
                for one in grown_since(monitor, snapshot, 600.0)
            }

        status = build_status_line(snapshot, (), grown)
        assert status.grower is None or status.grower.process.pid not in gone, second
        assert not {one.process.pid for one in grown} & gone, second
        if not gone & asked.keys():
            continue
        sent = json.loads(to_bytes(snapshot_json(snapshot)))
        view = View(Moment(sent, growth=asked), State(), 150, 40, snapshot.unix, has_colour=False)
        shown = " ".join(plain(line) for line in render(view).lines if "↑" in plain(line))
        assert not [pid for pid in gone if f" {pid} +" in shown], second


@pytest.mark.parametrize("name", ["unit at its limit, full since its start an hour ago", "kill -9 by hand"])
def test_growing_process_is_named_until_it_is_killed(name: str) -> None:
    """One kill is in the kernel's log, the other reported by a pidfd. Else the test above could not fail."""
    script = next(one for one in SCENARIOS if one.name == name)
    killed_at = min([at for at, _ in script.kernel] + [at for at, _, _ in script.ends])
    named = [
        second
        for second, monitor, snapshot in ticks_of(script)
        for status in [build_status_line(snapshot, (), grown_since(monitor, snapshot, GROWTH_SECONDS))]
        if status.grower and status.grower.process.pid == script.truth.victim
    ]

    assert named
    assert killed_at - 1.0 <= max(named) < killed_at
