"""Distribution of the tests to workers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import groupby

from xdist.scheduler import LoadScopeScheduling


class Scheduling(LoadScopeScheduling):
    """Give each idle worker the next file, in collection order: its tests share a daemon or a browser.

    Tests that were moved to the end of the run, away from others of their file, are given one by one.
    """

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
