"""Terminal driver: raw mode, the alternate screen, keys, and frames of which only changed lines are written."""

from __future__ import annotations

import os
import re
import termios
import tty
from collections.abc import Sequence
from typing import Any

from memwatch.cli.charset import encode
from memwatch.cli.terminal.style import Depth, Line, paint

# Decode the bytes that a terminal sends for keys and the mouse. Pure functions.

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


# Alternate screen, hidden cursor, no line wrap, mouse clicks and wheel in SGR form.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?1000h\x1b[?1006h\x1b[2J"
LEAVE = "\x1b[?1006l\x1b[?1000l\x1b[?7h\x1b[0m\x1b[?25h\x1b[?1049l"
# The terminal shows the frame at its end, not while it is drawn. Terminals without this mode ignore it.
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
CLEAR_LINE = "\x1b[K"
READ_BYTES = 4096


def changed_lines(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the escape sequences that turn the painted lines of one frame into those of the next."""
    parts = [
        f"\x1b[{number};1H{line}{CLEAR_LINE}"
        for number, line in enumerate(after, 1)
        if number > len(before) or before[number - 1] != line
    ]
    return "".join(parts)


class Screen:
    """A terminal in raw mode. `leave` restores it, and may be called more than once."""

    def __init__(self, output: int, keyboard: int | None, depth: Depth, is_ascii: bool = False) -> None:
        self._output, self._keyboard, self._depth, self._is_ascii = output, keyboard, depth, is_ascii
        self._saved: list[Any] | None = None
        self._shown: list[str] = []
        self._rest = ""
        self._is_entered = False

    def size(self) -> tuple[int, int]:
        """Return the width and height."""
        try:
            width, height = os.get_terminal_size(self._output)
        except OSError:
            return 80, 24
        return (width, height) if width and height else (80, 24)

    def enter(self) -> None:
        self._is_entered = True
        if self._keyboard is not None:
            self._saved = self._saved or termios.tcgetattr(self._keyboard)
            tty.setraw(self._keyboard, termios.TCSANOW)
        self._write(ENTER)
        self.forget()

    def leave(self) -> None:
        if not self._is_entered:
            return
        self._is_entered = False
        try:
            self._write(LEAVE)
        finally:
            if self._keyboard is not None and self._saved is not None:
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._saved)

    def forget(self) -> None:
        """Draw the whole next frame: the terminal was resized, or another program has written to it."""
        self._shown = []

    def show(self, lines: Sequence[Line]) -> int:
        """Write the changed lines in one go. Return the number of bytes."""
        painted = [paint(line, self._depth) for line in lines]
        changes = changed_lines(self._shown, painted)
        if not self._shown:
            changes = f"\x1b[2J{changes}"
        self._shown = painted
        return self._write(f"{BEGIN_FRAME}{changes}{END_FRAME}") if changes else 0

    def keys(self) -> list[str]:
        """Read the keys that have been pressed. Raises EOFError if the terminal is gone."""
        if self._keyboard is None:
            return []
        data = os.read(self._keyboard, READ_BYTES)
        if not data:
            raise EOFError
        keys, self._rest = decode(self._rest + data.decode("utf-8", "ignore"))
        return keys

    def pending_keys(self) -> list[str]:
        """Return the Esc key if nothing has followed it."""
        rest, self._rest = self._rest, ""
        return ["esc"] if rest == "\x1b" else []

    @property
    def has_pending(self) -> bool:
        return bool(self._rest)

    def _write(self, text: str) -> int:
        data = encode(text, self._is_ascii)
        left = memoryview(data)
        while left:
            left = left[os.write(self._output, left) :]
        return len(data)
