"""Data that only AMD's library has: ECC errors, bad pages, memory type. A helper process calls it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

from memwatch.core.collectors.base import NOT_HERE, BaseCollector, Host
from memwatch.core.doc import Doc
from memwatch.core.drivers.amd import amdgpu_cards as cards
from memwatch.core.drivers.amd.smi import SmiFailure, SmiReading, rocm_folder
from memwatch.core.findings import Findings
from memwatch.core.helper.codec import DecodeError, from_line
from memwatch.core.helper.process import import_path, python_child
from memwatch.core.helper.supervisor import Helper, HelperError
from memwatch.core.linux.files import ParseError, Roots, SourceUnavailable
from memwatch.core.linux.pci import AMD, may_suspend, pci_vendors
from memwatch.core.options import Bounds, Duration, SwitchableOptions, seconds

CHILD = "memwatch.core.drivers.amd.smi_child"
DEADLINE_SECONDS = 10.0
PAUSE_SECONDS = 60.0
MAX_PAUSE_SECONDS = 3600.0


def is_installed(environ: Mapping[str, str], package: str = "amdsmi") -> bool:
    """Check if the package is installed. It is not imported here: that may fail in any way."""
    if PathFinder.find_spec(package, import_path()) is not None:
        return True
    return os.path.isdir(Path(rocm_folder(environ)) / "share/amd_smi" / package)


def parse_reading(answer: bytes) -> SmiReading | SmiFailure:
    kind, _, line = answer.partition(b" ")
    try:
        return from_line(SmiReading, line) if kind == b"reading" else from_line(SmiFailure, line)
    except DecodeError as error:
        raise ParseError(f"the helper process sent an invalid answer: {error}") from None


def to_exception(failure: SmiFailure) -> Exception:
    """A missing library or driver is normal; everything else is a failure."""
    return SourceUnavailable(failure.text) if failure.reason in NOT_HERE else ParseError(failure.text)


class Options(SwitchableOptions, frozen=True, kw_only=True):
    restart_after: Annotated[
        Duration,
        Bounds(seconds(1), seconds(3600)),
        Doc(
            "A helper process calls AMD's library, if it is installed. If it hangs or crashes, it is restarted as "
            "that of nvml. If the library reports a failure, it is tried again after this time, 1s to 1h, which "
            "doubles with each further failure."
        ),
    ] = seconds(PAUSE_SECONDS)


class Collector(BaseCollector):
    """Calls the library every 30 s, and only if no GPU may suspend: the library opens all GPUs, which wakes them.

    If the library or the driver is missing, it is tried again after a backoff that doubles each time.
    """

    name = "amdsmi"
    may_block = True
    options: type[Options] = Options

    def __init__(
        self,
        roots: Roots,
        pause_seconds: float = PAUSE_SECONDS,
        environ: Mapping[str, str] = os.environ,
        deadline_seconds: float = DEADLINE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if AMD not in pci_vendors(roots):
            raise SourceUnavailable("no AMD GPU on the PCI bus")
        if not is_installed(environ):
            raise SourceUnavailable("the Python package amdsmi is not installed")
        self._roots, self._monotonic = roots, monotonic
        self._first_pause = self._pause = pause_seconds
        self.period_seconds: float = min(30.0, pause_seconds)
        self._helper = Helper(python_child(CHILD), deadline_seconds, pause_seconds, dict(environ))
        self._absent: SmiFailure | None = None
        self._ask_again_at = self._released_until = 0.0

    @classmethod
    def create(cls, host: Host) -> Collector:
        return cls(host.roots, host.options_for(Options).restart_after.total_seconds())

    def collect(self) -> Findings:
        self._refuse_to_wake()
        if self._absent is not None and self._monotonic() < self._ask_again_at:
            raise to_exception(self._absent)
        try:
            found = parse_reading(self._helper.ask(b"read"))
        except HelperError as error:
            raise ParseError(str(error)) from None
        if isinstance(found, SmiFailure):
            self._give_up_for_now(found)
            raise to_exception(found)
        self._absent, self._pause = None, self._first_pause
        return Findings(amd_smi=found)

    def release(self, seconds: float) -> None:
        """Release the driver for that many seconds, starting with the next run. Thread-safe."""
        self._released_until = self._monotonic() + seconds

    def close(self) -> None:
        self._helper.stop(2.0)

    def _refuse_to_wake(self) -> None:
        if self._monotonic() < self._released_until:
            self._helper.stop()
            raise SourceUnavailable("the driver is released on request and will be reopened automatically")
        devices = self._roots.sysfs / "bus/pci/devices"
        for pci in cards.find(self._roots.sysfs / "class/drm").gpus:
            if may_suspend(devices / pci):
                self._helper.stop()
                raise SourceUnavailable("a GPU may suspend, and AMD's library would wake it")

    def _give_up_for_now(self, failure: SmiFailure) -> None:
        """Stop the helper: only a new process finds a library that is installed later."""
        self._helper.stop()
        self._absent = failure
        self._ask_again_at = self._monotonic() + self._pause
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)
