"""Base class of collectors, and what they are made from."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field

from memwatch.findings import Findings
from memwatch.linux.files import Roots
from memwatch.linux.pci import GpuPids
from memwatch.options import SwitchableOptions

AnyOptions = TypeVar("AnyOptions", bound=Struct)


class ScanOptions(Struct, frozen=True):
    """Options of the collectors that list processes."""

    top: int = 50
    period_seconds: float = 10.0
    command_lines: bool = False


class Host(Struct, frozen=True):
    """The machine that collectors read, and what they share. `options` has records that users set, one a type."""

    roots: Roots = Roots()
    options: tuple[Struct, ...] = ()
    platform: str = sys.platform
    page_size: int = mmap.PAGESIZE
    gpu_pids: GpuPids = field(default_factory=GpuPids)

    def options_for(self, kind: type[AnyOptions]) -> AnyOptions:
        """Return the options of this type; the defaults where none were set."""
        return next((one for one in self.options if type(one) is kind), None) or kind()


class Collector(Protocol):
    """A running collector. `BaseCollector` says what each member means."""

    name: str
    period_seconds: float
    may_block: bool

    def collect(self) -> Findings: ...

    def close(self) -> None: ...


class BaseCollector:
    """Reads figures from one place. Subclasses set `name`, implement `collect`, and keep the other defaults or not.

    `name` is the word in metrics, on the page and in the configuration. `period_seconds` is the time between two
    calls of `collect`; 0 means every tick. `may_block` is true for a collector whose reads can wait for a process
    or a driver: it gets its own thread and never delays a tick. `options` is the type of its section in the
    configuration, and `about` the comment above that. `sole_fields` are the fields of a snapshot that no other
    collector fills.

    A collector that holds a device also has `release(seconds)`, so that an administrator can reset the device.
    One that may run more often when memory is nearly full has `fast_seconds`, the least time between two calls
    then. One that may block but rarely does can be `NonBlockingCollector` as well, and one that reads System RAM a
    `MovementProbe`.
    """

    name: str = ""
    period_seconds: float = 0.0
    may_block: bool = False
    options: ClassVar[type[SwitchableOptions]] = SwitchableOptions
    about: ClassVar[str] = ""
    sole_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    @classmethod
    def supports(cls, platform: str) -> bool:
        return platform == "linux"

    @classmethod
    def create(cls, host: Host) -> Collector:
        """Build the collector for a host. Raises `SourceUnavailable` where the host does not have what it reads.

        A subclass overrides this where its constructor takes more than the roots.
        """
        return cls(host.roots)

    def collect(self) -> Findings:
        """Read once. Raises `ParseError` or `OSError` on failure; any other exception is counted as a defect."""
        raise NotImplementedError

    def close(self) -> None:
        """Close files and end processes."""


@runtime_checkable
class NonBlockingCollector(Protocol):
    """A collector that may block and mostly answers within a tick, because another process does the work. Neither
    method raises."""

    def send_request(self) -> bool:
        """Send the question if that takes no time; return False where it would, and nothing was sent."""
        ...

    def has_answer(self, seconds: float) -> bool:
        """Return if `collect` would return at once, now or within that many seconds."""
        ...


@runtime_checkable
class MovementProbe(Protocol):
    """A collector that can check at little cost if its figure for System RAM is still what it was."""

    def moved_bytes(self) -> int:
        """Return the distance between available memory now and in the last result. Raises what `collect` raises."""
        ...


class CollectorEntry(Struct, frozen=True):
    """An entry of the list of collectors: `make` builds it, or raises `SourceUnavailable` on a machine without
    it."""

    name: str
    make: Callable[[], Collector]
    may_block: bool
