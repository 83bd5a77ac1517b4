"""NUMA nodes that are a GPU's memory, as on GH200 and GB200: /proc/meminfo contains them, and System RAM does not.

For the kernel such a node is like other memory without CPUs (CXL, HBM of a CPU). The reading of the machine, in
which a GPU's driver names its node, decides. Its nodes are kept, and their files are read with each figure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.core.collectors.numa import parse_node
from memwatch.core.linux.files import KeptFile, ParseError
from memwatch.core.model import Pool, Quality, find_system_ram
from memwatch.library.program_safety import never_raise

if TYPE_CHECKING:
    from memwatch.core.snapshot import Node

# Source of the pool of a GPU that is a NUMA node.
NODE_SOURCE = re.compile(r"sysfs:node(\d+)/meminfo")
# While a GPU is there whose memory is not told from System RAM, as its driver has not answered, the machine is read
# again at this interval, as it delays a step.
RETRY_SECONDS = 600.0
NODE_BYTES = 4096


class GpuNodes:
    """The nodes among `numbers`, which have no CPUs, that are a GPU's memory. `find`: pools of this machine."""

    def __init__(
        self,
        folder: Path,
        numbers: Sequence[int],
        find: Callable[[], Sequence[Pool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._numbers = frozenset(numbers)
        self._find = find
        self._clock = clock
        self._due = 0.0
        self._is_known = False
        self._files: dict[int, KeptFile] = {}

    @property
    def is_decided(self) -> bool:
        """False while a GPU is there whose memory may be one of these nodes."""
        return self._due == inf

    @never_raise(None)
    def read(self) -> list[Node] | None:
        """Return the nodes with current figures, None if they are not known or cannot be read."""
        if self._due <= self._clock():
            self._look()
        if not self._is_known:
            return None
        try:
            return [parse_node(number, file.read(), b"") for number, file in self._files.items()]
        except (OSError, ParseError):
            return None

    def _look(self) -> None:
        self._due = self._clock() + RETRY_SECONDS
        self.learn(self._find())

    def learn(self, pools: Sequence[Pool]) -> None:
        """Take the nodes from a reading of this machine, if they are not known yet."""
        if self.is_decided:
            return
        named = {int(found[1]) for pool in pools if (found := NODE_SOURCE.fullmatch(pool.source))}
        for number in sorted(named & self._numbers):
            with suppress(OSError):
                self._files[number] = KeptFile(self._folder / f"node{number}/meminfo", NODE_BYTES)
        ram = find_system_ram(pools)
        if self._files or (ram is not None and ram.quality is not Quality.ESTIMATED):
            self._due = inf
        self._is_known = True
