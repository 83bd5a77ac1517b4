"""Raw process lists of a GPU or a MIG device."""

from __future__ import annotations

from functools import partial

from memwatch.core.drivers.nvml.binding import Handle, ProcessListBuffer
from memwatch.core.drivers.nvml.errors import GPU_WIDE, HANDLE_GONE
from memwatch.core.drivers.nvml.query import Query
from memwatch.core.drivers.nvml.validation import Row, join_lists
from memwatch.core.model import Absent


class ProcessLists:
    """Compute and graphics processes. `mps` is separate: it is read every time only where MPS is in use."""

    def __init__(self, handle: Handle, roster: ProcessListBuffer, codes: dict[str, int], prefix: str = "") -> None:
        def ask(word: str, function: str) -> Query[list[Row]]:
            name = f"{prefix}{word}_processes"
            return Query(
                codes,
                (f"{name}_v3", partial(roster.v3, f"{function}_v3", handle)),
                (f"{name}_v2", partial(roster.v3, f"{function}_v2", handle)),
                (name, partial(roster.v1, function, handle)),
                fatal=GPU_WIDE | HANDLE_GONE,
            )

        self._compute = ask("compute", "nvmlDeviceGetComputeRunningProcesses")
        self._graphics = ask("graphics", "nvmlDeviceGetGraphicsRunningProcesses")
        self.mps: Query[list[Row]] = ask("mps", "nvmlDeviceGetMPSComputeRunningProcesses")

    def rows(self) -> list[Row] | Absent:
        return join_lists((self._compute.ask(), self._graphics.ask()))
