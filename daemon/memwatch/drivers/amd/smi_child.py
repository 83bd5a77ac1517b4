"""Helper process that calls AMD's library amdsmi: its import may fail in any way, and its calls may hang.

`python -m memwatch.drivers.amd.smi_child` reads commands from stdin and writes one response line per command to
stdout: `reading {...}` or `failure {...}`. The only command is `read`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from memwatch.drivers.amd.smi import (
    SmiFailure,
    SmiGpu,
    SmiReading,
    bad_pages_of,
    errors_of,
    pci_of,
    processes_of,
    vram_type_of,
)
from memwatch.helper.bootstrap import settle_in, write_all
from memwatch.helper.codec import Speaker

PACKAGE = "amdsmi"
NOT_SUPPORTED, NOT_YET_IMPLEMENTED, NO_DATA, NO_DRIVER = 2, 3, 40, 34
# A query that a GPU does not support is not repeated: some of these calls write to the kernel log.
_NEVER_AGAIN = frozenset({NOT_SUPPORTED, NOT_YET_IMPLEMENTED, NO_DATA})
# Queries for each GPU. None is about memory sizes: on an MI300A that would open /dev/kfd (fixed in ROCm 7.12).
QUESTIONS = {
    "ecc": "amdsmi_get_gpu_total_ecc_count",
    "bad_pages": "amdsmi_get_gpu_bad_page_info",
    "vram": "amdsmi_get_gpu_vram_info",
    "processes": "amdsmi_get_gpu_process_list",
}


class Refused(Exception):
    """A call of the library failed, with its return code if there is one."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.code = code


class Library:
    """The imported package amdsmi. Everything that it raises is converted to `Refused`."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401  a package that may be of any version
        self._module = module
        self._given_up: dict[tuple[str, str], int] = {}

    def read(self) -> SmiReading:
        handles = self.call("amdsmi_get_processor_handles")
        gpus = [(pci_of(self.call("amdsmi_get_gpu_device_bdf", handle)), handle) for handle in handles]
        return SmiReading(tuple(self._gpu(pci, handle) for pci, handle in gpus if pci is not None))

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function. Every failure, including a missing function, raises `Refused`."""
        try:
            return getattr(self._module, name)(*arguments)
        except Exception as error:  # noqa: BLE001  KeyError, AttributeError and OSError all occur
            code = getattr(error, "err_code", None)
            raise Refused(code if isinstance(code, int) else None, sentence_of(error)) from None

    def _gpu(self, pci: str, handle: Any) -> SmiGpu:  # noqa: ANN401
        codes: dict[str, int] = {}
        results = {question: self._query(pci, question, handle, codes) for question in QUESTIONS}
        return SmiGpu(
            pci,
            vram_type_of(results["vram"]),
            errors_of(results["ecc"]) | bad_pages_of(results["bad_pages"]),
            processes_of(results["processes"]),
            codes,
        )

    def _query(self, pci: str, question: str, handle: Any, codes: dict[str, int]) -> Any:  # noqa: ANN401
        if (pci, question) in self._given_up:
            codes[question] = self._given_up[pci, question]
            return None
        try:
            return self.call(QUESTIONS[question], handle)
        except Refused as refused:
            codes[question] = -1 if refused.code is None else refused.code
            if refused.code in _NEVER_AGAIN:
                self._given_up[pci, question] = refused.code
            return None


def sentence_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200].replace("\n", " ")


def opened() -> Library | SmiFailure:
    """Import and initialize the library. ROCm installs its package outside Python's search path."""
    sys.path.append(os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "share/amd_smi"))
    try:
        library = Library(importlib.import_module(PACKAGE))
    except (Exception, SystemExit) as error:  # noqa: BLE001  all of them occur, see `call`
        return SmiFailure("no_library", f"{PACKAGE} cannot be imported ({sentence_of(error)})")
    try:
        library.call("amdsmi_init")
    except Refused as refused:
        if refused.code == NO_DRIVER:
            return SmiFailure("no_driver", f"{PACKAGE} reports that the amdgpu driver is not loaded")
        return SmiFailure("failed", f"{PACKAGE} cannot be initialized ({refused})")
    return library


class Session:
    """The library, opened with the first command."""

    def __init__(self) -> None:
        self._library: Library | None = None

    def read(self) -> SmiReading | SmiFailure:
        if self._library is None:
            found = opened()
            if isinstance(found, SmiFailure):
                return found
            self._library = found
        try:
            return self._library.read()
        except Refused as refused:
            return SmiFailure("failed", f"{PACKAGE} cannot list GPUs ({refused})")


def serve(commands: BinaryIO, answer: Callable[[bytes], None], read: Callable[[], SmiReading | SmiFailure]) -> None:
    speaker = Speaker()
    for command in iter(commands.readline, b""):
        found = read() if command == b"read\n" else SmiFailure("failed", "the only command is 'read'")
        answer((b"reading " if isinstance(found, SmiReading) else b"failure ") + speaker.line_of(found))


def main() -> int:
    answers = settle_in()
    quiet()
    try:
        serve(sys.stdin.buffer, lambda line: write_all(answers, line), Session().read)
    except BrokenPipeError:
        return 0
    return 0


def quiet() -> None:
    """Discard stdout and stderr: the library prints errors that it also raises, some of them on every call."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    sys.exit(main())
