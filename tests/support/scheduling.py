"""Distribution of the tests to workers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import groupby

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class Scheduling(LoadScopeScheduling):
    """Give each idle worker the next file, in collection order: its tests share a daemon or a browser.

    Tests that were moved to the end of the run, away from others of their file, are given one by one.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test in which a worker crashed. Others get those that it had left, but not this one again."""
        units = self.assigned_work.get(node, {})
        left = ((scope, test) for scope, tests in units.items() for test, is_over in tests.items() if not is_over)
        crashed: tuple[str, str] | None = next(left, None)
        if crashed:
            units[crashed[0]][crashed[1]] = True
            for scope in [scope for scope, tests in units.items() if all(tests.values())]:
                del units[scope]  # a worker that is given nothing to do waits forever
        super().remove_node(node)
        return crashed[1] if crashed else None

    def schedule(self) -> None:
        """Give a new worker, in place of a crashed one, two files: it keeps its last test until it has more."""
        has_begun = self.collection is not None
        super().schedule()
        if has_begun:
            for node in self.nodes:
                self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes[nodeid]

    @cached_property
    def _scopes(self) -> dict[str, str]:
        return scopes_of(self.collection or ())


def scopes_of(nodeids: Iterable[str]) -> dict[str, str]:
    """Return the file of each test, or the test itself if others were collected since this file began."""
    scopes: dict[str, str] = {}
    files = set()
    for file, tests in groupby(nodeids, lambda nodeid: nodeid.partition("::")[0]):
        scopes |= {one: one if file in files else file for one in tests}
        files.add(file)
    return scopes
