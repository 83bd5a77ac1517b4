"""Test that findings are composed once, and again after a failed attempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from memwatch.core.accounting.compose import Composer
from memwatch.core.findings import Findings
from memwatch.core.model import Pool
from memwatch.core.snapshot import Machine
from support.fakes import GIB, ram


class Pools(tuple[Pool, ...]):
    """Pools that raise MemoryError on the first iteration."""

    __slots__ = ()
    left: ClassVar = [1]

    def __iter__(self) -> Iterator[Pool]:
        if self.left:
            self.left.pop()
            raise MemoryError
        return super().__iter__()


def test_findings_are_composed_again_after_a_memory_error() -> None:
    """Unchanged findings are not composed again, except after a tick that failed."""
    composer, machine = Composer(), Machine("workbench")
    findings = [Findings(pools=Pools([ram(GIB)])), Findings(machine=machine, cgroup_oom_kills_total=3)]

    with pytest.raises(MemoryError):
        composer.compose(findings)
    composed = [composer.compose(findings) for _ in range(2)]

    assert [one.pools for one in composed] == [(ram(GIB),)] * 2
    assert [(one.machine, one.cgroup_oom_kills_total) for one in composed] == [(machine, 3)] * 2
