"""Replace names, addresses and ids in text, by the same placeholders as in the recording of a report."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from memwatch.core.redaction import redact_text
from memwatch.monitor.recording.redact import MIN_NAME_LENGTH, Redactor

Json = Any

_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}([-_])(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
# Not the version of a kernel: 5.15.153.1-microsoft-standard-WSL2.
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d|-microsoft)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]*:[0-9A-Fa-f]*:)[0-9A-Fa-f:]{2,39}(?![\w:])")
# Ids of containers and machines, and short ids, which docker uses as host names. Figures have no letters.
_LONG_ID = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{32,128}|(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{12})(?![0-9A-Za-z])"
)
_HOME = re.compile(r"(/(?:home|Users|export/home|data/home|mnt/home|var/home)/)([^/\s:\"']+)")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
# System users of every machine. Replacing them in sentences would hide nothing.
PUBLIC_USERS = frozenset({"root", "daemon", "nobody", "bin", "sys", "memwatchd", "systemd"})
# Of ids of users that belong to people.
MIN_PERSON, FIRST_PERSON = 1000, 1001
_NOBODY = frozenset({65534, 65535, 0xFFFFFFFF})


class TextRedactor:
    """Redacts text. `counts` has the number of different values that were replaced, by kind."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor: Redactor = redactor
        redactor.keep("user", PUBLIC_USERS)
        self._numbers: dict[tuple[str, str], int] = {}
        self._names: dict[str, str] = {}
        self._people: dict[int, int] = {}
        self._folders: dict[str, str] = {}

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(self.redactor.hidden_counts)
        found.update(kind for kind, _ in self._numbers)
        if self._people:
            found["uid"] = len(self._people)
        return dict(found)

    def add_names(self, kind: str, names: Iterable[str]) -> None:
        """Replace these names (hosts, users) wherever they are a word."""
        for name in names:
            if len(name) >= MIN_NAME_LENGTH - 1 and name not in PUBLIC_USERS:
                self._names[name] = self.redactor.word(kind, name)

    def add_folder(self, folder: str, shown: str) -> None:
        """Replace a path at the beginning of others, such as that of a container's mount of the host's /proc."""
        if len(folder) > 1 and folder != shown:
            self._folders[folder] = shown

    def number(self, kind: str, value: str) -> int:
        """Return the number of a value among those of its kind, from 1."""
        known = sum(name == kind for name, _ in self._numbers)
        return self._numbers.setdefault((kind, value), known + 1)

    def uid(self, uid: int) -> int:
        """Return the number that replaces a user's or group's id. Those of the system stay."""
        if uid < MIN_PERSON or uid in _NOBODY:
            return uid
        return self._people.setdefault(uid, FIRST_PERSON + len(self._people))

    def text(self, text: str) -> str:
        """Return the text with placeholders. UUIDs and hexadecimal ids keep their format, as parsers need it."""
        for folder, shown in self._folders.items():
            text = text.replace(folder, shown)
        text = redact_text(text)
        text = _MAIL.sub(lambda found: f"mail-{self.number('mail', found[0])}", text)
        text = _HOME.sub(lambda found: found[1] + self.redactor.word("user", found[2]), text)
        text = _UUID.sub(lambda found: self.uuid(found[0], found[1]), text)
        text = _MAC.sub(lambda found: f"mac-{self.number('mac', found[0].lower())}", text)
        text = _IPV4.sub(lambda found: self._address(found[0]), text)
        text = _IPV6.sub(lambda found: self._address(found[0]), text)
        text = _LONG_ID.sub(lambda found: self.hexadecimal(found[0]), text)
        return self._without_names(text)

    def uuid(self, value: str, mark: str = "-") -> str:
        digits = f"{self.number('uuid', value.replace(mark, '-').lower()):032x}"
        return mark.join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def hexadecimal(self, value: str) -> str:
        """Return a hexadecimal number with as many digits."""
        return f"{self.number('id', value.lower()):0{len(value)}x}"

    def tree(self, value: Json) -> Json:
        """Return JSON with every string redacted, keys included."""
        if isinstance(value, dict):
            return {self.text(str(name)): self.tree(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.tree(part) for part in value]
        return self.text(value) if isinstance(value, str) else value

    def _address(self, text: str) -> str:
        try:
            found = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if found.is_loopback or found.is_unspecified else f"ip-{self.number('ip', str(found))}"

    def _without_names(self, text: str) -> str:
        if not self._names:
            return text
        longest_first = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])" for name in longest_first)
        return re.sub(pattern, lambda found: self._names[found[0]], text)
