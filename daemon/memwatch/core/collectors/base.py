"""Base class and protocols of collectors, and the host that they are created for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field

from memwatch.core.engines.records import ModelQuery, ModelSizes
from memwatch.core.findings import Findings
from memwatch.core.linux.files import Roots
from memwatch.core.linux.pci import GpuPids
from memwatch.core.options import SwitchableOptions

if TYPE_CHECKING:
    from memwatch.core.budget import Budgets
    from memwatch.core.linux.key_owner import (
        KnownOwners,  # takes http.client, which only the collector engines needs
    )

AnyOptions = TypeVar("AnyOptions", bound=Struct)


# Reasons of a helper that are not errors: the driver may be loaded later, so the library is tried again.
NOT_HERE = frozenset({"no_library", "no_driver"})


class ScanOptions(Struct, frozen=True):
    """Options of the collectors that list processes."""

    top: int = 50
    period_seconds: float = 10.0
    command_lines: bool = False


class Host(Struct, frozen=True):
    """The machine that collectors read, with shared state. `options` holds the settings, one record per type.

    `size_model` reads the sizes of a model that a server has loaded, None if it is not wanted.
    `key_owners` remembers to whom API keys were sent. `budgets`: None for the defaults.
    """

    roots: Roots = Roots()
    options: tuple[Struct, ...] = ()
    platform: str = sys.platform
    page_size: int = os.sysconf("SC_PAGE_SIZE")
    gpu_pids: GpuPids = field(default_factory=GpuPids)
    size_model: Callable[[ModelQuery], ModelSizes] | None = None
    key_owners: KnownOwners | None = None
    budgets: Budgets | None = None

    def options_for(self, kind: type[AnyOptions]) -> AnyOptions:
        """Return the options of this type, or the defaults if none were set."""
        return next((one for one in self.options if type(one) is kind), None) or kind()


class Collector(Protocol):
    """A running collector. `BaseCollector` documents the members."""

    name: str
    period_seconds: float
    may_block: bool

    def collect(self) -> Findings: ...

    def close(self) -> None: ...


class BaseCollector:
    """Reads figures from one source. Subclasses set `name`, implement `collect`, and override defaults as needed.

    `name` identifies it in metrics, on pages and in the configuration. `period_seconds` is the time between two
    calls of `collect`; 0 means every tick. `may_block` is true for a collector whose reads can wait for a process
    or a driver: it gets its own thread and never delays a tick. `options` is the type of its section in the
    configuration, and `about` the comment above it.

    `signs` are paths below proc, sys or dev that appear together with the source. Of one that ends in `/`, the
    names in that folder count. A change makes a collector without a source try again soon.

    A collector that holds a device open also has `release(seconds)`, so that an administrator can reset the device.
    A collector that may run more often when memory is nearly full has `fast_seconds`, the minimum time between two
    calls then. One with a thread may have `has_news()`, called each tick: if true, it runs that soon as well. One
    that may block but rarely does can also be a `NonBlockingCollector`, one that reads System RAM a
    `MovementProbe`, and one whose file reports events to poll(2) a `Watch`.
    """

    name: str = ""
    period_seconds: float = 0.0
    may_block: bool = False
    options: type[SwitchableOptions] = SwitchableOptions
    about: ClassVar[str] = ""
    signs: tuple[str, ...] = ()

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    @classmethod
    def create(cls, host: Host) -> Collector:
        """Build the collector for a host. Raises `SourceUnavailable` if the host does not have its source.

        A subclass overrides this if its constructor takes more than the roots.
        """
        return cls(host.roots)

    def collect(self) -> Findings:
        """Read once. Raises `ParseError` or `OSError` on failure; any other exception is counted as a defect."""
        raise NotImplementedError

    def close(self) -> None:
        """Close files and end processes."""


@runtime_checkable
class NonBlockingCollector(Protocol):
    """A collector that may block but mostly answers within a tick, because another process does the work.

    Neither method raises.
    """

    def send_request(self) -> bool:
        """Send the request if that does not block. Return False, with nothing sent, if it would."""
        ...

    def has_answer(self, seconds: float) -> bool:
        """Return True if `collect` can return immediately, now or within that many seconds."""
        ...


@runtime_checkable
class MovementProbe(Protocol):
    """A collector that can check cheaply if its figure for System RAM has changed."""

    def moved_bytes(self) -> int:
        """Return the fall of available memory since the last result, negative after a rise.

        Raises the errors of `collect`.
        """
        ...


class CollectorEntry(Struct, frozen=True):
    """An entry in the list of collectors. `make` builds it, or raises `SourceUnavailable` if the machine does not
    have its source. `signs` are absolute paths."""

    name: str
    make: Callable[[], Collector]
    may_block: bool
    signs: tuple[str, ...] = ()
