"""Hide secrets in command lines: values with the name of a secret, logins in URLs, known kinds of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

HIDDEN = "***"
# Words that name a secret, as a part of a longer name: db-password, HF_TOKEN, apiKey.
WORDS = frozenset(
    {"password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "secret", "token", "credential"}
)
WORDS |= {
    "credentials",
    "apikey",
    "authkey",
    "accesskey",
    "secretkey",
    "privatekey",
    "authorization",
    "auth",
    "bearer",
}
# Ends of names without separators: PGPASSWORD, mysqlpwd.
ENDINGS = ("password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "secretkey", "accesskey")
KEY_KINDS = frozenset({"api", "access", "secret", "private", "auth", "encryption", "signing", "master", "account"})
# A name that ends in one of these tells where the secret is, or how long: --password-file.
HARMLESS_ENDS = frozenset({"file", "path", "stdin", "prompt", "length", "count", "limit"})
# Options that are secrets only of these programs.
SHORT_OPTIONS = {
    "mysql": "-p", "mysqldump": "-p", "mariadb": "-p", "sshpass": "-p", "curl": "-u", "redis-cli": "-a",
    "smbclient": "-U",
}  # fmt: skip
LOGIN_OPTIONS = frozenset({"--user", "--proxy-user"})
TOKENS = re.compile(
    r"(?:hf_|gh[opsur]_|github_pat_|glpat-|sk-|xox[abeprs]-|AKIA|eyJ|nvapi-|wandb_|dckr_pat_)[A-Za-z0-9_.\-]{12,}"
)
CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NOT_IN_WORD = re.compile(r"[^A-Za-z0-9]+")
NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
SEPARATORS = re.compile(r"([=:])")
SPACES = re.compile(r"(\s+)")


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each secret replaced. Linear in their length.

    An option named like a secret hides the argument after it, even one that looks like an option.
    """
    program = arguments[0].rpartition("/")[2] if arguments else ""
    short = SHORT_OPTIONS.get(program)
    found, is_value = [], False
    for argument in arguments:
        if is_value:
            found.append(HIDDEN)
            is_value = False
        elif short and argument.startswith(short):
            found.append(short + HIDDEN if argument != short else short)
            is_value = argument == short
        elif argument in LOGIN_OPTIONS and short:
            found.append(argument)
            is_value = True
        else:
            shown, is_value = redact_words(argument)
            found.append(shown)
    return found


def redact_words(argument: str) -> tuple[str, bool]:
    """Redact an argument, which may be a whole command. The second value is True if its last word names a secret.

    Nothing after a word that names a secret is shown: where the value ends depends on the quotes of a shell.
    """
    parts = SPACES.split(argument)
    for index in range(0, len(parts), 2):
        word = parts[index]
        parts[index], is_cut = redact_word(word)
        if names_secret(word) or (is_cut and (word.endswith((":", "=")) or is_open_quote(word))):
            is_last = index + 1 == len(parts)
            shown = "".join(parts[: index + 1])
            return (shown, not is_open_quote(word)) if is_last else (f"{shown} {HIDDEN}", False)
    return "".join(parts), False


def redact_word(word: str) -> tuple[str, bool]:
    """Redact a word without spaces. The second value is True if it names a secret before = or a colon."""
    pieces = SEPARATORS.split(word)
    for index in range(0, len(pieces) - 1, 2):
        name = NOT_IN_NAME.split(pieces[index].rstrip("\"'"))[-1]
        if is_secret_name(name) and not pieces[index + 2].startswith("//"):
            is_empty = index + 3 == len(pieces) and not pieces[index + 2]
            return redact_parts("".join(pieces[: index + 2])) + ("" if is_empty else HIDDEN), True
    return redact_parts(word), False


def redact_parts(word: str) -> str:
    """Redact logins of URLs and known kinds of tokens."""
    first, *others = word.split("://")
    return TOKENS.sub(HIDDEN, "://".join([first, *map(redact_login, others)]))


def redact_login(rest: str) -> str:
    """Redact the user and password in a URL without its scheme."""
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    login, mark, host = rest[:end].rpartition("@")
    return f"{HIDDEN if login else ''}{mark}{host}{rest[end:]}"


def names_secret(word: str) -> bool:
    """Return True for an option whose value is the next word: --token, but not token."""
    return word.startswith("-") and is_secret_name(word.lstrip("-")) and not NOT_IN_NAME.search(word)


def is_secret_name(name: str) -> bool:
    words = [part.lower() for part in NOT_IN_WORD.split(CAPITALS.sub("_", name)) if part]
    if not words or words[-1] in HARMLESS_ENDS:
        return False
    if not WORDS.isdisjoint(words) or words[-1].endswith(ENDINGS):
        return True
    return any(kind in KEY_KINDS and word in ("key", "keys") for kind, word in pairwise(words))


def is_open_quote(word: str) -> bool:
    return word.count("'") % 2 == 1 or word.count('"') % 2 == 1
