"""What everybody found is added up once, and again when it was not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from memwatch.accounting.compose import Composer
from memwatch.findings import Findings
from memwatch.model import Pool
from memwatch.snapshot import Machine
from support.fakes import GIB, ram


class Pools(tuple[Pool, ...]):
    """There is no memory to go through them the first time."""

    __slots__ = ()
    left: ClassVar = [1]

    def __iter__(self) -> Iterator[Pool]:
        if self.left:
            self.left.pop()
            raise MemoryError
        return super().__iter__()


def test_what_could_not_be_added_up_is_added_up_the_next_time() -> None:
    """Collectors that say the same again are not looked through again, but for those of a tick that failed."""
    composer, machine = Composer(), Machine("workbench")
    findings = [Findings(pools=Pools([ram(GIB)])), Findings(machine=machine, cgroup_oom_kills_total=3)]

    with pytest.raises(MemoryError):
        composer.composed(findings)
    found = [composer.composed(findings) for _ in range(2)]

    assert [one.pools for one in found] == [(ram(GIB),)] * 2
    assert [(one.machine, one.cgroup_oom_kills_total) for one in found] == [(machine, 3)] * 2
