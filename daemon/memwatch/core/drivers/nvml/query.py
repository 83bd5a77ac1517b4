"""A value that is read from NVML repeatedly: by the newest call that works, and not again once unsupported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from memwatch.core.drivers.nvml.errors import GPU_WIDE, OTHER_FORM, Code, NvmlError, absent_reason
from memwatch.core.model import Absent

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
