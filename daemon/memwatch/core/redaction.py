"""Hide secrets in command lines, URLs and sentences. `secret_forms` says what a secret looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memwatch.core import secret_forms as forms

HIDDEN = "***"
NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
SEPARATORS = re.compile(r"([=:])")
SPACES = re.compile(r"(\s+)")
# Between them a path may begin: -v /data:/models, --x=/y, {"a":"/b"}.
MARKS = re.compile(r"([=:,;\"'(){}\[\]<>|&@?\s]+)")
# A file's name ends the text: shard-aB3dE5fG.parquet. Keys with dots have known beginnings.
EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,11}(?![A-Za-z0-9_\-])")
WEAK_VALUE = re.compile(r"(?<![A-Za-z0-9_.\-])([A-Za-z0-9_.\-]{1,64})([\"']?[=:][\"']?)([A-Za-z0-9+/_.\-]{16,}=*)")
# ada:password@tcp(db:3306)/x. Not the digest of an image: name:tag@sha256:….
LOGIN = re.compile(r"(?<![\w.+\-])[\w.+\-]{1,128}:[^@/\s:]{1,256}@(?!sha256:)(?=[\w(\[])")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*$")
QUERY_MARKS = re.compile(r"([&;#?])")
# Names of query values that identify a thing: they may be hexadecimal.
THINGS = frozenset(["ref", "rev", "revision", "commit", "sha", "sha256", "digest", "uuid", "id", "hash", "etag"])
MIN_HEXADECIMAL = 16
_HEXADECIMAL = re.compile(rf"[0-9a-fA-F-]{{{MIN_HEXADECIMAL},}}")
_OPTIONS = {program: re.compile(pattern, re.DOTALL) for program, pattern in forms.SHORT_OPTIONS.items()}


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each secret replaced. Linear in their length.

    An option named like a secret hides the argument after it, even one that looks like an option.
    """
    reader = _CommandReader()
    return [reader.redact(argument) for argument in arguments]


def redact_text(text: str) -> str:
    """Hide the secrets of URLs and known kinds of keys in a sentence. Names of secrets hide nothing here."""
    if "://" not in text and "@" not in text and not forms.KEYS.search(text):
        return text
    return "".join(part if part.isspace() else _redact_url_and_keys(part) for part in SPACES.split(text))


def _redact_url_and_keys(word: str) -> str:
    shown = redact_urls(word)
    return forms.KEYS.sub(HIDDEN, shown if "://" in shown else LOGIN.sub(f"{HIDDEN}@", shown, count=1))


class _CommandReader:
    """Reads the words of a command in order: a word may tell that the next one is a secret."""

    def __init__(self) -> None:
        self._program = ""
        self._is_first = True
        self._has_login = self._hides_next = self._checks_next = self._hides_rest = False

    def redact(self, argument: str) -> str:
        """Redact an argument, which may be a whole command for a shell."""
        if self._hides_next or self._checks_next:
            return self._redact_value(argument)
        if SPACES.search(argument):
            return self._redact_command(forms.PRIVATE_KEY.sub(HIDDEN, argument))
        shown, is_cut = self._redact_word(argument)
        self._hides_next = self._hides_next or (is_cut and argument.endswith((":", "=")))
        return shown

    def _redact_value(self, value: str) -> str:
        hides, self._hides_next, self._checks_next = self._hides_next, False, False
        if hides:
            return redact_value(value)
        return HIDDEN if forms.is_weak_secret(value) else self.redact(value)

    def _redact_command(self, argument: str) -> str:
        """Show nothing after a word that names a secret: where its value ends depends on the quotes of a shell."""
        parts, inner = SPACES.split(argument), _CommandReader()
        for index in range(0, len(parts), 2):
            word = parts[index]
            if inner._checks_next:
                parts[index] = inner._redact_value(word)
                continue
            parts[index], is_cut = inner._redact_word(word)
            hides = inner._hides_next or (is_cut and (word.endswith((":", "=")) or _is_open_quote(word)))
            if hides and index + 1 == len(parts):
                self._hides_next = not _is_open_quote(word)
            elif hides and (is_cut or redact_value(parts[index + 2]) == HIDDEN):
                return f"{''.join(parts[: index + 1])} {HIDDEN}"
            inner._hides_next = False
        return "".join(parts)

    def _redact_word(self, word: str) -> tuple[str, bool]:
        """Redact a word without spaces. The second value is True if it names a secret before = or a colon."""
        is_first, self._is_first = self._is_first, False
        self._follow_program(word)
        if self._hides_rest and not word.startswith("-"):
            return HIDDEN, False
        self._hides_rest = self._hides_rest or word in forms.SECRET_ARGUMENTS.get(self._program, ())
        if option := self._match_option(word):
            name, value = option
            self._hides_next = not value
            return name + (HIDDEN if value else ""), False
        self._hides_next = _names_secret(word) or (word.lower() in forms.POSITIONAL_NAMES and not is_first)
        self._checks_next = word.startswith("-") and "=" not in word and forms.is_weak_name(word)
        return redact_word(word)

    def _follow_program(self, word: str) -> None:
        name = word.rpartition("/")[2]
        if name in _OPTIONS or name in forms.SECRET_ARGUMENTS:
            self._program, self._has_login, self._hides_rest = name, False, False
        self._has_login = self._has_login or word == "login"

    def _match_option(self, word: str) -> tuple[str, str] | None:
        pattern = _OPTIONS.get(self._program)
        if pattern is None or (self._program in forms.AFTER_LOGIN and not self._has_login):
            return None
        found = pattern.fullmatch(word)
        return (found[1], found[2]) if found else None


def redact_value(value: str) -> str:
    """Redact the value of a secret name. Words that switch, and paths of files, are shown."""
    plain = value.strip("\"'").lower() in forms.PLAIN_VALUES
    path = forms.is_path(value) and not _has_random_part(value)
    return value if plain or path or not value else HIDDEN


def _has_random_part(path: str) -> bool:
    return any(forms.has_random(part) for part in path.split("/"))


def redact_word(word: str) -> tuple[str, bool]:
    pieces = SEPARATORS.split(word)
    for index in range(0, len(pieces) - 1, 2):
        name = NOT_IN_NAME.split(pieces[index].rstrip("\"'"))[-1]
        if forms.is_secret_name(name) and not pieces[index + 2].startswith("//"):
            rest = "".join(pieces[index + 2 :])
            return redact_parts("".join(pieces[: index + 2])) + redact_value(rest), True
    return redact_parts(word), False


def redact_parts(word: str) -> str:
    """Redact URLs, logins, known kinds of keys, values of weak names and random text."""
    word = _redact_url_and_keys(word)
    return word if "://" in word else _redact_random(WEAK_VALUE.sub(_redact_weak, word))


def _redact_weak(found: re.Match[str]) -> str:
    hides = forms.is_weak_name(found[1]) and forms.is_weak_secret(found[3])
    return f"{found[1]}{found[2]}{HIDDEN if hides else found[3]}"


def _redact_random(word: str) -> str:
    parts = MARKS.split(word) if len(word) >= forms.MIN_RANDOM else [word]
    return "".join(part if forms.is_path(part) else _redact_runs(part) for part in parts)


def _redact_runs(text: str) -> str:
    def change(found: re.Match[str]) -> str:
        is_file = EXTENSION.match(text, found.end())
        return found[0] if is_file or not forms.is_random(found[0]) else HIDDEN

    return forms.RUN.sub(change, text)


def redact_urls(word: str) -> str:
    """Redact the URLs in a word: logins, addresses of receivers, tokens in the path, values of the query."""
    if "://" not in word:
        host, slash, _ = word.partition("/")
        return f"{host}/{HIDDEN}" if slash and _is_receiver(host) else word
    first, *others = word.split("://")
    found, before = [first], first
    for rest in others:
        scheme = SCHEME.search(before[-32:])
        found.append(_redact_url(scheme[0].lower() if scheme else "", rest))
        before = rest
    return "://".join(found)


def _redact_url(scheme: str, rest: str) -> str:
    """Redact a URL without its scheme."""
    if scheme in forms.APPRISE_SCHEMES:
        return HIDDEN
    login, host, tail = _split_url(rest)
    if _is_receiver(host):
        return f"{login}{host}{tail[:1] and f'/{HIDDEN}'}"
    path, mark, query = _partition_query(tail)
    return f"{login}{host}{_redact_path(path)}{mark}{_redact_query(query)}"


def _split_url(rest: str) -> tuple[str, str, str]:
    """Return the redacted login, the host with its port, and the rest."""
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    port = rest[:end].rpartition(":")[2]
    if "@" not in rest[:end] and ":" in rest[:end] and "@" in rest and not port.isdecimal() and "]" not in port:
        end = rest.rfind("@") + 1  # a password with a slash
        end = min((at for at in (rest.find(char, end) for char in "/?#") if at >= 0), default=len(rest))
    login, mark, host = rest[:end].rpartition("@")
    return f"{HIDDEN if login else ''}{mark}", host, rest[end:]


def _is_receiver(host: str) -> bool:
    name = host.partition(":")[0].lower()
    return name.startswith("ntfy.") or any(name == one or name.endswith(f".{one}") for one in forms.RECEIVERS)


def _partition_query(tail: str) -> tuple[str, str, str]:
    at = min((at for at in map(tail.find, "?#") if at >= 0), default=len(tail))
    return tail[:at], tail[at : at + 1], tail[at + 1 :]


def _redact_path(path: str) -> str:
    parts = path.split("/")
    for index, part in enumerate(parts[:-1]):
        if part.lower() in forms.SECRET_FOLDERS and any(parts[index + 1 :]):
            return "/".join([*map(_redact_runs, parts[: index + 1]), HIDDEN])
    return "/".join(map(_redact_runs, parts))


def _redact_query(query: str) -> str:
    return "".join(map(_redact_query_value, QUERY_MARKS.split(query)))


def _redact_query_value(pair: str) -> str:
    name, mark, value = pair.partition("=")
    if not value:
        return _redact_runs(pair)
    hides = (forms.is_secret_name(name) and redact_value(value) == HIDDEN) or forms.is_weak_name(name)
    hides = hides or (name.lower() not in THINGS and bool(_HEXADECIMAL.fullmatch(value)) and not value.isdecimal())
    return f"{name}{mark}{HIDDEN if hides else _redact_runs(value)}"


def _names_secret(word: str) -> bool:
    """Return True for an option whose value is the next word: --token, but not token."""
    return word.startswith("-") and forms.is_secret_name(word.lstrip("-")) and not NOT_IN_NAME.search(word)


def _is_open_quote(word: str) -> bool:
    return word.count("'") % 2 == 1 or word.count('"') % 2 == 1
