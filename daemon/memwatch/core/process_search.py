"""Search of processes by any of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from memwatch.core.model import Process, Words


class FoundProcesses(Struct, frozen=True):
    """The largest processes that were found, and the number of all."""

    processes: tuple[Process, ...]
    count: int


class ProcessSearch(Protocol):
    """Search of the processes that a snapshot does not list: smaller ones, without memory of a device."""

    def find(self, words: str, names: Mapping[str, str], max_count: int) -> FoundProcesses:
        """Return the processes whose text contains `words`, in lower case. `names`: those of containers by id."""

    def by_pid(self, pid: int) -> Process | None:
        """Return one of them, None if it is not among them."""


def search_text(pid: int, texts: tuple[Words | None, ...], names: Mapping[str, str]) -> str:
    """Return the text in which a search looks: the number, the known texts, and names of containers."""
    known = [text for text in texts if isinstance(text, str)]
    return " ".join([str(pid), *known, *(names[text] for text in known if text in names)]).lower()


def searched_texts(process: Process) -> tuple[Words | None, ...]:
    """Return the texts of a process that a search compares. The command line is one where it is shown."""
    owners = (process.user, process.unit, process.container, process.pod, process.job)
    return (process.title, process.name, *owners, process.command)
