"""Values of a GPU that rarely change: each read about every 30 s."""

from __future__ import annotations

from functools import partial
from typing import Any

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.query import Query
from memwatch.core.drivers.nvml.records import Ecc
from memwatch.core.drivers.nvml.rotation import Rotation
from memwatch.core.drivers.nvml.validation import Row
from memwatch.core.model import Absent, Bytes, Words


# On an H100 (driver 580.159) bar1 and mig_mode take 120 to 160 µs each, a round trip to the firmware, and mps and
# remapped_rows 2 to 16 µs. Memory and two process lists, which are read each time, take 18 to 55 µs, and the vitals
# 1 to 2 µs each.
class SlowFields(Rotation):
    """The latest values, each at most `period_seconds` old if readings are frequent enough for one call each.

    `mps` is the list of MPS clients. Once it is not empty, the caller reads it every time until it is empty again.
    """

    def __init__(
        self, handle: binding.Handle, codes: dict[str, int], mps: Query[list[Row]], period_seconds: float
    ) -> None:
        self.ecc: Ecc = Ecc()

        def question(name: str, form: Any) -> tuple[str, Query[Any]]:  # noqa: ANN401
            return name, Query(codes, (name, form))

        super().__init__(
            (
                question("bar1", partial(binding.bar1_size, handle)),
                question("mig_mode", partial(binding.mig_enabled, handle)),
                ("mps", mps),
                question("ecc_corrected", partial(binding.ecc_errors, handle, False)),
                question("ecc_uncorrected", partial(binding.ecc_errors, handle, True)),
                question("remapped_rows", partial(binding.remapped_rows, handle)),
                question("recovery_action", partial(binding.recovery_action, handle)),
                question("device_count", partial(binding.number, "nvmlDeviceGetCount_v2")),
            ),
            period_seconds,
        )

    @property
    def bar1_bytes(self) -> Bytes:
        return self._value("bar1")  # type: ignore[no-any-return]

    @property
    def mig_enabled(self) -> bool | Absent:
        return self._value("mig_mode")  # type: ignore[no-any-return]

    @property
    def mps(self) -> list[Row] | Absent:
        return self._value("mps")  # type: ignore[no-any-return]

    @property
    def recovery_action(self) -> Words:
        return self._value("recovery_action")  # type: ignore[no-any-return]

    @property
    def device_count(self) -> int | Absent:
        return self._value("device_count")  # type: ignore[no-any-return]

    def ask(self, now: float) -> None:
        super().ask(now)
        errors = (self._value("ecc_corrected"), self._value("ecc_uncorrected"))
        rows = self._value("remapped_rows")
        self.ecc = Ecc(*errors, *([rows] * 4 if isinstance(rows, Absent) else rows))

    def _value(self, name: str) -> Any:  # noqa: ANN401
        return self.values.get(name, Absent.NOT_AVAILABLE)
