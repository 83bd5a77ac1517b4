"""Decode the bytes that a terminal sends for keys and the mouse. Pure functions."""

from __future__ import annotations

import re

NAMES = {
    "\x03": "ctrl-c",
    "\x1a": "ctrl-z",
    "\x0c": "ctrl-l",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "esc",
}
FINALS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "P": "f1"}
TILDES = {"1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end", "11": "f1"}
MOUSE = re.compile(r"\x1b\[<(\d+);(\d+);(\d+)([Mm])")
ESCAPE = re.compile(r"\x1b[\[O]([0-9;?]*)([A-Za-z~])")
# The start of a sequence whose rest is still to come.
PARTIAL = re.compile(r"\x1b(\[[<0-9;?]*|O)?\Z")
LEFT_BUTTON, WHEEL_UP, WHEEL_DOWN = 0, 64, 65


def decode(text: str) -> tuple[list[str], str]:
    """Return the keys in `text`, and the start of a sequence at its end that is not complete."""
    keys: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\x1b":
            key = NAMES.get(text[at], text[at] if text[at].isprintable() else "")
            at += 1
        elif PARTIAL.match(text, at):
            return keys, text[at:]
        else:
            key, at = _sequence(text, at)
        if key:
            keys.append(key)
    return keys, ""


def _sequence(text: str, at: int) -> tuple[str, int]:
    mouse = MOUSE.match(text, at)
    if mouse:
        return _mouse(mouse), mouse.end()
    found = ESCAPE.match(text, at)
    if found is None:  # Alt and a key: the key alone counts
        return "", at + 1
    numbers, final = found[1].split(";"), found[2]
    name = TILDES.get(numbers[0], "") if final == "~" else FINALS.get(final, "")
    has_shift = len(numbers) > 1 and numbers[1] in ("2", "5")
    return f"shift-{name}" if has_shift and name in ("left", "right") else name, found.end()


def _mouse(found: re.Match[str]) -> str:
    button, column, line = int(found[1]), int(found[2]) - 1, int(found[3]) - 1
    if button == WHEEL_UP:
        return "wheel-up"
    if button == WHEEL_DOWN:
        return "wheel-down"
    return f"click {column} {line}" if button == LEFT_BUTTON and found[4] == "M" else ""
