"""Temperature, power, clocks, throttling and utilization of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_ulonglong
from functools import partial
from typing import Any

from msgspec import Struct

from memwatch.core.drivers.nvml import binding
from memwatch.core.drivers.nvml.query import Query
from memwatch.core.drivers.nvml.rotation import Rotation
from memwatch.core.drivers.nvml.validation import AnswerValidator
from memwatch.core.model import MAX_CELSIUS, MAX_WATTS, Absent, Vitals

MAX_PERCENT = 100

# nvmlClocksEventReasons: what lowers the clocks. Left out are the bits for an idle GPU (0x1) and for clocks that an
# administrator, an application or a display has set (0x2, 0x10, 0x100), which are no throttling.
THROTTLE_REASONS: Mapping[int, str] = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x200: "board_limit",
    0x400: "reliability",
}
# The driver sets hw_slowdown together with its cause, if it knows the cause.
CAUSES_OF_HW_SLOWDOWN = {"hw_thermal", "power_brake"}


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the reasons that a mask of NVML names, without those that another one explains."""
    words = [word for bit, word in THROTTLE_REASONS.items() if mask & bit]
    explained = CAUSES_OF_HW_SLOWDOWN.intersection(words)
    return tuple(word for word in words if word != "hw_slowdown" or not explained)


class GpuVitals(Struct, frozen=True):
    """Values of one turn. The utilization is that of the GPU and of its memory."""

    vitals: Vitals = Vitals.absent(Absent.NOT_AVAILABLE)
    busy_ratio: float | Absent = Absent.NOT_AVAILABLE
    memory_busy_ratio: float | Absent = Absent.NOT_AVAILABLE


class VitalFields(Rotation):
    """The values of the last complete turn.

    They are published together: a value that changes makes the whole answer differ, and an answer that differs is
    decoded and accounted again. Eight GPUs take a fifth of a tick for that.
    """

    def __init__(
        self, handle: binding.Handle, codes: dict[str, int], validator: AnswerValidator, period_seconds: float
    ) -> None:
        read_number, reasons = partial(binding.number, kind=c_ulonglong), "nvmlDeviceGetCurrentClocks"
        forms: dict[str, tuple[tuple[str, Any], ...]] = {
            "temperature": (
                ("temperature_v1", partial(binding.temperature, handle)),
                ("temperature", partial(binding.temperature_v0, handle)),
            ),
            "power": (("power", partial(binding.number, "nvmlDeviceGetPowerUsage", handle)),),
            "sm": (("sm_clock", partial(binding.clock_hertz, handle, binding.SM_CLOCK)),),
            "memory": (("memory_clock", partial(binding.clock_hertz, handle, binding.MEMORY_CLOCK)),),
            "throttled": (
                ("clocks_event_reasons", partial(read_number, f"{reasons}EventReasons", handle)),
                ("throttle_reasons", partial(read_number, f"{reasons}ThrottleReasons", handle)),
            ),
            "utilization": (("utilization", partial(binding.utilization_percent, handle)),),
        }
        super().__init__([(name, Query(codes, *some)) for name, some in forms.items()], period_seconds)
        self._validator = validator
        self.latest: GpuVitals = GpuVitals()

    def ask(self, now: float) -> None:
        super().ask(now)
        if self.is_complete:
            self.latest = self._build()

    def _build(self) -> GpuVitals:
        found, check = self.values, self._validator.figure
        milliwatts, mask, rates = (
            check("power", found["power"], MAX_WATTS * 1000),
            found["throttled"],
            found["utilization"],
        )
        vitals = Vitals(
            temperature_celsius=check("temperature", found["temperature"], MAX_CELSIUS),
            power_watts=milliwatts if isinstance(milliwatts, Absent) else milliwatts / 1000,
            clock_hertz=_known_clocks(found["sm"], found["memory"]),
            throttled=mask if isinstance(mask, Absent) else throttle_reasons(mask),
        )
        both = (rates, rates) if isinstance(rates, Absent) else rates
        busy = [check("utilization", rate, MAX_PERCENT) for rate in both]
        return GpuVitals(vitals, *[rate if isinstance(rate, Absent) else rate / 100 for rate in busy])


def _known_clocks(sm: int | Absent, memory: int | Absent) -> Mapping[str, int] | Absent:
    known = {name: hertz for name, hertz in (("sm", sm), ("memory", memory)) if not isinstance(hertz, Absent)}
    return known or (sm if isinstance(sm, Absent) else Absent.NOT_AVAILABLE)
