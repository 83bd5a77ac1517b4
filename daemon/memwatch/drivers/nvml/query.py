"""One figure asked of NVML again and again: by its newest call, else by an older one, never where it is in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from memwatch.drivers.nvml.errors import GPU_WIDE, OTHER_FORM, Code, Refused, reason_of
from memwatch.model import Absent

T = TypeVar("T")


class Question(Generic[T]):
    """`forms`: the calls that can answer, each with its name, newest first.

    What is not supported is not asked a second time. `codes` collects, by call, why one did not work; a call that
    works again takes its entry back. Codes in `fatal` are not about the figure: they are raised.
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
            except Refused as refused:
                self._codes[name] = refused.code
                if refused.code in self._fatal:
                    raise
                if refused.code not in OTHER_FORM:
                    return self._without(refused.code)
                del self._forms[0]
            else:
                if name in self._codes:
                    del self._codes[name]
                return answer
        return Absent.NOT_SUPPORTED

    def _without(self, code: int) -> Absent:
        if code == Code.NOT_SUPPORTED:
            self._forms.clear()
        return reason_of(code)
