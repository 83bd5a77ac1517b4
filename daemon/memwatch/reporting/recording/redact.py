"""Redact a snapshot's JSON: replace names and ids of hosts, users and programs by numbered placeholders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

Json = Any

# Redacted fields and their placeholders.
HIDDEN = {
    "host": "host",
    "boot_id": "boot",
    "uuid": "uuid",
    "pci": "pci",
    "user": "user",
    "unit": "unit",
    "container": "container",
    "container_name": "container-name",
    "pod": "pod",
    "pod_name": "pod-name",
    "job": "job",
    "command": "command",
    "cgroup": "cgroup",
    "made_by": "client",
    "comment": "comment",
    "model": "model",
    "url": "url",
}
# Lists of records with a pid and a `name`, and the placeholders of these names.
PROGRAMS = {
    "processes": "process",
    "kills": "process",
    "tasks": "process",
    "claims": "allocator",
    "leases": "process",
}
# Model servers: their ids have names that users chose, and their notes have paths.
ENGINES = "engines"
# Reasons by field name. The texts are memwatchd's own and contain field names, not their values.
REASONS = "absent"
# The log line of a driver error: it may name programs that are no longer listed.
COMPLAINTS, LINE, HIDDEN_LINE = "driver_errors", "text", "(hidden)"
# A PID in a sentence.
PID = re.compile(r"\b(PID|kill) (\d{1,10})\b")
# Shorter names occur in too many unrelated words.
MIN_NAME_LENGTH = 4


class Redactor:
    """Maps names to placeholders, consistently across snapshots. Sizes, levels, times and hardware models stay.

    `shown` are fields of HIDDEN that stay. `pids` are process ids and the numbers that replace them; the others get
    numbers from `first_pid` upwards.
    """

    def __init__(
        self, shown: Collection[str] = (), pids: Mapping[int, int] | None = None, first_pid: int = 1
    ) -> None:
        self._hidden = {name: kind for name, kind in HIDDEN.items() if name not in shown}
        self._words: dict[tuple[str, object], str] = {}
        self._pids: dict[int, int] = dict(pids or {})
        self._next_pid = first_pid
        self._secrets: dict[str, str] = {}

    @property
    def hidden_counts(self) -> dict[str, int]:
        """Return the number of placeholders by kind."""
        return dict(Counter(kind for (kind, value), word in self._words.items() if word != value))

    def keep(self, kind: str, values: Iterable[str]) -> None:
        """Show these values of a kind."""
        self._words.update({(kind, value): value for value in values})

    def pid(self, pid: int) -> int:
        """Return the number that replaces a process id."""
        if pid not in self._pids:
            self._pids[pid] = self._next_pid
            self._next_pid += 1
        return self._pids[pid]

    def redact(self, snapshot: Json) -> Json:
        """Return a redacted copy."""
        hidden = self._walk(snapshot)
        return self._without_secrets(hidden)

    def _walk(self, value: Json) -> Json:
        if isinstance(value, dict):
            return {name: self._field(name, part) for name, part in value.items()}
        return [self._walk(part) for part in value] if isinstance(value, list) else value

    def _field(self, name: str, value: Json) -> Json:
        if name in PROGRAMS and isinstance(value, list):
            return [self._program(one, PROGRAMS[name]) for one in value]
        if name == ENGINES and isinstance(value, list):
            return [self._engine(one) for one in value]
        if name == REASONS:
            return value
        if name == COMPLAINTS and isinstance(value, list):
            return [{**self._walk(one), LINE: HIDDEN_LINE} for one in value]
        if name in self._hidden and isinstance(value, str):
            return self.word(self._hidden[name], value)
        return self._walk(value)

    def _program(self, record: Json, kind: str) -> Json:
        pid = self.pid(record["pid"])
        # A process that only a driver lists has no name.
        name = self.word(kind, record["name"]) if isinstance(record["name"], str) else record["name"]
        return {**self._walk(record), "name": name, "pid": pid}

    def _engine(self, record: Json) -> Json:
        pid, pids = record["pid"], [self.pid(one) for one in record["pids"]]
        known = pid if pid is None else self.pid(pid)
        return {
            **self._walk(record),
            "id": self.word("engine", record["id"]),
            "pid": known,
            "pids": pids,
            "notes": [],
        }

    def word(self, kind: str, value: str) -> str:
        """Return the placeholder of a name, such as `user-2`."""
        word = self._words.get((kind, value))
        if word is None:
            number = 1 + self.hidden_counts.get(kind, 0)
            word = self._words[kind, value] = f"{kind}-{number}"
            if len(value) >= MIN_NAME_LENGTH:
                self._secrets[value] = word
        return word

    def _without_secrets(self, value: Json) -> Json:
        """Replace redacted names and PIDs in sentences as well (errors, reasons, notes)."""
        if not self._secrets:
            return value
        longest_first = sorted(self._secrets, key=len, reverse=True)
        pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(one)}(?![\w-])" for one in longest_first))
        hidden = _in_sentences(value, lambda text: pattern.sub(lambda found: self._secrets[found[0]], text))
        return _in_sentences(hidden, lambda text: PID.sub(self._replaced_pid, text))

    def _replaced_pid(self, found: re.Match[str]) -> str:
        return f"{found[1]} {self._pids.get(int(found[2]), found[2])}"


def _in_sentences(value: Json, change: Callable[[str], str]) -> Json:
    if isinstance(value, dict):
        return {name: _in_sentences(part, change) for name, part in value.items()}
    if isinstance(value, list):
        return [_in_sentences(part, change) for part in value]
    return change(value) if isinstance(value, str) and " " in value else value
