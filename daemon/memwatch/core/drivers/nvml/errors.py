"""NVML return codes, the reason each gives for a missing value, and queries that act on them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

from memwatch.core.drivers.nvml.records import NvmlFailure
from memwatch.core.model import Absent


class Code(IntEnum):
    """Return codes of nvml.h (API v13). Those that are not handled individually mean "not available"."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


_CODES = frozenset(Code)
# The whole library is unusable.
LIBRARY_WIDE = frozenset((Code.UNINITIALIZED, Code.LIB_RM_VERSION_MISMATCH))
# One GPU is unusable, for every call.
GPU_WIDE = frozenset((Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.GPU_NOT_FOUND)) | LIBRARY_WIDE
# The same, if the call's only argument is the handle: its device no longer exists.
HANDLE_GONE = frozenset((Code.INVALID_ARGUMENT, Code.NOT_FOUND))
# A GPU that gives no handle for one of these does not work: the driver has no better word for one that is off the
# bus when it starts (open-gpu-kernel-modules#387, dcgm-exporter#604).
NO_HANDLE = frozenset((Code.UNKNOWN, Code.IRQ_ISSUE, Code.INSUFFICIENT_POWER))
# The driver is older or newer than this version of the call. An older version may work.
OTHER_FORM = frozenset((Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED))

_REASONS: dict[int, Absent] = {
    Code.NOT_SUPPORTED: Absent.NOT_SUPPORTED,
    Code.NO_PERMISSION: Absent.NOT_PERMITTED,
    Code.OPERATING_SYSTEM: Absent.NOT_PERMITTED,
    **dict.fromkeys(OTHER_FORM, Absent.NOT_SUPPORTED),
}
_FAILURES: dict[int, tuple[str, str]] = {
    Code.LIBRARY_NOT_FOUND: ("no_library", "libnvidia-ml.so.1 cannot be loaded: no NVIDIA driver is installed"),
    Code.DRIVER_NOT_LOADED: ("no_driver", "the NVIDIA kernel driver is not loaded; `modprobe nvidia` loads it"),
    Code.LIB_RM_VERSION_MISMATCH: (
        "needs_new_process",
        "the NVIDIA kernel driver has another version than the library in this process, as after an upgrade",
    ),
}


class NvmlError(Exception):
    """An NVML call failed with `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(name_of(code))
        self.code = code


def name_of(code: int) -> str:
    """Return the name of a return code in nvml.h: "NVML_ERROR_NOT_SUPPORTED"."""
    return f"NVML_ERROR_{Code(code).name}" if code in _CODES else f"NVML error {code}"


def absent_reason(code: int) -> Absent:
    """Return why a value is missing, from the return code of its call."""
    return _REASONS.get(code, Absent.NOT_AVAILABLE)


def build_failure(code: int) -> NvmlFailure:
    """Return the failure for a code that concerns the library as a whole."""
    reason, text = _FAILURES.get(code, ("failed", "NVML failed"))
    return NvmlFailure(reason, f"{text} ({name_of(code)})", code)


T = TypeVar("T")


class Query(Generic[T]):
    """A value and the calls (`forms`) that can return it, each with its name, newest first.

    An unsupported call is not repeated. `codes` holds the return code of each call that failed; the entry is
    removed when the call works again. Codes in `fatal` do not concern the value alone: they are raised.
    """

    def __init__(
        self,
        codes: dict[str, int],
        *forms: tuple[str, Callable[[], T]],
        fatal: frozenset[Code] = GPU_WIDE,
    ) -> None:
        self._codes = codes
        self._forms = list(forms)
        self._fatal = fatal

    def ask(self) -> T | Absent:
        while self._forms:
            name, form = self._forms[0]
            try:
                answer = form()
            except NvmlError as rejected:
                self._codes[name] = rejected.code
                if rejected.code in self._fatal:
                    raise
                if rejected.code not in OTHER_FORM:
                    return self._without(rejected.code)
                del self._forms[0]
            else:
                if name in self._codes:
                    del self._codes[name]
                return answer
        return Absent.NOT_SUPPORTED

    def _without(self, code: int) -> Absent:
        if code == Code.NOT_SUPPORTED:
            self._forms.clear()
        return absent_reason(code)
