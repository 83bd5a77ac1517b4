"""Values of a GPU that rarely change: each read about every 30 s, one call per reading."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from memwatch.drivers.nvml import binding
from memwatch.drivers.nvml.query import Query
from memwatch.drivers.nvml.records import Ecc
from memwatch.drivers.nvml.validation import Row
from memwatch.model import Absent, Bytes, Words


class SlowFields:
    """The latest values, each at most `period_seconds` old if readings are frequent enough for one call each.

    `mps` is the list of MPS clients. Once it is not empty, the caller reads it every time until it is empty again.
    """

    def __init__(
        self, handle: binding.Handle, codes: dict[str, int], mps: Query[list[Row]], period_seconds: float
    ) -> None:
        self.bar1_bytes: Bytes = Absent.NOT_AVAILABLE
        self.mig_enabled: bool | Absent = Absent.NOT_AVAILABLE
        self.recovery_action: Words = Absent.NOT_AVAILABLE
        self.device_count: int | Absent = Absent.NOT_AVAILABLE
        self.mps: list[Row] | Absent = Absent.NOT_AVAILABLE
        self.ecc = Ecc()
        self._ecc_corrected: int | Absent = Absent.NOT_AVAILABLE
        self._ecc_uncorrected: int | Absent = Absent.NOT_AVAILABLE
        self._remapped: tuple[int, int, bool, bool] | Absent = Absent.NOT_AVAILABLE

        def ask(name: str, form: Any) -> Query[Any]:  # noqa: ANN401
            return Query(codes, (name, form))

        self._questions: deque[tuple[str, Query[Any]]] = deque(
            (
                ("bar1_bytes", ask("bar1", partial(binding.bar1_size, handle))),
                ("mig_enabled", ask("mig_mode", partial(binding.mig_enabled, handle))),
                ("mps", mps),
                ("_ecc_corrected", ask("ecc_corrected", partial(binding.ecc_errors, handle, False))),
                ("_ecc_uncorrected", ask("ecc_uncorrected", partial(binding.ecc_errors, handle, True))),
                ("_remapped", ask("remapped_rows", partial(binding.remapped_rows, handle))),
                ("recovery_action", ask("recovery_action", partial(binding.recovery_action, handle))),
                ("device_count", ask("device_count", partial(binding.number, "nvmlDeviceGetCount_v2"))),
            )
        )
        self._pause_seconds = period_seconds / len(self._questions)
        self._next_at: float | None = None

    def refresh(self, now: float) -> None:
        """Read all values the first time, then one value each time it is due."""
        if self._next_at is None:
            for _ in range(len(self._questions)):
                self._ask_next()
        elif now >= self._next_at:
            self._ask_next()
        else:
            return
        self._next_at = now + self._pause_seconds
        self.ecc = self._ecc()

    def expire(self) -> None:
        """Read all values at the next refresh."""
        self._next_at = None

    def _ask_next(self) -> None:
        name, question = self._questions[0]
        self._questions.rotate(-1)
        setattr(self, name, question.ask())

    def _ecc(self) -> Ecc:
        errors = (self._ecc_corrected, self._ecc_uncorrected)
        if isinstance(self._remapped, Absent):
            return Ecc(*errors, *[self._remapped] * 4)
        correctable, uncorrectable, pending, failed = self._remapped
        return Ecc(*errors, correctable, uncorrectable, pending, failed)
