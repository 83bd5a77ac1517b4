"""Helper process that calls AMD's library amdsmi: its import may fail in any way, and its calls may hang.

`python -m memwatch.core.drivers.amd.smi_child` reads commands from stdin and writes one response line per command
to stdout: `reading {...}` or `failure {...}`. The only command is `read`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from memwatch.core.drivers.amd.smi import (
    SmiFailure,
    SmiGpu,
    SmiReading,
    parse_bad_pages,
    parse_errors,
    parse_pci,
    parse_processes,
    parse_vram_type,
    rocm_folder,
)
from memwatch.core.helper.bootstrap import bootstrap, write_all
from memwatch.core.helper.codec import LineEncoder

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


class AmdSmiError(Exception):
    """A call of the library failed, with its return code if there is one."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.code = code


class Library:
    """The imported package amdsmi. Everything that it raises is converted to `AmdSmiError`."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401  a package that may be of any version
        self._module = module
        self._given_up: dict[tuple[str, str], int] = {}

    def read(self) -> SmiReading:
        handles = self.call("amdsmi_get_processor_handles")
        gpus = [(parse_pci(self.call("amdsmi_get_gpu_device_bdf", handle)), handle) for handle in handles]
        return SmiReading(tuple(self._gpu(pci, handle) for pci, handle in gpus if pci is not None))

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function. Every failure, including a missing function, raises `AmdSmiError`."""
        try:
            return getattr(self._module, name)(*arguments)
        except Exception as error:  # noqa: BLE001  KeyError, AttributeError and OSError all occur
            code = getattr(error, "err_code", None)
            raise AmdSmiError(code if isinstance(code, int) else None, describe_error(error)) from None

    def _gpu(self, pci: str, handle: Any) -> SmiGpu:  # noqa: ANN401
        codes: dict[str, int] = {}
        results = {question: self._query(pci, question, handle, codes) for question in QUESTIONS}
        return SmiGpu(
            pci,
            parse_vram_type(results["vram"]),
            parse_errors(results["ecc"]) | parse_bad_pages(results["bad_pages"]),
            parse_processes(results["processes"]),
            codes,
        )

    def _query(self, pci: str, question: str, handle: Any, codes: dict[str, int]) -> Any:  # noqa: ANN401
        if (pci, question) in self._given_up:
            codes[question] = self._given_up[pci, question]
            return None
        try:
            return self.call(QUESTIONS[question], handle)
        except AmdSmiError as rejected:
            codes[question] = -1 if rejected.code is None else rejected.code
            if rejected.code in _NEVER_AGAIN:
                self._given_up[pci, question] = rejected.code
            return None


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200].replace("\n", " ")


def open_library() -> Library | SmiFailure:
    """Import and initialize the library. ROCm installs its package outside Python's search path."""
    sys.path.append(os.path.join(rocm_folder(os.environ), "share/amd_smi"))
    try:
        library = Library(importlib.import_module(PACKAGE))
    except (Exception, SystemExit) as error:  # noqa: BLE001  all of them occur, see `call`
        return SmiFailure("no_library", f"{PACKAGE} cannot be imported ({describe_error(error)})")
    try:
        library.call("amdsmi_init")
    except AmdSmiError as rejected:
        if rejected.code == NO_DRIVER:
            return SmiFailure("no_driver", f"{PACKAGE} reports that the amdgpu driver is not loaded")
        return SmiFailure("failed", f"{PACKAGE} cannot be initialized ({rejected})")
    return library


class Session:
    """The library, opened with the first command."""

    def __init__(self) -> None:
        self._library: Library | None = None

    def read(self) -> SmiReading | SmiFailure:
        if self._library is None:
            found = open_library()
            if isinstance(found, SmiFailure):
                return found
            self._library = found
        try:
            return self._library.read()
        except AmdSmiError as rejected:
            return SmiFailure("failed", f"{PACKAGE} cannot list GPUs ({rejected})")


def serve(commands: BinaryIO, answer: Callable[[bytes], None], read: Callable[[], SmiReading | SmiFailure]) -> None:
    speaker = LineEncoder()
    for command in iter(commands.readline, b""):
        found = read() if command == b"read\n" else SmiFailure("failed", "the only command is 'read'")
        answer((b"reading " if isinstance(found, SmiReading) else b"failure ") + speaker.encode(found))


def main() -> int:
    answers = bootstrap()
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
