"""Daemons that the tests of a worker share because they only read: one for each demo.

A demo takes about a second of CPU time until it answers, as it first plays a whole round. A test that changes such
a daemon would disturb others, so it fails: see `changes_of`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from support.daemon_process import RunningDaemon, running_daemon
from support.open_things import kept_open

# Events of requests that change a daemon. A demo has none of them.
CHANGES = frozenset({"mark", "silence", "lease", "release", "test"})


class SharedDaemons:
    """Daemons by the name of their demo, each started at its first use and kept until the end of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[RunningDaemon, ExitStack]] = {}
        self._used: set[str] = set()

    def demo(self, name: str) -> RunningDaemon:
        """Return the daemon of a demo. The test must not change, stop or signal it."""
        self._used.add(name)
        if name not in self._running:
            stack = ExitStack()
            folder = self._folder / name
            folder.mkdir(exist_ok=True)
            with kept_open():
                self._running[name] = stack.enter_context(running_daemon(folder, "--demo", name)), stack
        return self._running[name][0]

    def take_changes(self) -> dict[str, list[str]]:
        """Return the changes of the daemons used since the last call, and end those that were changed."""
        used, self._used = self._used, set()
        found = {name: changes_of(self._running[name][0]) for name in sorted(used & self._running.keys())}
        changed = {name: changes for name, changes in found.items() if changes}
        for name in changed:
            self._running.pop(name)[1].close()
        return changed

    def close(self) -> None:
        for _, stack in self._running.values():
            stack.close()
        self._running.clear()


def changes_of(daemon: RunningDaemon) -> list[str]:
    """Return what requests have changed: events, silences and leases; or that the daemon has ended."""
    if daemon.process.poll() is not None:
        return ["it has ended"]
    events = [one["kind"] for one in daemon.get("/api/v1/events?limit=500").json if one["kind"] in CHANGES]
    silences = [one["id"] for one in daemon.get("/api/v1/silences").json]
    leases = [one["id"] for one in daemon.get("/api/v1/leases").json]
    return events + silences + leases
