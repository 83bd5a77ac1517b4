"""Characters that a terminal shows: all of Unicode, or ASCII with the same meaning."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Mapping

# Terminals without UTF-8, or whose font lacks most blocks: that of the Linux console has 256 or 512 characters.
PLAIN_TERMS = ("", "dumb", "linux")
# Locales that Python sets itself if it finds that of C (PEP 538).
COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
ERRORS = "memwatch.ascii"
SPELLINGS = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
    **dict(zip("▉▓▒░·▚▞▤■", "#=%:.x/&#", strict=True)),
    **dict(zip("│─├└┘┌┐┴┬╷╵▏", "|-|`'.-+-'' ", strict=True)),
    **dict(zip("●◆▲⬣▴†↑↓✓✗", "o*!X^X^vvx", strict=True)),
    **dict(zip("—–−…×≥µ÷≈", "---~x>u/~", strict=True)),
    "→": "->",
    "←": "<-",
    "⊂": "in",
    "°": "",
    "≤": "<=",
    "Δ": "d",
}


def needs_ascii(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Check that a locale or a terminal is without UTF-8. `is_terminal`: the output is one, so TERM counts."""
    if is_terminal and environ.get("TERM", "") in PLAIN_TERMS:
        return True
    names = [environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if not names[0] and names[1] in COERCED and names[2] in ("C", "POSIX"):
        return True
    found = next(filter(None, names), "UTF-8")
    return "utf8" not in found.lower().replace("-", "")


def to_ascii(text: str) -> str:
    """Return the text in ASCII. Most characters of ours keep their width; those of names become "?"."""
    return text if text.isascii() else "".join(char if char.isascii() else _spell(char) for char in text)


def _spell(char: str) -> str:
    if (found := SPELLINGS.get(char)) is not None:
        return found
    import unicodedata  # needed only for names

    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return ""
    if unicodedata.east_asian_width(char) in "WF":
        return "??"
    base = unicodedata.normalize("NFKD", char)[0]
    return base if base.isascii() and base.isprintable() else "?"


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_ascii(error.object[error.start : error.end]), error.end


def encode(text: str, is_ascii: bool) -> bytes:
    """Return the bytes of a text for a terminal."""
    return to_ascii(text).encode() if is_ascii else text.encode("utf-8", "replace")


def stdout_is_ascii() -> bool:
    return needs_ascii(sys.stdout.isatty(), os.environ)


def fit_output() -> None:
    """Let stdout and stderr write what their terminal shows. No text raises UnicodeEncodeError then."""
    codecs.register_error(ERRORS, _replace)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if needs_ascii(stream.isatty(), os.environ):
            stream.reconfigure(encoding="ascii", errors=ERRORS)
        else:
            stream.reconfigure(errors="backslashreplace")
